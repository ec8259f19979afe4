//! The bucket side of a node: the client, the claim of the prefix, the tier's tasks, cold reads, the cache.

use std::{
    os::unix::fs::MetadataExt as _,
    path::Path,
    sync::{Arc, OnceLock},
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};
use tidelog_controller::Controller;
use tidelog_object::{
    BrokerClaim, BrokerClaimError, ChunkCache, ClaimError, FoyerCache, FoyerConfig, FoyerConfigError,
    GuardedClaim, ObjectClient, OutageCause, StoreOptions, StoreUrl, claim_prefix,
};
use tidelog_replica::{ColdReader, ReplicaManager};
use tidelog_runtime::watch;
use tidelog_tier::{ColdConfig, ColdTier, SegmentsError, Tier, TierConfig, TierSegments, TierStatus};
use tidelog_types::{ByteSize, ClusterId, TopicName};
use tidelog_wire::ApiKey;

use super::{claim::Claimant, parts::Parts, refusal};
use crate::config::{EMBEDDED_BUCKET, NodeConfig};

/// How long a start waits for a store that only is busy: after that the node serves what is hot, and goes on asking.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// The pause between two claims.
const CLAIM_PAUSE: Duration = Duration::from_secs(2);

/// Chunks that the cache keeps in memory. It is opened at the first cold read, so an idle node does not pay for it.
const CACHE_MEMORY: ByteSize = ByteSize::mib(32);

/// The share of the file system that local data may take where `local.disk.bytes.max` is not set: four fifths.
const LOCAL_DISK_SHARE: (u64, u64) = (4, 5);

/// Who writes to the bucket.
#[derive(Clone)]
pub(super) struct Identity {
    pub(super) cluster_id: ClusterId,
    pub(super) claimant: Claimant,
}

/// The bucket side of a node.
pub struct Store {
    client: ObjectClient,
    cache: OnceLock<Arc<FoyerCache>>,
    cold: OnceLock<Arc<ColdTier>>,
    tier: OnceLock<Tier>,
    /// Why the node must not go on: the prefix turned out to be another cluster's, or another copy of this directory has it.
    refused: watch::Sender<Option<String>>,
}

impl Store {
    pub(super) async fn open(config: &NodeConfig, parts: &Parts) -> Result<Self> {
        let url = match &config.store {
            Some(url) => url.clone(),
            None => embedded(&config.data_dir)?,
        };
        let options = StoreOptions {
            endpoint: config.store_endpoint.clone(),
            checksum: config.store_checksum,
            runtime: Some(parts.supervisor.back_runtime()),
            ..StoreOptions::default()
        };
        let (clock, rng) = (Arc::clone(&parts.clock), Arc::clone(&parts.rng));
        let layer = parts.store_layer.as_ref();
        let client = ObjectClient::open_under(layer, &url, options, clock, rng, &parts.registry).await;
        Ok(Self {
            client: client.with_context(|| format!("open the store {url}"))?,
            cache: OnceLock::new(),
            cold: OnceLock::new(),
            tier: OnceLock::new(),
            refused: watch::Sender::new(None),
        })
    }

