//! What a start refuses: which thing is wrong, what to do, exit 1, within seconds.

use std::{fs, net::TcpListener, path::Path, process::Command, time::Duration};

use serde_json::Value;
use tidelog_runtime::Supervisor;
use tidelog_testkit::{S3Config, S3Server};

use crate::process::{Ended, Folder, Node, run_command, serve, tidelog};

/// Far above what a refusal takes (0.3 s), far below any deadline of a store.
const SECONDS: Duration = Duration::from_secs(12);

/// Starts a node that must refuse, and whose words must hold `expected`. `--json` gives the same as one document.
async fn refuse(command: Command, expected: &[&str]) -> Ended {
    let refused = run_command(command).await;
    assert_eq!(refused.code, Some(1), "{}", refused.errors);
    assert!(refused.took < SECONDS, "it took {:?}: {}", refused.took, refused.errors);
    // Log lines may stand before it.
    let lines = format!("\n{}", refused.errors);
    let told = lines.split_once("\nerror: ").map_or("", |(_, told)| told);
    for words in expected {
        assert!(told.contains(words), "`{words}` is missing: {}", refused.errors);
    }
    let document: Value = serde_json::from_str(&refused.output).unwrap();
    assert_eq!(document["error"].as_str().unwrap().trim_end(), told.trim_end());
    refused
}

#[tokio::test]
async fn wrong_settings_are_told_all_at_once() {
    let folder = Folder::new();
    let more = [
        "--set",
        "nokey",
        "--set",
        "no.such.key=1",
        "--set",
        "tier.cache.bytes=1000",
        "--node-id",
        "one",
        "--log-format",
        "xml",
        "--store",
        "ftp://x",
        "--store-endpoint",
        "localhost",
        "--advertise",
        "0.0.0.0:9092",
    ];
    let expected = [
        "8 settings are wrong:",
        "--set: `nokey` is not key=value",
        "no.such.key: ",
        "tier.cache.bytes: the cache on disk needs at least 16 MiB",
        "--node-id: `one` is not a number",
        "--log-format: `xml` is no log format: use text or json",
        "store: unknown scheme `ftp`: use file, memory, s3, gs or az",
        "store_endpoint: `localhost` is no address of a store: write http://host:port",
        "advertise of PLAINTEXT: clients would be told 0.0.0.0:9092",
    ];
    refuse(serve(&folder.path("data"), &more), &expected).await;
    assert!(!folder.path("data").exists(), "nothing was touched");
}

// B14
#[tokio::test]
async fn an_advertised_wildcard_is_refused() {
    let folder = Folder::new();
    let path = folder.path("data");
    let arguments = ["serve", "--json", "--listen", "0.0.0.0:0", "--data-dir", path.to_str().unwrap()];
    let expected = ["clients would be told 0.0.0.0:0", "set an address by which they reach this node"];
    refuse(tidelog(&arguments), &expected).await;
}

#[tokio::test]
async fn a_port_in_use_is_refused_by_either_listener() {
    let folder = Folder::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let path = folder.path("data");
    let with = |listen: &str, admin: &str| {
        tidelog(&[
            "serve",
            "--json",
            "--listen",
            listen,
            "--admin-listen",
            admin,
            "--data-dir",
            path.to_str().unwrap(),
        ])
    };
    let told = format!("{address} is in use by another process: stop that process, or listen elsewhere with");
    refuse(with(&address, "127.0.0.1:0"), &["listener PLAINTEXT", &told, "--listen"]).await;
    refuse(with("127.0.0.1:0", &address), &["admin listener", &told, "--admin-listen"]).await;
    assert!(!path.join("controller").exists(), "nothing was begun");
}

#[tokio::test]
async fn a_directory_in_use_is_refused() {
    let folder = Folder::new();
    let node = Node::start(serve(&folder.path("data"), &[])).await;
    let expected = ["is used by another process: stop that process, or give this one a directory of its own"];
    refuse(serve(&folder.path("data"), &[]), &expected).await;
    assert_eq!(node.stop().await.code, Some(0), "the first one goes on");
}

#[tokio::test]
async fn a_directory_that_cannot_be_made_is_refused_in_words_that_fit() {
    let folder = Folder::new();
    fs::write(folder.path("file"), "x").unwrap();
    refuse(serve(&folder.path("file"), &[]), &["it is no folder: name one with --data-dir"]).await;
    let refused = refuse(
        serve(Path::new("/proc/tidelog"), &[]),
        &["create /proc/tidelog", "name a folder that this user can write with --data-dir"],
    )
    .await;
    assert_eq!(refused.errors.matches("os error").count(), 1, "the cause stands once: {}", refused.errors);
}

