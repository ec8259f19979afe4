//! The bucket against the manifest, at every change of either.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tidelog_controller::Controller;
use tidelog_core::cluster::{MetadataImage, ObjectName, PartitionImage};
use tidelog_format::{
    keys::{ObjectKey, topic_folder},
    manifest::{ManifestEntry, Page, PageLine},
    object::Footer,
};
use tidelog_runtime::Clock;
use tidelog_sim::{SimClock, Trace};
use tidelog_testkit::{BucketObserver, SimBucket};
use tidelog_types::{Offset, TopicId, TopicName, TopicPartition};

use super::node::{GRACE, ORPHAN_AGE};

/// The state machine's time moves in ticks of a second, so that a grace may seem shorter by two.
const TICKS: Duration = Duration::from_millis(2_500);

/// What one partition named when it was last looked at.
#[derive(Clone)]
struct Named {
    image: Arc<PartitionImage>,
    topic: TopicName,
    keys: BTreeSet<String>,
}

#[derive(Default)]
struct Seen {
    controller: Option<Controller>,
    named: BTreeMap<TopicPartition, Named>,
    /// Since when what was named is named no more.
    dropped: BTreeMap<String, Duration>,
    /// Keys that were deleted when it was time. A key is never written again on purpose: what a put that comes late leaves there
    /// may go with a deletion that comes as late.
    spent: BTreeSet<String>,
    /// Since when topics are gone, by the folder of their keys.
    gone: BTreeMap<String, Duration>,
    /// Objects whose footer was compared with their entry.
    checked: BTreeMap<String, ManifestEntry>,
    /// Entries of pages, decoded once.
    pages: BTreeMap<String, Arc<[ManifestEntry]>>,
    finding: Option<String>,
    images: u64,
    deletions: u64,
}

/// See the module. Clones are the same.
#[derive(Clone)]
pub(crate) struct Auditor {
    clock: SimClock,
    bucket: SimBucket,
    trace: Trace,
    seen: Arc<Mutex<Seen>>,
}

impl Auditor {
    pub(crate) fn new(clock: SimClock, bucket: SimBucket, trace: Trace) -> Self {
        let auditor = Self { clock, bucket: bucket.clone(), trace, seen: Arc::default() };
        bucket.observe(Some(Arc::new(auditor.clone())));
        auditor
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// What must not be, if anything was seen.
    pub(crate) fn finding(&self) -> Option<String> {
        self.lock().finding.clone()
    }

    /// Images and deletions that were compared.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let seen = self.lock();
        (seen.images, seen.deletions)
    }

    /// Follows a controller until it ends.
    pub(crate) async fn follow(self, controller: Controller) {
        let mut images = controller.watch();
        self.lock().controller = Some(controller);
        loop {
            let image = Arc::clone(&images.borrow_and_update());
            self.see(&image);
            if images.changed().await.is_err() {
                return;
            }
        }
    }

    /// The node is gone; what was committed stays.
    pub(crate) fn unfollow(&self) {
        self.lock().controller = None;
    }

    /// Compares an image with the one before and with the bucket.
    fn see(&self, image: &MetadataImage) {
        self.trace.note(format_args!("image {}", image.index));
        let mut seen = self.lock();
        seen.images += 1;
        let now = self.clock.monotonic();
        if let Err(why) = seen.take(image, now, &self.bucket) {
            seen.finding.get_or_insert(why);
        }
    }

    /// Keys in the bucket that nothing names now.
    pub(crate) fn unnamed(&self) -> Vec<String> {
        let seen = self.lock();
        let named: BTreeSet<&String> = seen.named.values().flat_map(|named| &named.keys).collect();
        self.bucket.keys().into_keys().filter(|key| !named.contains(key)).collect()
    }
}

