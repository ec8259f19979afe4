//! A running node that must not go on: it stops as one that is told to, and ends with 1.

use std::process::Command;

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tidelog_runtime::Supervisor;
use tidelog_testkit::{Fault, Rule, S3Config, S3Proxy, S3Server};

use crate::process::{Folder, Node, serve, wait_for};

const BUCKET: &str = "bucket";

// It once ended at once: no client was answered, nothing was closed, and the next start had to recover.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_prefix_turns_out_to_be_anothers_stops_in_order() {
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &[BUCKET]).await.unwrap();
    let proxy = S3Proxy::start(&supervisor, server.address()).await.unwrap();
    let folder = Folder::new();
    let start = |name: &str, prefix: &str, endpoint: &str| {
        let url = format!("s3://{BUCKET}/{prefix}");
        let mut command = serve(&folder.path(name), &["--store", &url, "--store-endpoint", endpoint]);
        command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
        command
    };
    for method in ["GET", "HEAD", "PUT"] {
        proxy.add(Rule::always(method, Fault::Status(503, "SlowDown")));
    }
    let node = Node::start(start("late", "prefix", &proxy.endpoint())).await;
    node.verb(&["topic", "create", "kept"]).await;
    node.produce("kept", "a\nb\n").await;
    let owner = Node::start(start("owner", "prefix", &server.endpoint())).await;
    let cluster = owner.report["cluster_id"].as_str().unwrap().to_owned();
    assert_eq!(owner.stop().await.code, Some(0));
    proxy.clear();
    let ended = node.end().await;
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    for told in [&format!("belongs to cluster {cluster}"), "the node must not go on: stopping", "stopped"] {
        assert!(ended.errors.contains(told), "`{told}`: {}", ended.errors);
    }
    let node = Node::start(start("late", "another", &server.endpoint())).await;
    assert_eq!(node.values("kept").await, ["a", "b"]);
    let stopped = node.stop().await;
    assert_eq!(stopped.code, Some(0));
    assert!(stopped.errors.contains("unclean=false"), "nothing was left to recover: {}", stopped.errors);
}

/// The same program in a process that takes a write beyond its limit as an error.
fn with_errors_beyond_its_limit(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(command.get_program());
    shell.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => shell.env(name, value),
            None => shell.env_remove(name),
        };
    }
    shell
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_whose_journal_fails_acknowledges_nothing_more_and_stops_with_1() {
    const LIMIT: u64 = 512 * 1024;
    let folder = Folder::new();
    let data = folder.path("data");
    let node = Node::start(with_errors_beyond_its_limit(&serve(&data, &[]))).await;
    node.verb(&["topic", "create", "kept", "--partitions", "1"]).await;
    node.produce("kept", "a\nb\n").await;
    let process = Pid::from_raw(i32::try_from(node.process.id()).unwrap());
    let limit = Rlimit { current: Some(LIMIT), maximum: Some(LIMIT) };
    prlimit(process, Resource::Fsize, limit).unwrap();
    // One batch that lies across the limit.
    let line = format!("{}\n", "x".repeat(900 * 1024));
    let refused = node.try_produce("kept", &line);
    assert_eq!(refused.status.code(), Some(1), "nothing was acknowledged");
    wait_for("the failure", || node.process.errors().contains("the log failed").then_some(())).await;
    let ended = node.end().await;
    assert_eq!(ended.code, Some(1), "{}", ended.errors);
    assert!(ended.errors.contains("the node must not go on: stopping"), "{}", ended.errors);
    assert!(!ended.errors.contains("was cut"), "{}", ended.errors);
    let node = Node::start(serve(&data, &[])).await;
    assert_eq!(node.values("kept").await, ["a", "b"]);
    node.produce("kept", "c\n").await;
    assert_eq!(node.stop().await.code, Some(0));
}