    /// The store's address.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        self.client.url()
    }

    /// Body bytes of the GETs of cold reads, so far.
    #[must_use]
    pub fn cold_read_bytes(&self) -> u64 {
        self.cold.get().map_or(0, |cold| cold.usage().get_bytes)
    }

    /// Takes the prefix for the cluster: false where the store does not say yet whose it is.
    ///
    /// # Errors
    /// A refusal, or another cluster's prefix: both are final.
    pub(super) async fn claim(&self, cluster_id: ClusterId, controller: &Controller) -> Result<bool> {
        // A cluster that has data in a bucket has its prefix: another one is a slip of whoever gave the store.
        let may_take = !has_data_in_bucket(controller);
        match tokio::time::timeout(CLAIM_WAIT, claim_prefix(&self.client, cluster_id, may_take)).await {
            Ok(Ok(())) => return Ok(true),
            Ok(Err(nobodys @ ClaimError::Nobodys { .. })) => bail!(nobodys),
            Ok(Err(ClaimError::Retriable(_))) | Err(_) => {}
            Ok(Err(refusal)) => bail!("{}: {refusal}", self.url()),
        }
        let why = self.client.health().failures();
        if let Some(outage) = why.as_ref().filter(|outage| outage.cause == OutageCause::NoKeys)
            // A node that has data in the bucket had keys once: their issuer may be away as the store may be.
            && may_take
        {
            return Err(refusal::no_credentials(&self.url().to_string(), &outage.reason));
        }
        let why = why.map_or_else(|| "it is silent".to_owned(), |outage| outage.to_string());
        tracing::warn!(store = %self.url(), why, "the store does not say yet whose prefix it is: serving what is hot meanwhile");
        Ok(false)
    }

    /// Claims the prefix, which is the cluster's, for this data directory: nothing where the store does not say yet.
    ///
    /// # Errors
    /// A refusal, or another copy of the directory: both are final.
    pub(super) async fn claim_directory(&self, claimant: &Claimant) -> Result<Option<BrokerClaim>> {
        let why = match tokio::time::timeout(CLAIM_WAIT, claimant.claim(&self.client)).await {
            Ok(Ok(claim)) => return Ok(Some(claim)),
            Ok(Err(BrokerClaimError::Retriable(failure))) => failure.to_string(),
            Ok(Err(refusal)) => bail!(refusal),
            Err(_) => "it is silent".to_owned(),
        };
        tracing::warn!(store = %self.url(), why, "the prefix is not claimed yet: serving what is hot meanwhile");
        Ok(None)
    }

    #[allow(clippy::too_many_arguments, reason = "the components of a node, handed over once")]
    /// Sets up cold reads, and the tier's tasks: at once where the prefix is claimed, else as soon as it is.
    pub(super) fn start_tier(
        self: &Arc<Self>,
        config: &NodeConfig,
        parts: &Parts,
        identity: Identity,
        replicas: &ReplicaManager,
        controller: &Controller,
        disk_total: u64,
        claim: Option<BrokerClaim>,
    ) -> Result<()> {
        let settings = &config.settings;
        let disk = settings.amount("tier.cache.bytes").map_or(ByteSize::ZERO, ByteSize::bytes);
        let cache = cache_config(&config.data_dir, disk);
        let cache =
            FoyerCache::new(cache, parts.supervisor.clone(), &parts.registry).context("tier.cache.bytes")?;
        let cache = Arc::new(cache);
        let chunks: Arc<dyn ChunkCache> = Arc::clone(&cache) as _;
        let cold = ColdTier::new(
            &ColdConfig::from_settings(settings),
            self.client.clone(),
            Arc::clone(&chunks),
            identity.cluster_id,
            Arc::clone(&parts.clock),
            &parts.supervisor,
            &parts.registry,
        );
        // What is written and answered now goes before what is read again.
        let registry = &parts.registry;
        cold.give_way_to([
            tidelog_log::round_seconds(registry),
            tidelog_broker::request_seconds(registry, ApiKey::Produce),
        ]);
        replicas.set_cold_reader(Arc::clone(&cold) as Arc<dyn ColdReader>);
        let incarnation = identity.claimant.own.incarnation;
        let mut tier_config =
            TierConfig::from_settings(config.node_id, incarnation, identity.cluster_id, settings);
        if tier_config.local_disk_bytes_max.is_none() {
            let (part, whole) = LOCAL_DISK_SHARE;
            tier_config.local_disk_bytes_max = Some(ByteSize::bytes(disk_total / whole * part));
        }
        let pages = cold.pages();
        // Both are set once, by this one call of a start.
        let _ = (self.cache.set(cache), self.cold.set(cold));
        let shares_disk = shares_disk(self.url(), &config.data_dir);
        let later = parts.clone();
        let (store, parts, replicas, controller) =
            (Arc::clone(self), parts.clone(), replicas.clone(), controller.clone());
        let claimant = controller.clone();
        let start = move |claim: BrokerClaim| {
            let supervisor = parts.supervisor.clone();
            let tier = Tier::start(
                tier_config,
                replicas,
                Arc::new(controller),
                store.client.clone(),
                pages,
                Arc::clone(&parts.clock),
                Arc::clone(&parts.rng),
                &supervisor,
                &parts.registry,
            );
            tier.set_claim(GuardedClaim::new(claim, store.refused.clone()));
            if shares_disk {
                tier.share_disk();
            }
            tier.set_cache(chunks);
            let _ = store.tier.set(tier);
        };
        match claim {
            Some(claim) => start(claim),
            None => self.claim_later(identity, &later, claimant, start),
        }
        Ok(())
    }

    /// Asks on in the background whose prefix it is; the tier begins once it is ours.
    fn claim_later(
        self: &Arc<Self>,
        identity: Identity,
        parts: &Parts,
        controller: Controller,
        start: impl FnOnce(BrokerClaim) + Send + 'static,
    ) {
        let (store, clock, ended) =
            (Arc::clone(self), Arc::clone(&parts.clock), parts.supervisor.shutdown_token());
        let claiming = async move {
            loop {
                let claimed = tokio::select! {
                    biased;
                    () = ended.cancelled() => return,
                    claimed = store.claim_both(&identity, &controller) => claimed,
                };
                match claimed {
                    Ok(Some(claim)) => break start(claim),
                    Ok(None) => {}
                    Err(why) => {
                        store.refused.send_replace(Some(why));
                        return;
                    }
                }
                tokio::select! {
                    biased;
                    () = ended.cancelled() => return,
                    () = clock.sleep(CLAIM_PAUSE) => {}
                }
            }
        };
        parts.supervisor.spawn_back("claim prefix", claiming).detach();
    }

    /// Claims the prefix for the cluster and for the data directory: nothing where the store does not say yet, and why the node
    /// must not go on where it refuses.
    async fn claim_both(
        &self,
        identity: &Identity,
        controller: &Controller,
    ) -> Result<Option<BrokerClaim>, String> {
        let not_yet = |failure| tracing::warn!(%failure, "the prefix is not claimed yet");
        let may_take = !has_data_in_bucket(controller);
        match claim_prefix(&self.client, identity.cluster_id, may_take).await {
            Ok(()) => {}
            Err(nobodys @ ClaimError::Nobodys { .. }) => return Err(nobodys.to_string()),
            Err(ClaimError::Retriable(failure)) => {
                not_yet(failure);
                return Ok(None);
            }
            Err(refusal) => return Err(format!("{}: {refusal}", self.url())),
        }
        match identity.claimant.claim(&self.client).await {
            Ok(claim) => Ok(Some(claim)),
            Err(BrokerClaimError::Retriable(failure)) => {
                not_yet(failure);
                Ok(None)
            }
            Err(refusal) => Err(refusal.to_string()),
        }
    }

    /// Completes when the node must not go on with this store.
    pub(super) async fn failed(&self) -> anyhow::Error {
        let mut refused = self.refused.subscribe();
        match refused.wait_for(Option::is_some).await {
            Ok(why) => anyhow!("the store: {}", why.as_deref().unwrap_or_default()),
            // The sender lives as long as this.
            Err(_) => std::future::pending().await,
        }
    }

    /// Where every partition's bytes are; none before the tier has begun.
    pub async fn tier_status(&self) -> Option<TierStatus> {
        match self.tier.get() {
            Some(tier) => Some(tier.status().await),
            None => None,
        }
    }

    /// A topic's objects; none before the tier has begun.
    pub(super) async fn tier_segments(
        &self,
        topic: &TopicName,
    ) -> Option<Result<TierSegments, SegmentsError>> {
        match self.tier.get() {
            Some(tier) => Some(tier.segments(topic).await),
            None => None,
        }
    }

    /// Drops everything that was read from the bucket, so that the next read goes there.
    pub async fn clear_cache(&self) {
        if let Some(cold) = self.cold.get() {
            cold.clear().await;
        }
    }

    /// Ends the tier's tasks: none begins anything new, and what is on its way may finish and be committed. Answers what did
    /// not end in time.
    pub(super) async fn finish_uploads(&self, deadline: Duration) -> Vec<&'static str> {
        match self.tier.get() {
            Some(tier) => tier.shutdown(deadline).await,
            None => Vec::new(),
        }
    }

    /// Ends cold reads, and closes the cache. Answers what did not end in time.
    pub(super) async fn close(&self, deadline: Duration) -> Vec<&'static str> {
        let mut late = Vec::new();
        if let Some(cold) = self.cold.get() {
            late.extend(cold.stop(deadline).await);
        }
        if let Some(cache) = self.cache.get() {
            let closing = tokio::time::timeout(deadline, ChunkCache::close(cache.as_ref())).await;
            if closing.is_err() {
                late.push("cache");
            }
        }
        late
    }
}

