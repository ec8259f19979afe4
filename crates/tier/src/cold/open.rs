//! From an offset to the object that holds it: manifest, pages, indexes.
//!
//! **Owns** the small caches of pages and indexes, one request for each however many want it, and the first range of an
//! object that is asked for together with its index.

use std::sync::Arc;

use bytes::Bytes;
use tidelog_format::{
    keys::ObjectKey,
    manifest::{ManifestEntry, PageLine},
    object::ServingIndex,
};
use tidelog_object::{ChunkKey, Expected};
use tidelog_replica::{ColdError, ColdPlace};
use tidelog_types::{Offset, TopicPartition, limits::COLD_UNIT_BYTES};

use crate::pages::PAGE_READ_BYTES;

use super::{
    Shared,
    charged::Charged,
    flights::{Claim, Joined},
    get::Admission,
    object::{OpenObject, Unit, cut},
    read::is_small,
    ring::NewUnit,
};

/// The largest index that is read: 256 MiB of intervals take a quarter of a megabyte, the rest is for aborted transactions.
const INDEX_BYTES_MAX: u64 = 16 * 1024 * 1024;

impl Shared {
    /// The entry that holds `offset`; `None` below the first and above the last.
    pub(crate) async fn entry_at(
        self: &Arc<Self>,
        place: &ColdPlace,
        offset: Offset,
    ) -> Result<Option<ManifestEntry>, ColdError> {
        let manifest = &place.image.manifest;
        if manifest.entries.first().is_some_and(|first| first.range.base <= offset) {
            let at = manifest.entries.partition_point(|entry| entry.range.end <= offset);
            return Ok(manifest.entries.get(at).copied().filter(|entry| entry.range.contains(offset)));
        }
        let at = manifest.lines.partition_point(|line| line.range.end <= offset);
        let Some(line) = manifest.lines.get(at).filter(|line| line.range.contains(offset)) else {
            return Ok(None);
        };
        let entries = self.page(place, line).await?;
        let at = entries.partition_point(|entry| entry.range.end <= offset);
        match entries.get(at).filter(|entry| entry.range.contains(offset)) {
            Some(entry) => Ok(Some(*entry)),
            None => Err(ColdError::Damaged {
                why: format!("page {} lacks its offset {offset}", line.page.base).into(),
            }),
        }
    }

    /// Whether the entry that holds `offset` is found without asking the bucket.
    pub(crate) fn knows_entry_at(&self, place: &ColdPlace, offset: Offset) -> bool {
        let manifest = &place.image.manifest;
        let is_held = manifest.entries.first().is_some_and(|first| first.range.base <= offset);
        is_held || {
            let at = manifest.lines.partition_point(|line| line.range.end <= offset);
            manifest.lines.get(at).is_none_or(|line| self.pages.get(place.place, line.page).is_some())
        }
    }

    /// The entries of a page.
    pub(crate) async fn page(
        self: &Arc<Self>,
        place: &ColdPlace,
        line: &PageLine,
    ) -> Result<Arc<[ManifestEntry]>, ColdError> {
        let id = (place.place, line.page);
        if let Some(entries) = self.pages.get(place.place, line.page) {
            return Ok(entries);
        }
        let landing = match self.page_flights.join(id) {
            Joined::UnderWay(landing) => {
                self.metrics.joined.inc();
                landing
            }
            Joined::Claimed(landing, claim) => {
                let (shared, line) = (Arc::clone(self), *line);
                let key = ObjectKey::Page { topic: place.topic.clone(), place: place.place, page: line.page };
                self.fly("cold page", async move {
                    let (place, page) = claim.key();
                    if let Some(entries) = shared.pages.get(place, page) {
                        return claim.land(Ok(entries));
                    }
                    let Some(_admitted) = shared.admit(1, PAGE_READ_BYTES, &[&claim]).await else {
                        return;
                    };
                    let loaded = shared.load_page(&key.to_string(), place, &line).await;
                    if let Ok(entries) = &loaded {
                        shared.pages.keep(place, page, Arc::clone(entries));
                    }
                    claim.land(loaded);
                });
                landing
            }
        };
        landing.landed().await
    }

