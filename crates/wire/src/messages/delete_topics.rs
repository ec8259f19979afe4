//! Key 20: `DeleteTopicsRequest.json` and `DeleteTopicsResponse.json`.

use crate::{Str, Uuid};

messages! {
    request DeleteTopicsRequest: DeleteTopics, versions [1-6], flexible [4+] {
        topics:      Vec<DeleteTopicState> [6+];
        topic_names: Vec<Str>              [0-5], ignorable;
        timeout_ms:  i32                   [0+];
    }
    struct DeleteTopicState {
        name:     Option<Str> [6+] nullable[6+] = None;
        topic_id: Uuid        [6+];
    }
    response DeleteTopicsResponse: DeleteTopics, versions [1-6], flexible [4+] {
        throttle_time_ms: i32                       [1+], ignorable;
        responses:        Vec<DeletableTopicResult> [0+];
    }
    struct DeletableTopicResult {
        name:          Option<Str> [0+] nullable[6+];
        topic_id:      Uuid        [6+], ignorable;
        error_code:    i16         [0+];
        error_message: Option<Str> [5+] nullable[5+] = None, ignorable;
    }
}
