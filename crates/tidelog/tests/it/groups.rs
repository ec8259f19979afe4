//! `tidelog group`, and what a group's member sees of it.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use tidelog::client::Connection;
use tidelog_wire::{
    Str,
    messages::{
        DeleteRecordsRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest, delete_records,
        join_group::JoinGroupRequestProtocol, sync_group::SyncGroupRequestAssignment,
    },
};

use crate::process::{Ended, Folder, Node, serve};

const WAIT: Duration = Duration::from_secs(10);

/// A node whose groups form at once.
async fn node(folder: &Folder) -> Node {
    let more = ["--set", "group.initial.rebalance.delay.ms=0", "--set", "offsets.topic.num.partitions=3"];
    Node::start(serve(&folder.path("data"), &more)).await
}

/// What a verb printed and said, and its exit code.
fn told(ended: &Ended) -> (Option<i32>, &str, &str) {
    (ended.code, ended.output.as_str(), ended.errors.as_str())
}

/// A consumer that joined and was given partitions 0 and 1 of `lines`, and one of a topic that nobody has.
struct Member {
    connection: Connection,
    group: &'static str,
    id: Str,
}

/// As an assignor of tomorrow may write it: a later version, user data, and what that version adds.
const ASSIGNMENT: &[u8] =
    b"\0\x09\0\0\0\x01\0\x05lines\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\x03abc and what a later version adds";

impl Member {
    async fn join(node: &Node, group: &'static str) -> Self {
        let mut connection = Connection::open(&node.address()).await.unwrap();
        // Version 0 of what a consumer subscribes to: `lines`.
        let metadata = Bytes::from_static(b"\0\0\0\0\0\x01\0\x05lines\xff\xff\xff\xff");
        let request = JoinGroupRequest {
            group_id: group.into(),
            session_timeout_ms: 60_000,
            rebalance_timeout_ms: 60_000,
            protocol_type: "consumer".into(),
            protocols: vec![JoinGroupRequestProtocol { name: "range".into(), metadata }],
            ..Default::default()
        };
        // The last version in which a member needs no second request to have its id.
        let joined = connection.call(3, &request, WAIT).await.unwrap();
        assert_eq!((joined.error_code, joined.generation_id), (0, 1));
        let id = joined.member_id;
        let assignment =
            SyncGroupRequestAssignment { member_id: id.clone(), assignment: Bytes::from_static(ASSIGNMENT) };
        let request = SyncGroupRequest {
            group_id: group.into(),
            generation_id: 1,
            member_id: id.clone(),
            assignments: vec![assignment],
            ..Default::default()
        };
        let synced = connection.call(2, &request, WAIT).await.unwrap();
        assert_eq!((synced.error_code, &synced.assignment[..]), (0, ASSIGNMENT));
        Self { connection, group, id }
    }

    async fn leave(mut self) {
        let request =
            LeaveGroupRequest { group_id: self.group.into(), member_id: self.id, ..Default::default() };
        assert_eq!(self.connection.call(1, &request, WAIT).await.unwrap().error_code, 0);
    }
}

