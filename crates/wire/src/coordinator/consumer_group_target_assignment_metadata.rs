//! Type 6: `ConsumerGroupTargetAssignmentMetadataKey.json` and `ConsumerGroupTargetAssignmentMetadataValue.json`.

use crate::Str;

messages! {
    key ConsumerGroupTargetAssignmentMetadataKey: ConsumerGroupTargetAssignmentMetadata {
        group_id: Str [0];
    }
    value ConsumerGroupTargetAssignmentMetadataValue: ConsumerGroupTargetAssignmentMetadata, versions [0], flexible [0+] {
        assignment_epoch:     i32 [0+];
        assignment_timestamp: i64 [0+] tag 0, ignorable;
    }
}
