"""Apache Kafka's own command line tools, and the verifiable pair of its system tests."""

import json
import re
import time

import pytest

from conftest import run_of
from scenarios import CONSUMER_GROUP_HEARTBEAT, is_unsupported, pairs

RECORDS = 30
PERFORMANCE_RECORDS = 5000


@pytest.fixture
def tools(runs):
    facts = run_of(runs, "java").facts("tools")

    def output(step):
        told = facts[step]
        assert told["code"] == 0, f"{step}: {told['output']}"
        return told["output"]

    output.topic = f"{runs['java'].prefix}-tools"
    output.group = f"{output.topic}-group"
    return output


def cells(text):
    return [line.split() for line in text.splitlines() if line.strip()]


java = pytest.mark.parametrize("client, scenario", pairs(["tools"]))


@java
def test_topics_are_made_listed_grown_described_and_deleted(tools, client, scenario):
    assert f"Created topic {tools.topic}." in tools("topics-create")
    assert tools.topic in tools("topics-list").splitlines()
    tools("topics-alter")
    lines = tools("topics-describe").splitlines()
    assert re.search(r"PartitionCount: 3\s+ReplicationFactor: 1\s+Configs: .*retention.ms=3600000", lines[0])
    assert [re.search(r"Partition: (\d+)\s+Leader: \d+\s+Replicas: \d+\s+Isr: \d+", line)[1] for line in lines[1:]] == ["0", "1", "2"]
    tools("topics-delete")


@java
def test_configs_are_altered_and_described_with_their_synonyms(tools, client, scenario):
    assert f"Completed updating config for topic {tools.topic}." in tools("configs-alter")
    described = tools("configs-describe")
    assert re.search(r"max.message.bytes=200000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:max.message.bytes=200000", described)
    assert re.search(r"retention.ms=3600000 sensitive=false synonyms=\{DYNAMIC_TOPIC_CONFIG:retention.ms=3600000", described)
    broker = tools("configs-broker")
    for name in ("log.segment.bytes", "log.retention.ms", "num.partitions", "offsets.retention.minutes"):
        assert re.search(rf"^  {re.escape(name)}=", broker, re.MULTILINE), name


@java
def test_the_console_pair_carries_keys_and_values(tools, client, scenario):
    tools("console-producer")
    lines = tools("console-consumer").splitlines()
    found = [line for line in lines if line.startswith("k")]
    assert sorted(found) == sorted(f"k{number}:v{number}" for number in range(RECORDS))
    assert f"Processed a total of {RECORDS} messages" in lines


@java
def test_offsets_are_told_at_both_ends(tools, client, scenario):
    def offsets(step):
        return {int(part): int(offset) for _, part, offset in (line.split(":") for line in tools(step).splitlines())}

    latest = offsets("offsets-latest")
    assert (list(latest), sum(latest.values())) == ([0, 1, 2], RECORDS)
    assert offsets("offsets-earliest") == {0: 0, 1: 0, 2: 0}


@java
def test_groups_are_listed_described_reset_and_deleted(tools, client, scenario):
    assert tools.group in tools("groups-list").splitlines()
    rows = [row for row in cells(tools("groups-describe")) if row[:2] == [tools.group, tools.topic]]
    assert [row[2] for row in rows] == ["0", "1", "2"]
    assert sum(int(row[3]) for row in rows) == RECORDS
    assert [row[3:6] for row in rows] == [[row[3], row[3], "0"] for row in rows], "no lag"
    state = next(row for row in cells(tools("groups-state")) if row[0] == tools.group)
    assert state[-2:] == ["Empty", "0"]
    reset = [row for row in cells(tools("groups-reset")) if row[:2] == [tools.group, tools.topic]]
    assert sorted(row[2:] for row in reset) == [["0", "0"], ["1", "0"], ["2", "0"]]
    deleted = [row for row in cells(tools("groups-delete-offsets")) if row[0] == tools.topic]
    assert deleted == [[tools.topic, str(part), "Successful"] for part in range(3)]
    assert "was successful" in tools("groups-delete")


