//! What the admin listener shows of the node.

use std::sync::{Arc, Mutex, PoisonError};

use serde_json::json;
use tidelog_broker::{AdminAnswer, AdminError, AdminSource, SegmentsQuery};
use tidelog_controller::Controller;
use tidelog_replica::ReplicaManager;
use tidelog_tier::SegmentsError;
use tidelog_types::TopicName;

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
    pub(super) fn serves(&self, controller: &Controller, replicas: &ReplicaManager, store: &Arc<Store>) {
        let serving =
            Serving { controller: controller.clone(), replicas: replicas.clone(), store: Arc::clone(store) };
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

    fn clear_cache(&self) -> AdminAnswer {
        let serving = self.serving();
        answer(async move {
            serving?.store.clear_cache().await;
            Ok(json!({ "cache": "empty" }))
        })
    }
}

/// Tiering begins once the store has said whose prefix it is.
fn not_begun() -> AdminError {
    AdminError::Unavailable("tiering waits for the store to say whose prefix it is".to_owned())
}
