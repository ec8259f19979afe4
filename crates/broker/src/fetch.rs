//! Fetches: reading, waiting, and what is remembered between requests.
//!
//! **Owns** the incremental sessions ([`SessionCache`]), the rounds of reading of one fetch ([`read_all`]), and the reads
//! from the bucket that outlive the fetch that began them ([`ColdReads`]).

mod cold;
mod read;
mod session;

pub(crate) use cold::ColdReads;
pub(crate) use read::{FetchLimits, Found, PartitionRead, read_all};
pub(crate) use session::{Asked, FetchKey, Plan, Seen, SessionCache, SessionIds, TopicKey, Wanted};