/// Whether the bucket is a folder on the file system of the data directory.
fn shares_disk(store: &StoreUrl, data_dir: &Path) -> bool {
    let device = |path: &Path| std::fs::metadata(path).map(|found| found.dev()).ok();
    match store.folder() {
        // One that cannot be looked at may be there: waiting for space is the safe side.
        Some(folder) => device(folder).is_none_or(|device_of| Some(device_of) == device(data_dir)),
        None => false,
    }
}

/// Whether anything of the cluster is in a bucket.
fn has_data_in_bucket(controller: &Controller) -> bool {
    controller.image().partitions().any(|(_, partition)| {
        let manifest = &partition.manifest;
        !manifest.lines.is_empty() || !manifest.entries.is_empty()
    })
}

/// The cache of chunks: a folder of the data directory.
fn cache_config(data_dir: &Path, disk: ByteSize) -> FoyerConfig {
    FoyerConfig { dir: data_dir.join("cache"), memory: CACHE_MEMORY, disk }
}

/// Checks `tier.cache.bytes`, at the start with all other settings.
pub(crate) fn check_cache_bytes(bytes: u64) -> Result<(), FoyerConfigError> {
    cache_config(Path::new(""), ByteSize::bytes(bytes)).check()
}

/// The bucket of a node without `--store`: a folder of its data directory.
fn embedded(data_dir: &Path) -> Result<StoreUrl> {
    let folder = std::path::absolute(data_dir)?.join(EMBEDDED_BUCKET);
    let url = format!("file://{}", folder.display());
    url.parse().with_context(|| format!("{url}: give a bucket with --store"))
}
