//! Key 26: `EndTxnRequest.json` and `EndTxnResponse.json`.

use crate::Str;

messages! {
    request EndTxnRequest: EndTxn, versions [0-5], flexible [3+] {
        transactional_id: Str  [0+];
        producer_id:      i64  [0+];
        producer_epoch:   i16  [0+];
        committed:        bool [0+];
    }
    response EndTxnResponse: EndTxn, versions [0-5], flexible [3+] {
        throttle_time_ms: i32 [0+];
        error_code:       i16 [0+];
        producer_id:      i64 [5+] = -1, ignorable;
        producer_epoch:   i16 [5+] = -1, ignorable;
    }
}