#[tokio::test]
async fn a_group_is_listed_described_reset_and_deleted() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines"]).await;
    node.produce("lines", "a\nb\nc\nd\ne\n").await;
    let none = node.run_plain(&["group", "list"]).await;
    assert_eq!(told(&none), (Some(0), "GROUP  STATE  TYPE  PROTOCOL TYPE\n", ""));
    assert_eq!(node.verb(&["group", "list"]).await, json!({ "groups": [] }));

    // A group begins with its first offset.
    let reset = ["group", "reset-offsets", "g", "--topic", "lines"];
    let shown = node.run_plain(&[&reset[..], &["--to-offset", "2"]].concat()).await;
    let table = "TOPIC  PARTITION  COMMITTED  NEW OFFSET  NOTE\nlines          0          -           2\n";
    assert_eq!(told(&shown), (Some(0), table, "note: nothing is changed: --execute commits these offsets\n"));
    assert_eq!(node.verb(&["group", "list"]).await, json!({ "groups": [] }));
    let done = node.run_plain(&[&reset[..], &["--to-offset", "2", "--execute"]].concat()).await;
    assert_eq!(told(&done), (Some(0), table, ""));
    let listed = node.run_plain(&["group", "list", "--state", "empty,stable"]).await;
    assert_eq!(
        told(&listed),
        (Some(0), "GROUP  STATE  TYPE     PROTOCOL TYPE\ng      Empty  classic              -\n", "")
    );
    assert_eq!(node.verb(&["group", "list", "--state", "Stable"]).await, json!({ "groups": [] }));
    let address = node.address();
    let described = node.run_plain(&["group", "describe", "g"]).await;
    let expected = format!(
        "GROUP  STATE  TYPE     PROTOCOL TYPE  PROTOCOL  MEMBERS  LAG  {:>width$}\n\
         g      Empty  classic              -         -        0    3  {address:>11}\n\
         MEMBER  INSTANCE  CLIENT  HOST  ASSIGNED\n\
         TOPIC  PARTITION  COMMITTED  LOG START  LOG END  LAG  MEMBER\n\
         lines          0          2          0        5    3       -\n",
        "COORDINATOR",
        width = address.len()
    );
    assert_eq!(told(&described), (Some(0), expected.as_str(), ""));
    assert_eq!(
        node.verb(&["group", "describe", "g"]).await,
        json!({
            "group": "g", "state": "Empty", "type": "classic", "protocol_type": "", "protocol": "", "coordinator": address,
            "lag": 3, "members": [],
            "partitions": [{
                "topic": "lines", "partition": 0, "committed": 2, "log_start": 0, "log_end": 5, "lag": 3,
                "member_id": null, "client_id": null, "host": null, "error": null,
            }],
        })
    );
    assert_eq!(node.metric("group_count"), 1);

    let gone = node.run_plain(&["group", "delete", "g"]).await;
    assert_eq!(told(&gone), (Some(0), "GROUP  RESULT\ng      deleted\n", ""));
    for words in [&["describe", "g"][..], &["reset-offsets", "g", "--all-topics", "--to-latest"]] {
        let failed = node.run(&[&["group"], words].concat()).await;
        assert_eq!((failed.code, failed.errors.as_str()), (Some(1), "error: group g: GROUP_ID_NOT_FOUND\n"));
        let document: Value = serde_json::from_str(&failed.output).unwrap();
        assert_eq!(document, json!({ "error": "group g: GROUP_ID_NOT_FOUND", "code": "GROUP_ID_NOT_FOUND" }));
    }
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_group_may_have_any_name_and_is_named_by_it() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines"]).await;
    node.produce("lines", "a\nb\n").await;
    let strange = "grün\n\u{1b}[2J";
    for group in ["", strange] {
        let reset = ["group", "reset-offsets", group, "--topic", "lines", "--to-offset", "1", "--execute"];
        assert_eq!(node.run_plain(&reset).await.code, Some(0));
    }
    let listed = node.run_plain(&["group", "list"]).await;
    let row = |name: &str| format!("{name:<15}  Empty  classic              -\n");
    let table = format!(
        "{:<15}  STATE  TYPE     PROTOCOL TYPE\n{}{}",
        "GROUP",
        row("\"\""),
        row("grün\\n\\u{1b}[2J")
    );
    assert_eq!(told(&listed), (Some(0), table.as_str(), ""));
    let names = node.verb(&["group", "list"]).await;
    assert_eq!((&names["groups"][0]["group"], &names["groups"][1]["group"]), (&json!(""), &json!(strange)));
    for (group, shown) in [("", "\"\""), (strange, "grün\\n\\u{1b}[2J")] {
        assert_eq!(node.verb(&["group", "describe", group]).await["lag"], 1);
        let described = node.run_plain(&["group", "describe", group]).await;
        assert!(described.output.lines().nth(1).unwrap().starts_with(&format!("{shown} ")), "{described:?}");
        let gone = node.run_plain(&["group", "delete", group]).await;
        assert_eq!(
            (gone.code, gone.output.lines().nth(1).unwrap()),
            (Some(0), &*format!("{shown:<5}  deleted"))
        );
        let failed = node.run_plain(&["group", "describe", group]).await;
        let words = format!("error: group {shown}: GROUP_ID_NOT_FOUND\n");
        assert_eq!(told(&failed), (Some(1), "", words.as_str()));
    }
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn a_group_with_members_is_described_and_neither_reset_nor_deleted() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines", "--partitions", "2"]).await;
    let at = ["group", "reset-offsets", "g", "--topic", "lines:0", "--to-earliest", "--execute"];
    node.verb(&at).await;
    let member = Member::join(&node, "g").await;
    let listed = node.verb(&["group", "list"]).await;
    assert_eq!(
        listed,
        json!({ "groups": [{ "group": "g", "state": "Stable", "type": "classic", "protocol_type": "consumer" }] })
    );
    let (id, address) = (member.id.as_str(), node.address());
    let described = node.run_plain(&["group", "describe", "g"]).await;
    let expected = format!(
        "GROUP  STATE   TYPE     PROTOCOL TYPE  PROTOCOL  MEMBERS  LAG  {:>address_width$}\n\
         g      Stable  classic  consumer       range           1    0  {address:>11}\n\
         {:<width$}  INSTANCE  CLIENT   HOST        ASSIGNED\n\
         {id:<6}         -  tidelog  /127.0.0.1  lines:0,1\n\
         TOPIC  PARTITION  COMMITTED  LOG START  LOG END  LAG  MEMBER\n\
         lines          0          0          0        0    0  {id}\n\
         lines          1          -          0        0    -  {id}\n",
        "COORDINATOR",
        "MEMBER",
        address_width = address.len(),
        width = id.len()
    );
    let note = "note: nothing was committed of 1 partition: the lag does not count what is there\n";
    assert_eq!(told(&described), (Some(0), expected.as_str(), note));
    let document = node.verb(&["group", "describe", "g"]).await;
    assert_eq!(
        document["members"],
        json!([{
            "member_id": id, "instance_id": null, "client_id": "tidelog", "host": "/127.0.0.1",
            "assigned": [{ "topic": "lines", "partition": 0 }, { "topic": "lines", "partition": 1 }],
        }])
    );
    assert_eq!(
        (&document["partitions"][1]["committed"], &document["partitions"][1]["member_id"]),
        (&Value::Null, &json!(id))
    );

    // Not even a dry run: what it shows would not be what is.
    for more in [&["--to-latest"][..], &["--to-latest", "--execute"]] {
        let words = [&["group", "reset-offsets", "g", "--all-topics"], more].concat();
        let refused = node.run_plain(&words).await;
        let errors = "error: reset offsets of group g: NON_EMPTY_GROUP: it is Stable, with 1 member: stop them first, all of them\n";
        assert_eq!(told(&refused), (Some(1), "", errors));
    }
    node.verb(&["group", "reset-offsets", "h", "--topic", "lines", "--to-latest", "--execute"]).await;
    let deleted = node.run_plain(&["group", "delete", "g", "h", "i"]).await;
    assert_eq!(
        told(&deleted),
        (
            Some(1),
            "GROUP  RESULT\ng      NON_EMPTY_GROUP\nh      deleted\ni      GROUP_ID_NOT_FOUND\n",
            "error: delete group g: NON_EMPTY_GROUP\nerror: delete group i: GROUP_ID_NOT_FOUND\n",
        )
    );
    let failed = node.run(&["group", "delete", "g"]).await;
    let document: Value = serde_json::from_str(&failed.output).unwrap();
    assert_eq!(
        (failed.code, document),
        (
            Some(1),
            json!({
                "groups": [{ "group": "g", "result": "not deleted", "code": "NON_EMPTY_GROUP" }],
                "error": "delete group g: NON_EMPTY_GROUP", "code": "NON_EMPTY_GROUP",
            })
        )
    );

    member.leave().await;
    assert_eq!(
        node.verb(&["group", "delete", "g"]).await,
        json!({ "groups": [{ "group": "g", "result": "deleted" }] })
    );
    assert_eq!(node.verb(&["group", "list"]).await, json!({ "groups": [] }));
    assert_eq!(node.stop().await.code, Some(0));
}

