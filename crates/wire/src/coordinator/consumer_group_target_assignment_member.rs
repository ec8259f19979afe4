//! Type 7: `ConsumerGroupTargetAssignmentMemberKey.json` and `ConsumerGroupTargetAssignmentMemberValue.json`.

use crate::{Str, Uuid};

messages! {
    key ConsumerGroupTargetAssignmentMemberKey: ConsumerGroupTargetAssignmentMember {
        group_id:  Str [0];
        member_id: Str [0];
    }
    value ConsumerGroupTargetAssignmentMemberValue: ConsumerGroupTargetAssignmentMember, versions [0], flexible [0+] {
        topic_partitions: Vec<TopicPartition> [0+];
    }
    struct TopicPartition {
        topic_id:   Uuid     [0+];
        partitions: Vec<i32> [0+];
    }
}