@java
def test_log_dirs_tell_sizes(tools, client, scenario):
    told = json.loads(next(line for line in tools("log-dirs").splitlines() if line.startswith("{")))
    parts = [part for broker in told["brokers"] for folder in broker["logDirs"] for part in folder["partitions"]]
    assert sorted(part["partition"] for part in parts) == [f"{tools.topic}-{part}" for part in range(3)]
    assert all(part["size"] > 0 and part["offsetLag"] == 0 and not part["isFuture"] for part in parts), parts


@java
def test_the_performance_pair_moves_all_records(tools, client, scenario):
    assert re.search(rf"{PERFORMANCE_RECORDS} records sent, [\d.,]+ records/sec", tools("producer-perf"))
    header, values = [line.split(", ") for line in tools("consumer-perf").splitlines() if ", " in line][-2:]
    assert int(values[header.index("data.consumed.in.nMsg")]) >= PERFORMANCE_RECORDS


# The performance pair's records are 100 bytes, of which a batch has 16 KiB at most.
@java
def test_dump_log_reads_every_batch_of_the_files(tools, client, scenario):
    dumped = tools("dump-log")
    # A partition's segments come in their order, and follow on each other.
    ends = dict.fromkeys(range(3), 0)
    batch_count = 0
    for partition, text in dumped_partitions(dumped):
        batches = re.findall(r"^baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .* isvalid: (\w+)$", text, re.MULTILINE)
        for base, last, count, valid in batches:
            assert (int(base), int(last) - int(base) + 1, valid) == (ends[partition], int(count), "true")
            ends[partition] = int(last) + 1
        batch_count += len(batches)
    assert sum(ends.values()) == RECORDS + PERFORMANCE_RECORDS
    assert batch_count > PERFORMANCE_RECORDS * 100 // 16384
    assert len(re.findall(r"^\| offset: ", dumped, re.MULTILINE)) == RECORDS + PERFORMANCE_RECORDS
    found = re.findall(r" key: (k\d+) payload: (v\d+)$", dumped, re.MULTILINE)
    assert sorted(found) == sorted((f"k{number}", f"v{number}") for number in range(RECORDS))


def dumped_partitions(dumped):
    """The partition and the output of each file."""
    _, *parts = re.split(r"^Dumping .*-(\d+)/\d+\.log$", dumped, flags=re.MULTILINE)
    return [(int(partition), text) for partition, text in zip(parts[::2], parts[1::2], strict=True)]


with_members = pytest.mark.parametrize("client, scenario", pairs(["tools-groups"]))


def told(facts, step):
    assert facts[step]["code"] == 0, f"{step}: {facts[step]['output']}"
    return facts[step]["output"]


def table(text):
    header, *rows = cells(text)
    return [dict(zip(header, row, strict=True)) for row in rows]


@with_members
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_a_group_is_described_with_its_members(runs, client, scenario, protocol):
    run = run_of(runs, client)
    facts = run.facts(scenario)
    topic = f"{run.prefix}-{scenario}"
    group = f"{topic}-{protocol}"
    rows = {row["CLIENT-ID"]: row for row in table(told(facts, f"describe-members-{protocol}"))}
    assert set(rows) == {"first", "second"}
    assert len({row["CONSUMER-ID"] for row in rows.values()}) == 2
    [epoch] = {row["CURRENT-EPOCH"] for row in rows.values()}
    assert int(epoch) > 1 if protocol == "consumer" else epoch == "-"
    for name, partitions in facts[f"members-{protocol}"]["assignments"].items():
        assignment = f"{topic}:{','.join(map(str, partitions))}"
        row = rows[name]
        assert (row["GROUP"], row["HOST"], row["#PARTITIONS"]) == (group, "/127.0.0.1", "3")
        assert row["CURRENT-ASSIGNMENT"] == assignment
        target = (row["CURRENT-EPOCH"], assignment) if protocol == "consumer" else ("-", "-")
        assert (row["TARGET-EPOCH"], row["TARGET-ASSIGNMENT"]) == target
    assert table(told(facts, f"describe-state-{protocol}")) == [
        {
            "GROUP": group,
            "COORDINATOR": run.node.address,
            "(ID)": "(1)",
            "ASSIGNMENT-STRATEGY": "range" if protocol == "classic" else "uniform",
            "STATE": "Stable",
            "#MEMBERS": "2",
        }
    ]


