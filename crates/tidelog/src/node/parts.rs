//! What the parts of a node share: disk, clock, chance, tasks, metrics.

use std::{path::Path, sync::Arc};

use anyhow::{Context as _, Result};
use tidelog_broker::BrokerParts;
use tidelog_log::{DirectoryLock, Log, LogConfig, RecoveredPartition, directory_owner};
use tidelog_object::StoreLayer;
use tidelog_replica::{Metadata, ReplicaManager};
use tidelog_runtime::{
    Clock, Disk, FileDisk, FileDiskConfig, IdGen, RandomIds, Registry, Rng, Supervisor, SystemClock,
    SystemRng,
};
use tidelog_types::{BootId, ByteSize, ClusterId, DirectoryId};
use tokio::runtime::Handle;

use super::refusal;
use crate::config::NodeConfig;

/// Descriptors for everything that is neither a client nor an open segment: the journal, the controller, the store and its
/// cache, and what is read or made just now.
const DESCRIPTORS_KEPT: u64 = 512;

/// Puts a disk between a node and the machine's own one.
pub type DiskLayer = Arc<dyn Fn(Arc<dyn Disk>) -> Arc<dyn Disk> + Send + Sync>;

/// What lies between a node and its machine: nothing but in tests, which put their faults here. So no build of the product
/// differs from the tested one.
#[derive(Clone, Default)]
pub struct Layers {
    /// Over the disk.
    pub disk: Option<DiskLayer>,
    /// Over the store.
    pub store: Option<StoreLayer>,
}

#[derive(Clone)]
pub(super) struct Parts {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) rng: Arc<dyn Rng>,
    pub(super) ids: Arc<dyn IdGen>,
    pub(super) registry: Registry,
    pub(super) supervisor: Supervisor,
    pub(super) store_layer: Option<StoreLayer>,
}

impl Parts {
    pub(super) fn new(layers: Layers, back: &Handle) -> Result<Self> {
        let registry = Registry::new();
        let disk = FileDisk::new(FileDiskConfig { registry: registry.clone(), ..FileDiskConfig::default() });
        let disk: Arc<dyn Disk> = Arc::new(disk.context("start the disk's threads")?);
        let rng: Arc<dyn Rng> = Arc::new(SystemRng);
        Ok(Self {
            disk: layers.disk.map_or_else(|| Arc::clone(&disk), |layer| layer(Arc::clone(&disk))),
            store_layer: layers.store,
            clock: Arc::new(SystemClock::new()),
            ids: Arc::new(RandomIds::new(Arc::clone(&rng))),
            rng,
            supervisor: Supervisor::new(Handle::current(), back.clone(), &registry),
            registry,
        })
    }

    /// Takes the data directory for this process, and says which cluster it belongs to, before anything in it is changed.
    pub(super) async fn lock_directory(
        &self,
        directory: &Path,
    ) -> Result<(DirectoryLock, Option<ClusterId>)> {
        let path = directory.to_owned();
        let take = move || {
            let lock = DirectoryLock::acquire(&path)?;
            let owner = directory_owner(&path)?;
            Ok((lock, owner.and_then(|owner| owner.cluster_id)))
        };
        let taken = self.supervisor.spawn_blocking("lock directory", take).join().await;
        taken.context("lock the data directory")?.map_err(|error| refusal::directory(directory, &error))
    }

