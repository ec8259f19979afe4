//! The files of one partition: write-behind, roll, cut and removal.
//!
//! **Owns** the active segment and the folder. Whoever calls holds the partition's files lock; readers hold nothing and
//! notice what was cut or removed under them. **Does not own** offsets or the tail.
//!
//! Files are written far behind the journal and in large pieces. Until a checkpoint has synced them, a crash may leave any
//! part of them; recovery cuts back to the checkpointed end and plays the journal over it.

use std::{io, path::Path, sync::Arc};

use bytes::Bytes;
use tidelog_format::epochs::EpochChain;
use tidelog_runtime::{Lane, OpenMode, sync_error};
use tidelog_types::{Offset, Timestamp};

use crate::{
    config::{COUNTED_ENTRY_BYTES, PartitionConfig},
    descriptors::Use,
    engine::Engine,
    partition::Partition,
    segment::{
        self, Content, INDEX, Indexed, LOG, SNAPSHOT, Segment, TIME_INDEX, TXN_INDEX, batch_crc, index_file,
    },
    tail::TailBatch,
};

/// Producer snapshots kept in a folder.
const SNAPSHOTS_KEPT: usize = 3;

/// Bytes written at once: more gains nothing, and the checksums of a piece are computed between two awaits.
pub(crate) const PIECE_BYTES: usize = 2 * 1024 * 1024;

/// The file that holds the leader-epoch chain.
pub(crate) const EPOCHS: &str = "leader-epoch-checkpoint";

/// The active segment.
#[derive(Debug)]
struct Active {
    segment: Arc<Segment>,
    /// Intervals that are in the index file. The last of them takes no more batches.
    saved: usize,
    /// Timestamp from which `segment.ms` counts: its first batch's.
    rolls_from: Option<Timestamp>,
    /// Bytes handed to the device so far.
    pushed_out: u64,
}

/// What the holder of the files lock knows of the folder.
#[derive(Debug, Default)]
pub(crate) struct Files {
    folder_made: bool,
    snapshot_wanted: bool,
    active: Option<Active>,
    /// Bytes were written that no sync covers yet.
    unsynced: bool,
    /// Names were made or removed that no sync covers yet.
    names_unsynced: bool,
    /// Ascending.
    snapshots: Vec<Offset>,
    saved_epochs: Option<EpochChain>,
    /// While the journal is played: about when its records were appended.
    replayed_at: Option<Timestamp>,
}

/// A plain value for [`Files::found`].
#[derive(Debug, Default)]
pub(crate) struct FoundFolder {
    pub(crate) exists: bool,
    /// The last segment, if appends may go on in it.
    pub(crate) active: Option<Arc<Segment>>,
    pub(crate) snapshots: Vec<Offset>,
    pub(crate) epochs: Option<EpochChain>,
    /// Whether recovery made or removed names, or cut a file.
    pub(crate) changed: bool,
    /// The time of the active segment's first batch.
    pub(crate) rolls_from: Option<Timestamp>,
    /// About when the records were appended that the journal holds.
    pub(crate) replayed_at: Option<Timestamp>,
}

impl Files {
    /// The folder as recovery found it, after its cut.
    pub(crate) fn found(found: FoundFolder) -> Self {
        let active = found.active.map(|segment| active(segment, found.rolls_from));
        Self {
            folder_made: found.exists,
            snapshot_wanted: false,
            active,
            unsynced: false,
            names_unsynced: found.changed,
            snapshots: found.snapshots,
            saved_epochs: found.epochs,
            replayed_at: found.replayed_at,
        }
    }

    /// The journal is played: what is written from here on was appended by this process.
    pub(crate) fn end_replay(&mut self) {
        self.replayed_at = None;
    }

    /// Whether a checkpoint has anything to sync.
    pub(crate) fn is_clean(&self) -> bool {
        !self.unsynced && !self.names_unsynced && !self.snapshot_wanted
    }

    /// Has the next checkpoint store the owner's producer state even where nothing was written since the last one.
    pub(crate) const fn want_snapshot(&mut self) {
        self.snapshot_wanted = true;
    }

    /// The newest producer state that a start with the files cut to `end` can use.
    pub(crate) fn newest_snapshot(&self, end: Offset) -> Option<Offset> {
        self.snapshots.iter().rev().find(|snapshot| **snapshot <= end).copied()
    }

    /// Writes the first batches behind the last one, as many as go into one segment, which it begins where the settings say
    /// so. Answers how many; after an error none of them counts.
    pub(crate) async fn append(
        &mut self,
        engine: &Engine,
        partition: &Partition,
        batches: &[TailBatch],
    ) -> io::Result<usize> {
        let Some(batch) = batches.first() else { return Ok(0) };
        if self.must_roll(engine, partition, batch) {
            self.seal(engine, partition).await?;
        }
        if self.active.is_none() {
            self.begin(engine, partition, batch).await?;
        }
        let count = self.fitting(partition, batches);
        self.write(engine, partition, &batches[..count]).await?;
        Ok(count)
    }

