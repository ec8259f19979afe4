//! Making buckets and finding out what they can do.
//!
//! **Owns** [`bucket_init`] and [`bucket_check`], for people and for start-up. **Never** touches a key outside of its own
//! folder of probes, and changes no lifecycle rule that it did not write.

mod check;
mod init;
mod words;

pub use check::{BucketReport, Check, CheckStatus, bucket_check};
pub use init::{InitError, InitReport, bucket_init};
