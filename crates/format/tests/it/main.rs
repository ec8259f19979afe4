//! The formats against an independent implementation, against stored bytes of every version, and against damage.

mod kafka_protocol_agrees;
