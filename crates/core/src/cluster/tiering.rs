//! Manifests, log starts and the deletions that follow from them.
//!
//! Every change names the leader epoch and the precondition of what it touches (T3): a commit begins at the tiered
//! end, a spill names the last page as it was read and exactly the oldest entries, a log start grows. An upload that
//! is fenced, or not of the leader's newest incarnation, enters nothing (T7).

use std::sync::Arc;

use tidelog_types::{LeaderEpoch, Offset, TopicPartition, UploadId, limits};

use super::{
    command::{CommitRefusal, Outcome, Refusal, SegmentCommit, Spill},
    deletion::{DeletionScope, DeletionTarget, ObjectName},
    image::{PartitionImage, PartitionManifest},
    state::{ClusterState, names_live_object},
};

impl ClusterState {
    pub(super) fn commit_segment(&mut self, commit: &SegmentCommit) -> Result<Offset, CommitRefusal> {
        let Some(partition) = self.image.partition(&commit.place) else {
            return Err(CommitRefusal::UnknownPartition);
        };
        let (entry, manifest) = (&commit.entry, &partition.manifest);
        // Asked again after a lost answer: what was committed stays so, whoever leads now.
        if manifest.entries.contains(entry) {
            return Ok(entry.range.end);
        }
        if !partition.tiered {
            return Err(CommitRefusal::NotTiered);
        }
        if commit.leader_epoch != partition.leader_epoch || partition.leader.is_none() {
            return Err(CommitRefusal::StaleLeaderEpoch { current: partition.leader_epoch });
        }
        if self.is_fenced(partition, entry.object.upload) {
            return Err(CommitRefusal::UploadFenced);
        }
        if entry.range.is_empty() {
            return Err(CommitRefusal::Malformed { why: "it holds no offset" });
        }
        if entry.object.leader_epoch != commit.leader_epoch || entry.object.base != entry.range.base {
            return Err(CommitRefusal::Malformed {
                why: "its object is named after another range or leader epoch",
            });
        }
        let end = entry.position.checked_add(entry.bytes);
        if entry.bytes == 0 || end.is_none_or(|end| end > entry.object_bytes) {
            return Err(CommitRefusal::Malformed { why: "its batches do not fit its object" });
        }
        if entry.range.base != manifest.tiered_end {
            return Err(CommitRefusal::NotAtTieredEnd { tiered_end: manifest.tiered_end });
        }
        if manifest.entries.len() >= limits::MANIFEST_ENTRIES_MAX {
            return Err(CommitRefusal::ManifestFull);
        }
        let tiered_end = entry.range.end;
        self.change_manifest(commit.place, |manifest| {
            manifest.entries.push(*entry);
            manifest.tiered_end = tiered_end;
        });
        Ok(tiered_end)
    }

    pub(super) fn spill(&mut self, spill: &Spill) -> Result<Outcome, Refusal> {
        let partition = self.led_partition(spill.place, spill.leader_epoch)?;
        let manifest = &partition.manifest;
        let last = manifest.lines.last();
        if last.map(|line| line.page) == Some(spill.line.page) {
            // Asked again after a lost answer.
            return Ok(Outcome::Spilled { version: manifest.version });
        }
        if self.is_fenced(partition, spill.line.page.upload) {
            return Err(Refusal::UploadFenced);
        }
        let replaced = check_spill(manifest, spill).map_err(|why| Refusal::SpillMismatch { why })?;
        let grace = self.grace();
        let version = self.change_manifest(spill.place, |manifest| {
            if spill.replaces_last {
                manifest.lines.pop();
            }
            manifest.lines.push(spill.line);
            manifest.entries.drain(..spill.moved.len());
        });
        if let Some(page) = replaced {
            let target = DeletionTarget::Key { object: ObjectName::Page { page } };
            let scope = DeletionScope::Partition { place: spill.place };
            Arc::make_mut(&mut self.image.deletions).push(scope, grace, Some(version), target);
        }
        Ok(Outcome::Spilled { version })
    }

