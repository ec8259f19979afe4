//! The oldest manifest entries to pages, so that the replicated state stays small however long the history.
//!
//! **Owns** the steps of a spill: read the last page, append, write a new key, propose the swap of its line. The last page is
//! closed once the moved entries no longer fit, or where it is lost or damaged; then a page of its own follows.
//!
//! Crash behaviour: a page that no line names is an orphan. A swap names the last line as it was read and exactly the oldest
//! entries, so that two spills at once cannot both enter.

use tidelog_core::{
    cluster::{Command, Outcome, PartitionManifest, Spill},
    upload::{SpillPlan, plan_spill},
};
use tidelog_format::{
    keys::ObjectKey,
    manifest::{ManifestEntry, PAGE_ENTRIES_MAX, Page, PageId, PageLine},
};
use tidelog_replica::ProposeFailure;
use tidelog_types::{TopicName, TopicPartition, limits};
use tracing::{debug, warn};

use crate::{
    commands::propose_again,
    context::Context,
    pages::PageError,
    publish,
    put::{PutWholeError, put_whole},
};

/// Why entries did not move. The next tick tries again.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SpillError {
    #[error(transparent)]
    Page(#[from] PageError),
    #[error(transparent)]
    Put(#[from] PutWholeError),
    #[error(transparent)]
    Propose(#[from] ProposeFailure),
    #[error("{moved} entries do not fit one page")]
    TooLarge { moved: usize },
}

impl SpillError {
    /// Whether it came to a put.
    pub(crate) const fn is_behind_put(&self) -> bool {
        match self {
            Self::Put(_) | Self::Propose(_) => true,
            Self::Page(_) | Self::TooLarge { .. } => false,
        }
    }
}

/// A page to write.
struct NewPage {
    replaces_last: bool,
    entries: Vec<ManifestEntry>,
    line: PageLine,
    bytes: bytes::Bytes,
}

/// Moves a partition's oldest entries into a page, where a spill is due and this node leads. Publishes the manifest after.
pub(crate) async fn spill_if_due(context: &Context, place: TopicPartition) -> Result<bool, SpillError> {
    let image = context.commands.image();
    let Some((topic, partition)) = image.topic(place.topic_id).zip(image.partition(&place)) else {
        return Ok(false);
    };
    if !context.leads(partition) {
        return Ok(false);
    }
    let Some(plan) = plan_spill(&partition.manifest) else { return Ok(false) };
    let page = new_page(context, &topic.name, place, &partition.manifest, &plan).await?;
    let key = ObjectKey::Page { topic: topic.name.clone(), place, page: page.line.page }.to_string();
    // From here on the page is the only list of what it lists.
    put_whole(&context.store, &key, vec![page.bytes]).await?;
    let spill = Spill {
        place,
        leader_epoch: partition.leader_epoch,
        last_page: plan.last.map(|line| line.page),
        replaces_last: page.replaces_last,
        moved: plan.moved.iter().map(|entry| entry.object).collect(),
        line: page.line,
    };
    match propose_again(&*context.commands, Command::SpillManifest { spill }).await {
        Ok(Outcome::Spilled { version }) => {
            context.pages.keep(place, page.line.page, page.entries.into());
            context.metrics.spills.inc();
            debug!(partition = %place, moved = plan.moved.len(), version, "manifest entries moved to a page");
        }
        Ok(other) => {
            let why = format!("the controller answered {other:?} to a spill");
            return Err(ProposeFailure::Unknown(why).into());
        }
        Err(failure) => {
            context.metrics.uploads_abandoned.inc();
            return Err(failure.into());
        }
    }
    // Replaced pages go only once a manifest without them is published; a failure here is made good by the publish task.
    if let Err(error) = publish::publish(context, place).await {
        warn!(partition = %place, %error, "a manifest was not published after a spill");
    }
    Ok(true)
}

async fn new_page(
    context: &Context,
    topic: &TopicName,
    place: TopicPartition,
    manifest: &PartitionManifest,
    plan: &SpillPlan,
) -> Result<NewPage, SpillError> {
    let upload = context.next_upload();
    if let Some(last) = plan.last {
        match context.page(topic, place, last.page).await {
            Ok(held) => {
                let entries: Vec<ManifestEntry> = held.iter().chain(&plan.moved).copied().collect();
                let page = PageId { base: last.range.base, upload };
                if let Some(page) = sealed(context, place, page, entries, true) {
                    return Ok(page);
                }
            }
            // What it listed cannot be read, and that is all that it costs: what follows gets another list.
            Err(error) if error.is_of_the_page() => {
                warn!(partition = %place, %topic, %error, "the last page is closed, since it cannot be read");
            }
            Err(error) => return Err(error.into()),
        }
    }
    let base = plan.moved.first().map_or(manifest.tiered_end, |entry| entry.range.base);
    let too_large = SpillError::TooLarge { moved: plan.moved.len() };
    sealed(context, place, PageId { base, upload }, plan.moved.clone(), false).ok_or(too_large)
}

/// The page's bytes and line; `None` where it is larger than a page may be.
fn sealed(
    context: &Context,
    place: TopicPartition,
    page: PageId,
    entries: Vec<ManifestEntry>,
    replaces_last: bool,
) -> Option<NewPage> {
    if entries.is_empty() || entries.len() > PAGE_ENTRIES_MAX {
        return None;
    }
    let content = Page { cluster_id: context.config.cluster_id, place, entries };
    let (line, bytes) = (content.line(page), content.encode());
    let fits = bytes.len() <= limits::MANIFEST_PAGE_BYTES_MAX;
    fits.then(|| NewPage { replaces_last, entries: content.entries, line, bytes: bytes.into() })
}
