//! The deletion queue, carried out: exact keys from the replicated state, never a guess (T4).
//!
//! **Owns** the requests and the order: items of a partition one after another, an item is reported done only when all that it
//! names is gone, and an error is never taken for absence.
//!
//! A topic's item is done when two listings of its folder an orphan age apart, by the store's clock, found nothing: an upload
//! that was in flight when the topic was deleted has landed by then (B89). Between the two it is not listed.
//!
//! Crash behaviour: deleting what is gone is success, so that everything may be done again. When a topic's folder was first
//! found empty is remembered by the process alone: a restart, or another node that takes over, waits the orphan age again.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::BoxFuture;
use tidelog_core::{
    cluster::{Command, DeletionItem, DeletionScope, DeletionTarget, MetadataImage, ObjectName},
    sweep::{TopicEmptiness, plan_deletions},
};
use tidelog_format::{
    keys::{ObjectKey, topic_folder},
    manifest::PageId,
};
use tidelog_object::{DeleteError, ListError};
use tidelog_types::{Offset, TopicId, TopicName, TopicPartition};
use tracing::info;

use crate::{
    commands::propose_again,
    config::millis,
    context::Context,
    pages::PageError,
    task::{Task, TickError},
};

/// Items that one tick carries out: a queue of any length costs a bounded command and a bounded tick.
const ITEMS_PER_TICK_MAX: usize = 1_000;

/// Keys of one page of a listing.
pub(crate) const LIST_KEYS: usize = 1_000;

/// Why an item is not done.
#[derive(Debug, thiserror::Error)]
enum ItemError {
    #[error(transparent)]
    Delete(#[from] DeleteError),
    #[error(transparent)]
    List(#[from] ListError),
    #[error(transparent)]
    Page(#[from] PageError),
}

/// A deleted topic.
#[derive(Default)]
struct Emptied {
    emptiness: TopicEmptiness,
    /// By the monotonic clock: no listing before it can be the last one. The store's clock says which is.
    listed_again_at: Duration,
}

/// The task.
pub(crate) struct Deleter {
    context: Arc<Context>,
    emptiness: Mutex<BTreeMap<TopicId, Emptied>>,
    /// The scope that had the last turn: the next tick begins behind it.
    last: Mutex<Option<DeletionScope>>,
}

impl Deleter {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context, emptiness: Mutex::default(), last: Mutex::default() }
    }

    async fn run(&self) -> Result<(), TickError> {
        let context = &self.context;
        let image = context.commands.image();
        context.metrics.deletions_waiting.set(image.deletions().len() as u64);
        self.emptiness().retain(|topic_id, _| image.deletions().holds_topic(*topic_id));
        let mut done = Vec::new();
        let mut failed = None;
        let mut plan = self.plan(&image);
        plan.retain(|(scope, _)| self.is_ours(*scope, &image) && self.is_due(*scope));
        if !plan.is_empty() {
            context.may_delete().await?;
        }
        for (scope, items) in plan {
            for item in items {
                match self.carry_out(scope, &item, &image).await {
                    Ok(true) => done.push((scope, item.id)),
                    Ok(false) => break,
                    Err(error) => {
                        context.metrics.deletion_failures.inc();
                        failed = Some(TickError::new(format!("deletion of {:?}", item.target), error));
                        // The items of a scope are done in order; other scopes go on.
                        break;
                    }
                }
            }
        }
        if !done.is_empty() {
            let command = Command::DeletionDone { items: done };
            // What was removed before the answer was lost is removed: the second time it changes nothing.
            let removed = propose_again(&*context.commands, command).await;
            removed.map_err(|error| TickError::new("the report of deletions", error))?;
            context.metrics.deletions_waiting.set(context.commands.image().deletions().len() as u64);
        }
        failed.map_or(Ok(()), Err)
    }

    fn plan(&self, image: &MetadataImage) -> Vec<(DeletionScope, Vec<DeletionItem>)> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let plan = plan_deletions(image, ITEMS_PER_TICK_MAX, *last);
        *last = plan.last().map(|(scope, _)| *scope);
        plan
    }

    fn is_ours(&self, scope: DeletionScope, image: &MetadataImage) -> bool {
        match scope {
            DeletionScope::Partition { place } => {
                image.partition(&place).is_some_and(|partition| self.context.leads(partition))
            }
            DeletionScope::Topic { .. } => self.context.does_cluster_work(image),
        }
    }

    /// A listing every tick over a whole orphan age would tell nothing that the last one does not.
    fn is_due(&self, scope: DeletionScope) -> bool {
        let DeletionScope::Topic { topic_id } = scope else { return true };
        let now = self.context.clock.monotonic();
        self.emptiness().get(&topic_id).is_none_or(|known| known.listed_again_at <= now)
    }

