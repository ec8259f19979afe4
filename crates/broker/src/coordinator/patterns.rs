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
    consumer::{Change, Refused},
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
    /// What the regular expression matches that a heartbeat brings anew, if it does. Those that are due again are looked at
    /// behind.
    ///
    /// # Errors
    /// Kafka's code; `COORDINATOR_NOT_AVAILABLE` where others' new expressions took too long. Nothing has changed.
    pub(super) async fn resolutions<'a>(
        self: &Arc<Self>,
        node: &'a Arc<Node>,
        group: &Arc<str>,
        request: &Heartbeat,
    ) -> Result<Resolved<'a>, Refused> {
        let wanted = self.wanted(node, &node.image(), group, request)?;
        if !wanted.due.is_empty() {
            self.refresh(node, group, wanted.due);
        }
        if wanted.new.is_none() {
            return Ok((Resolutions::default(), None));
        }
        let groups = &node.groups;
        let most = groups.settings().commit_timeout;
        let turn = bounded(node, most, groups.pattern_turns.acquire()).await;
        let turn = turn.and_then(Result::ok).ok_or((ErrorCode::CoordinatorNotAvailable, None))?;
        let image = node.image();
        // Another member may have had it done meanwhile.
        let wanted = self.wanted(node, &image, group, request)?.new.into_iter().collect();
        let resolving = node.coordinators.spawn_back("regular expressions", resolve(image, wanted)).join();
        // It panicked, which is logged, or the broker stops.
        let resolutions = resolving.await.map_err(|_| (ErrorCode::CoordinatorNotAvailable, None))?;
        Ok((resolutions, Some(turn)))
    }

    /// Has expressions of a group looked at again where nobody waits for it, unless those of another are being looked at: then a
    /// later heartbeat asks.
    fn refresh(self: &Arc<Self>, node: &Arc<Node>, group: &Arc<str>, due: BTreeSet<Arc<str>>) {
        let Ok(turn) = Arc::clone(&node.groups.refresh_turns).try_acquire_owned() else { return };
        let (shard, node_here, group) = (Arc::clone(self), Arc::clone(node), Arc::clone(group));
        let refreshing = async move {
            let resolutions = resolve(node_here.image(), due).await;
            shard.refreshed(&node_here, &group, &resolutions);
            drop(turn);
        };
        node.coordinators.spawn_back("regular expressions", refreshing).detach();
    }

    /// Hands what came of it to the group, if it is still there.
    fn refreshed(&self, node: &Node, group: &Arc<str>, resolutions: &Resolutions) {
        let Ok(mut state) = self.serving() else { return };
        let (now, settings, image) = (now(node), node.groups.settings(), node.image());
        // Without room they stay due.
        let has_room = state.has_room();
        let Ok(Some(Group { members: Members::Consumer(members), .. })) = state.group(group) else { return };
        if !has_room {
            return;
        }
        let changes = members.refresh_patterns(now, &Topics(&image), resolutions);
        let change = Change { changes, ..Change::default() };
        match state.changed(group, now, &settings, &image, change) {
            Ok(news) => {
                drop(state);
                self.wake(news);
            }
            Err(code) => node.groups.taken_back(node, group, code),
        }
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
