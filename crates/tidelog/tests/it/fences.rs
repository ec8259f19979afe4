//! A partition whose files are lost: it is fenced, told, and lifted by whoever names the loss.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::{Value, json};

use crate::process::{Folder, Node, serve};

const TOPIC: &str = "readings";

/// The segment files of the partitions, in the order of their names.
fn segments(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(segments(&path));
        } else if path.extension().is_some_and(|kind| kind == "log") {
            found.push(path);
        }
    }
    found.sort();
    found
}

fn error(document: &str) -> String {
    let document: Value = serde_json::from_str(document).unwrap();
    document["error"].as_str().unwrap().to_owned()
}

// A fence once could be ended by deleting the topic alone.
#[tokio::test]
async fn a_fence_is_shown_and_lifted_by_whoever_names_the_loss_and_stays_lifted() {
    let folder = Folder::new();
    let data = folder.path("data");
    let node = Node::start(serve(&data, &[])).await;
    assert_eq!(node.verb(&["cluster", "fences"]).await, json!({ "fences": [] }));
    assert_eq!(node.metric("replica_fenced_partitions"), 0);
    node.verb(&["topic", "create", TOPIC, "--partitions", "1", "--set", "segment.bytes=4096"]).await;
    node.verb(&["topic", "create", "other", "--partitions", "1"]).await;
    for line in ["first\n", "second\n", "third\n"] {
        // Each in a segment of its own.
        node.produce(TOPIC, &format!("{}{line}", "x".repeat(3000))).await;
    }
    let whole = node.values(TOPIC).await;
    assert_eq!(whole.len(), 3);
    assert_eq!(node.stop().await.code, Some(0));

    let files = segments(&data.join(""));
    let files: Vec<&PathBuf> = files.iter().filter(|path| fs::metadata(path).unwrap().len() > 3000).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    fs::remove_file(files[2]).unwrap();

    let node = Node::start(serve(&data, &[])).await;
    assert_eq!(node.metric("replica_fenced_partitions"), 1);
    let shown = node.verb(&["cluster", "fences"]).await;
    let fence = shown["fences"][0].clone();
    assert_eq!(shown["fences"].as_array().unwrap().len(), 1);
    assert_eq!(
        (&fence["topic"], &fence["partition"], &fence["local_log_start"], &fence["lost_from"]),
        (&json!(TOPIC), &json!(0), &json!(0), &json!(2)),
        "{fence}"
    );
    assert!(!fence["why"].as_str().unwrap().is_empty());
    assert_eq!(node.values(TOPIC).await, whole[..2], "what is left is read");
    node.produce("other", "goes on\n").await;

    let lift = |offset: &'static str| ["cluster", "lift-fence", TOPIC, "0", "--accept-loss-from", offset];
    let refused = node.run(&lift("3")).await;
    assert_eq!(refused.code, Some(1));
    assert_eq!(error(&refused.output), "what is lost begins at offset 2, and not at 3");
    let nowhere = node.run(&["cluster", "lift-fence", TOPIC, "1", "--accept-loss-from", "2"]).await;
    assert_eq!(nowhere.code, Some(1));
    assert_eq!(error(&nowhere.output), "this node has no partition 1 of topic `readings`");
    assert_eq!(node.metric("replica_fenced_partitions"), 1, "nothing was lifted");

    assert_eq!(node.verb(&lift("2")).await, fence);
    assert_eq!(node.metric("replica_fenced_partitions"), 0);
    let again = node.run(&lift("2")).await;
    assert_eq!((again.code, error(&again.output).as_str()), (Some(1), "the partition is not fenced"));
    node.produce(TOPIC, "anew\n").await;
    assert_eq!(node.stop().await.code, Some(0));

    let node = Node::start(serve(&data, &[])).await;
    assert_eq!(node.verb(&["cluster", "fences"]).await, json!({ "fences": [] }), "it stays lifted");
    node.produce(TOPIC, "and on\n").await;
    let expected = [&whole[..2], &["anew".to_owned(), "and on".to_owned()][..]].concat();
    assert_eq!(node.values(TOPIC).await, expected);
    assert_eq!(node.stop().await.code, Some(0));
}
