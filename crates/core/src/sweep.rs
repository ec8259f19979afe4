//! Which objects of the bucket nobody needs: uploads that never committed.
//!
//! **Owns** the decisions of T7. The order is what makes it safe, and it is the caller's to keep:
//!
//! ```text
//!  list --> keep what is older than the orphan age, by the store's clock
//!       --> commit FenceUploads of the newest suspect of every incarnation
//!       --> read linearizably, at or after the fence's index
//!       --> delete what neither manifest, nor page, nor deletion queue covers
//! ```
//!
//! From the fence on no change that names a suspect is accepted, so that what is uncovered after it stays so. Safety rests on
//! no clock. **Does not own** keys as text, pages as bytes, or any request.

use std::collections::BTreeMap;

use tidelog_format::manifest::{ManifestEntry, PageId, SegmentObjectId};
use tidelog_types::{BrokerIncarnation, Offset, Timestamp, TopicPartition, UploadId, UploadSequence};

use crate::{
    cluster::{DeletionItem, DeletionScope, DeletionTarget, MetadataImage, ObjectName, PartitionImage},
    upload::PageEntries,
};

/// One object of a listing, by what its key says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Suspect {
    /// Whose it is.
    pub place: TopicPartition,
    /// Which object.
    pub object: ObjectName,
    /// When it was written, by the store's clock.
    pub modified: Timestamp,
}

impl Suspect {
    /// Who wrote it; `None` for a published manifest, whose key names a version instead.
    #[must_use]
    pub const fn upload(&self) -> Option<UploadId> {
        match &self.object {
            ObjectName::Segment { object } => Some(object.upload),
            ObjectName::Page { page } => Some(page.upload),
            ObjectName::Manifest { .. } => None,
        }
    }
}

/// What an image says of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Something names it: it stays, or the deletion queue takes it in its time.
    Covered,
    /// Nothing does.
    Uncovered,
    /// It is in the range of this page, or queued with it: what the page lists must be read.
    LookInto(PageId),
}

/// Whether an object is old enough to be looked at. `store_time` is from the answer that listed it.
#[must_use]
pub const fn is_old(modified: Timestamp, store_time: Timestamp, orphan_age_ms: u64) -> bool {
    store_time.as_millis() > modified.as_millis() && store_time.millis_since(modified) >= orphan_age_ms
}

/// The fences that must be committed before any of these is deleted: one for each incarnation, at its newest suspect.
/// Incarnations that are nobody's newest need none: their uploads are refused anyway.
#[must_use]
pub fn fences(suspects: &[Suspect], image: &MetadataImage) -> Vec<(BrokerIncarnation, UploadSequence)> {
    let mut newest: BTreeMap<BrokerIncarnation, UploadSequence> = BTreeMap::new();
    for upload in suspects.iter().filter_map(Suspect::upload) {
        let sequence = newest.entry(upload.incarnation).or_default();
        *sequence = (*sequence).max(upload.sequence);
    }
    newest.retain(|incarnation, sequence| {
        image.brokers().any(|broker| {
            broker.incarnation == *incarnation
                && broker.fenced_uploads.is_none_or(|fenced| fenced < *sequence)
        })
    });
    newest.into_iter().collect()
}

/// Whether an incarnation was issued after `image`: then the image is too old to judge what it wrote.
#[must_use]
pub fn is_from_the_future(upload: UploadId, image: &MetadataImage) -> bool {
    image.brokers().map(|broker| broker.incarnation).max().is_none_or(|newest| upload.incarnation > newest)
}

/// What `image` says of a suspect. `pages` holds what was read so far.
#[must_use]
pub fn coverage(suspect: &Suspect, image: &MetadataImage, pages: &PageEntries) -> Coverage {
    if suspect.upload().is_some_and(|upload| is_from_the_future(upload, image)) {
        return Coverage::Covered;
    }
    if image.deletions().holds_topic(suspect.place.topic_id) {
        return Coverage::Covered;
    }
    let items = image.deletions().partition(suspect.place);
    if items.iter().any(|item| names(item, &suspect.object)) {
        return Coverage::Covered;
    }
    let Some(partition) = image.partition(&suspect.place) else {
        // Topic ids are never used again: what is unknown now stays so. A partition that its topic does not have yet may
        // still be created, but what is in the bucket of it was then never committed.
        return Coverage::Uncovered;
    };
    match &suspect.object {
        ObjectName::Segment { object } => segment_coverage(*object, partition, items, pages),
        ObjectName::Page { page } => named(partition.manifest.lines.iter().any(|line| line.page == *page)),
        ObjectName::Manifest { version } => {
            // A version above the published one may still be announced: no fence covers it, so it stays.
            let published = &partition.manifest.published;
            named(*version >= partition.manifest.published_version() || published.contains(version))
        }
    }
}