    async fn load_page(
        &self,
        key: &str,
        place: TopicPartition,
        line: &PageLine,
    ) -> Result<Arc<[ManifestEntry]>, ColdError> {
        let mut why = String::new();
        // Once more where the bytes are not a page: they may have been hurt on their way.
        for _ in 0..2 {
            let bytes = self.get_whole(key, line.range.base, PAGE_READ_BYTES).await?;
            match self.pages.decode(key, place, &bytes) {
                Ok(entries) => return Ok(entries),
                Err(error) => why = error.to_string(),
            }
            self.metrics.corrupt_intervals.inc();
        }
        self.complain("a manifest page of the bucket is damaged", key, &why);
        Err(ColdError::Damaged { why: why.into() })
    }

    /// The object of an entry, its index read. `with_start`: a reader begins at its first batch, so that its first unit is
    /// asked for at the same time.
    pub(crate) async fn open(
        self: &Arc<Self>,
        place: &ColdPlace,
        entry: &ManifestEntry,
        with_start: bool,
    ) -> Result<Arc<OpenObject>, ColdError> {
        let id = (place.place, entry.object);
        if let Some(object) = self.objects.get(&id).filter(|object| object.entry == *entry) {
            return Ok(object);
        }
        let landing = match self.object_flights.join(id) {
            Joined::UnderWay(landing) => {
                self.metrics.joined.inc();
                landing
            }
            Joined::Claimed(landing, claim) => {
                let key = ObjectKey::Segment {
                    topic: place.topic.clone(),
                    place: place.place,
                    object: entry.object,
                };
                let (shared, entry) = (Arc::clone(self), *entry);
                self.fly("cold index", async move {
                    shared.land_object(claim, key.to_string().into(), entry, with_start).await;
                });
                landing
            }
        };
        landing.landed().await
    }

    async fn land_object(
        &self,
        claim: Claim<super::ObjectId, Arc<OpenObject>>,
        key: Arc<str>,
        entry: ManifestEntry,
        with_start: bool,
    ) {
        if let Some(object) = self.objects.get(&claim.key()).filter(|object| object.entry == entry) {
            return claim.land(Ok(object));
        }
        let index = entry.index;
        if index.bytes == 0 || index.bytes > INDEX_BYTES_MAX {
            let why = format!("the manifest names an index of {} bytes for `{key}`", index.bytes);
            return claim.land(Err(ColdError::Damaged { why: why.into() }));
        }
        let place = claim.key().0;
        let start = if with_start { self.start_of(place, &entry).await } else { 0 };
        // Small objects come whole with their index, in one request.
        let whole = start == entry.bytes
            && entry.position.checked_add(entry.bytes) == Some(index.position)
            && is_small(&entry);
        let requests = if start > 0 && !whole { 2 } else { 1 };
        let bytes = start.saturating_add(index.bytes);
        let Some(mut admission) = self.admit(requests, bytes, &[&claim]).await else { return };
        let loaded = match (start, whole) {
            (0, _) => self.load_index(&key, &entry, None).await,
            (_, true) => self.load_whole(&key, &entry, place, &mut admission).await,
            (_, false) => self.load_with_start(&key, &entry, place, start, &mut admission).await,
        };
        if let Ok(object) = &loaded {
            self.objects.insert(claim.key(), Arc::clone(object), object.memory_bytes());
        }
        claim.land(loaded);
        drop(admission);
        self.relieve();
    }

    /// How many bytes to ask for beside the index: none where the first unit is at hand.
    async fn start_of(&self, place: TopicPartition, entry: &ManifestEntry) -> u64 {
        let first = self.chunk_key(place, entry, 0);
        if self.ring.holds(&first) || self.cache.get(&first).await.is_some() {
            return 0;
        }
        entry.bytes.min(COLD_UNIT_BYTES)
    }