# The types of keys in __consumer_offsets that are judged, by Kafka's names of their schemas.
OFFSET_COMMIT, GROUP_METADATA = "1", "2"
CONSUMER_GROUP, MEMBER, ASSIGNMENT_EPOCH, TARGET, CURRENT = "3", "5", "6", "7", "8"


def decoded(runs, client, scenario, protocol):
    """The records of a group as Kafka's decoder tells them: their keys' types and fields, and what is in them, in their order."""
    run = run_of(runs, client)
    facts = run.facts(scenario)
    topic = f"{run.prefix}-{scenario}"
    group = f"{topic}-{protocol}"
    lines = re.findall(r"^\| offset: .* key: (\{.*\}) payload: (.*)$", told(facts, "dump-offsets"), re.MULTILINE)
    found = []
    for key, payload in lines:
        key = json.loads(key)
        if group in (key["data"].get("group"), key["data"].get("groupId")):
            found.append((key["type"], key["data"], None if payload == "<DELETE>" else json.loads(payload)["data"]))
    return topic, group, facts[f"members-{protocol}"]["assignments"], found


def of_type(found, wanted):
    return [(key, value) for kind, key, value in found if kind == wanted]


@with_members
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_kafkas_decoder_reads_committed_offsets(runs, client, scenario, protocol):
    topic, group, _, found = decoded(runs, client, scenario, protocol)
    commits = of_type(found, OFFSET_COMMIT)
    last = {key["partition"]: value for key, value in commits}
    assert {(key["group"], key["topic"]) for key, _ in commits} == {(group, topic)}
    assert {partition: value["offset"] for partition, value in last.items()} == {partition: partition + 1 for partition in range(6)}
    assert {(value["leaderEpoch"], value["metadata"]) for value in last.values()} == {(0, "")}
    now = time.time() * 1000
    assert all(now - 3_600_000 < value["commitTimestamp"] <= now for value in last.values())


@with_members
def test_kafkas_decoder_reads_a_classic_group(runs, client, scenario):
    topic, group, assignments, found = decoded(runs, client, scenario, "classic")
    groups = [value for _, value in of_type(found, GROUP_METADATA)]
    full = next(value for value in groups if len(value["members"]) == 2)
    assert (full["protocolType"], full["protocol"]) == ("consumer", "range")
    assert full["leader"] in {member["memberId"] for member in full["members"]}
    for member in full["members"]:
        name = member["clientId"]
        assert (member["clientHost"], member["groupInstanceId"], member["sessionTimeout"]) == ("/127.0.0.1", None, 10000)
        assert member["memberId"].startswith(f"{name}-")
        assert member["subscription"]["topics"] == [topic]
        assert member["assignment"]["assignedPartitions"] == [{"topic": topic, "partitions": assignments[name]}]
    assert {member["clientId"] for member in full["members"]} == {"first", "second"}
    # Left by both.
    empty = groups[-1]
    assert (empty["protocolType"], empty["protocol"], empty["leader"], empty["members"]) == ("consumer", None, None, [])
    assert empty["generation"] > full["generation"] > 0