/// Every file below a folder with its bytes.
fn contents(folder: &Path) -> Vec<(std::path::PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.push((path.clone(), fs::read(&path).unwrap()));
        }
    }
    found.sort();
    found
}

#[tokio::test]
async fn a_directory_of_a_newer_version_a_damaged_one_and_another_programs_are_refused_untouched() {
    let folder = Folder::new();
    let data = folder.path("data");
    assert_eq!(Node::start(serve(&data, &[])).await.stop().await.code, Some(0));
    let meta = data.join("meta.properties");
    let text = fs::read_to_string(&meta).unwrap();
    let kafkas = "#\nversion=1\nbroker.id=1\ncluster.id=MkU3OEVBNTcwNTJENDM2Qk\n".to_owned();
    let cases = [
        (
            "version=7\nof another form\n".to_owned(),
            "has format version 7, this version reads 1: run the version that wrote",
        ),
        (text.replace("crc=", "crc=f"), "is damaged: its checksum does not match: restore the file"),
        (text.replace("version=1", "version=3"), "is damaged: its checksum does not match: restore the file"),
        (text[..40].to_owned(), "is damaged: it is cut: there is no checksum: restore the file"),
        (kafkas, "was written by another program: nothing in it was changed"),
    ];
    for (wrong, expected) in cases {
        fs::write(&meta, wrong).unwrap();
        let before = contents(&data);
        refuse(serve(&data, &[]), &[expected]).await;
        assert!(contents(&data) == before, "{expected}");
    }
    fs::write(&meta, text).unwrap();
    assert_eq!(Node::start(serve(&data, &[])).await.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_directory_of_another_cluster_or_node_or_without_its_controller_is_refused() {
    let folder = Folder::new();
    let (one, other) = (folder.path("one"), folder.path("other"));
    for data in [&one, &other] {
        assert_eq!(Node::start(serve(data, &[])).await.stop().await.code, Some(0));
    }
    refuse(
        serve(&one, &["--node-id", "7"]),
        &["belongs to node 1, not 7", "the node_id that it was made with"],
    )
    .await;
    fs::copy(other.join("meta.properties"), one.join("meta.properties")).unwrap();
    refuse(serve(&one, &[]), &["belongs to cluster", "holds parts of two nodes"]).await;
    fs::remove_dir_all(other.join("controller")).unwrap();
    refuse(serve(&other, &[]), &["the controller's state", "is missing", "restore it"]).await;
}

#[tokio::test]
async fn a_prefix_of_another_cluster_is_refused() {
    let folder = Folder::new();
    let store = folder.store("bucket");
    let more = ["--store", store.as_str()];
    let owner = Node::start(serve(&folder.path("one"), &more)).await;
    let cluster = owner.report["cluster_id"].as_str().unwrap().to_owned();
    let expected = [
        format!("belongs to cluster {cluster}"),
        "use another prefix, or the data directory of that cluster".to_owned(),
    ];
    refuse(serve(&folder.path("two"), &more), &[&expected[0], &expected[1]]).await;
    assert_eq!(owner.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_store_folder_that_cannot_be_is_refused() {
    let folder = Folder::new();
    let expected = ["open the store file:///proc/tidelog", "the folder /proc/tidelog cannot be used"];
    refuse(serve(&folder.path("data"), &["--store", "file:///proc/tidelog"]), &expected).await;
}

#[tokio::test]
async fn a_missing_bucket_and_missing_keys_are_refused() {
    let supervisor = Supervisor::for_test();
    let server = S3Server::start(&supervisor, S3Config::default(), &["here"]).await.unwrap();
    let folder = Folder::new();
    let endpoint = server.endpoint();
    let start =
        |name: &str, url: &str| serve(&folder.path(name), &["--store", url, "--store-endpoint", &endpoint]);
    let mut missing = start("one", "s3://elsewhere/prefix");
    missing.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    refuse(missing, &["s3://elsewhere/prefix", "bucket init"]).await;
    // Nothing that may issue keys is configured.
    refuse(start("two", "s3://here/prefix"), &["credentials"]).await;
    // What issues keys does not answer, and the cluster never had any.
    let mut away = start("three", "s3://here/prefix");
    away.env("AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1:1/keys");
    let expected =
        ["there are no credentials for s3://here/prefix: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"];
    refuse(away, &expected).await;
}