    /// Reads the index; `first`: what came of a first try.
    async fn load_index(
        &self,
        key: &Arc<str>,
        entry: &ManifestEntry,
        first: Option<(Bytes, Option<tidelog_object::ETag>)>,
    ) -> Result<Arc<OpenObject>, ColdError> {
        let section = entry.index;
        let range = section.position..section.position.saturating_add(section.bytes);
        let mut why = String::new();
        let mut first = first;
        for _ in 0..2 {
            let (bytes, etag) = match first.take() {
                Some(first) => first,
                None => {
                    let expect = Expected { object_bytes: entry.object_bytes, etag: None };
                    let got = self.get_range(key, entry.range.base, range.clone(), expect).await?;
                    (whole(&got.chunks), Some(got.etag))
                }
            };
            match ServingIndex::decode(&bytes, entry) {
                Ok(index) => return Ok(Arc::new(OpenObject::new(*entry, Arc::clone(key), index, etag))),
                Err(error) => why = error.to_string(),
            }
            self.metrics.corrupt_intervals.inc();
        }
        self.complain("the index of an object of the bucket is damaged", key, &why);
        Err(ColdError::Damaged { why: format!("index of `{key}`: {why}").into() })
    }

    /// Reads batches and index in one request.
    async fn load_whole(
        &self,
        key: &Arc<str>,
        entry: &ManifestEntry,
        place: TopicPartition,
        admission: &mut Admission,
    ) -> Result<Arc<OpenObject>, ColdError> {
        let to = entry.index.position.saturating_add(entry.index.bytes);
        let expect = Expected { object_bytes: entry.object_bytes, etag: None };
        let got = self.get_range(key, entry.range.base, entry.position..to, expect).await?;
        let all = whole(&got.chunks);
        let border = usize::try_from(entry.bytes).unwrap_or(usize::MAX).min(all.len());
        let index = all.slice(border..);
        let object = self.load_index(key, entry, Some((index, Some(got.etag)))).await?;
        self.keep_start(place, &object, &[all.slice(..border)], admission);
        Ok(object)
    }

    /// Reads the index and the first unit at the same time.
    async fn load_with_start(
        &self,
        key: &Arc<str>,
        entry: &ManifestEntry,
        place: TopicPartition,
        start: u64,
        admission: &mut Admission,
    ) -> Result<Arc<OpenObject>, ColdError> {
        let expect = Expected { object_bytes: entry.object_bytes, etag: None };
        let range = entry.position..entry.position.saturating_add(start);
        let (object, start) = tokio::join!(
            self.load_index(key, entry, None),
            self.get_range(key, entry.range.base, range, expect)
        );
        let object = object?;
        // Where only the start failed, its reader asks for it again and learns why.
        if let Ok(got) = start {
            self.keep_start(place, &object, &got.chunks, admission);
        }
        Ok(object)
    }

    /// Puts the units that lie in the first bytes of an object into the ring; damaged ones are left out, to be asked for
    /// again.
    fn keep_start(
        &self,
        place: TopicPartition,
        object: &OpenObject,
        chunks: &[Bytes],
        admission: &mut Admission,
    ) {
        let now = self.clock.monotonic();
        for unit in &object.units {
            let at = |position: u64| {
                usize::try_from(position.saturating_sub(object.entry.position)).unwrap_or(usize::MAX)
            };
            let Some(bytes) = cut(chunks, at(unit.position.start)..at(unit.position.end)) else { return };
            let damaged = self.damaged_intervals(object, unit, &bytes);
            if damaged > 0 {
                self.metrics.corrupt_intervals.add(damaged);
                continue;
            }
            let permit = admission.permit.split(unit.bytes().min(admission.permit.bytes()));
            let key = self.chunk_key(place, &object.entry, unit.number);
            let end = unit.end;
            let unit = Charged::new(bytes, permit);
            self.ring.insert(NewUnit { key, unit, end, ahead: false, cached: false }, now);
        }
        self.keep_sweeping();
    }

    /// How many intervals of a unit are not what was written.
    pub(crate) fn damaged_intervals(&self, object: &OpenObject, unit: &Unit, bytes: &[u8]) -> u64 {
        if self.mistakes.ignore_interval_crc { 0 } else { object.damaged_intervals(unit, bytes) }
    }

    pub(crate) fn chunk_key(&self, place: TopicPartition, entry: &ManifestEntry, unit: u64) -> ChunkKey {
        ChunkKey {
            cluster_id: self.cluster_id,
            topic_id: place.topic_id,
            partition: place.partition,
            upload: entry.object.upload,
            unit,
        }
    }
}

fn whole(chunks: &[Bytes]) -> Bytes {
    match chunks {
        [only] => only.clone(),
        _ => chunks.concat().into(),
    }
}
