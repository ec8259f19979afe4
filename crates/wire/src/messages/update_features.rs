//! Key 57: `UpdateFeaturesRequest.json` and `UpdateFeaturesResponse.json`.

use crate::Str;

messages! {
    request UpdateFeaturesRequest: UpdateFeatures, versions [0-2], flexible [0+] {
        timeout_ms:      i32                   [0+] = 60000;
        feature_updates: Vec<FeatureUpdateKey> [0+];
        validate_only:   bool                  [1+];
    }
    struct FeatureUpdateKey {
        feature:           Str  [0+];
        max_version_level: i16  [0+];
        allow_downgrade:   bool [0];
        upgrade_type:      i8   [1+] = 1;
    }
    response UpdateFeaturesResponse: UpdateFeatures, versions [0-2], flexible [0+] {
        throttle_time_ms: i32                         [0+];
        error_code:       i16                         [0+];
        error_message:    Option<Str>                 [0+]  nullable[0+];
        results:          Vec<UpdatableFeatureResult> [0-1], ignorable;
    }
    struct UpdatableFeatureResult {
        feature:       Str         [0+];
        error_code:    i16         [0+];
        error_message: Option<Str> [0+] nullable[0+];
    }
}
