//! The bucket: everything that reads or writes an object store, and the cache of what was read from it.
//!
//! **Owns** the client ([`ObjectClient`]: retries under a deadline, exact ranges, create-only puts that recognise their
//! own success, metering), what they tell of the store ([`StoreHealth`]), the addresses of stores ([`StoreUrl`]), creating and checking buckets ([`admin`]), the claim
//! of a prefix by one cluster ([`claim_prefix`]) and one data directory ([`find_broker_claim`]) and the cache of chunks ([`ChunkCache`]).
//!
//! **Never** decides what to upload, read or delete, knows no manifest, and interprets no byte that it carries.
//!
//! Start reading at [`ObjectClient`]; what may go wrong is in [`error`](GetError).

pub mod admin;

mod backing;
mod broker_claim;
mod cache;
mod claim;
mod client;
mod credentials;
mod direct;
mod error;
mod folder;
mod foyer_cache;
mod health;
mod http;
mod limits;
mod listing;
mod metrics;
mod options;
mod settle;
mod transfer;
mod unfinished;
mod url;

pub use admin::{BucketReport, Check, CheckStatus, InitError, InitReport, bucket_check, bucket_init};
pub use broker_claim::{BrokerClaim, BrokerClaimError, FreeBrokerClaim, GuardedClaim, find_broker_claim};
pub use cache::{CacheUsage, ChunkCache, ChunkKey, MapCache};
pub use claim::{ClaimError, claim_prefix};
pub use client::{
    BodySink, ETag, Expected, Fetched, HeadFound, ObjectClient, PutReceipt, RangeFetched, StoreLayer, Usage,
};
pub use direct::BodyPlan;
pub use error::{
    Corruption, DeleteError, Failure, GetError, ListError, OpenError, PutError, PutMatchError, Refusal,
};
pub use foyer_cache::{FoyerCache, FoyerConfig, FoyerConfigError};
pub use health::{OutageCause, StoreHealth, StoreOutage};
pub use listing::{ListPage, Listed};
pub use options::{ChecksumMode, ChecksumModeError, StaticCredentials, StoreOptions};
pub use unfinished::{UnfinishedPut, UnfinishedPuts};
pub use url::{StoreKind, StoreUrl, StoreUrlError};
