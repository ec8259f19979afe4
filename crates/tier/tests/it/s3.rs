//! Tiering and cold reads over S3's own protocol, through a proxy that misbehaves, on real time and a real disk.
//!
//! What a fault costs is bounded by short limits of the client; what is asserted is that nothing wrong is named or served, and
//! that all heals without a restart.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use tidelog_object::{MapCache, ObjectClient, OutageCause, StaticCredentials, StoreOptions, bucket_init};
use tidelog_replica::{ColdError, ColdReader, PartitionHandle};
use tidelog_runtime::{
    Clock, FileDisk, FileDiskConfig, Registry, Rng, SeededRng, Supervisor, SystemClock, SystemRng,
};
use tidelog_testkit::{Fault, FaultyStore, Rule, S3Config, S3Proxy, S3Server};
use tidelog_tier::ColdConfig;
use tidelog_types::ByteSize;
use tokio::time::Instant;

use crate::{
    cold_faults::{is_damaged, is_unavailable},
    cold_rig::{MIB, Partition, Rig},
    node::{Node, Setup, append, batch, offset},
};

/// Nothing in these tests takes this long where the product does what it says.
const SOON: Duration = Duration::from_secs(15);

fn options() -> StoreOptions {
    StoreOptions {
        silence_timeout: Duration::from_millis(600),
        first_byte_timeout: Duration::from_millis(300),
        connect_timeout: Duration::from_millis(500),
        retry_deadline: Duration::from_secs(2),
        region: Some("us-east-1".to_owned()),
        credentials: Some(StaticCredentials {
            access_key_id: "test".to_owned(),
            secret_access_key: "test-secret".to_owned(),
        }),
        ..StoreOptions::default()
    }
}

/// A store with a proxy before it, and a client behind the proxy.
struct Bucket {
    /// The stand-in, where it is no real server.
    server: Option<S3Server>,
    proxy: S3Proxy,
    client: ObjectClient,
    supervisor: Supervisor,
    clock: Arc<dyn Clock>,
}

impl Bucket {
    async fn start() -> Self {
        Self::start_with(options()).await
    }

    async fn start_with(options: StoreOptions) -> Self {
        let supervisor = Supervisor::for_test();
        let server = S3Server::start(&supervisor, S3Config::default(), &["bucket"]).await.unwrap();
        let address = server.address();
        Self::before(supervisor, address, Some(server), "s3://bucket/p", options).await
    }

    /// A bucket of the real server that the environment names, if it names one, with the keys that the AWS SDK reads.
    async fn real() -> Option<Self> {
        let endpoint =
            std::env::var("TIDELOG_TEST_S3_ENDPOINT").ok().filter(|endpoint| !endpoint.is_empty())?;
        let address = endpoint.strip_prefix("http://")?.trim_end_matches('/').parse().ok()?;
        let options = StoreOptions { credentials: None, endpoint: Some(endpoint), ..options() };
        let url = format!("s3://tidelog-tier-{:08x}", SystemRng.next_u64() >> 32);
        bucket_init(&url.parse().unwrap(), &options).await.unwrap();
        Some(Self::before(Supervisor::for_test(), address, None, &url, options).await)
    }

    async fn before(
        supervisor: Supervisor,
        address: SocketAddr,
        server: Option<S3Server>,
        url: &str,
        options: StoreOptions,
    ) -> Self {
        let proxy = S3Proxy::start(&supervisor, address).await.unwrap();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
        let (rng, registry) = (Arc::new(SeededRng::new(1)), Registry::new());
        let url = url.parse().unwrap();
        let options = StoreOptions { endpoint: Some(proxy.endpoint()), ..options };
        let client = ObjectClient::open(&url, options, Arc::clone(&clock), rng, &registry).await.unwrap();
        Self { server, proxy, client, supervisor, clock }
    }

    /// Every request of whatever kind.
    fn all(fault: Fault) -> Rule {
        Rule { method: None, target: String::new(), skip: 0, count: u32::MAX, fault }
    }
}

/// A node whose bucket it is.
struct Broker {
    bucket: Bucket,
    node: Node,
    _folder: tempfile::TempDir,
}

