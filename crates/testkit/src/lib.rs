//! Builders and faults for tests and benches: stores that fail on demand, a stand-in for S3, virtual time.
//!
//! **Owns** nothing of the product and is part of no build of it.
//!
//! Start reading at [`S3Server`] and [`S3Proxy`], then [`FaultyStore`] (faults as planned) and [`SimBucket`] (faults as a
//! seed decides); [`raw_client`] is a Kafka client for tests of the
//! protocol; [`KillSwitch`] ends the process at a named operation, [`FailingDisk`] fails a sync, and [`Carelessness`] names
//! deliberate mistakes.

mod careless;
mod failing;
mod forward;
mod http_date;
mod key_issuer;
mod kill;
pub mod raw_client;
mod s3_answers;
mod s3_proxy;
mod s3_server;
mod sim_bucket;
mod store_fault;
mod virtual_time;

pub use careless::{CarelessDisk, CarelessStore, Carelessness};
pub use failing::{FailingDisk, SyncFailure, SyncedFile};
pub use key_issuer::{IssuerManners, KeyIssuer};
pub use kill::{KillPlan, KillSwitch, KillingDisk, KillingStore, Moment, Phase};
pub use s3_proxy::{Fault, LoggedRequest, Rule, S3Proxy};
pub use s3_server::{Conditions, ListQuirk, S3Config, S3Server};
pub use sim_bucket::{BucketManners, BucketObserver, SimBucket, TrapMoment};
pub use store_fault::{FaultyStore, StoreFault, StoreOperation};
pub use virtual_time::VirtualClock;
