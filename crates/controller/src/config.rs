//! How a controller is configured.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use openraft::{Config, SnapshotPolicy};
use tidelog_types::{ClusterId, ProducerId};

use crate::transport::Transport;

/// Raft's timers and the deadlines of callers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader is heard of.
    pub heartbeat: Duration,
    /// The least silence after which a follower asks for votes; the most is twice as much.
    pub election_timeout: Duration,
    /// How long a proposal may take before its outcome is given up as unknown.
    pub propose_deadline: Duration,
}

impl Timing {
    /// One voter: nobody waits for a heartbeat, so the timers are slow and an idle node sleeps.
    #[must_use]
    pub const fn single() -> Self {
        Self {
            heartbeat: Duration::from_secs(1),
            election_timeout: Duration::from_secs(3),
            propose_deadline: Duration::from_secs(10),
        }
    }

    /// Several voters: a new leader within about two seconds.
    #[must_use]
    pub const fn group() -> Self {
        Self {
            heartbeat: Duration::from_millis(250),
            election_timeout: Duration::from_secs(1),
            propose_deadline: Duration::from_secs(10),
        }
    }
}

/// How a controller is started.
#[derive(Clone)]
pub struct ControllerConfig {
    /// Its directory; created at the first start.
    pub directory: PathBuf,
    /// Its number among the voters.
    pub node_id: u64,
    /// All voters and their addresses, this one included. Used at the first start; later the log says who votes.
    pub voters: BTreeMap<u64, String>,
    /// The cluster it must belong to; `None`: whatever the directory says, or a new one where it is empty.
    pub cluster_id: Option<ClusterId>,
    /// Whether an empty directory may be taken into use. `false` where the node is known to have had one: it was
    /// lost then, and starting over would break what other nodes remember.
    pub may_create: bool,
    /// How many restores from the bucket came before.
    pub restore_number: u32,
    /// The first producer id of a new cluster.
    pub producer_ids_from: ProducerId,
    /// Raft's timers.
    pub timing: Timing,
    /// A snapshot is taken after this many entries, and as many are kept behind it.
    pub snapshot_entries: u64,
    /// How to reach the other voters; `None` for one voter.
    pub transport: Option<Arc<dyn Transport>>,
}

impl ControllerConfig {
    /// One voter in `directory`.
    #[must_use]
    pub fn single(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            node_id: 1,
            voters: BTreeMap::from([(1, String::new())]),
            cluster_id: None,
            may_create: true,
            restore_number: 0,
            producer_ids_from: ProducerId(0),
            timing: Timing::single(),
            snapshot_entries: 1_000,
            transport: None,
        }
    }
}

pub(crate) fn raft_config(config: &ControllerConfig, cluster_id: ClusterId) -> Config {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let election = millis(config.timing.election_timeout);
    Config {
        cluster_name: cluster_id.to_string(),
        heartbeat_interval: millis(config.timing.heartbeat),
        election_timeout_min: election,
        election_timeout_max: election.saturating_mul(2),
        // A snapshot travels whole; it is at most some 100 MB.
        install_snapshot_timeout: 30_000,
        snapshot_policy: SnapshotPolicy::LogsSinceLast(config.snapshot_entries),
        // As many as lie between two snapshots: the one before the newest can be used too.
        max_in_snapshot_log_to_keep: config.snapshot_entries,
        replication_lag_threshold: config.snapshot_entries.saturating_mul(5),
        purge_batch_size: (config.snapshot_entries / 4).max(1),
        enable_pre_vote: Some(true),
        // Without a persisted commit index a restarted leader would serve what it had not applied.
        enable_leader_restore: Some(false),
        ..Config::default()
    }
}
