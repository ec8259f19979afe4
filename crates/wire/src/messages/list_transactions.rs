//! Key 66: `ListTransactionsRequest.json` and `ListTransactionsResponse.json`.

use crate::Str;

messages! {
    request ListTransactionsRequest: ListTransactions, versions [0-2], flexible [0+] {
        state_filters:            Vec<Str>    [0+];
        producer_id_filters:      Vec<i64>    [0+];
        duration_filter:          i64         [1+] = -1;
        transactional_id_pattern: Option<Str> [2+] nullable[2+] = None;
    }
    response ListTransactionsResponse: ListTransactions, versions [0-2], flexible [0+] {
        throttle_time_ms:      i32                   [0+];
        error_code:            i16                   [0+];
        unknown_state_filters: Vec<Str>              [0+];
        transaction_states:    Vec<TransactionState> [0+];
    }
    struct TransactionState {
        transactional_id:  Str [0+];
        producer_id:       i64 [0+];
        transaction_state: Str [0+];
    }
}