    /// Does one item. Answers whether it is done; a topic's folder must be found empty twice.
    async fn carry_out(
        &self,
        scope: DeletionScope,
        item: &DeletionItem,
        image: &MetadataImage,
    ) -> Result<bool, ItemError> {
        match (scope, &item.target) {
            (DeletionScope::Topic { topic_id }, DeletionTarget::Topic { name, .. }) => {
                self.empty_topic(topic_id, name).await
            }
            (DeletionScope::Partition { place }, target) => {
                // The scope is ours only while its topic exists, so that the name is known.
                let Some(topic) = image.topic(place.topic_id) else { return Ok(false) };
                match target {
                    DeletionTarget::Key { object } => {
                        self.delete(&key_of(&topic.name, place, object)).await?;
                    }
                    DeletionTarget::Range { page, from, to, whole_page } => {
                        let named = image.partition(&place).map(|partition| &partition.manifest.lines);
                        let is_named = named.is_some_and(|lines| lines.iter().any(|line| line.page == *page));
                        self.delete_range(&topic.name, place, *page, *from, *to, *whole_page, is_named)
                            .await?;
                    }
                    DeletionTarget::Topic { .. } => return Ok(false),
                }
                Ok(true)
            }
            (DeletionScope::Topic { .. }, _) => Ok(false),
        }
    }

    async fn delete(&self, key: &str) -> Result<(), DeleteError> {
        self.context.store.delete(key).await?;
        self.context.metrics.deletions.inc();
        Ok(())
    }

    /// The objects that a page lists and that end in `(from, to]`, then the page.
    #[allow(clippy::too_many_arguments, reason = "an item's fields, and where they are")]
    async fn delete_range(
        &self,
        topic: &TopicName,
        place: TopicPartition,
        page: PageId,
        from: Offset,
        to: Offset,
        whole_page: bool,
        is_named: bool,
    ) -> Result<(), ItemError> {
        let context = &self.context;
        let entries = match context.page(topic, place, page).await {
            Ok(entries) => entries,
            // A page goes last, by its own item or by one behind this: it is gone only where everything before it is, in a
            // process that ended before it could report so. One that a manifest names must be there.
            Err(PageError::NotFound { .. }) if whole_page || !is_named => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        for entry in entries.iter().filter(|entry| from < entry.range.end && entry.range.end <= to) {
            self.delete(&key_of(topic, place, &ObjectName::Segment { object: entry.object })).await?;
        }
        if whole_page {
            self.delete(&key_of(topic, place, &ObjectName::Page { page })).await?;
            context.pages.forget(place, page);
        }
        Ok(())
    }

    /// Deletes everything in a deleted topic's folder, whose name holds the topic's id. Answers whether it is done.
    async fn empty_topic(&self, topic_id: TopicId, name: &TopicName) -> Result<bool, ItemError> {
        let folder = topic_folder(name, topic_id);
        let mut after: Option<String> = None;
        let mut found = 0_u64;
        let store_time = loop {
            let page = self.context.store.list(&folder, after.as_deref(), LIST_KEYS).await?;
            for object in &page.objects {
                self.delete(&object.key).await?;
                found += 1;
            }
            match page.objects.last() {
                Some(last) if page.more => after = Some(last.key.clone()),
                _ => break page.store_time,
            }
        };
        let age_ms = millis(self.context.config.orphan_age);
        let now = self.context.clock.monotonic();
        let mut emptiness = self.emptiness();
        let known = emptiness.entry(topic_id).or_default();
        let done = known.emptiness.listed(found == 0, store_time, age_ms);
        let left = Duration::from_millis(known.emptiness.left_ms(store_time, age_ms));
        known.listed_again_at = now.saturating_add(left);
        if found > 0 || done {
            info!(topic = %name, %topic_id, objects = found, done, "a deleted topic's objects go");
        }
        Ok(done)
    }

    fn emptiness(&self) -> std::sync::MutexGuard<'_, BTreeMap<TopicId, Emptied>> {
        self.emptiness.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The key of one object of a partition.
pub(crate) fn key_of(topic: &TopicName, place: TopicPartition, object: &ObjectName) -> String {
    let topic = topic.clone();
    match *object {
        ObjectName::Segment { object } => ObjectKey::Segment { topic, place, object },
        ObjectName::Page { page } => ObjectKey::Page { topic, place, page },
        ObjectName::Manifest { version } => ObjectKey::Manifest { topic, place, version },
    }
    .to_string()
}

impl Task for Deleter {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move { self.run().await })
    }
}
