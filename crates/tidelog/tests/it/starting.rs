//! Signals while a node starts.

use std::{process::Command, time::Duration};

use tidelog_runtime::Supervisor;
use tidelog_testkit::{Fault, Rule, S3Config, S3Proxy, S3Server};

use crate::process::{Folder, Node, Process, serve, wait_for};

const BUCKET: &str = "bucket";

fn command(folder: &Folder, proxy: &S3Proxy) -> Command {
    let url = format!("s3://{BUCKET}/prefix");
    let mut command = serve(&folder.path("data"), &["--store", &url, "--store-endpoint", &proxy.endpoint()]);
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    command.env("TIDELOG_LOG", "info,tidelog=debug");
    command
}

// A start that waited for a store was once ended by the signal itself: 143, and nothing closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_signal_ends_a_start_in_order_whatever_it_waits_for() {
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &[BUCKET]).await.unwrap();
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let folder = Folder::new();
    for (fault, signal) in [(Fault::Status(503, "SlowDown"), "-TERM"), (Fault::Silence, "-INT")] {
        for method in ["GET", "HEAD", "PUT"] {
            proxy.add(Rule::always(method, fault.clone()));
        }
        let mut process = Process::spawn(command(&folder, &proxy));
        wait_for("the store to be waited for", || {
            process.errors().contains("the store's answer to whose prefix it is").then_some(())
        })
        .await;
        let begun = tokio::time::Instant::now();
        process.signal(signal);
        let status = process.wait(Duration::from_secs(10)).await;
        let ended = process.ended(status);
        assert_eq!(ended.code, Some(0), "{}", ended.errors);
        assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
        assert_eq!(ended.output, "", "it never served");
        assert!(ended.errors.contains("stopping before the node serves"), "{}", ended.errors);
        assert!(!ended.errors.contains("what did not end in time"), "{}", ended.errors);
        proxy.clear();
    }
    // What was begun is no hindrance.
    let node = Node::start(command(&folder, &proxy)).await;
    node.verb(&["topic", "create", "after"]).await;
    node.produce("after", "a\n").await;
    assert_eq!(node.values("after").await, ["a"]);
    assert_eq!(node.stop().await.code, Some(0));
}