    pub(super) fn advance_log_start(
        &mut self,
        place: TopicPartition,
        leader_epoch: LeaderEpoch,
        to: Offset,
    ) -> Result<Outcome, Refusal> {
        let partition = self.led_partition(place, leader_epoch)?;
        let (former, manifest) = (partition.log_start, Arc::clone(&partition.manifest));
        if to <= former {
            return Ok(Outcome::LogStart { log_start: former, tiered_end: manifest.tiered_end });
        }
        let mut targets = Vec::new();
        for line in manifest.lines.iter().take_while(|line| line.range.base < to) {
            let (from, until) = (former.max(line.range.base), to.min(line.range.end));
            let whole_page = until == line.range.end;
            targets.push(DeletionTarget::Range { page: line.page, from, to: until, whole_page });
        }
        for entry in manifest.entries.iter().take_while(|entry| entry.range.end <= to) {
            targets.push(DeletionTarget::Key { object: ObjectName::Segment { object: entry.object } });
        }
        let tiered_end = manifest.tiered_end.max(to);
        self.partition_mut(place).log_start = to;
        self.change_manifest(place, |manifest| {
            manifest.lines.retain(|line| line.range.end > to);
            manifest.entries.retain(|entry| entry.range.end > to);
            manifest.tiered_end = tiered_end;
        });
        let partition = self.image.partition(&place).expect("it was found above");
        let named = targets.iter().find(|target| names_live_object(partition, target));
        assert!(named.is_none(), "a deletion never names what the manifest holds (T4): {named:?} of {place}");
        let grace = self.grace();
        let queue = Arc::make_mut(&mut self.image.deletions);
        for target in targets {
            queue.push(DeletionScope::Partition { place }, grace, None, target);
        }
        Ok(Outcome::LogStart { log_start: to, tiered_end })
    }

    pub(super) fn fence_uploads(&mut self, upload: UploadId) -> Result<Outcome, Refusal> {
        if self.was_never_issued(upload.incarnation) {
            return Err(Refusal::UnknownIncarnation { incarnation: upload.incarnation });
        }
        let owner = self
            .image
            .brokers()
            .find(|broker| broker.incarnation == upload.incarnation)
            .map(|broker| broker.id);
        // Uploads of an incarnation that is nobody's newest are refused without any record of it.
        if let Some(broker) = owner.and_then(|owner| self.broker_mut(owner)) {
            broker.fenced_uploads = broker.fenced_uploads.max(Some(upload.sequence));
        }
        Ok(Outcome::Done)
    }

    pub(super) fn manifest_published(
        &mut self,
        place: TopicPartition,
        leader_epoch: LeaderEpoch,
        version: u64,
    ) -> Result<Outcome, Refusal> {
        let manifest = &self.led_partition(place, leader_epoch)?.manifest;
        let (current, published) = (manifest.version, manifest.published_version());
        if version == published {
            return Ok(Outcome::Done);
        }
        if version > current || version < published {
            return Err(Refusal::PublishedVersion { asked: version, current, published });
        }
        let partition = self.partition_mut(place);
        let copies = &mut Arc::make_mut(&mut partition.manifest).published;
        copies.push(version);
        let retired = (copies.len() > limits::MANIFEST_COPIES_KEPT).then(|| copies.remove(0));
        if let Some(version) = retired {
            let grace = self.grace();
            let target = DeletionTarget::Key { object: ObjectName::Manifest { version } };
            Arc::make_mut(&mut self.image.deletions).push(
                DeletionScope::Partition { place },
                grace,
                None,
                target,
            );
        }
        Ok(Outcome::Done)
    }

    pub(super) fn deletion_done(&mut self, items: &[(DeletionScope, u64)]) -> Outcome {
        let mut removed = Vec::with_capacity(items.len());
        for (scope, id) in items {
            let published = self.image.published_version(*scope);
            let first = self.image.deletions.first(*scope);
            let ready =
                first.is_some_and(|item| item.id == *id && item.is_ready(self.image.now_ms, published));
            removed.push(ready && Arc::make_mut(&mut self.image.deletions).remove_first(*scope, *id));
        }
        Outcome::DeletionsRemoved { removed }
    }

    /// The partition, if the proposer leads it in its current epoch.
    fn led_partition(
        &self,
        place: TopicPartition,
        leader_epoch: LeaderEpoch,
    ) -> Result<&Arc<PartitionImage>, Refusal> {
        let partition = self.image.partition(&place).ok_or(Refusal::UnknownPartition { place })?;
        if partition.leader_epoch != leader_epoch || partition.leader.is_none() {
            return Err(Refusal::StaleLeaderEpoch { place, current: partition.leader_epoch });
        }
        Ok(partition)
    }

