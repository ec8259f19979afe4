//! The queue of what may be deleted from the bucket: exact keys, never a guess (T4).
//!
//! ```text
//! entry dropped, page replaced, topic deleted --> item, due after the grace --> ready --> deleted by the tier
//!                                                                                   --> DeletionDone --> gone
//! ```
//!
//! Items of a partition are done in order. An item that names a replaced page also waits until a manifest without
//! that page is published. Ranges of one page that touch are merged under the later due time, but only within one
//! grace period of the first: a log start that moves all the time must not push the deletion ahead of itself.

use std::collections::BTreeMap;

use tidelog_format::manifest::{PageId, SegmentObjectId};
use tidelog_types::{Offset, TopicId, TopicName, TopicPartition};

use super::persist::{persist_enum, persist_struct};

/// One object of a partition, by what makes its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectName {
    /// A segment object.
    Segment {
        /// Its name.
        object: SegmentObjectId,
    },
    /// A page that another one took the place of. What it lists is not touched.
    Page {
        /// Its name.
        page: PageId,
    },
    /// A published copy of the manifest.
    Manifest {
        /// Its version.
        version: u64,
    },
}

/// What an item says to delete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeletionTarget {
    /// One object.
    Key {
        /// Which.
        object: ObjectName,
    },
    /// The segment objects that a page lists and that end in `(from, to]`; then the page too, where `whole_page`.
    Range {
        /// The page.
        page: PageId,
        /// Exclusive.
        from: Offset,
        /// Inclusive.
        to: Offset,
        /// Whether `to` is the page's end.
        whole_page: bool,
    },
    /// Everything under a topic's prefix. Done when two listings an orphan age apart found nothing.
    Topic {
        /// Its name, which is part of the prefix.
        name: TopicName,
        /// How many partitions it had.
        partition_count: i32,
    },
}

/// One item of the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeletionItem {
    /// Unique in the cluster; a merged item gets a new one.
    pub id: u64,
    /// The state machine's time at which its grace is over, in milliseconds.
    pub due_ms: u64,
    /// The state machine's time at which its oldest part was queued, in milliseconds.
    pub queued_ms: u64,
    /// A manifest of this version or a newer one must be published first.
    pub after_published: Option<u64>,
    /// What to delete.
    pub target: DeletionTarget,
}

impl DeletionItem {
    /// Whether it may be carried out. `published` is the newest published manifest version of its partition; `None`
    /// where the partition is gone, so that no manifest can name anything.
    #[must_use]
    pub fn is_ready(&self, now_ms: u64, published: Option<u64>) -> bool {
        let unnamed = match (self.after_published, published) {
            (Some(after), Some(published)) => published >= after,
            (None, _) | (_, None) => true,
        };
        self.due_ms <= now_ms && unnamed
    }
}

/// What items are in order with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeletionScope {
    /// Items of one partition.
    Partition {
        /// Which.
        place: TopicPartition,
    },
    /// The one item of a deleted topic.
    Topic {
        /// Which.
        topic_id: TopicId,
    },
}

/// All items.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeletionQueue {
    next_id: u64,
    scopes: BTreeMap<DeletionScope, Vec<DeletionItem>>,
}

persist_struct!(DeletionQueue { next_id, scopes });
persist_struct!(DeletionItem { id, due_ms, queued_ms, after_published, target });
persist_enum!(DeletionScope { 0 => Partition { place }, 1 => Topic { topic_id } });
persist_enum!(ObjectName { 0 => Segment { object }, 1 => Page { page }, 2 => Manifest { version } });
persist_enum!(DeletionTarget {
    0 => Key { object },
    1 => Range { page, from, to, whole_page },
    2 => Topic { name, partition_count },
});

/// When something was queued and how long its grace is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Grace {
    pub(super) now_ms: u64,
    pub(super) grace_ms: u64,
}