impl Broker {
    async fn start() -> Self {
        Self::over(Bucket::start().await).await
    }

    async fn over(bucket: Bucket) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut setup = Setup::with(Arc::clone(&bucket.clock), SeededRng::new(7));
        setup.client = Some(bucket.client.clone());
        setup.root = folder.path().to_owned();
        setup.tier.check_interval = Duration::from_millis(50);
        let disk = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
        let node = Node::start_on(&setup, disk, bucket.supervisor.clone()).await;
        Self { bucket, node, _folder: folder }
    }

    async fn sealed(&self, partition: &PartitionHandle, values: &[&str]) {
        for value in values {
            append(partition, batch(self.bucket.clock.wall(), &[value])).await;
        }
        partition.roll().await.unwrap();
    }

    /// Waits until the bucket holds exactly these values, and nothing names an object twice.
    async fn holds(&self, partition: &PartitionHandle, values: &[&str]) {
        self.node.until_tiered(partition, values.len() as u64).await;
        self.bucket.proxy.clear();
        let held: Vec<String> =
            self.node.records(partition).await.into_iter().map(|(_, value)| value).collect();
        assert_eq!(held, values);
    }

    async fn stop(self) {
        self.node.stop().await;
    }
}

/// The next `count` puts of segments meet a fault: produces go on meanwhile, and everything arrives once.
async fn an_upload_outlives(fault: Fault, count: u32) -> Broker {
    an_upload_to_outlives(Bucket::start().await, fault, count).await
}

async fn an_upload_to_outlives(bucket: Bucket, fault: Fault, count: u32) -> Broker {
    let broker = Broker::over(bucket).await;
    let partition = broker.node.create_topic("t", 1, &[]).await;
    broker.bucket.proxy.add(Rule::next("PUT", count, fault).on(".seg"));
    let begun = Instant::now();
    broker.sealed(&partition, &["a", "b"]).await;
    broker.sealed(&partition, &["c"]).await;
    broker.holds(&partition, &["a", "b", "c"]).await;
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    assert_eq!(broker.bucket.client.free_requests(), broker.bucket.client.options().requests_max);
    broker
}

// C5
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_wait_out_a_burst_of_503() {
    an_upload_outlives(Fault::Status(503, "SlowDown"), 3).await.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_outlive_connections_that_break() {
    an_upload_outlives(Fault::Reset, 4).await.stop().await;
}

// C7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_hangs_stops_its_partition_for_the_limit_on_silence_alone() {
    let broker = an_upload_outlives(Fault::Silence, 2).await;
    assert_eq!(broker.bucket.proxy.count("PUT", ".seg"), 5, "two more than objects");
    broker.stop().await;
}

// B119: the store has it, and nobody was told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_that_timed_out_and_landed_is_one_object() {
    for fault in [Fault::ForwardThenSilence, Fault::ForwardThenDrop] {
        let broker = an_upload_outlives(fault, 1).await;
        assert_eq!(broker.node.keys(".seg").await.len(), 3);
        broker.stop().await;
    }
}

// B119
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conflicts_and_failed_conditions_on_uploads_end_in_one_object() {
    for (status, code) in [(409, "ConditionalRequestConflict"), (412, "PreconditionFailed")] {
        let broker = an_upload_outlives(Fault::Status(status, code), 2).await;
        assert_eq!(broker.node.keys(".seg").await.len(), 3, "{status}");
        broker.stop().await;
    }
}

// B122
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_success_that_carries_an_error_is_no_upload() {
    an_upload_outlives(Fault::ErrorInSuccess, 2).await.stop().await;
}

// B86: what the store says of the object's length is looked at before anything names it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_of_another_length_is_named_by_no_manifest() {
    let broker = Broker::start().await;
    let partition = broker.node.create_topic("t", 1, &[]).await;
    let lies = Fault::AnswerHeader("content-length", "7".to_owned());
    broker.bucket.proxy.add(Rule::next("HEAD", 1, lies).on(".seg"));
    broker.sealed(&partition, &["a"]).await;
    broker.holds(&partition, &["a"]).await;
    assert_eq!(broker.node.metric("tier_upload_failures_total"), 1);
    assert_eq!(broker.node.keys(".seg").await.len(), 2, "the other is the sweep's");
    broker.stop().await;
}

