//! Type 8: `ConsumerGroupCurrentMemberAssignmentKey.json` and `ConsumerGroupCurrentMemberAssignmentValue.json`.

use crate::{Str, Uuid};

messages! {
    key ConsumerGroupCurrentMemberAssignmentKey: ConsumerGroupCurrentMemberAssignment {
        group_id:  Str [0];
        member_id: Str [0];
    }
    value ConsumerGroupCurrentMemberAssignmentValue: ConsumerGroupCurrentMemberAssignment, versions [0], flexible [0+] {
        member_epoch:                  i32                  [0+];
        previous_member_epoch:         i32                  [0+];
        state:                         i8                   [0+];
        assigned_partitions:           Vec<TopicPartitions> [0+];
        partitions_pending_revocation: Vec<TopicPartitions> [0+];
    }
    struct TopicPartitions {
        topic_id:          Uuid             [0+];
        partitions:        Vec<i32>         [0+];
        assignment_epochs: Option<Vec<i32>> [0+] nullable[0+] tag 0;
    }
}
