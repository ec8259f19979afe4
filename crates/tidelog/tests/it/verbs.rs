//! What verbs print, and how they end.

use std::{
    io::{BufRead as _, BufReader, Read as _},
    process::{Command, Stdio},
    time::Duration,
};

use serde_json::Value;

use crate::process::{Folder, Node, PATIENCE, Process, run, run_command, serve, tidelog, wait_for};

async fn node(folder: &Folder) -> Node {
    Node::start(serve(&folder.path("data"), &[])).await
}

#[tokio::test]
async fn a_reader_that_goes_away_ends_a_verb_quietly() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines"]).await;
    let line = format!("{}\n", "x".repeat(1000));
    node.produce("lines", &line.repeat(2000)).await;
    for more in [&[][..], &["--json"], &["--follow"]] {
        let address = node.address();
        let mut command = tidelog(&[&["consume", "lines", "--bootstrap", &address], more].concat());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut first = String::new();
        let mut output = BufReader::new(child.stdout.take().unwrap());
        output.read_line(&mut first).unwrap();
        drop(output);
        let mut errors = String::new();
        child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((child.wait().unwrap().code(), errors.as_str()), (Some(0), ""), "{more:?}");
    }
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_signal_closes_the_document_of_a_reader_that_follows() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines"]).await;
    node.produce("lines", "a\nb\n").await;
    for signal in ["-TERM", "-INT"] {
        let command = tidelog(&["consume", "lines", "--follow", "--json", "--bootstrap", &node.address()]);
        let mut process = Process::spawn(command);
        wait_for("two records", || (process.output().matches("\"offset\"").count() == 2).then_some(())).await;
        process.signal(signal);
        assert_eq!(process.wait(PATIENCE).await.code(), Some(0), "{}", process.errors());
        let document: Value = serde_json::from_str(&process.output()).unwrap();
        assert_eq!(document["records"].as_array().unwrap().len(), 2);
    }
    assert_eq!(node.stop().await.code, Some(0));
}

