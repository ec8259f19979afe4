//! What a process that was killed in the middle of a put leaves in a bucket that is a folder.

use std::fs;

use crate::process::{Folder, Node, serve, wait_for};

// Found by the kill campaign: no listing of the store shows such a file, so that nothing ever removed it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_killed_put_left_in_a_folder_goes_at_the_orphan_age() {
    let folder = Folder::new();
    let more = [
        ["--store", &folder.store("bucket")],
        ["--set", "tier.orphan.age.ms=300"],
        ["--set", "tier.check.interval.ms=50"],
    ];
    let node = Node::start(serve(&folder.path("data"), more.as_flattened())).await;
    let partition = folder.path("bucket/topics/t-AAAAAAAAAAAAAAAAAAAAAQ/0");
    fs::create_dir_all(&partition).unwrap();
    let (stranger, left) =
        (partition.join("notes.txt#1"), partition.join("00000000000000000000-0-1-0.seg#1"));
    fs::write(&stranger, "of somebody else").unwrap();
    fs::write(&left, "half of an object").unwrap();
    wait_for("what was left to go", || (!left.exists()).then_some(())).await;
    assert!(stranger.exists(), "what was to be none of our objects stays");
    assert_eq!(node.metric("tier_orphans_deleted_total"), 1);
    assert_eq!(node.stop().await.code, Some(0));
}