impl DeletionQueue {
    /// All scopes with their items, in order.
    pub fn scopes(&self) -> impl Iterator<Item = (DeletionScope, &[DeletionItem])> {
        self.scopes.iter().map(|(scope, items)| (*scope, items.as_slice()))
    }

    /// The items of one partition, in the order in which they are done.
    #[must_use]
    pub fn partition(&self, place: TopicPartition) -> &[DeletionItem] {
        self.scopes.get(&DeletionScope::Partition { place }).map_or(&[], Vec::as_slice)
    }

    /// Whether a topic's prefix waits to be emptied.
    #[must_use]
    pub fn holds_topic(&self, topic_id: TopicId) -> bool {
        self.scopes.contains_key(&DeletionScope::Topic { topic_id })
    }

    /// How many items there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.scopes.values().map(Vec::len).sum()
    }

    /// Whether nothing waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.scopes.is_empty()
    }

    fn take_id(&mut self) -> u64 {
        let id = self.next_id;
        self.next_id = id.checked_add(1).expect("deletions are counted in 64 bits");
        id
    }

    pub(super) fn push(
        &mut self,
        scope: DeletionScope,
        grace: Grace,
        after_published: Option<u64>,
        target: DeletionTarget,
    ) {
        let due_ms = grace.now_ms.saturating_add(grace.grace_ms);
        if self.merge_range(scope, grace, due_ms, &target) {
            return;
        }
        let id = self.take_id();
        let item = DeletionItem { id, due_ms, queued_ms: grace.now_ms, after_published, target };
        self.scopes.entry(scope).or_default().push(item);
    }

    /// Joins a range to the newest one of the same page, where they touch and the other is young.
    fn merge_range(
        &mut self,
        scope: DeletionScope,
        grace: Grace,
        due_ms: u64,
        target: &DeletionTarget,
    ) -> bool {
        let DeletionTarget::Range { page, from, to, whole_page } = target else { return false };
        let fresh_id = self.next_id;
        let Some(items) = self.scopes.get_mut(&scope) else { return false };
        let newest = items.iter_mut().rev().find(
            |item| matches!(&item.target, DeletionTarget::Range { page: queued, .. } if queued == page),
        );
        let Some(item) = newest else { return false };
        if grace.now_ms.saturating_sub(item.queued_ms) > grace.grace_ms {
            return false;
        }
        let DeletionTarget::Range { to: queued_to, whole_page: queued_whole, .. } = &mut item.target else {
            return false;
        };
        if queued_to != from {
            return false;
        }
        *queued_to = *to;
        *queued_whole = *whole_page;
        item.due_ms = item.due_ms.max(due_ms);
        item.id = fresh_id;
        self.take_id();
        true
    }

    /// Removes an item if it is the first of its scope.
    pub(super) fn remove_first(&mut self, scope: DeletionScope, id: u64) -> bool {
        let Some(items) = self.scopes.get_mut(&scope) else { return false };
        if items.first().is_none_or(|first| first.id != id) {
            return false;
        }
        items.remove(0);
        if items.is_empty() {
            self.scopes.remove(&scope);
        }
        true
    }

    /// Drops the items of a topic's partitions: its prefix is emptied as a whole.
    pub(super) fn drop_partitions_of(&mut self, topic_id: TopicId) {
        self.scopes.retain(
            |scope, _| !matches!(scope, DeletionScope::Partition { place } if place.topic_id == topic_id),
        );
    }

    /// The first item of a scope.
    pub(super) fn first(&self, scope: DeletionScope) -> Option<&DeletionItem> {
        self.scopes.get(&scope).and_then(|items| items.first())
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        let mut ids = std::collections::BTreeSet::new();
        for items in self.scopes.values() {
            if items.is_empty() {
                return Err("a scope of the deletion queue is empty");
            }
            if !items.iter().all(|item| item.id < self.next_id && ids.insert(item.id)) {
                return Err("an id of the deletion queue is not unique");
            }
        }
        Ok(())
    }
}