const fn named(is_named: bool) -> Coverage {
    if is_named { Coverage::Covered } else { Coverage::Uncovered }
}

fn names(item: &DeletionItem, object: &ObjectName) -> bool {
    match &item.target {
        DeletionTarget::Key { object: queued } => queued == object,
        DeletionTarget::Range { page, .. } => {
            matches!(object, ObjectName::Page { page: suspect } if suspect == page)
        }
        DeletionTarget::Topic { .. } => true,
    }
}

fn segment_coverage(
    object: SegmentObjectId,
    partition: &PartitionImage,
    items: &[DeletionItem],
    pages: &PageEntries,
) -> Coverage {
    if partition.manifest.entries.iter().any(|entry| entry.object == object) {
        return Coverage::Covered;
    }
    // A page goes on to list what lies below the log start. That is named no more once its deletion is done: a put that came
    // late, behind its own deletion, is an orphan as any other.
    let line = partition.manifest.lines.iter().find(|line| line.range.contains(object.base));
    let held = line.map(|line| (line.page, partition.log_start, Offset::MAX));
    let queued = items.iter().filter_map(|item| match &item.target {
        DeletionTarget::Range { page, from, to, .. } => Some((*page, *from, *to)),
        _ => None,
    });
    for (page, above, to) in held.into_iter().chain(queued) {
        let names = |entry: &ManifestEntry| {
            entry.object == object && above < entry.range.end && entry.range.end <= to
        };
        match pages.get(&page) {
            None => return Coverage::LookInto(page),
            Some(entries) if entries.iter().any(names) => return Coverage::Covered,
            Some(_) => {}
        }
    }
    Coverage::Uncovered
}

/// What is known of a deleted topic's emptiness. It is done when two listings an orphan age apart, by the store's clock,
/// found nothing: an upload in flight at its deletion has landed by then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TopicEmptiness {
    empty_since: Option<Timestamp>,
}

impl TopicEmptiness {
    /// Takes in a complete listing: whether it found nothing, and the store's clock. Answers whether the topic is done.
    pub fn listed(&mut self, found_nothing: bool, store_time: Timestamp, orphan_age_ms: u64) -> bool {
        if !found_nothing {
            self.empty_since = None;
            return false;
        }
        let since = *self.empty_since.get_or_insert(store_time);
        store_time.millis_since(since) >= orphan_age_ms && store_time > since
    }

    /// How long no listing can end this, as of one that was answered at `store_time`.
    #[must_use]
    pub fn left_ms(&self, store_time: Timestamp, orphan_age_ms: u64) -> u64 {
        self.empty_since.map_or(0, |since| orphan_age_ms.saturating_sub(store_time.millis_since(since)))
    }
}

/// Items that may be carried out now, `limit` at most, of each scope its first ones in order.
///
/// Scopes take turns, from the first one behind `after` on: each gives one item before any gives its second. So a scope
/// whose items fail, however many there are, keeps no other from its turn; and where there are more scopes than `limit`, a
/// caller that goes on behind the last scope of its last plan comes to each.
#[must_use]
pub fn plan_deletions(
    image: &MetadataImage,
    limit: usize,
    after: Option<DeletionScope>,
) -> Vec<(DeletionScope, Vec<DeletionItem>)> {
    let mut ready: Vec<(DeletionScope, &[DeletionItem])> = image.ready_scopes().collect();
    let behind = ready.partition_point(|(scope, _)| after.is_some_and(|after| *scope <= after));
    ready.rotate_left(behind);
    let mut left = limit;
    let mut counts = vec![0_usize; ready.len()];
    let mut given = true;
    while given {
        given = false;
        for (count, (_, items)) in counts.iter_mut().zip(&ready) {
            if left > 0 && *count < items.len() {
                *count += 1;
                left -= 1;
                given = true;
            }
        }
    }
    let planned = ready.into_iter().zip(counts).filter(|(_, count)| *count > 0);
    planned.map(|((scope, items), count)| (scope, items[..count].to_vec())).collect()
}

#[cfg(test)]
mod tests;
