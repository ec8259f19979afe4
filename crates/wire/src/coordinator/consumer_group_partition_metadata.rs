//! Type 4: `ConsumerGroupPartitionMetadataKey.json` and `ConsumerGroupPartitionMetadataValue.json`.

use crate::{Str, Uuid};

messages! {
    key ConsumerGroupPartitionMetadataKey: ConsumerGroupPartitionMetadata {
        group_id: Str [0];
    }
    value ConsumerGroupPartitionMetadataValue: ConsumerGroupPartitionMetadata, versions [0], flexible [0+] {
        topics: Vec<TopicMetadata> [0+];
    }
    struct TopicMetadata {
        topic_id:           Uuid                   [0+];
        topic_name:         Str                    [0+];
        num_partitions:     i32                    [0+];
        partition_metadata: Vec<PartitionMetadata> [0+];
    }
    struct PartitionMetadata {
        partition: i32      [0+];
        racks:     Vec<Str> [0+];
    }
}
