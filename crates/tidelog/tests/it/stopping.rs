//! How a node stops: what is on its way to the bucket arrives, and a second signal is heard.

use std::{process::Command, time::Duration};

use tidelog_runtime::Supervisor;
use tidelog_testkit::{Fault, Rule, S3Config, S3Proxy, S3Server};

use crate::process::{Folder, Node, serve, wait_for};

const BUCKET: &str = "bucket";
const TOPIC: &str = "slow-uploads";

struct Stores {
    server: S3Server,
    proxy: S3Proxy,
    folder: Folder,
}

impl Stores {
    async fn start() -> Self {
        let supervisor = Supervisor::for_test();
        let server = S3Server::start(&supervisor, S3Config::default(), &[BUCKET]).await.unwrap();
        let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
        Self { server, proxy, folder: Folder::new() }
    }

    fn serve(&self) -> Command {
        let url = format!("s3://{BUCKET}/prefix");
        let endpoint = self.proxy.endpoint();
        let mut more = vec!["--store", url.as_str(), "--store-endpoint", endpoint.as_str()];
        for setting in ["tier.check.interval.ms=100", "tier.upload.max.lag.ms=200"] {
            more.extend(["--set", setting]);
        }
        let mut command = serve(&self.folder.path("data"), &more);
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    }

    /// A node whose upload of a segment is on its way, and takes so long.
    async fn uploading(&self, upload: Duration) -> Node {
        let node = Node::start(self.serve()).await;
        node.verb(&["topic", "create", TOPIC]).await;
        self.proxy.add(Rule::always("PUT", Fault::Delay(upload)).on(TOPIC));
        node.produce(TOPIC, "a\nb\nc\n").await;
        wait_for("an upload", || (self.proxy.count("PUT", TOPIC) > 0).then_some(())).await;
        node
    }

    /// The topic's objects, as the bucket has them.
    fn objects(&self) -> Vec<String> {
        self.server.keys(BUCKET).into_iter().filter(|key| key.contains(TOPIC)).collect()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_on_its_way_is_committed_before_the_node_ends() {
    let stores = Stores::start().await;
    let node = stores.uploading(Duration::from_secs(2)).await;
    assert_eq!(stores.objects(), Vec::<String>::new(), "it is on its way");
    let stopped = node.stop().await;
    assert_eq!(stopped.code, Some(0), "{}", stopped.errors);
    let objects = stores.objects();
    assert_eq!(objects.len(), 1, "{objects:?}");
    assert!(!stopped.errors.contains("abandoned"), "{}", stopped.errors);
    // No orphan: the next start names it.
    stores.proxy.clear();
    let node = Node::start(stores.serve()).await;
    let found = node.verb(&["tier", "segments", TOPIC]).await;
    let keys: Vec<&str> =
        found["segments"].as_array().unwrap().iter().filter_map(|one| one["key"].as_str()).collect();
    assert!(keys.len() == 1 && objects[0].ends_with(keys[0]), "{keys:?} {objects:?}");
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_that_hangs_holds_a_stop_for_seconds_and_loses_nothing() {
    let stores = Stores::start().await;
    let node = stores.uploading(Duration::from_secs(120)).await;
    let begun = tokio::time::Instant::now();
    let stopped = node.stop().await;
    assert_eq!(stopped.code, Some(0), "{}", stopped.errors);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    stores.proxy.clear();
    let node = Node::start(stores.serve()).await;
    let read = node.verb(&["consume", TOPIC]).await;
    let values: Vec<&str> =
        read["records"].as_array().unwrap().iter().filter_map(|one| one["value"].as_str()).collect();
    assert_eq!(values, ["a", "b", "c"]);
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_the_node_at_once() {
    let stores = Stores::start().await;
    let mut node = stores.uploading(Duration::from_secs(120)).await;
    node.process.signal("-TERM");
    wait_for("the stop", || node.process.errors().contains("stopping").then_some(())).await;
    let begun = tokio::time::Instant::now();
    node.process.signal("-INT");
    let status = node.process.wait(Duration::from_secs(5)).await;
    assert_eq!(status.code(), Some(1), "{}", node.process.errors());
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
    assert!(node.process.errors().contains("a second signal ends the node at once"));
}

// As `timeout` sends it: to the process, and to its group.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_signal_twice_in_a_moment_is_one_stop() {
    let stores = Stores::start().await;
    let mut node = stores.uploading(Duration::from_millis(500)).await;
    node.process.signal("-TERM");
    node.process.signal("-TERM");
    let status = node.process.wait(Duration::from_secs(20)).await;
    assert_eq!(status.code(), Some(0), "{}", node.process.errors());
}
