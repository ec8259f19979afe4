//! Orphans: objects that were written and never committed.
//!
//! **Owns** the requests, and the order of T7 that makes the deletion safe; what counts as an orphan is
//! `tidelog_core::sweep`'s. A key that is none of ours is counted and left alone, and so is everything that a page which cannot
//! be read might list.
//!
//! A page that cannot be read and an object that cannot be deleted keep nothing else: the sweep goes on, and fails at its end.
//!
//! Where the bucket is a folder, a put whose process was killed leaves a file that no listing shows. Those go at the same age:
//! nothing can name them, so they need no fence.

use std::{collections::BTreeSet, sync::Arc};

use futures::future::BoxFuture;
use tidelog_core::{
    cluster::{Command, MetadataImage, ObjectName},
    sweep::{Coverage, Suspect, coverage, fences, is_old},
    upload::PageEntries,
};
use tidelog_format::{keys::ObjectKey, manifest::PageId};
use tidelog_object::ListPage;
use tidelog_types::{TopicName, TopicPartition};
use tracing::info;

use crate::{
    commands::{linearizable_image, propose_again},
    config::millis,
    context::Context,
    delete::LIST_KEYS,
    task::{Task, TickError},
};

/// What every key of a topic's data begins with.
const TOPICS: &str = "topics/";

/// A suspect and its key as it was listed.
struct Found {
    key: String,
    topic: TopicName,
    suspect: Suspect,
}

/// The task.
pub(crate) struct Sweeper {
    context: Arc<Context>,
}

impl Sweeper {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        Self { context }
    }

    async fn sweep(&self) -> Result<(), TickError> {
        self.context.may_delete().await?;
        let store = &self.context.store;
        let (mut after, mut strangers): (Option<String>, u64) = (None, 0);
        let mut failed = None;
        loop {
            let page = store.list(TOPICS, after.as_deref(), LIST_KEYS).await;
            let page = page.map_err(|error| TickError::new("the listing", error))?;
            let (found, unknown) = self.old_objects(&page);
            strangers += unknown;
            self.sweep_page(found, &mut failed).await?;
            match page.objects.last() {
                Some(last) if page.more => after = Some(last.key.clone()),
                _ => break,
            }
        }
        self.context.metrics.strangers.set(strangers);
        self.sweep_unfinished_puts().await?;
        failed.map_or(Ok(()), Err)
    }

    /// Removes what puts of killed processes left in a folder, as far as it was to be one of our objects.
    async fn sweep_unfinished_puts(&self) -> Result<(), TickError> {
        let context = &self.context;
        let Some(puts) = context.store.unfinished_puts() else { return Ok(()) };
        let (now, orphan_age) = (context.clock.wall(), millis(context.config.orphan_age));
        let work = move || {
            let mut removed = Vec::new();
            for put in puts.list()? {
                if ObjectKey::parse(&put.key).is_ok() && is_old(put.modified, now, orphan_age) {
                    puts.remove(&put)?;
                    removed.push(put.key);
                }
            }
            Ok::<_, std::io::Error>(removed)
        };
        let removed = context.supervisor.spawn_blocking("tier-unfinished-puts", work).join().await;
        let removed = removed.map_err(|error| TickError::new("unfinished puts", error))?;
        for key in removed.map_err(|error| TickError::new("unfinished puts", error))? {
            context.metrics.orphans.inc();
            info!(key, "a put that never ended is removed");
        }
        Ok(())
    }

    /// What of a listing is old enough, by the store's own clock, and this node's to judge; and how many keys are unknown.
    fn old_objects(&self, page: &ListPage) -> (Vec<Found>, u64) {
        let orphan_age = millis(self.context.config.orphan_age);
        let image = self.context.commands.image();
        let mut unknown = 0;
        let mut found = Vec::new();
        for listed in &page.objects {
            let (topic, place, object) = match ObjectKey::parse(&listed.key) {
                Ok(ObjectKey::Segment { topic, place, object }) => {
                    (topic, place, ObjectName::Segment { object })
                }
                Ok(ObjectKey::Page { topic, place, page }) => (topic, place, ObjectName::Page { page }),
                Ok(ObjectKey::Manifest { topic, place, version }) => {
                    (topic, place, ObjectName::Manifest { version })
                }
                Ok(
                    ObjectKey::ClusterJson
                    | ObjectKey::BrokerJson { .. }
                    | ObjectKey::ControllerSnapshot { .. },
                )
                | Err(_) => {
                    unknown += 1;
                    continue;
                }
            };
            if is_old(listed.modified, page.store_time, orphan_age) && self.judges(place, &image) {
                let suspect = Suspect { place, object, modified: listed.modified };
                found.push(Found { key: listed.key.clone(), topic, suspect });
            }
        }
        (found, unknown)
    }

    /// A partition's leader judges its objects; what belongs to no partition is the first live broker's.
    fn judges(&self, place: TopicPartition, image: &MetadataImage) -> bool {
        match image.partition(&place) {
            Some(partition) => self.context.leads(partition),
            None => self.context.does_cluster_work(image),
        }
    }

    /// Fences, reads linearizably, then deletes what nothing covers. What the image at hand covers is no suspect: if it left
    /// the manifest meanwhile, the deletion queue has it. The first of what fails for one object alone goes to `failed`.
    async fn sweep_page(&self, found: Vec<Found>, failed: &mut Option<TickError>) -> Result<(), TickError> {
        let image = self.context.commands.image();
        let suspects = self.uncovered(found, &image, failed).await;
        if suspects.is_empty() {
            return Ok(());
        }
        let plain: Vec<Suspect> = suspects.iter().map(|found| found.suspect.clone()).collect();
        for (incarnation, sequence) in fences(&plain, &image) {
            let fence =
                propose_again(&*self.context.commands, Command::FenceUploads { incarnation, sequence });
            fence.await.map_err(|error| TickError::new("the fence of uploads", error))?;
        }
        let read = linearizable_image(&*self.context.commands).await;
        let image = read.map_err(|error| TickError::new("the read after the fence", error))?;
        for orphan in self.uncovered(suspects, &image, failed).await {
            if let Err(error) = self.context.store.delete(&orphan.key).await {
                failed.get_or_insert(TickError::new("an orphan", error));
                continue;
            }
            self.context.metrics.orphans.inc();
            info!(key = %orphan.key, "an object that nothing names is deleted");
        }
        Ok(())
    }

    /// Those that nothing in `image` covers. Pages are read as far as they are needed.
    async fn uncovered(
        &self,
        found: Vec<Found>,
        image: &MetadataImage,
        failed: &mut Option<TickError>,
    ) -> Vec<Found> {
        let mut pages = PageEntries::new();
        let mut unreadable: BTreeSet<PageId> = BTreeSet::new();
        let mut rest = Vec::new();
        for one in found {
            loop {
                match coverage(&one.suspect, image, &pages) {
                    Coverage::Covered => break,
                    Coverage::Uncovered => {
                        rest.push(one);
                        break;
                    }
                    Coverage::LookInto(page) if unreadable.contains(&page) => break,
                    Coverage::LookInto(page) => {
                        let read = self.context.page(&one.topic, one.suspect.place, page);
                        match read.await {
                            Ok(entries) => drop(pages.insert(page, entries)),
                            Err(error) => {
                                failed.get_or_insert(TickError::new("a page", error));
                                unreadable.insert(page);
                            }
                        }
                    }
                }
            }
        }
        rest
    }
}

impl Task for Sweeper {
    fn tick(self: Arc<Self>) -> BoxFuture<'static, Result<(), TickError>> {
        Box::pin(async move { self.sweep().await })
    }
}
