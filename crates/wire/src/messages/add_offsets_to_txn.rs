//! Key 25: `AddOffsetsToTxnRequest.json` and `AddOffsetsToTxnResponse.json`.

use crate::Str;

messages! {
    request AddOffsetsToTxnRequest: AddOffsetsToTxn, versions [0-4], flexible [3+] {
        transactional_id: Str [0+];
        producer_id:      i64 [0+];
        producer_epoch:   i16 [0+];
        group_id:         Str [0+];
    }
    response AddOffsetsToTxnResponse: AddOffsetsToTxn, versions [0-4], flexible [3+] {
        throttle_time_ms: i32 [0+];
        error_code:       i16 [0+];
    }
}