// C22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_go_on_after_keys_expired_and_were_renewed() {
    an_upload_outlives(Fault::Status(400, "ExpiredToken"), 1).await.stop().await;
}

// C7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn uploads_over_a_slow_link_are_left_alone() {
    let broker = Broker::start().await;
    let partition = broker.node.create_topic("t", 1, &[]).await;
    broker.bucket.proxy.add(Bucket::all(Fault::Rate(1_048_576)));
    let value = "x".repeat(900_000);
    let values = [value.as_str(), value.as_str()];
    broker.sealed(&partition, &values).await;
    broker.holds(&partition, &values).await;
    assert_eq!(broker.bucket.proxy.count("PUT", ".seg"), 2);
    broker.stop().await;
}

// C5: produces and hot reads do not know of it; all heals without a restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bucket_that_is_down_costs_produces_nothing_and_heals_by_itself() {
    for fault in [Fault::Reset, Fault::Silence, Fault::Status(503, "SlowDown")] {
        let broker = Broker::start().await;
        let partition = broker.node.create_topic("t", 1, &[]).await;
        broker.bucket.proxy.add(Bucket::all(fault.clone()));
        broker.sealed(&partition, &["a"]).await;
        broker.node.until("it is known", || broker.node.client.health().writes_outage().is_some()).await;
        let begun = Instant::now();
        for _ in 0..50 {
            append(&partition, batch(broker.bucket.clock.wall(), &["b"])).await;
        }
        assert!(begun.elapsed() < Duration::from_secs(5), "{fault:?}: {:?}", begun.elapsed());
        assert_eq!(partition.snapshot().tiered_end, offset(0));
        broker.bucket.proxy.clear();
        partition.roll().await.unwrap();
        let begun = Instant::now();
        broker.node.until_tiered(&partition, 51).await;
        assert!(begun.elapsed() < SOON, "{fault:?}: {:?}", begun.elapsed());
        assert_eq!(broker.node.records(&partition).await.len(), 51);
        broker.stop().await;
    }
}

/// A bucket of 4 MB in one object of a partition, its reader, and a small partition beside it.
struct Cold {
    bucket: Bucket,
    rig: Rig,
    partition: Partition,
    beside: Partition,
}

impl Cold {
    async fn start() -> Self {
        Self::start_with(options()).await
    }

    async fn start_with(options: StoreOptions) -> Self {
        Self::over(Bucket::start_with(options).await).await
    }

    async fn over(bucket: Bucket) -> Self {
        let registry = Registry::new();
        let cache = Arc::new(MapCache::new(ByteSize::mib(64), &registry));
        let unused = FaultyStore::memory(Arc::clone(&bucket.clock));
        let (client, clock) = (bucket.client.clone(), Arc::clone(&bucket.clock));
        let rig = Rig::over(&ColdConfig::default(), unused, client, cache, clock, &registry);
        let (mut partition, mut beside) = (Partition::new(0), Partition::new(1));
        partition.put_even(&rig, 40, 100_000).await;
        beside.put_even(&rig, 3, 1_000).await;
        Self { bucket, rig, partition, beside }
    }

    fn key(&self) -> String {
        self.partition.key(&self.partition.entries()[0])
    }

    /// GETs of the object's batches meet a fault. The index is read before, so that the fault hits batches alone.
    async fn hurt(&self, count: u32, fault: Fault) {
        self.partition.check(&self.rig, self.partition.request(39, 1)).await;
        self.bucket.proxy.clear_log();
        self.bucket.proxy.add(Rule::next("GET", count, fault).on(&self.key()));
    }

    /// All of the object comes as it was written, in time.
    async fn recovers(&self) {
        let begun = Instant::now();
        self.partition.replay(&self.rig, 0, MIB).await;
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    }

    /// The cause is over: who reads while the bucket is still known to be away is told so and comes back, and then all comes.
    async fn heals(&self) {
        let begun = Instant::now();
        while let Err(error) = self.partition.read(&self.rig, 0, 1).await {
            assert!(is_unavailable(&error) && begun.elapsed() < SOON, "{error}");
        }
        self.recovers().await;
    }

