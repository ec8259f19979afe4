use std::{path::Path, sync::Arc};

use tidelog_runtime::{FileDisk, FileDiskConfig};
use tidelog_sim::{disk_contract, run, seeds};

#[tokio::test]
async fn the_real_disk_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let disk = FileDisk::new(FileDiskConfig::default()).unwrap();
    disk_contract(Arc::new(disk), folder.path()).await;
}

#[test]
fn the_simulated_disk_keeps_the_contract() {
    for seed in seeds(20) {
        run(seed, |context| async move {
            disk_contract(Arc::new(context.disk.clone()), Path::new("/")).await;
            assert_eq!(context.disk.open_files(), 0, "every handle is gone");
        });
    }
}
