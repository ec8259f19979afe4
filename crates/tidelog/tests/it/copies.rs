//! Copies of a data directory: one that is older than what the bucket knows, and one of a node that runs.

use std::{fs, path::Path, process::Command};

use crate::process::{Folder, Node, run_command, serve};

/// Looks often, for deletions and orphans.
const SETTINGS: [&str; 6] = [
    "--set",
    "tier.orphan.age.ms=300",
    "--set",
    "tier.check.interval.ms=50",
    "--set",
    "tier.upload.max.lag.ms=100",
];

fn start(data: &Path, store: &str) -> Command {
    serve(data, &[&SETTINGS[..], &["--store", store]].concat())
}

fn copy(from: &Path, to: &Path) {
    assert!(Command::new("cp").arg("-a").args([from, to]).status().unwrap().success());
}

async fn refuse(data: &Path, store: &str) {
    let refused = run_command(start(data, store)).await;
    assert_eq!(refused.code, Some(1), "{}", refused.errors);
    let (_, told) = refused.errors.split_once("\nerror: ").unwrap();
    for words in [
        "was last used by broker 1 with another data directory",
        "this directory is an older copy, or a second copy of one that runs",
        "restore the newest copy",
        "brokers/1.json",
    ] {
        assert!(told.contains(words), "`{words}` is missing: {told}");
    }
}

#[tokio::test]
async fn an_older_copy_of_a_data_directory_is_refused_until_the_guard_is_lifted() {
    let folder = Folder::new();
    let (data, older, store) = (folder.path("data"), folder.path("older"), folder.store("bucket"));
    assert_eq!(Node::start(start(&data, &store)).await.stop().await.code, Some(0));
    copy(&data, &older);
    // The one that goes on does so as often as it likes, whatever it is killed at.
    for _ in 0..2 {
        assert_eq!(Node::start(start(&data, &store)).await.stop().await.code, Some(0));
    }
    // No number of tries makes it newer: each raises the incarnation in its own directory.
    for _ in 0..4 {
        refuse(&older, &store).await;
    }
    assert_eq!(Node::start(start(&data, &store)).await.stop().await.code, Some(0));
    fs::remove_file(folder.path("bucket").join("brokers/1.json")).unwrap();
    assert_eq!(Node::start(start(&older, &store)).await.stop().await.code, Some(0));
    refuse(&data, &store).await;
}

#[tokio::test]
async fn of_two_copies_that_run_the_former_deletes_nothing_and_ends() {
    let folder = Folder::new();
    let (data, second, store) = (folder.path("data"), folder.path("second"), folder.store("bucket"));
    assert_eq!(Node::start(start(&data, &store)).await.stop().await.code, Some(0));
    copy(&data, &second);
    let former = Node::start(start(&data, &store)).await;
    // As a copy that was made of the running one.
    fs::copy(data.join("bucket.claims"), second.join("bucket.claims")).unwrap();
    let newer = Node::start(start(&second, &store)).await;
    let ended = former.end().await;
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    assert!(ended.errors.contains("nothing is deleted, and this node ends"), "{}", ended.errors);
    assert!(ended.errors.contains("a second copy of one that runs"), "{}", ended.errors);
    refuse(&data, &store).await;
    newer.verb(&["topic", "create", "t"]).await;
    newer.produce("t", "one\ntwo\n").await;
    assert_eq!(newer.values("t").await, ["one", "two"]);
    assert_eq!(newer.stop().await.code, Some(0));
}