@with_members
def test_kafkas_decoder_reads_a_consumer_group(runs, client, scenario):
    topic, group, assignments, found = decoded(runs, client, scenario, "consumer")
    members = {key["memberId"]: value for key, value in of_type(found, MEMBER) if value}
    names = {member: value["clientId"] for member, value in members.items()}
    assert sorted(names.values()) == ["first", "second"]
    for value in members.values():
        assert (value["clientHost"], value["subscribedTopicNames"], value["instanceId"]) == ("/127.0.0.1", [topic], None)
        # Kafka takes a member without the field for one of a classic client.
        assert (value["classicMemberMetadata"], value["subscribedTopicRegex"]) == (None, "")
    # What each had while there were two, and what it was to have.
    for kind, field in ((TARGET, "topicPartitions"), (CURRENT, "assignedPartitions")):
        owned = [(names[key["memberId"]], value[field]) for key, value in of_type(found, kind) if value and value[field]]
        told = {(name, tuple(sorted(topics[0]["partitions"]))) for name, topics in owned}
        assert told >= {(name, tuple(partitions)) for name, partitions in assignments.items()}, kind
    # Both left: nothing of a member is, and the epoch is one that nobody was of.
    gone = {(kind, key["memberId"]) for kind, key, value in found if "memberId" in key and value is None}
    assert gone == {(kind, member) for kind in (MEMBER, TARGET, CURRENT) for member in members}
    epochs = [value["epoch"] for _, value in of_type(found, CONSUMER_GROUP)]
    assert epochs == sorted(epochs)
    assert epochs[-1] > max(value["memberEpoch"] for _, value in of_type(found, CURRENT) if value)
    assert of_type(found, ASSIGNMENT_EPOCH)[-1][1]["assignmentEpoch"] <= epochs[-1]


# What is set is told before what it hides, and is gone with its removal.
@with_members
@pytest.mark.parametrize(
    "kind, key, value, source, hidden",
    [
        ("brokers", "log.retention.ms", "7200000", "DYNAMIC_BROKER_CONFIG", "DEFAULT_CONFIG:log.retention.hours=168"),
        (
            "groups",
            "consumer.session.timeout.ms",
            "50000",
            "DYNAMIC_GROUP_CONFIG",
            "DEFAULT_CONFIG:group.consumer.session.timeout.ms=45000",
        ),
    ],
)
def test_settings_of_brokers_and_groups_are_altered_and_back(runs, client, scenario, kind, key, value, source, hidden):
    run = run_of(runs, client)
    facts = run.facts(scenario)
    name = "1" if kind == "brokers" else f"{run.prefix}-{scenario}-consumer"
    for step in ("alter", "back"):
        assert told(facts, f"{kind}-{step}") == f"Completed updating config for {kind[:-1]} {name}.\n"
    assert told(facts, f"{kind}-altered").splitlines() == [
        f"Dynamic configs for {kind[:-1]} {name} are:",
        f"  {key}={value} sensitive=false synonyms={{{source}:{key}={value}, {hidden}}}",
    ]
    every = told(facts, f"{kind}-all").splitlines()
    assert every[0] == f"All configs for {kind[:-1]} {name} are:"
    # The broker's key has no value where it is not set, and another is told in hours.
    rest = "null sensitive=false synonyms={}" if kind == "brokers" else f"45000 sensitive=false synonyms={{{hidden}}}"
    assert [line for line in every if line.startswith(f"  {key}=")] == [f"  {key}={rest}"]
    wanted = {
        "brokers": ["num.partitions", "message.max.bytes", "offsets.retention.minutes", "group.consumer.session.timeout.ms"],
        "groups": ["consumer.heartbeat.interval.ms", "consumer.session.timeout.ms"],
    }
    assert set(wanted[kind]) <= {line.strip().split("=")[0] for line in every[1:]}


@pytest.mark.parametrize("client, scenario", pairs(["verifiable"]))
@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_the_verifiable_pair_agrees(runs, client, scenario, protocol):
    run = run_of(runs, client)
    facts = run.facts(scenario)

    def events(step):
        assert facts[step]["code"] == 0, facts[step]["output"]
        return [json.loads(line) for line in facts[step]["output"].splitlines() if line.startswith("{")]

    sent = [event for event in events("producer") if event["name"] == "producer_send_success"]
    assert sorted(int(event["value"]) for event in sent) == list(range(500))
    if protocol == "consumer" and CONSUMER_GROUP_HEARTBEAT not in run.announced:
        assert is_unsupported(facts[protocol]["output"]), facts[protocol]["output"]
        return
    told = events(protocol)
    assert sum(event["count"] for event in told if event["name"] == "records_consumed") >= 500
    committed = [event for event in told if event["name"] == "offsets_committed"]
    assert committed and all(event["success"] for event in committed)
    ends = {}
    for event in committed:
        ends.update({part["partition"]: part["offset"] for part in event["offsets"]})
    assert sum(ends.values()) >= 500
