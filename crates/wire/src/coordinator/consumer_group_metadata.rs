//! Type 3: `ConsumerGroupMetadataKey.json` and `ConsumerGroupMetadataValue.json`.

use crate::Str;

messages! {
    key ConsumerGroupMetadataKey: ConsumerGroupMetadata {
        group_id: Str [0];
    }
    value ConsumerGroupMetadataValue: ConsumerGroupMetadata, versions [0], flexible [0+] {
        epoch:         i32 [0+];
        metadata_hash: i64 [0+] tag 0;
    }
}