    fn must_roll(&self, engine: &Engine, partition: &Partition, batch: &TailBatch) -> bool {
        let Some(active) = &self.active else { return false };
        let content = active.segment.content();
        if content.bytes == 0 {
            return false;
        }
        let (size, age, entries_max) = {
            let config = &partition.lock().config;
            (config.segment_bytes.get(), config.segment_age, entries_max(config))
        };
        if content.intervals.as_ref().is_some_and(|intervals| intervals.len() as u64 >= entries_max) {
            return true;
        }
        let aged = match (batch.max_timestamp, active.rolls_from) {
            (Some(now), Some(then)) => u128::from(now.millis_since(then)) > age.as_millis(),
            _ => u128::from(engine.clock.wall().millis_since(content.created)) > age.as_millis(),
        };
        aged || content.bytes + batch.bytes() as u64 > size || too_far(active.segment.base, batch.last)
    }

    /// How many batches go into the active segment: at least one, since it is new or takes the first.
    fn fitting(&self, partition: &Partition, batches: &[TailBatch]) -> usize {
        let Some(active) = &self.active else { return 0 };
        let (size, age, interval, entries_max) = {
            let config = &partition.lock().config;
            let interval = config.index_interval_bytes.get();
            (config.segment_bytes.get(), config.segment_age, interval, entries_max(config))
        };
        let (mut bytes, mut entries, mut indexed) = {
            let content = active.segment.content();
            let intervals = content.intervals.as_deref().unwrap_or_default();
            // Behind what was saved there is a new entry, however near.
            let last = intervals.last().filter(|_| intervals.len() != active.saved);
            (content.bytes, intervals.len() as u64, last.map(|last| last.position))
        };
        let mut count = 0;
        for batch in batches {
            let grown = bytes + batch.bytes() as u64;
            let aged = match (batch.max_timestamp, active.rolls_from) {
                (Some(now), Some(then)) => u128::from(now.millis_since(then)) > age.as_millis(),
                _ => false,
            };
            let full = grown > size || entries >= entries_max;
            if count > 0 && (full || aged || too_far(active.segment.base, batch.last)) {
                break;
            }
            // As the entry that the batch gets when it is written.
            if indexed.is_none_or(|position| bytes - position >= interval) {
                (entries, indexed) = (entries + 1, Some(bytes));
            }
            bytes = grown;
            count += 1;
        }
        count
    }

    async fn begin(&mut self, engine: &Engine, partition: &Partition, first: &TailBatch) -> io::Result<()> {
        if !self.folder_made {
            engine.disk.create_dir_all(&partition.folder).await?;
            self.folder_made = true;
            engine.note_new_folder();
        }
        // The base is where the segment before ended, so that no offset lies between two segments.
        let base = {
            let segments = partition.segments.load();
            segments.last().map_or_else(|| partition.lock().local_log_start, |last| last.content().end)
        };
        let base = if too_far(base, first.last) { first.base } else { base.min(first.base) };
        let segment = Arc::new(Segment::new(
            partition.place,
            &partition.folder,
            base,
            Content::empty(base, self.replayed_at.unwrap_or_else(|| engine.wall_at(first.appended))),
        ));
        engine.descriptors.create(&segment.path(LOG)).await?;
        self.names_unsynced = true;
        partition.segments.rcu(|segments| {
            let mut segments = Vec::clone(segments);
            segments.push(Arc::clone(&segment));
            segments
        });
        self.active = Some(Active { segment, saved: 0, rolls_from: first.max_timestamp, pushed_out: 0 });
        Ok(())
    }

    async fn write(
        &mut self,
        engine: &Engine,
        partition: &Partition,
        batches: &[TailBatch],
    ) -> io::Result<()> {
        let Some(active) = &mut self.active else { return Ok(()) };
        let position = active.segment.content().bytes;
        let mut chunks: Vec<Bytes> = Vec::with_capacity(batches.len() * 2);
        for batch in batches {
            chunks.push(batch.header.clone());
            chunks.push(batch.body.clone());
        }
        let file = engine.descriptors.get(&active.segment.path(LOG), Use::Write).await?;
        self.unsynced = true;
        file.write_at(position, chunks).await?;
        let interval_bytes = partition.lock().config.index_interval_bytes.get();
        let mut content = active.segment.content_mut();
        for batch in batches {
            let bytes = batch.bytes() as u64;
            let indexed = Indexed {
                base: batch.base,
                last: batch.last,
                bytes,
                crc: batch_crc(&batch.header, bytes),
                max_timestamp: batch.max_timestamp,
            };
            let border = content.intervals.as_ref().is_some_and(|intervals| intervals.len() == active.saved);
            content.add(&indexed, interval_bytes, border);
        }
        let end = content.bytes;
        drop(content);
        if active.rolls_from.is_none() {
            active.rolls_from = batches.iter().find_map(|batch| batch.max_timestamp);
        }
        file.push_out(active.pushed_out, end - active.pushed_out);
        active.pushed_out = end;
        engine.metrics.written_behind_bytes.add(end - position);
        Ok(())
    }