    pub(super) async fn open_log(
        &self,
        config: &NodeConfig,
        cluster_id: ClusterId,
        lock: DirectoryLock,
    ) -> Result<(Log, Vec<RecoveredPartition>)> {
        let settings = &config.settings;
        let amount = |key: &str| settings.amount(key);
        let mut log = LogConfig::new(&config.data_dir, DirectoryId::from_bytes(self.ids.uuid()));
        log.lock = Some(lock);
        log.cluster_id = Some(cluster_id);
        let space = self.disk.space(&config.data_dir).await.context("ask for the disk's space")?;
        // At most a tenth of the file system, whatever is set.
        let journal_max = amount("log.journal.bytes.max").unwrap_or(log.journal_bytes_max.get());
        log.journal_bytes_max = ByteSize::bytes(journal_max.min(space.total / 10));
        if let Some(bytes) = amount("log.journal.file.bytes") {
            log.journal_file_bytes =
                ByteSize::bytes(bytes.min((log.journal_bytes_max.get() / 4).max(1024 * 1024)));
        }
        if let Some(bytes) = amount("log.tail.bytes") {
            log.tail_bytes = ByteSize::bytes(bytes);
        }
        if let Some(linger) = amount("log.flush.linger.ms") {
            log.flush_linger = std::time::Duration::from_millis(linger);
        }
        if let Some(lag) = amount("tier.upload.max.lag.ms") {
            // What waits in memory only is not sealed yet: the wait must not be what makes an upload late.
            let half = std::time::Duration::from_millis((lag / 2).max(50));
            log.write_behind_delay = log.write_behind_delay.min(half);
        }
        log.descriptors_max = usize::try_from(log_descriptors(descriptors())).unwrap_or(64);
        let opened = Log::open(
            log,
            Arc::clone(&self.disk),
            Arc::clone(&self.clock),
            self.supervisor.clone(),
            &self.registry,
        );
        opened.await.map_err(|error| refusal::directory(&config.data_dir, &error))
    }

    /// Which boot of the machine this is: after a power cut it is another one.
    pub(super) async fn boot_id(&self) -> Result<BootId> {
        let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        let text = self.supervisor.spawn_blocking("boot id", read).join().await?;
        // Without one every start counts as another boot, which is the safe side.
        let digits: Vec<u8> = text.unwrap_or_default().bytes().filter(u8::is_ascii_hexdigit).collect();
        let parsed = std::str::from_utf8(&digits).ok().and_then(|hex| u128::from_str_radix(hex, 16).ok());
        Ok(BootId::from_bytes(parsed.map_or_else(|| self.ids.uuid(), u128::to_be_bytes)))
    }

    pub(super) fn broker_parts(&self, metadata: Arc<dyn Metadata>, replicas: &ReplicaManager) -> BrokerParts {
        BrokerParts {
            metadata,
            replicas: replicas.clone(),
            clock: Arc::clone(&self.clock),
            rng: Arc::clone(&self.rng),
            ids: Arc::clone(&self.ids),
            disk: Arc::clone(&self.disk),
            supervisor: self.supervisor.clone(),
            registry: self.registry.clone(),
        }
    }
}

/// Descriptors of the process that segments may have open: of 4,096 these are 1,536.
fn log_descriptors(limit: u64) -> u64 {
    limit.saturating_sub(descriptors_kept(limit)) / 7 * 3
}

/// Connections of clients that the process has descriptors for, beside segments and what is kept: of 4,096 these are 2,048.
pub(super) fn connections_max() -> usize {
    let limit = descriptors();
    let left = limit.saturating_sub(log_descriptors(limit)).saturating_sub(descriptors_kept(limit));
    usize::try_from(left).unwrap_or(usize::MAX)
}

fn descriptors_kept(limit: u64) -> u64 {
    DESCRIPTORS_KEPT.min(limit / 2)
}

/// The process's limit of descriptors.
fn descriptors() -> u64 {
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits.lines().find(|line| line.starts_with("Max open files"));
    line.and_then(|line| line.split_whitespace().nth(3)).and_then(|soft| soft.parse().ok()).unwrap_or(4096)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_are_divided_and_none_is_promised_twice() {
        let clients = |limit| limit - log_descriptors(limit) - descriptors_kept(limit);
        assert_eq!((log_descriptors(4_096), clients(4_096), descriptors_kept(4_096)), (1_536, 2_048, 512));
        assert_eq!((log_descriptors(1_024), clients(1_024), descriptors_kept(1_024)), (219, 293, 512));
        assert_eq!((log_descriptors(256), clients(256), descriptors_kept(256)), (54, 74, 128));
    }
}
