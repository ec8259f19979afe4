//! Regular expressions are compiled and matched where nobody waits for it but who sent them: not under the lock of a shard, and
//! behind, in small steps.

use std::{collections::BTreeSet, sync::Arc};

use tidelog_core::{
    cluster::MetadataImage,
    groups::consumer::{ConsumerGroup, Heartbeat, Pattern, PatternsWanted, Resolutions, TopicsImage},
};
use tidelog_wire::ErrorCode;
use tokio::sync::SemaphorePermit;

use super::{
    Shard,
    consumer::Refused,
    group::{Group, Members},
    timers::bounded,
    topics::Topics,
    writer::now,
};
use crate::node::Node;

/// Names that are matched before others may run: a bad expression takes a millisecond for some.
const NAMES_AT_ONCE: usize = 64;

/// What heartbeats need, and a place that is kept until the heartbeat is handled: who waits for it finds the work done.
pub(super) type Resolved<'a> = (Resolutions, Option<SemaphorePermit<'a>>);

impl Shard {
    /// What the regular expressions match that a heartbeat asks for. Those that are only due again are left to a later one
    /// where others are being looked at.
    ///
    /// # Errors
    /// Kafka's code; `COORDINATOR_NOT_AVAILABLE` where others' new expressions took too long. Nothing has changed.
    pub(super) async fn resolutions<'a>(
        &self,
        node: &'a Arc<Node>,
        group: &Arc<str>,
        request: &Heartbeat,
    ) -> Result<Resolved<'a>, Refused> {
        let wanted = self.wanted(node, &node.image(), group, request)?;
        let groups = &node.groups;
        let turn = if wanted.new.is_some() {
            let most = groups.settings().commit_timeout;
            let turn = bounded(node, most, groups.pattern_turns.acquire()).await;
            turn.and_then(Result::ok).ok_or((ErrorCode::CoordinatorNotAvailable, None))?
        } else {
            let turn = if wanted.due.is_empty() { None } else { groups.refresh_turns.try_acquire().ok() };
            let Some(turn) = turn else { return Ok((Resolutions::default(), None)) };
            turn
        };
        let image = node.image();
        // Another member may have had it done meanwhile.
        let PatternsWanted { new, due } = self.wanted(node, &image, group, request)?;
        let wanted = new.map_or(due, |new| BTreeSet::from([new]));
        let resolving = node.coordinators.spawn_back("regular expressions", resolve(image, wanted)).join();
        // It panicked, which is logged, or the broker stops.
        let resolutions = resolving.await.map_err(|_| (ErrorCode::CoordinatorNotAvailable, None))?;
        Ok((resolutions, Some(turn)))
    }

    fn wanted(
        &self,
        node: &Node,
        image: &MetadataImage,
        group: &Arc<str>,
        request: &Heartbeat,
    ) -> Result<PatternsWanted, Refused> {
        let mut state = self.serving().map_err(|code| (code, None))?;
        let found = state.group(group).map_err(|code| (code, None))?;
        let (now, topics) = (now(node), Topics(image));
        Ok(match found {
            Some(Group { members: Members::Consumer(members), .. }) => {
                members.patterns_wanted(now, &topics, request)
            }
            // It will be a new one.
            _ => ConsumerGroup::new().patterns_wanted(now, &topics, request),
        })
    }
}

async fn resolve(image: Arc<MetadataImage>, wanted: BTreeSet<Arc<str>>) -> Resolutions {
    let mut names: Vec<Arc<str>> = Vec::new();
    Topics(&image).for_each_name(&mut |name| names.push(Arc::clone(name)));
    let mut resolutions = Resolutions { version: Topics(&image).version(), ..Resolutions::default() };
    for text in wanted {
        let found = match Pattern::compile(&text) {
            Ok(pattern) => {
                let mut found = BTreeSet::new();
                for some in names.chunks(NAMES_AT_ONCE) {
                    found.extend(some.iter().filter(|name| pattern.matches(name)).cloned());
                    tokio::task::yield_now().await;
                }
                Ok(found)
            }
            Err(refused) => Err(refused),
        };
        resolutions.patterns.insert(text, found);
        tokio::task::yield_now().await;
    }
    resolutions
}
