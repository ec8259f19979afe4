//! openraft's conformance suite for stores.

use std::{path::Path, sync::Arc};

use openraft::{
    StorageError,
    testing::log::{StoreBuilder, Suite},
};
use tidelog_controller::{
    TypeConfig, log_store::LogStore, snapshot_store::SnapshotStore, state_machine::StateMachine,
};
use tidelog_runtime::{Disk, FileDisk, FileDiskConfig, SystemClock};
use tidelog_sim::{SimDisk, SimDiskConfig};

use crate::support::{cluster_id, metrics};

async fn build(disk: Arc<dyn Disk>, directory: &Path) -> (LogStore, StateMachine) {
    disk.create_dir_all(directory).await.unwrap();
    let clock = Arc::new(SystemClock::new());
    let log = LogStore::open(Arc::clone(&disk), Arc::<SystemClock>::clone(&clock), directory, metrics())
        .await
        .unwrap();
    let snapshots = SnapshotStore::new(disk, clock, directory);
    let machine = StateMachine::open(snapshots, log.purged_index(), cluster_id(1), metrics()).await.unwrap();
    (log, machine)
}

struct Simulated;

impl StoreBuilder<TypeConfig, LogStore, StateMachine> for Simulated {
    async fn build(&self) -> Result<((), LogStore, StateMachine), StorageError<TypeConfig>> {
        let disk = Arc::new(SimDisk::new(SimDiskConfig::seeded(1)));
        let (log, machine) = build(disk, Path::new("/controller")).await;
        Ok(((), log, machine))
    }
}

struct Real;

impl StoreBuilder<TypeConfig, LogStore, StateMachine, tempfile::TempDir> for Real {
    async fn build(&self) -> Result<(tempfile::TempDir, LogStore, StateMachine), StorageError<TypeConfig>> {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(FileDisk::new(FileDiskConfig::default()).unwrap());
        let (log, machine) = build(disk, directory.path()).await;
        Ok((directory, log, machine))
    }
}

#[test]
fn the_store_passes_rafts_suite_on_the_simulated_disk() {
    tidelog_sim::run(1, |_context| async { Suite::test_all(Simulated).await.unwrap() });
}

#[tokio::test(flavor = "multi_thread")]
async fn the_store_passes_rafts_suite_on_real_files() {
    Suite::test_all(Real).await.unwrap();
}