    /// A fault that lasts fails this partition alone, as `is_told`, and is over with its cause.
    async fn fails_alone(&self, is_told: fn(&ColdError) -> bool) {
        let begun = Instant::now();
        let error = self.partition.read(&self.rig, 0, 1).await.unwrap_err();
        assert!(is_told(&error), "{error}");
        assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
        self.beside.replay(&self.rig, 0, MIB).await;
        self.bucket.proxy.clear();
        self.heals().await;
    }
}

/// Passing, then lasting.
async fn a_cold_read_meets(fault: Fault, passing: u32, is_told: fn(&ColdError) -> bool) {
    let cold = Cold::start().await;
    cold.hurt(passing, fault.clone()).await;
    cold.recovers().await;
    assert!(cold.bucket.proxy.log().iter().any(|request| request.fault.is_some()), "it was hit");
    let cold = Cold::start().await;
    cold.hurt(u32::MAX, fault).await;
    cold.fails_alone(is_told).await;
}

// B101: a store that answers other than it is asked says nothing of the object: it is away, and no copy is called damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_range_than_the_one_asked_for_is_not_served() {
    a_cold_read_meets(Fault::OtherRange(100), 2, is_unavailable).await;
}

// B101: a store that lies about it is found out by the checksums.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_range_under_the_right_name_is_not_served() {
    a_cold_read_meets(Fault::LyingRange(100), 1, is_damaged).await;
}

// B101: the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_whole_object_for_a_range_is_not_served() {
    a_cold_read_meets(Fault::IgnoreRange, 2, is_unavailable).await;
}

// B101: the same where the request was right and its answer is changed on the way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_another_range_on_its_way_is_not_served() {
    a_cold_read_meets(Fault::MovedAnswer(100), 2, is_unavailable).await;
    a_cold_read_meets(Fault::WholeAnswer, 2, is_unavailable).await;
    a_cold_read_meets(Fault::LyingAnswer(100), 1, is_damaged).await;
}

// B101
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_are_not_served() {
    a_cold_read_meets(Fault::WrongByte(50_000), 1, is_damaged).await;
}

// B101
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrong_total_length_is_not_served() {
    let lies = Fault::AnswerHeader("content-range", "bytes 0-999919/99999999".to_owned());
    a_cold_read_meets(lies, 1, is_damaged).await;
}

// B101: an object that was copied in place has another ETag and the same bytes; a store that changes it each time is no store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_etag_has_the_object_opened_anew() {
    let cold = Cold::start().await;
    cold.hurt(1, Fault::AnswerHeader("etag", "\"another\"".to_owned())).await;
    cold.recovers().await;
    // Copied in place, for good.
    let server = cold.bucket.server.as_ref().unwrap();
    let bytes = server.object("bucket", &format!("p/{}", cold.key())).unwrap();
    cold.rig.tier.clear().await;
    cold.partition.check(&cold.rig, cold.partition.request(39, 1)).await;
    server.put_object("bucket", &format!("p/{}", cold.key()), bytes);
    cold.recovers().await;
}

// B101
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_a_body_is_resumed_and_never_served() {
    let cold = Cold::start().await;
    cold.hurt(3, Fault::CutBody(300_000)).await;
    cold.recovers().await;
    let cold = Cold::start().await;
    cold.hurt(u32::MAX, Fault::CutBody(0)).await;
    cold.fails_alone(is_unavailable).await;
}

// B101: a length that is not the body's: shorter and longer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_of_another_length_is_not_served() {
    for length in ["1000", "2000000"] {
        let cold = Cold::start().await;
        cold.hurt(2, Fault::AnswerHeader("content-length", length.to_owned())).await;
        cold.recovers().await;
    }
}

// Throttling passes, and is told while it lasts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_reads_wait_out_a_burst_of_503() {
    let fault = Fault::Status(503, "SlowDown");
    let cold = Cold::start().await;
    cold.hurt(2, fault.clone()).await;
    cold.recovers().await;
    let cold = Cold::start().await;
    cold.hurt(u32::MAX, fault).await;
    let error = cold.partition.read(&cold.rig, 0, 1).await.unwrap_err();
    assert!(is_unavailable(&error), "{error}");
    assert_eq!(cold.bucket.client.health().reads_outage().unwrap().cause, OutageCause::Throttles);
    cold.bucket.proxy.clear();
    cold.heals().await;
}

