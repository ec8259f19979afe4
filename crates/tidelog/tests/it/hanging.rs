//! A disk that hangs while the node stops.

use std::{
    future::pending,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidelog::{
    config::{NodeConfig, Overrides},
    node::{Layers, Node},
};
use tidelog_runtime::{Disk, DiskFile, IoFuture, Lane, OpenMode};
use tokio::{runtime::Handle, time::Instant};

use crate::process::Folder;

/// A disk whose syncs never end once it is told so.
struct HangingDisk {
    inner: Arc<dyn Disk>,
    hangs: Arc<AtomicBool>,
}

struct HangingFile {
    inner: Arc<dyn DiskFile>,
    hangs: Arc<AtomicBool>,
}

impl Disk for HangingDisk {
    fn open(&self, path: &Path, mode: OpenMode, lane: Lane) -> IoFuture<Arc<dyn DiskFile>> {
        let (opened, hangs) = (self.inner.open(path, mode, lane), Arc::clone(&self.hangs));
        Box::pin(
            async move { Ok(Arc::new(HangingFile { inner: opened.await?, hangs }) as Arc<dyn DiskFile>) },
        )
    }

    tidelog_testkit::forward_disk!(inner: create_dir_all, sync_dir, rename, remove_file, remove_dir_all, list_dir, space);
}

impl DiskFile for HangingFile {
    fn sync_data(&self) -> IoFuture<()> {
        if self.hangs.load(Ordering::Relaxed) { Box::pin(pending()) } else { self.inner.sync_data() }
    }

    tidelog_testkit::forward_disk!(inner: write_at, read_at, allocate, set_len, len, push_out);
}

async fn start(data_dir: &Path, layers: Layers) -> anyhow::Result<Node> {
    let free = || Some("127.0.0.1:0".to_owned());
    let overrides = Overrides {
        data_dir: Some(data_dir.to_owned()),
        listen: free(),
        admin_listen: free(),
        ..Overrides::default()
    };
    let config = NodeConfig::load(None, std::iter::empty(), overrides).unwrap();
    Node::start_under(layers, config, &Handle::current()).await
}

// The log's close and the controller's end once had no bound of their own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_on_a_disk_that_hangs_ends_in_its_time_and_says_what_did_not() {
    let folder = Folder::new();
    let data = folder.path("data");
    let hangs = Arc::new(AtomicBool::new(false));
    let switch = Arc::clone(&hangs);
    let layers = Layers {
        disk: Some(Arc::new(move |inner| Arc::new(HangingDisk { inner, hangs: Arc::clone(&switch) }) as _)),
        ..Layers::default()
    };
    let node = start(&data, layers).await.unwrap();
    hangs.store(true, Ordering::Relaxed);
    let begun = Instant::now();
    let stopped = node.stop(Duration::from_secs(5)).await.unwrap_err().to_string();
    assert_eq!(stopped, "the log was not closed in time: the next start recovers it");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    drop(node);
    // The lock on the directory goes with the last of the tasks that were ended, and with a child that another test forks at this
    // moment.
    let node = loop {
        match start(&data, Layers::default()).await {
            Err(error)
                if error.to_string().contains("is used by another") && begun.elapsed().as_secs() < 30 =>
            {
                tokio::task::yield_now().await;
            }
            started => break started.unwrap(),
        }
    };
    node.stop(Duration::from_secs(5)).await.unwrap();
}
