//! The creation of `__consumer_offsets`, by whoever first asks for a group's coordinator.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_replica::PartitionHandle;
use tidelog_wire::ErrorCode;

use super::offsets_topic;
use crate::{
    api::create_topics::{self, Wanted},
    error_code::ApiError,
    node::Node,
};

/// How long its creation is waited for: a client asks again soon.
const CREATE_WAIT_MS: i32 = 10_000;

/// Creates the topic where there is none, and waits until it is hosted.
///
/// # Errors
/// It is not there, and a client may ask again.
pub(crate) async fn ensure(node: &Arc<Node>) -> Result<(), ApiError> {
    let name = offsets_topic();
    if node.image().topic_by_name(&name).is_some() {
        return Ok(());
    }
    let _alone = node.groups.creation.lock().await;
    if node.image().topic_by_name(&name).is_some() {
        return Ok(());
    }
    let settings = node.settings(&node.image());
    let number = |key: &str, default: i32| {
        settings.number(key).and_then(|number| i32::try_from(number).ok()).unwrap_or(default)
    };
    let segment_bytes = settings.number("offsets.topic.segment.bytes").unwrap_or(104_857_600);
    let configs = [
        ("cleanup.policy", "compact".to_owned()),
        ("compression.type", "producer".to_owned()),
        ("segment.bytes", segment_bytes.to_string()),
    ];
    let wanted = Wanted {
        name: name.clone(),
        partition_count: number("offsets.topic.num.partitions", 50),
        replication_factor: number("offsets.topic.replication.factor", 1),
        assignments: Vec::new(),
        configs: configs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect::<BTreeMap<_, _>>(),
        without_effect: Vec::new(),
    };
    tracing::info!(topic = %name, partitions = wanted.partition_count, "creating the topic of groups and offsets");
    match create_topics::create(node, wanted, CREATE_WAIT_MS).await {
        Ok(_) => Ok(()),
        // Another node was first, which is as good.
        Err(error) if error.code == ErrorCode::TopicAlreadyExists => Ok(()),
        Err(error) => {
            tracing::warn!(topic = %name, code = %error.code, message = %error.message, "topic not created");
            Err(error)
        }
    }
}

/// A partition of groups by the name of its topic, as people look for it.
pub(super) fn shown_place(handle: &PartitionHandle) -> String {
    format!("{}-{}", handle.topic(), handle.place().partition)
}