    /// Whether nothing of this upload may enter the manifest of a partition.
    fn is_fenced(&self, partition: &PartitionImage, upload: UploadId) -> bool {
        let leader = partition.leader.and_then(|leader| self.image.broker(leader));
        leader.is_none_or(|leader| {
            leader.incarnation != upload.incarnation
                || leader.fenced_uploads.is_some_and(|last| upload.sequence <= last)
        })
    }

    /// Changes a manifest, counts its version, and checks that it is still one.
    fn change_manifest(&mut self, place: TopicPartition, change: impl FnOnce(&mut PartitionManifest)) -> u64 {
        let partition = self.partition_mut(place);
        let manifest = Arc::make_mut(&mut partition.manifest);
        change(manifest);
        manifest.version = manifest.version.checked_add(1).expect("manifest versions are counted in 64 bits");
        let version = manifest.version;
        if let Err(why) = check_partition(partition) {
            panic!("the manifest of {place} broke: {why}");
        }
        version
    }
}

/// Checks a spill against the manifest; the page that it replaces.
fn check_spill(
    manifest: &PartitionManifest,
    spill: &Spill,
) -> Result<Option<tidelog_format::manifest::PageId>, &'static str> {
    let last = manifest.lines.last();
    if last.map(|line| line.page) != spill.last_page {
        return Err("the last page is another one");
    }
    if spill.moved.is_empty() || spill.moved.len() > manifest.entries.len() {
        return Err("it moves no entries, or more than there are");
    }
    if !manifest.entries.iter().zip(&spill.moved).all(|(entry, moved)| entry.object == *moved) {
        return Err("what it moves is not the oldest that is held");
    }
    let first = manifest.entries.first().map(|entry| entry.range.base);
    let end = manifest.entries.get(spill.moved.len() - 1).map(|entry| entry.range.end);
    let base = match (spill.replaces_last, last) {
        (true, None) => return Err("there is no line to replace"),
        (true, Some(line)) => Some(line.range.base),
        (false, _) => first,
    };
    if Some(spill.line.range.base) != base || Some(spill.line.range.end) != end {
        return Err("its line covers another range");
    }
    if manifest.lines.iter().any(|line| line.page == spill.line.page) {
        return Err("its page is named already");
    }
    if !spill.replaces_last && manifest.lines.len() >= limits::MANIFEST_LINES_MAX {
        return Err("the manifest has as many lines as it may");
    }
    Ok(if spill.replaces_last { spill.last_page } else { None })
}

/// T1 and the order of a partition's offsets.
pub(super) fn check_partition(partition: &PartitionImage) -> Result<(), String> {
    let manifest = &partition.manifest;
    let lines = manifest.lines.iter().map(|line| line.range);
    let mut ranges = lines.chain(manifest.entries.iter().map(|entry| entry.range));
    let mut end = None;
    if let Some(first) = ranges.next() {
        if first.end <= partition.log_start {
            return Err(format!("{first} lies wholly below the log start {}", partition.log_start));
        }
        if first.is_empty() {
            return Err(format!("{first} is empty"));
        }
        // The oldest range reaches down to the log start: nothing at or above it is missing (T6).
        if first.base > partition.log_start {
            return Err(format!("{first} begins above the log start {}", partition.log_start));
        }
        end = Some(first.end);
    }
    for range in ranges {
        if Some(range.base) != end || range.is_empty() {
            return Err(format!("{range} does not continue the manifest"));
        }
        end = Some(range.end);
    }
    if manifest.tiered_end != end.unwrap_or(partition.log_start) {
        return Err(format!("the tiered end {} is not the manifest's {end:?}", manifest.tiered_end));
    }
    if manifest.entries.len() > limits::MANIFEST_ENTRIES_MAX {
        return Err(format!("{} entries are held", manifest.entries.len()));
    }
    let ascending = manifest.published.windows(2).all(|pair| pair[0] < pair[1]);
    if !ascending || manifest.published_version() > manifest.version {
        return Err("published versions do not ascend to the current one".to_owned());
    }
    Ok(())
}