/// Partition, committed, new offset, note.
fn rows(document: &Value) -> Vec<(i64, Option<i64>, i64, Option<String>)> {
    let row = |row: &Value| {
        (
            row["partition"].as_i64().unwrap(),
            row["committed"].as_i64(),
            row["offset"].as_i64().unwrap(),
            row["note"].as_str().map(str::to_owned),
        )
    };
    document["partitions"].as_array().unwrap().iter().map(row).collect()
}

#[tokio::test]
async fn offsets_are_reset_to_every_target_within_the_log() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines"]).await;
    for line in ["a\nb\nc\n", "d\n", "e\nf\n"] {
        node.produce("lines", line).await;
    }
    let read = node.verb(&["consume", "lines"]).await;
    let times: Vec<i64> = read["records"]
        .as_array()
        .unwrap()
        .iter()
        .map(|record| record["timestamp"].as_i64().unwrap())
        .collect();
    let first_from = |time: i64| i64::try_from(times.iter().position(|at| *at >= time).unwrap()).unwrap();
    delete_records(&node, "lines", 1).await;

    let reset = async |more: &[&str]| {
        let words = [&["group", "reset-offsets", "g", "--topic", "lines", "--execute"], more].concat();
        let document = node.verb(&words).await;
        assert_eq!((&document["group"], &document["executed"]), (&json!("g"), &json!(true)));
        rows(&document).remove(0)
    };
    let note = |text: &str| Some(text.to_owned());
    let below = "below the log start: set to it";
    let above = "above the log end: set to it";
    assert_eq!(reset(&["--to-earliest"]).await, (0, None, 1, None));
    assert_eq!(reset(&["--to-latest"]).await, (0, Some(1), 6, None));
    assert_eq!(reset(&["--to-offset", "0"]).await, (0, Some(6), 1, note(below)));
    assert_eq!(reset(&["--to-offset", "7"]).await, (0, Some(1), 6, note(above)));
    assert_eq!(reset(&["--shift-by", "-2"]).await, (0, Some(6), 4, None));
    assert_eq!(reset(&["--shift-by", "1"]).await, (0, Some(4), 5, None));
    assert_eq!(reset(&["--shift-by", "-100"]).await, (0, Some(5), 1, note(below)));
    let time = times[3];
    let found = first_from(time).max(1);
    assert_eq!(reset(&["--to-datetime", &time.to_string()]).await, (0, Some(1), found, None));
    assert_eq!(reset(&["--to-datetime", "2000-01-01T00:00:00Z"]).await, (0, Some(found), 1, None));
    let no_record = "no record from that time on: set to the log end";
    assert_eq!(reset(&["--to-datetime", "2999-01-01T00:00:00Z"]).await, (0, Some(1), 6, note(no_record)));
    assert_eq!(reset(&["--by-duration", "P1D"]).await, (0, Some(6), 1, None));
    assert_eq!(reset(&["--by-duration", "PT0S"]).await, (0, Some(1), 6, note(no_record)));
    let all = ["group", "reset-offsets", "g", "--all-topics", "--shift-by", "-1", "--dry-run"];
    let shown = node.verb(&all).await;
    assert_eq!((&shown["executed"], rows(&shown)), (&json!(false), vec![(0, Some(6), 5, None)]));
    let described = node.verb(&["group", "describe", "g"]).await;
    assert_eq!((&described["partitions"][0]["committed"], &described["lag"]), (&json!(6), &json!(0)));
    assert_eq!(node.stop().await.code, Some(0));
}