impl BucketObserver for Auditor {
    fn deletes(&self, key: &str) {
        let controller = self.lock().controller.clone();
        if let Some(controller) = controller {
            self.see(&controller.image());
        }
        let (now, wall) = (self.clock.monotonic(), self.clock.wall());
        let written = self.bucket.written(key);
        let age = written.map_or(Duration::MAX, |written| Duration::from_millis(wall.millis_since(written)));
        let mut seen = self.lock();
        seen.deletions += 1;
        match seen.judge(key, now, age) {
            Some(why) => drop(seen.finding.get_or_insert(why)),
            None => drop(seen.spent.insert(key.to_owned())),
        }
    }
}

impl Seen {
    /// Why an object must not be deleted now.
    fn judge(&self, key: &str, now: Duration, age: Duration) -> Option<String> {
        if self.named.values().any(|named| named.keys.contains(key)) {
            return Some(format!("I9: {key} is deleted while it is named"));
        }
        if self.spent.contains(key) {
            return None;
        }
        let enough = |waited: Duration, asked: Duration| waited + TICKS >= asked;
        if let Some(dropped) = self.dropped.get(key) {
            let since = now.saturating_sub(*dropped);
            return (!enough(since, GRACE))
                .then(|| format!("I9: {key} is deleted {since:?} after it was dropped"));
        }
        // What came late into the folder of a topic that is gone goes at once.
        let gone = self.gone.iter().find(|(folder, _)| key.starts_with(folder.as_str()));
        let emptied = gone.is_some_and(|(_, gone)| enough(now.saturating_sub(*gone), GRACE));
        // It may have been named and dropped between two looks.
        let is_old = enough(age, GRACE.min(ORPHAN_AGE));
        (!emptied && !is_old).then(|| format!("I9: {key} is deleted {age:?} after it was written"))
    }

    fn take(&mut self, image: &MetadataImage, now: Duration, bucket: &SimBucket) -> Result<(), String> {
        let mut places = BTreeSet::new();
        for topic in image.topics() {
            for (place, partition) in image.partitions().filter(|(place, _)| place.topic_id == topic.id) {
                places.insert(place);
                let before = self.named.get(&place).cloned();
                if before.as_ref().is_some_and(|before| Arc::ptr_eq(&before.image, partition)) {
                    continue;
                }
                if let Some(before) = &before {
                    never_back(&before.image, partition).map_err(|why| format!("{}: {why}", topic.name))?;
                }
                let named = self.named_by(&topic.name, place, partition, bucket);
                let keys = named.map_err(|why| format!("{}: {why}", topic.name))?;
                for key in before.iter().flat_map(|before| &before.keys).filter(|key| !keys.contains(*key)) {
                    self.dropped.insert(key.clone(), now);
                }
                let named = Named { image: Arc::clone(partition), topic: topic.name.clone(), keys };
                self.named.insert(place, named);
            }
        }
        let gone: Vec<TopicPartition> =
            self.named.keys().filter(|place| !places.contains(place)).copied().collect();
        for place in gone {
            if let Some(named) = self.named.remove(&place) {
                self.dropped.extend(named.keys.into_iter().map(|key| (key, now)));
                self.gone.insert(folder(&named.topic, place.topic_id), now);
            }
        }
        Ok(())
    }

