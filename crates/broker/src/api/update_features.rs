//! UpdateFeatures (key 57): Kafka's switches for what a cluster may use. There are none here, and none is announced: so
//! each is refused, in Kafka's words for a feature that a cluster does not have.

use std::{collections::BTreeMap, sync::Arc};

use tidelog_wire::{
    ErrorCode, Str,
    messages::{UpdateFeaturesRequest, UpdateFeaturesResponse, update_features::FeatureUpdateKey},
};

use super::shown;
use crate::{connection::Caller, node::Node};

/// Kafka's upgrade types: an upgrade, a downgrade that loses nothing, one that may.
const UPGRADE_TYPES: std::ops::RangeInclusive<i8> = 1..=3;

pub(crate) async fn handle(
    node: &Arc<Node>,
    _: &Caller,
    version: i16,
    request: UpdateFeaturesRequest,
) -> UpdateFeaturesResponse {
    // By name: one of them is told, and which one must not depend on chance.
    let updates: BTreeMap<&str, &FeatureUpdateKey> =
        request.feature_updates.iter().map(|update| (update.feature.as_str(), update)).collect();
    let mut response = UpdateFeaturesResponse { error_message: None, ..UpdateFeaturesResponse::default() };
    if let Some((feature, update)) = updates.first_key_value() {
        let level = update.max_version_level;
        let why = refusal(node, version, feature, update);
        response.error_code = ErrorCode::InvalidUpdateVersion.code();
        response.error_message = Some(Str::from(format!(
            "The update failed for all features since the following feature had an error: Invalid update version {level} for \
             feature {}. {why}",
            shown(feature)
        )));
    }
    response
}

fn refusal(node: &Node, version: i16, feature: &str, update: &FeatureUpdateKey) -> String {
    // Version 0 says in another way whether it may go down.
    if version > 0 && !UPGRADE_TYPES.contains(&update.upgrade_type) {
        return "The controller does not support the given upgrade type.".to_owned();
    }
    match update.max_version_level {
        ..0 => "A feature version cannot be less than 0.".to_owned(),
        0 => format!("Feature {} not found.", shown(feature)),
        1.. => format!("Local controller {} does not support this feature.", node.id),
    }
}
