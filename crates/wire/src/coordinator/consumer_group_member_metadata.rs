//! Type 5: `ConsumerGroupMemberMetadataKey.json` and `ConsumerGroupMemberMetadataValue.json`.

use bytes::Bytes;

use crate::Str;

messages! {
    key ConsumerGroupMemberMetadataKey: ConsumerGroupMemberMetadata {
        group_id:  Str [0];
        member_id: Str [0];
    }
    value ConsumerGroupMemberMetadataValue: ConsumerGroupMemberMetadata, versions [0], flexible [0+] {
        instance_id:             Option<Str>                   [0+] nullable[0+];
        rack_id:                 Option<Str>                   [0+] nullable[0+];
        client_id:               Str                           [0+];
        client_host:             Str                           [0+];
        subscribed_topic_names:  Vec<Str>                      [0+];
        subscribed_topic_regex:  Option<Str>                   [0+] nullable[0+];
        rebalance_timeout_ms:    i32                           [0+] = -1;
        server_assignor:         Option<Str>                   [0+] nullable[0+];
        classic_member_metadata: Option<ClassicMemberMetadata> [0+] nullable[0+] tag 0;
    }
    struct ClassicMemberMetadata {
        session_timeout_ms:  i32                  [0+];
        supported_protocols: Vec<ClassicProtocol> [0+];
    }
    struct ClassicProtocol {
        name:     Str   [0+];
        metadata: Bytes [0+];
    }
}