// An idle partition once held up every other for half a second, each in its turn.
#[tokio::test]
async fn a_record_is_followed_at_once_however_many_partitions_are_idle() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "wide", "--partitions", "24"]).await;
    let process = Process::spawn(tidelog(&["consume", "wide", "--follow", "--bootstrap", &node.address()]));
    wait_for("the header", || process.output().contains("PARTITION").then_some(())).await;
    for number in 1..=3 {
        node.produce("wide", &format!("line-{number}\n")).await;
        let begun = tokio::time::Instant::now();
        let line = format!("line-{number}");
        wait_for("the record", || process.output().contains(&line).then_some(())).await;
        assert!(begun.elapsed() < Duration::from_secs(2), "{number}: {:?}", begun.elapsed());
    }
    drop(process);
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_failure_is_one_document_too_and_wrong_usage_is_2() {
    let folder = Folder::new();
    let node = node(&folder).await;
    let address = node.address();
    let on_node = ["--bootstrap", address.as_str(), "--json"];
    for arguments in [&["topic", "describe", "no-such-topic"][..], &["consume", "no-such-topic"]] {
        let failed = run(&[arguments, &on_node[..]].concat()).await;
        assert_eq!(failed.code, Some(1), "{arguments:?}");
        let document: Value = serde_json::from_str(&failed.output).unwrap();
        assert_eq!(document["code"], "UNKNOWN_TOPIC_OR_PARTITION", "{document}");
        assert!(failed.errors.starts_with("error: "), "{}", failed.errors);
    }
    let nobody = run(&["cluster", "status", "--bootstrap", "127.0.0.1:1", "--json"]).await;
    let document: Value = serde_json::from_str(&nobody.output).unwrap();
    assert_eq!((nobody.code, &document["code"]), (Some(1), &Value::Null));
    for arguments in [
        &["topic", "frobnicate"][..],
        &["topic", "create", "a/b"],
        &["topic", "alter", "t"],
        &["topic", "create", "t", "--set", "nokey"],
        &["consume", "t", "--from", "yesterday"],
        &["produce", "t", "--compression", "brotli"],
        &["tier", "segments"],
        &["bucket", "check", "--store", "ftp://x"],
        &["bucket", "check", "--store", "s3://bucket", "--store-endpoint", "junk"],
        &["cluster", "status", "--bootstrap", "nonsense"],
        &["tier", "status", "--admin", "nonsense"],
        &["cluster"],
        &["group"],
        &["group", "describe"],
        &["group", "config", ""],
        &["group", "alter", "", "--set", "consumer.session.timeout.ms=50000"],
        &["group", "delete"],
        &["group", "list", "--state", "Asleep"],
        &["group", "reset-offsets", "g", "--all-topics"],
        &["group", "reset-offsets", "g", "--to-latest"],
        &["group", "reset-offsets", "g", "--all-topics", "--to-latest", "--to-earliest"],
        &["group", "reset-offsets", "g", "--all-topics", "--to-datetime", "yesterday"],
        &["topic", "alter", "t", "--set", "retention.ms=1", "--set", "retention.ms=2"],
        &["cluster", "lift-fence", "t", "0"],
        &["cluster", "lift-fence", "t", "--accept-loss-from", "0"],
        &["cluster", "lift-fence", "t", "0", "--accept-loss-from", "-1"],
        &["serve", "now"],
        &["demo", "--fast"],
        &[],
    ] {
        let wrong = run(arguments).await;
        assert_eq!((wrong.code, wrong.output.as_str()), (Some(2), ""), "{arguments:?}: {}", wrong.errors);
        assert!(!wrong.errors.is_empty(), "{arguments:?}");
    }
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn what_is_wrong_with_flags_is_told_in_words_for_it() {
    let alter = ["group", "alter", "g", "--set", "consumer.session.timeout.ms=50000"];
    let reset = ["group", "reset-offsets", "g", "--all-topics"];
    for (arguments, part) in [
        (
            [&alter[..], &["--unset", "consumer.session.timeout.ms"]].concat(),
            "consumer.session.timeout.ms is both set and unset",
        ),
        ([&alter[..], &alter[3..]].concat(), "consumer.session.timeout.ms is set twice"),
        (
            vec!["topic", "alter", "t", "--unset", "retention.ms", "--set", "retention.ms=1"],
            "retention.ms is both set and unset",
        ),
        (
            vec!["topic", "create", "t", "--set", "retention.ms=1", "--set", "retention.ms=2"],
            "retention.ms is set twice",
        ),
        ([&reset[..], &["--by-duration", "-PT1H"]].concat(), "a span that is not negative is expected"),
        ([&reset[..], &["--by-duration", "PT-1H"]].concat(), "a span that is not negative is expected"),
        ([&reset[..], &["--to-datetime", "-1"]].concat(), "milliseconds since 1970"),
        (vec!["consume", "t", "--count", "-1"], "a whole number from 0 on is expected"),
        (vec!["consume", "t", "--partition", "-1"], "a whole number from 0 on is expected"),
        (vec!["consume", "t", "--from", "-1"], "beginning, end, OFFSET or @TIME is expected"),
        (vec!["topic", "create", "t", "--partitions", "-1"], "-1 is not in 0..=4294967295"),
    ] {
        let wrong = run(&arguments).await;
        assert_eq!((wrong.code, wrong.output.as_str()), (Some(2), ""), "{arguments:?}: {}", wrong.errors);
        assert!(wrong.errors.contains(part), "{arguments:?}: {}", wrong.errors);
    }
}

#[tokio::test]
async fn a_verb_at_the_wrong_port_says_so() {
    let folder = Folder::new();
    let node = node(&folder).await;
    let kafka = run(&["cluster", "status", "--bootstrap", &node.admin()]).await;
    assert_eq!(kafka.code, Some(1));
    assert!(kafka.errors.contains("does not speak the Kafka protocol"), "{}", kafka.errors);
    let admin = run(&["tier", "status", "--admin", &node.address()]).await;
    assert_eq!(admin.code, Some(1));
    assert!(admin.errors.contains("does not answer as a node's admin listener does"), "{}", admin.errors);
    let unknown = run(&["tier", "segments", "nowhere", "--admin", &node.admin()]).await;
    assert_eq!((unknown.code, unknown.errors.as_str()), (Some(1), "error: topic `nowhere` does not exist\n"));
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_demo_takes_no_folder_that_is_not_its_own() {
    let folder = Folder::new();
    let data = folder.path("data");
    assert_eq!(Node::start(serve(&data, &[])).await.stop().await.code, Some(0));
    let refused = run(&["demo", "--exit", "--json", "--data-dir", data.to_str().unwrap()]).await;
    assert_eq!(refused.code, Some(1));
    let document: Value = serde_json::from_str(&refused.output).unwrap();
    assert!(document["error"].as_str().unwrap().contains("holds files that no demo made"), "{document}");
    let fresh = folder.path("fresh");
    let wrong = run(&["demo", "--exit", "--listen", "nowhere", "--data-dir", fresh.to_str().unwrap()]).await;
    assert_eq!(wrong.code, Some(1));
    assert!(!fresh.exists(), "nothing was touched");
}

#[tokio::test]
async fn a_store_that_is_away_is_told_by_a_check_in_seconds() {
    let mut command = tidelog(&[
        "bucket",
        "check",
        "--json",
        "--store",
        "s3://b",
        "--store-endpoint",
        "http://127.0.0.1:1",
    ]);
    command.env("AWS_ACCESS_KEY_ID", "key").env("AWS_SECRET_ACCESS_KEY", "secret");
    let failed = run_command(command).await;
    assert_eq!(failed.code, Some(1), "{}", failed.errors);
    let report: Value = serde_json::from_str(&failed.output).unwrap();
    assert_eq!(
        report["checks"][0]["status"].as_str().map(str::to_ascii_lowercase).as_deref(),
        Some("failed"),
        "{report}"
    );
}

#[tokio::test]
async fn a_line_that_is_too_long_is_named_and_those_before_it_are_written() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines"]).await;
    let path = folder.path("lines");
    std::fs::write(&path, format!("a\nb\n{}\nc\n", "x".repeat(1024 * 1024 + 1))).unwrap();
    let mut command = tidelog(&["produce", "lines", "--bootstrap", &node.address()]);
    let done = command.stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
    let errors = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert!(
        errors.contains("line 3 has 1048577 bytes") && errors.contains("the 2 before it were written"),
        "{errors}"
    );
    let read = node.verb(&["consume", "lines"]).await;
    assert_eq!(read["records"].as_array().unwrap().len(), 2);
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn settings_have_one_word_at_every_verb_and_the_old_one_works() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "new", "--set", "retention.ms=1000"]).await;
    node.verb(&["topic", "create", "old", "--config", "retention.ms=2000"]).await;
    node.verb(&["topic", "alter", "new", "--config", "max.message.bytes=5000", "--unset", "retention.ms"])
        .await;
    let value = async |topic: &str, key: &str| {
        let described = node.verb(&["topic", "describe", topic]).await;
        let configs = described["configs"].as_array().unwrap().clone();
        let found = configs.into_iter().find(|config| config["name"] == key).unwrap();
        (found["value"].as_str().unwrap().to_owned(), found["overridden"] == true)
    };
    assert_eq!(value("old", "retention.ms").await, ("2000".to_owned(), true));
    assert_eq!(value("new", "max.message.bytes").await, ("5000".to_owned(), true));
    assert!(!value("new", "retention.ms").await.1);
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_node_outlives_whoever_started_it_and_reads_its_lines() {
    let folder = Folder::new();
    let mut command: Command = serve(&folder.path("data"), &[]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut report = String::new();
    while !report.ends_with("}\n") || !report.contains("store") {
        assert!(output.read_line(&mut report).unwrap() > 0, "it ended: {report}");
    }
    drop((output, child.stderr.take()));
    let report: Value = serde_json::from_str(&report).unwrap();
    let address = report["listeners"][0][1].as_str().unwrap();
    for topic in ["one", "two"] {
        let done = run(&["topic", "create", topic, "--bootstrap", address]).await;
        assert_eq!(done.code, Some(0), "{}", done.errors);
    }
    let id = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
