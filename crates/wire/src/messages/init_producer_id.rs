//! Key 22: `InitProducerIdRequest.json` and `InitProducerIdResponse.json`.

use crate::Str;

messages! {
    request InitProducerIdRequest: InitProducerId, versions [0-6], flexible [2+] {
        transactional_id:       Option<Str> [0+] nullable[0+];
        transaction_timeout_ms: i32         [0+];
        producer_id:            i64         [3+] = -1;
        producer_epoch:         i16         [3+] = -1;
        enable2_pc:             bool        [6+];
        keep_prepared_txn:      bool        [6+];
    }
    response InitProducerIdResponse: InitProducerId, versions [0-6], flexible [2+] {
        throttle_time_ms:           i32 [0+], ignorable;
        error_code:                 i16 [0+];
        producer_id:                i64 [0+] = -1;
        producer_epoch:             i16 [0+];
        ongoing_txn_producer_id:    i64 [6+] = -1;
        ongoing_txn_producer_epoch: i16 [6+] = -1;
    }
}