// One request that hangs costs the time of a first byte; a store that hangs is an error soon, and heals.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cold_read_that_hangs_is_asked_for_again_soon() {
    let slow = StoreOptions { silence_timeout: Duration::from_secs(30), ..options() };
    let cold = Cold::start_with(slow.clone()).await;
    cold.hurt(1, Fault::Silence).await;
    let begun = Instant::now();
    cold.partition.check(&cold.rig, cold.partition.request(0, 1)).await;
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());

    let cold = Cold::start().await;
    cold.hurt(u32::MAX, Fault::Silence).await;
    let begun = Instant::now();
    let error = cold.partition.read(&cold.rig, 0, 1).await.unwrap_err();
    assert!(is_unavailable(&error), "{error}");
    assert!(begun.elapsed() < SOON, "{:?}", begun.elapsed());
    cold.bucket.proxy.clear();
    cold.heals().await;
    assert_eq!(cold.rig.tier.outage(), None);
}

// C7
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cold_reads_over_a_slow_link_are_left_alone() {
    let cold = Cold::start().await;
    cold.hurt(u32::MAX, Fault::Rate(1_048_576)).await;
    let begun = Instant::now();
    cold.recovers().await;
    assert!(begun.elapsed() > 2 * options().silence_timeout, "it was slow");
    assert_eq!(cold.bucket.client.usage().failure_count, 0);
}

// C22
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expired_keys_do_not_fail_cold_reads_for_good() {
    let fault = Fault::Status(400, "ExpiredToken");
    let cold = Cold::start().await;
    cold.hurt(1, fault.clone()).await;
    cold.recovers().await;
    let cold = Cold::start().await;
    cold.hurt(u32::MAX, fault).await;
    let error = cold.partition.read(&cold.rig, 0, 1).await.unwrap_err();
    assert!(is_unavailable(&error), "{error}");
    cold.bucket.proxy.clear();
    cold.heals().await;
}

// B92: an object that is deleted under its reader is no damage: the reader looks at a newer manifest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_object_deleted_under_its_reader_sends_it_to_a_newer_manifest() {
    let cold = Cold::start().await;
    cold.partition.check(&cold.rig, cold.partition.request(39, 1)).await;
    cold.bucket.client.delete(&cold.key()).await.unwrap();
    let error = cold.partition.read(&cold.rig, 0, 1).await.unwrap_err();
    assert_eq!(error, ColdError::NotHeld { offset: offset(0) });
    cold.beside.replay(&cold.rig, 0, MIB).await;
}

// The same before a real server, where `TIDELOG_TEST_S3_ENDPOINT` names one. It checks signatures, which cover the range: its
// answers are changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_real_server_behind_faults_holds_and_gives_what_was_written() {
    for (fault, count) in [
        (Fault::Status(503, "SlowDown"), 3),
        (Fault::ForwardThenSilence, 1),
        (Fault::ForwardThenDrop, 1),
        (Fault::Silence, 1),
        (Fault::Status(409, "ConditionalRequestConflict"), 2),
    ] {
        let Some(bucket) = Bucket::real().await else { return };
        let broker = an_upload_to_outlives(bucket, fault, count).await;
        assert_eq!(broker.node.keys(".seg").await.len(), 3);
        broker.stop().await;
    }
    for (fault, count) in [
        (Fault::Status(503, "SlowDown"), 2),
        (Fault::CutBody(300_000), 2),
        (Fault::WrongByte(50_000), 1),
        (Fault::MovedAnswer(100), 2),
        (Fault::LyingAnswer(100), 1),
        (Fault::WholeAnswer, 2),
        (Fault::AnswerHeader("etag", "\"another\"".to_owned()), 1),
        (Fault::Silence, 1),
    ] {
        let Some(bucket) = Bucket::real().await else { return };
        let cold = Cold::over(bucket).await;
        cold.hurt(count, fault).await;
        cold.recovers().await;
    }
}
