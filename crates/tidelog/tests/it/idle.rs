//! What a node costs that does nothing.

use std::{fs, time::Duration};

use crate::process::{Folder, Node, serve};

/// The most that an idle node may hold in memory.
const RESIDENT_KIB_MAX: u64 = 40 * 1024;

fn resident_kib(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn an_idle_node_is_at_most_40_mib_resident() {
    let folder = Folder::new();
    let node = Node::start(serve(&folder.path("data"), &[])).await;
    // Past the start's own buffers, and some turns of the background tasks.
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let resident = resident_kib(node.process.id());
        assert!(resident <= RESIDENT_KIB_MAX, "{resident} KiB are resident");
    }
    assert_eq!(node.stop().await.code, Some(0));
}