    /// The keys that a partition names; each is in the bucket, whole, and what its entry says.
    fn named_by(
        &mut self,
        topic: &TopicName,
        place: TopicPartition,
        partition: &PartitionImage,
        bucket: &SimBucket,
    ) -> Result<BTreeSet<String>, String> {
        let manifest = &partition.manifest;
        let mut keys = BTreeSet::new();
        let mut end: Option<Offset> = None;
        let mut entries = Vec::new();
        for line in &manifest.lines {
            let key = key_of(topic, place, &ObjectName::Page { page: line.page });
            let listed = self.page(&key, place, line, bucket)?;
            if end.is_some_and(|end| end != line.range.base) {
                return Err(format!("I3, I11: a gap before the page at {}", line.range.base));
            }
            end = Some(line.range.end);
            entries.extend(listed.iter().copied());
            keys.insert(key);
        }
        entries.extend(manifest.entries.iter().copied());
        let mut reached: Option<Offset> = None;
        for entry in &entries {
            if reached.is_some_and(|reached| reached != entry.range.base) || entry.range.is_empty() {
                return Err(format!("I3: {} does not go on from {reached:?}", entry.range));
            }
            reached = Some(entry.range.end);
            if entry.range.end <= partition.log_start {
                continue;
            }
            let key = key_of(topic, place, &ObjectName::Segment { object: entry.object });
            self.object(&key, place, entry, bucket)?;
            keys.insert(key);
        }
        let first = entries.iter().find(|entry| entry.range.end > partition.log_start);
        if first.is_some_and(|first| first.range.base > partition.log_start) {
            return Err(format!("I3: the manifest begins above the log start {}", partition.log_start));
        }
        if manifest.tiered_end != reached.unwrap_or(partition.log_start).max(partition.log_start) {
            return Err(format!("I3: the tiered end {} is not {reached:?}", manifest.tiered_end));
        }
        for version in &manifest.published {
            let key = key_of(topic, place, &ObjectName::Manifest { version: *version });
            if bucket.object(&key).is_none() {
                return Err(format!("I9: the published {key} is not in the bucket"));
            }
            keys.insert(key);
        }
        Ok(keys)
    }

    fn page(
        &mut self,
        key: &str,
        place: TopicPartition,
        line: &PageLine,
        bucket: &SimBucket,
    ) -> Result<Arc<[ManifestEntry]>, String> {
        if let Some(entries) = self.pages.get(key) {
            return Ok(Arc::clone(entries));
        }
        let bytes = bucket.object(key).ok_or_else(|| format!("I9: page {key} is named and not there"))?;
        let page = Page::decode(&bytes).map_err(|error| format!("I11: page {key}: {error}"))?;
        if page.place != place || page.line(line.page) != *line {
            return Err(format!("I11: page {key} is not what its line says"));
        }
        let entries: Arc<[ManifestEntry]> = page.entries.into();
        self.pages.insert(key.to_owned(), Arc::clone(&entries));
        Ok(entries)
    }

    fn object(
        &mut self,
        key: &str,
        place: TopicPartition,
        entry: &ManifestEntry,
        bucket: &SimBucket,
    ) -> Result<(), String> {
        let bytes = bucket.object(key).ok_or_else(|| format!("I9: {key} is named and not there"))?;
        if self.checked.get(key) == Some(entry) {
            return Ok(());
        }
        if bytes.len() as u64 != entry.object_bytes {
            return Err(format!(
                "I3: {key} has {} bytes, its entry says {}",
                bytes.len(),
                entry.object_bytes
            ));
        }
        let footer =
            Footer::decode(&bytes, entry.object_bytes).map_err(|error| format!("I2: {key}: {error}"))?;
        if footer.manifest_entry() != *entry || footer.identity.place != place {
            return Err(format!("I3: {key} is not what its entry says: {footer:?}"));
        }
        self.checked.insert(key.to_owned(), *entry);
        Ok(())
    }
}

fn never_back(before: &PartitionImage, after: &PartitionImage) -> Result<(), String> {
    if after.log_start < before.log_start {
        return Err(format!("T6: the log start went back from {} to {}", before.log_start, after.log_start));
    }
    let (was, is) = (before.manifest.tiered_end, after.manifest.tiered_end);
    if is < was {
        return Err(format!("I3: the tiered end went back from {was} to {is}"));
    }
    if after.leader_epoch < before.leader_epoch {
        return Err("I7: the leader epoch went back".to_owned());
    }
    Ok(())
}

fn folder(topic: &TopicName, id: TopicId) -> String {
    topic_folder(topic, id)
}

fn key_of(topic: &TopicName, place: TopicPartition, object: &ObjectName) -> String {
    let topic = topic.clone();
    match *object {
        ObjectName::Segment { object } => ObjectKey::Segment { topic, place, object },
        ObjectName::Page { page } => ObjectKey::Page { topic, place, page },
        ObjectName::Manifest { version } => ObjectKey::Manifest { topic, place, version },
    }
    .to_string()
}