    /// Ends the active segment: what it holds is synced, and appends begin another one.
    pub(crate) async fn seal(&mut self, engine: &Engine, partition: &Partition) -> io::Result<()> {
        let Some(active) = &self.active else { return Ok(()) };
        if active.segment.content().bytes == 0 {
            return Ok(());
        }
        self.sync_active(engine, true).await?;
        self.save_snapshot(engine, partition).await?;
        if let Some(active) = self.active.take() {
            active.segment.content_mut().sealed = true;
            engine.descriptors.forget(&active.segment.path(LOG));
            engine.descriptors.forget(&active.segment.path(INDEX));
            engine.note_loaded(&active.segment);
            engine.metrics.segments_sealed.inc();
            tracing::debug!(place = %partition.place, base = %active.segment.base, "segment sealed");
        }
        Ok(())
    }

    /// Makes everything durable that was written behind, with its index, its epochs, and a producer snapshot.
    pub(crate) async fn sync(
        &mut self,
        engine: &Engine,
        partition: &Partition,
        snapshot: bool,
    ) -> io::Result<()> {
        if engine.config.mistakes.checkpoint_without_sync {
            self.unsynced = false;
            self.names_unsynced = false;
            return Ok(());
        }
        let wanted = self.unsynced || self.snapshot_wanted;
        if self.unsynced {
            self.sync_active(engine, false).await?;
            self.unsynced = false;
        }
        if snapshot && wanted {
            self.save_snapshot(engine, partition).await?;
            self.snapshot_wanted = false;
        }
        self.save_epochs(engine, partition).await?;
        if self.names_unsynced && self.folder_made {
            engine.disk.sync_dir(&partition.folder).await.map_err(sync_error)?;
        }
        self.names_unsynced = false;
        Ok(())
    }

    async fn sync_active(&mut self, engine: &Engine, seal: bool) -> io::Result<()> {
        let Some(active) = &mut self.active else { return Ok(()) };
        let intervals = {
            let content = active.segment.content();
            content.intervals.clone().unwrap_or_default()
        };
        if intervals.len() > active.saved || seal {
            index_file::save(engine, &active.segment, &intervals, active.saved, seal).await?;
            active.saved = intervals.len();
            self.names_unsynced = true;
        }
        let file = engine.descriptors.get(&active.segment.path(LOG), Use::Write).await?;
        file.sync_data().await.map_err(sync_error)
    }

    async fn save_epochs(&mut self, engine: &Engine, partition: &Partition) -> io::Result<()> {
        let epochs = partition.lock().epochs.clone();
        if !self.folder_made || self.saved_epochs.as_ref() == Some(&epochs) {
            return Ok(());
        }
        write_aside(engine, &partition.folder, EPOCHS, Bytes::from(epochs.encode())).await?;
        self.saved_epochs = Some(epochs);
        self.names_unsynced = true;
        Ok(())
    }

    /// Stores the owner's producer state. Its offset may lie above what is written behind; recovery takes it only where the
    /// log reaches it.
    async fn save_snapshot(&mut self, engine: &Engine, partition: &Partition) -> io::Result<()> {
        let Some(observer) = partition.observer() else { return Ok(()) };
        let (offset, content) = observer.producer_snapshot();
        if self.snapshots.last().is_some_and(|last| *last >= offset) || !self.folder_made {
            return Ok(());
        }
        let name = format!("{offset:020}.{SNAPSHOT}");
        if content.is_empty() {
            // No producers: the name says all, and costs no sync of its own.
            let path = partition.folder.join(&name);
            drop(engine.disk.open(&path, OpenMode::CreateOrTruncate, Lane::Background).await?);
            return self.note_snapshot(engine, partition, offset).await;
        }
        write_aside(engine, &partition.folder, &name, content).await?;
        self.note_snapshot(engine, partition, offset).await
    }

