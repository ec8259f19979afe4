//! Types 0 and 1: `OffsetCommitKey.json`, `OffsetCommitValue.json` and `LegacyOffsetCommitValue.json`. The key of type 0 has
//! the same fields.

use crate::{Str, Uuid};

messages! {
    key OffsetCommitKey: OffsetCommit {
        group:     Str [0];
        topic:     Str [0];
        partition: i32 [0];
    }
    value OffsetCommitValue: OffsetCommit, versions [0-4], flexible [4+] {
        offset:           i64  [0+];
        leader_epoch:     i32  [3+] = -1, ignorable;
        metadata:         Str  [0+];
        commit_timestamp: i64  [0+];
        expire_timestamp: i64  [1]  = -1, ignorable;
        topic_id:         Uuid [4+] tag 0, ignorable;
    }
    value LegacyOffsetCommitValue: LegacyOffsetCommit, versions [0], flexible [none] {
        offset:           i64 [0];
        metadata:         Str [0];
        commit_timestamp: i64 [0];
    }
}