#[tokio::test]
async fn partitions_are_named_and_what_is_not_there_changes_nothing() {
    let folder = Folder::new();
    let node = node(&folder).await;
    node.verb(&["topic", "create", "lines", "--partitions", "3"]).await;
    let reset = async |more: &[&str]| {
        node.run(&[&["group", "reset-offsets", "g", "--to-earliest", "--execute"], more].concat()).await
    };
    let failed = |ended: &Ended, words: &str| {
        assert_eq!((ended.code, ended.errors.as_str()), (Some(1), format!("error: {words}\n").as_str()));
    };
    failed(&reset(&["--topic", "lines:0,3"]).await, "partition 3 of lines: UNKNOWN_TOPIC_OR_PARTITION");
    failed(
        &reset(&["--topic", "lines", "--topic", "nowhere"]).await,
        "topic nowhere: UNKNOWN_TOPIC_OR_PARTITION",
    );
    assert_eq!(node.verb(&["group", "list"]).await, json!({ "groups": [] }));
    let done = reset(&["--topic", "lines:2,0", "--topic", "lines:0"]).await;
    assert_eq!(rows(&serde_json::from_str(&done.output).unwrap()), [(0, None, 0, None), (2, None, 0, None)]);
    let shift = ["group", "reset-offsets", "g", "--topic", "lines", "--shift-by", "1"];
    failed(&node.run(&shift).await, "partition 1 of lines has no committed offset to shift");
    let described = node.verb(&["group", "describe", "g"]).await;
    assert_eq!(described["partitions"].as_array().unwrap().len(), 2);

    // Offsets outlive a restart; those of a topic that is gone do not outlive it.
    let folder_of = folder.path("data");
    assert_eq!(node.stop().await.code, Some(0));
    let node = Node::start(serve(&folder_of, &[])).await;
    let again = node.verb(&["group", "describe", "g"]).await;
    assert_eq!(again["partitions"], described["partitions"]);
    node.verb(&["topic", "delete", "lines"]).await;
    let deadline = tokio::time::Instant::now() + WAIT;
    loop {
        let described = node.run(&["group", "describe", "g"]).await;
        if described.errors == "error: group g: GROUP_ID_NOT_FOUND\n" {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{}", described.output);
    }
    assert_eq!(node.stop().await.code, Some(0));
}

async fn delete_records(node: &Node, topic: &str, offset: i64) {
    let mut connection = Connection::open(&node.address()).await.unwrap();
    let partition = delete_records::DeleteRecordsPartition { partition_index: 0, offset };
    let topic = delete_records::DeleteRecordsTopic { name: topic.into(), partitions: vec![partition] };
    let request = DeleteRecordsRequest { topics: vec![topic], timeout_ms: 10_000 };
    let answer = connection.call(2, &request, WAIT).await.unwrap();
    let done = &answer.topics[0].partitions[0];
    assert_eq!((done.error_code, done.low_watermark), (0, offset));
}

#[tokio::test]
async fn a_groups_settings_are_shown_and_changed() {
    let folder = Folder::new();
    let node = node(&folder).await;
    let key = "consumer.session.timeout.ms";
    let of = |document: &Value| {
        let configs = document["configs"].as_array().unwrap().clone();
        configs.into_iter().find(|config| config["name"] == key).unwrap()
    };
    let shown = node.verb(&["group", "config", "g"]).await;
    assert_eq!(of(&shown), json!({ "name": key, "value": "45000", "overridden": false }));
    let set = node.run_plain(&["group", "alter", "g", "--set", "consumer.session.timeout.ms=50000"]).await;
    assert_eq!(told(&set), (Some(0), "GROUP  RESULT\ng      altered\n", ""));
    let shown = node.verb(&["group", "config", "g"]).await;
    assert_eq!(of(&shown), json!({ "name": key, "value": "50000", "overridden": true }));
    let refused = node.run(&["group", "alter", "g", "--set", "consumer.session.timeout.ms=1"]).await;
    assert_eq!(refused.code, Some(1));
    let why = "error: alter group g: INVALID_CONFIG: consumer.session.timeout.ms must be greater than or equal to \
               group.consumer.min.session.timeout.ms";
    assert!(refused.errors.starts_with(why), "{}", refused.errors);
    let unset = node.verb(&["group", "alter", "g", "--unset", key]).await;
    assert_eq!(unset, json!({ "group": "g", "result": "altered" }));
    let plain = node.run_plain(&["group", "config", "g"]).await;
    let line = plain.output.lines().find(|line| line.starts_with(key)).unwrap();
    assert_eq!(line.split_whitespace().collect::<Vec<_>>()[1..], ["45000", "broker", "or", "default"]);
    assert_eq!(node.stop().await.code, Some(0));
}
