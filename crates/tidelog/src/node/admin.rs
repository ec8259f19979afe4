//! What the admin listener shows of the node.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Value, json};
use tidelog_broker::{AdminAnswer, AdminError, AdminSource, LiftFence, SegmentsQuery};
use tidelog_controller::Controller;
use tidelog_replica::{Fence, LiftFenceError, PartitionHandle, ReplicaManager};
use tidelog_runtime::Supervisor;
use tidelog_tier::SegmentsError;
use tidelog_types::{Offset, PartitionIndex, TopicName};

use super::store::Store;

/// The node as the admin listener sees it: first what it waits for, then everything.
#[derive(Default)]
pub(super) struct NodeAdmin {
    state: Mutex<State>,
}

#[derive(Default, Clone)]
struct State {
    waits_for: Option<&'static str>,
    serving: Option<Serving>,
}

#[derive(Clone)]
struct Serving {
    controller: Controller,
    replicas: ReplicaManager,
    store: Arc<Store>,
    tasks: Supervisor,
}

impl NodeAdmin {
    fn state(&self) -> State {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says what the start waits for.
    pub(super) fn waits_for(&self, what: &'static str) {
        tracing::debug!(what, "start waits");
        self.state.lock().unwrap_or_else(PoisonError::into_inner).waits_for = Some(what);
    }

    /// Says that clients are served.
    pub(super) fn serves(
        &self,
        controller: &Controller,
        replicas: &ReplicaManager,
        store: &Arc<Store>,
        tasks: &Supervisor,
    ) {
        let serving = Serving {
            controller: controller.clone(),
            replicas: replicas.clone(),
            store: Arc::clone(store),
            tasks: tasks.clone(),
        };
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) =
            State { waits_for: None, serving: Some(serving) };
    }

    fn serving(&self) -> Result<Serving, AdminError> {
        let state = self.state();
        state.serving.ok_or_else(|| {
            AdminError::Unavailable(format!(
                "the node starts: it waits for {}",
                state.waits_for.unwrap_or("its first part")
            ))
        })
    }
}

fn answer(
    document: impl Future<Output = Result<serde_json::Value, AdminError>> + Send + 'static,
) -> AdminAnswer {
    Box::pin(document)
}

impl AdminSource for NodeAdmin {
    fn waits_for(&self) -> Vec<String> {
        let state = self.state();
        match state.serving {
            Some(_) => Vec::new(),
            None => vec![state.waits_for.unwrap_or("its first part").to_owned()],
        }
    }

    fn cluster(&self) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            let serving = serving?;
            let image = serving.replicas.applied_image();
            let raft = serving.controller.status();
            let brokers: Vec<_> = image
                .brokers()
                .map(|broker| {
                    json!({
                        "node_id": broker.id, "incarnation": broker.incarnation, "rack": broker.rack, "fenced": broker.fenced,
                        "listeners": broker.listeners.iter().map(|l| format!("{}://{}:{}", l.name, l.host, l.port)).collect::<Vec<_>>(),
                    })
                })
                .collect();
            Ok(json!({
                "cluster_id": serving.controller.cluster_id(),
                "feature_level": image.feature_level,
                "brokers": brokers,
                "topics": image.topics().count(),
                "partitions": image.partitions().count(),
                "controller": {
                    "leader": raft.leader, "term": raft.term, "last_log_index": raft.last_log_index,
                    "applied_index": raft.applied_index, "snapshot_index": raft.snapshot_index, "purged_index": raft.purged_index,
                },
            }))
        })
    }

    fn tier_status(&self) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            let status = serving?.store.tier_status().await.ok_or_else(not_begun)?;
            serde_json::to_value(status).map_err(|error| AdminError::Unavailable(error.to_string()))
        })
    }

    fn tier_segments(&self, query: SegmentsQuery) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            let topic =
                TopicName::new(&query.topic).map_err(|error| AdminError::Invalid(error.to_string()))?;
            let found = serving?.store.tier_segments(&topic).await.ok_or_else(not_begun)?;
            let mut found = found.map_err(|error| match error {
                SegmentsError::UnknownTopic(_) => AdminError::NotFound(error.to_string()),
                SegmentsError::Page(_) => AdminError::Unavailable(error.to_string()),
            })?;
            found
                .segments
                .retain(|segment| query.partition.is_none_or(|partition| segment.partition.0 == partition));
            found.segments.truncate(query.limit);
            serde_json::to_value(found).map_err(|error| AdminError::Unavailable(error.to_string()))
        })
    }

    fn fences(&self) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            let mut fenced: Vec<(PartitionHandle, Fence)> = serving?
                .replicas
                .partitions()
                .into_iter()
                .filter_map(|partition| partition.fence().map(|fence| (partition, fence)))
                .collect();
            fenced.sort_by(|(a, _), (b, _)| {
                (a.topic(), a.place().partition).cmp(&(b.topic(), b.place().partition))
            });
            let fences: Vec<Value> =
                fenced.iter().map(|(partition, fence)| fence_document(partition, fence)).collect();
            Ok(json!({ "fences": fences }))
        })
    }

    fn lift_fence(&self, lift: LiftFence) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            let serving = serving?;
            // A task of its own: whoever asked may go away in the middle of it.
            let lifting = serving.tasks.spawn("lift fence", lift_one(serving.replicas, lift));
            lifting.join().await.map_err(|error| AdminError::Unavailable(error.to_string()))?
        })
    }

    fn clear_cache(&self) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            serving?.store.clear_cache().await;
            Ok(json!({ "cache": "empty" }))
        })
    }
}

async fn lift_one(replicas: ReplicaManager, lift: LiftFence) -> Result<Value, AdminError> {
    let topic = TopicName::new(&lift.topic).map_err(|error| AdminError::Invalid(error.to_string()))?;
    let partition = replicas.partition_by_name(&topic, PartitionIndex(lift.partition)).ok_or_else(|| {
        AdminError::NotFound(format!("this node has no partition {} of topic `{topic}`", lift.partition))
    })?;
    let accepted = Offset::new(lift.accept_loss_from)
        .ok_or_else(|| AdminError::Invalid("accept_loss_from is no offset".to_owned()))?;
    let fence = partition.lift_fence(accepted).await.map_err(|error| match error {
        LiftFenceError::NotFenced | LiftFenceError::NotLeader | LiftFenceError::AnotherLoss { .. } => {
            AdminError::Conflict(error.to_string())
        }
        LiftFenceError::Log(_) | LiftFenceError::CutBelow { .. } => {
            AdminError::Unavailable(error.to_string())
        }
    })?;
    Ok(fence_document(&partition, &fence))
}

fn fence_document(partition: &PartitionHandle, fence: &Fence) -> Value {
    json!({
        "topic": partition.topic().as_str(), "partition": partition.place().partition.0, "why": &*fence.why,
        "local_log_start": fence.local_log_start.get(), "lost_from": fence.lost_from.get(), "lost_to": fence.lost_to.map(Offset::get),
    })
}

/// Tiering begins once the store has said whose prefix it is.
fn not_begun() -> AdminError {
    AdminError::Unavailable("tiering waits for the store to say whose prefix it is".to_owned())
}