    async fn note_snapshot(
        &mut self,
        engine: &Engine,
        partition: &Partition,
        offset: Offset,
    ) -> io::Result<()> {
        self.snapshots.push(offset);
        self.names_unsynced = true;
        while self.snapshots.len() > SNAPSHOTS_KEPT {
            let oldest = self.snapshots.remove(0);
            remove(engine, &segment::path(&partition.folder, oldest, SNAPSHOT)).await?;
        }
        Ok(())
    }

    /// Removes every batch that reaches `to` or lies above, and what was derived from them; durable when it returns.
    pub(crate) async fn truncate(
        &mut self,
        engine: &Engine,
        partition: &Partition,
        to: Offset,
    ) -> io::Result<()> {
        let segments = partition.segments.load_full();
        let keep = segments.partition_point(|segment| segment.base < to);
        if keep < segments.len() {
            partition.segments.store(Arc::new(segments[..keep].to_vec()));
            for segment in &segments[keep..] {
                remove_segment(engine, segment).await?;
            }
            self.active = None;
            self.names_unsynced = true;
        }
        if let Some(last) = segments[..keep].last()
            && last.content().end > to
        {
            self.active = None;
            let cut = segment::rebuild::cut(engine, partition, last, to).await?;
            partition.segments.rcu(|current| {
                let mut current = Vec::clone(current);
                current.pop();
                current.extend(cut.clone());
                current
            });
            self.active = match cut {
                Some(segment) => {
                    let rolls_from = segment::rebuild::first_time(engine, &segment).await?;
                    Some(active(segment, rolls_from))
                }
                None => None,
            };
            self.names_unsynced = true;
        }
        while let Some(last) = self.snapshots.last().copied()
            && last > to
        {
            self.snapshots.pop();
            remove(engine, &segment::path(&partition.folder, last, SNAPSHOT)).await?;
            self.names_unsynced = true;
        }
        self.save_epochs(engine, partition).await?;
        if self.names_unsynced && self.folder_made {
            engine.disk.sync_dir(&partition.folder).await?;
            self.names_unsynced = false;
        }
        Ok(())
    }

    /// Removes every file of the partition; durable when it returns.
    pub(crate) async fn clear(&mut self, engine: &Engine, partition: &Partition) -> io::Result<()> {
        for segment in partition.segments.swap(Arc::new(Vec::new())).iter() {
            forget(engine, segment);
        }
        *self = Self::default();
        engine.disk.remove_dir_all(&partition.folder).await?;
        engine.disk.sync_dir(&engine.config.directory).await
    }

    /// Removes whole segments that readers see no more; durable when it returns.
    pub(crate) async fn remove_oldest(
        &mut self,
        engine: &Engine,
        partition: &Partition,
        removed: &[Arc<Segment>],
    ) -> io::Result<()> {
        for segment in removed {
            remove_segment(engine, segment).await?;
        }
        engine.disk.sync_dir(&partition.folder).await
    }
}

/// A segment in which appends go on: its index is as long as its file.
fn active(segment: Arc<Segment>, rolls_from: Option<Timestamp>) -> Active {
    let (saved, pushed_out) = {
        let content = segment.content();
        (content.intervals.as_ref().map_or(0, Vec::len), content.bytes)
    };
    Active { segment, saved, rolls_from, pushed_out }
}

/// The most entries of a segment's index.
fn entries_max(config: &PartitionConfig) -> u64 {
    (config.segment_index_bytes.get() / COUNTED_ENTRY_BYTES).max(1)
}

/// Whether a relative offset would leave 31 bits, which Kafka's own index files cannot hold.
fn too_far(base: Offset, last: Offset) -> bool {
    last.distance_from(base) > u64::from(i32::MAX.unsigned_abs())
}

/// Closes the files of a segment that is about to go, and keeps readers from opening them for good.
pub(crate) fn forget(engine: &Engine, segment: &Segment) {
    segment.note_removed();
    for extension in [LOG, INDEX, TIME_INDEX, TXN_INDEX] {
        engine.descriptors.forget(&segment.path(extension));
    }
}

async fn remove_segment(engine: &Engine, segment: &Segment) -> io::Result<()> {
    forget(engine, segment);
    for extension in [INDEX, TIME_INDEX, TXN_INDEX, LOG] {
        remove(engine, &segment.path(extension)).await?;
    }
    Ok(())
}

/// Removes a file that may be gone already.
pub(crate) async fn remove(engine: &Engine, path: &Path) -> io::Result<()> {
    match engine.disk.remove_file(path).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

/// Writes a small file aside, syncs it, and renames it into place. The caller syncs the directory.
pub(crate) async fn write_aside(
    engine: &Engine,
    folder: &Path,
    name: &str,
    content: Bytes,
) -> io::Result<()> {
    tidelog_runtime::write_aside(&*engine.disk, folder, name, content).await
}
