//! The bucket side of a node: the client, the claim of the prefix, the tier's tasks, the cache.

use std::{path::Path, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, bail};
use tidelog_controller::Controller;
use tidelog_object::{ClaimError, ObjectClient, StoreOptions, StoreUrl, claim_prefix};
use tidelog_replica::ReplicaManager;
use tidelog_types::{BrokerIncarnation, ClusterId};

use super::parts::Parts;
use crate::config::NodeConfig;

/// How long a start waits for a store that only is busy: after that the node serves what is hot, and goes on asking.
const CLAIM_WAIT: Duration = Duration::from_secs(5);

/// The pause between two claims.
const CLAIM_PAUSE: Duration = Duration::from_secs(2);

/// The bucket side of a node.
pub struct Store {
    client: ObjectClient,
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
            ..StoreOptions::default()
        };
        let client = ObjectClient::open(&url, options, Arc::clone(&parts.clock), Arc::clone(&parts.rng), &parts.registry);
        Ok(Self { client: client.await.with_context(|| format!("open the store {url}"))? })
    }

    /// The store's address.
    #[must_use]
    pub fn url(&self) -> &StoreUrl {
        self.client.url()
    }

    /// The client.
    #[must_use]
    pub fn client(&self) -> &ObjectClient {
        &self.client
    }

    /// Takes the prefix for the cluster. A store that is away or busy is asked on in the background: only a refusal, or
    /// another cluster, is final.
    pub(super) async fn claim(&self, cluster_id: ClusterId, parts: &Parts) -> Result<()> {
        match tokio::time::timeout(CLAIM_WAIT, claim_prefix(&self.client, cluster_id)).await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(ClaimError::Retriable(failure))) => {
                tracing::warn!(%failure, "the store does not say yet whose prefix it is: serving what is hot meanwhile");
            }
            Ok(Err(refusal)) => bail!(refusal),
            Err(_) => tracing::warn!("the store is silent: serving what is hot meanwhile"),
        }
        let (client, clock, ended) = (self.client.clone(), Arc::clone(&parts.clock), parts.supervisor.shutdown_token());
        parts
            .supervisor
            .spawn_back("claim prefix", async move {
                loop {
                    match claim_prefix(&client, cluster_id).await {
                        Ok(_) => return,
                        Err(error) => tracing::warn!(%error, "the prefix is not claimed"),
                    }
                    tokio::select! {
                        biased;
                        () = ended.cancelled() => return,
                        () = clock.sleep(CLAIM_PAUSE) => {}
                    }
                }
            })
            .detach();
        Ok(())
    }

    pub(super) fn start_tier(
        &self,
        _config: &NodeConfig,
        _parts: &Parts,
        _cluster_id: ClusterId,
        _incarnation: BrokerIncarnation,
        _replicas: &ReplicaManager,
        _controller: &Controller,
    ) -> Result<()> {
        Ok(())
    }

    pub(super) async fn stop(&self, _deadline: Duration) -> Vec<&'static str> {
        Vec::new()
    }
}

/// The bucket of a node without `--store`: a folder of its data directory.
fn embedded(data_dir: &Path) -> Result<StoreUrl> {
    let folder = std::path::absolute(data_dir)?.join("bucket");
    let url = format!("file://{}", folder.display());
    url.parse().with_context(|| format!("{url}: give a bucket with --store"))
}
