"""Every client through the scenarios of README.md: what each program told is what must be."""

import re
import struct
import time

import pytest

import scenarios
from conftest import run_of
from raw_fetch import RawClient
from scenarios import CODECS, CONSUMER_GROUP_HEARTBEAT, clients, pairs, plain

# The head of a record batch, to the offset of its last record.
BATCH = struct.Struct(">qiibIhi")


@pytest.mark.parametrize("client, scenario", pairs(["administration"]))
def test_administration_goes_round(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    assert facts["listed"]["found"] is True
    assert (facts["described"]["partitions"], facts["described"]["replicas"]) == ([0, 1], [1, 1])
    if client == "kcat":
        return
    configs = {"retention.ms": "3600000", "max.message.bytes": "200000", "cleanup.policy": "delete"}
    assert {key: facts["configs"][key] for key in configs} == configs
    assert {key: facts["altered"][key] for key in configs} == {**configs, "retention.ms": "7200000"}
    assert facts["grown"]["partitions"] == [0, 1, 2, 3, 4]
    # In each client's own words.
    assert plain(facts["created"]["error"]).startswith(("topicalreadyexists", "topicexists"))
    assert plain(facts["deleted"]["error"]).startswith("unknowntopic")


# Of partition 0. Where no record is of a time or later, two clients take the end for it.
OFFSETS = {"earliest": 0, "latest": 10, "newest": 9, "at": 7, "later": -1}
OFFSETS_TOLD = {
    # Its records are of now.
    "kcat": {**OFFSETS, "at": 0},
    "kafkajs": {**OFFSETS, "later": 10},
    "franz-go": {**OFFSETS, "later": 10},
}
WITHOUT_NEWEST = {"kcat", "kafkajs", "sarama"}
WITHOUT_CLUSTER_ID = {"kcat", "sarama"}
WITHOUT_LOW_WATERMARK = {"kafkajs", "sarama"}


@pytest.mark.parametrize("client, scenario", pairs(["administration-cluster"]))
def test_administration_of_the_cluster_goes_round(runs, client, scenario):
    run = run_of(runs, client)
    facts = run.facts(scenario)
    assert list(facts) == ["cluster", *scenarios.CLUSTER[client], "end"]
    cluster = {"step": "cluster", "brokers": [[1, run.node.address]], "controller": 1}
    if client not in WITHOUT_CLUSTER_ID:
        cluster["id"] = facts["cluster"]["id"]
        assert re.fullmatch(r"[\w-]{22}", cluster["id"])
    assert facts["cluster"] == cluster
    if "broker" in facts:
        heartbeat = {"group.consumer.heartbeat.interval.ms": "300"}
        for step, value in (("broker", "1048588"), ("broker-altered", "2000000"), ("broker-restored", "1048588")):
            assert facts[step]["configs"] == {**heartbeat, "message.max.bytes": value}, step
    if "offsets" in facts:
        offsets = OFFSETS_TOLD.get(client, OFFSETS)
        names = set(OFFSETS) - ({"newest"} if client in WITHOUT_NEWEST else set())
        assert facts["offsets"]["offsets"] == {name: offsets[name] for name in names}
    if "records-deleted" in facts:
        low = {} if client in WITHOUT_LOW_WATERMARK else {"low": 4}
        assert facts["records-deleted"] == {"step": "records-deleted", "first": 4, **low}
    what_only_asks(facts)


def what_only_asks(facts):
    """Of partitions and of the quorum."""
    if "log-dirs" in facts:
        told = facts["log-dirs"]
        [[_, size, *_], _] = told["partitions"]
        assert size > 0
        assert (told["broker"], told["partitions"]) == (1, [[0, size, 0, False], [1, 0, 0, False]])
    if "elected" in facts:
        assert plain(facts["elected"]["error"]).startswith("electionnotneeded")
    if "features" in facts:
        # Levels of Kafka's own formats, of which there are none here.
        finalized = facts["features"]["finalized"]
        assert "metadata.version" in finalized if scenarios.AGAINST_KAFKA else finalized == []
    for step, wanted in {
        "reassignments": {"ongoing": []},
        # Of epoch 0, after ten records.
        "producers": {"producers": [[0, 9]]},
        "quorum": {"leader": 1, "voters": [1], "observers": []},
        "resources": {"topic": True, "metrics": 0},
    }.items():
        if step in facts:
            assert facts[step] == {"step": step, **wanted}


# In each client's words: its assignor, and what it lists of a group without members.
ASSIGNORS = {"kafkajs": "RoundRobinAssigner"}
PROTOCOL_ONLY = {"aiokafka", "kafkajs", "sarama"}


@pytest.mark.parametrize("client, scenario", pairs(["administration-groups"]))
def test_administration_of_a_group_goes_round(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    assert list(facts) == [*scenarios.GROUPS[client], "end"]
    for prefix, kind, assignor in (("", "classic", ASSIGNORS.get(client, "range")), ("consumer-", "consumer", "uniform")):
        own = {step: facts[f"{prefix}{step}"] for step in scenarios.STATIC_GROUP if f"{prefix}{step}" in facts}
        if not own:
            continue
        for step in ("member", "stayed"):
            if step in own:
                told = own[step]
                assert (plain(told["state"]), told["assignor"], told["members"]) == ("stable", assignor, [[0, 1]]), step
        # Of the classic protocol nothing is left without members; the assignor of the other is the server's own.
        told = own["empty"]
        assert (plain(told["state"]), told["assignor"], told["members"]) == ("empty", assignor if prefix else "", [])
        listed = [["consumer"]] if client in PROTOCOL_ONLY else [["empty", kind]]
        assert [[word.lower() for word in words] for words in own["listed"]["groups"]] == listed
        assert own["offsets"]["offsets"] == {"0": 5, "1": 5}
        if "altered" in own:
            assert own["altered"]["offsets"] == {"0": 2, "1": 5}
        if "offset-deleted" in own:
            # sarama asks for both.
            assert own["offset-deleted"]["offsets"] == ({"0": -1, "1": 5} if client == "sarama" else {"1": 5})
        if "deleted" in own:
            assert plain(own["refused"]["error"]).startswith(("nonemptygroup", "groupnotempty"))
            assert plain(own["deleted"]["error"]).startswith("groupidnotfound")
            assert own["deleted"]["groups"] == []
        if "subscribed" in own:
            assert plain(own["subscribed"]["error"]).startswith("groupsubscribedtotopic")


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("client, scenario", pairs(["records"]))
def test_every_codec_and_shape_of_a_record_comes_back(runs, client, scenario, state):
    run = run_of(runs, client)
    run.facts(scenario)
    topics = [topic["topic"] for topic in scenarios.TOPICS]
    offsets = {step["topic"]: step["offsets"] for step in run.all(scenario, "produced")}
    assert offsets == {topic: list(range(len(run.sent))) for topic in topics}
    found = {step["topic"]: step["records"] for step in run.all(scenario, "consumed") if step["state"] == state}
    assert list(found) == topics
    for topic, records in found.items():
        assert len(records) == len(run.sent), topic
        for offset, (sent, record) in enumerate(zip(run.sent, records)):
            assert record["offset"] == offset, topic
            if topic == "stamped" and "timestamp" in record:
                # Those that were sent are of a minute before.
                assert run.sent[-1]["timestamp"] < run.wall_clock <= record["timestamp"] <= time.time() * 1000
                sent = {**sent, "timestamp": record["timestamp"]}
            assert {"timestamp": sent["timestamp"], **record} == {**as_told_by(client, sent), "offset": offset}, topic


# B10, B19: what every client reads in the test above is what the broker wrote.
@pytest.mark.parametrize("client, scenario", pairs(["records"]))
def test_what_every_client_reads_was_written_by_the_broker(runs, client, scenario):
    run = run_of(runs, client)
    run.facts(scenario)
    stored = {topic["topic"]: stored_as(run, f"{run.prefix}-{scenario}-{topic['topic']}") for topic in scenarios.TOPICS}
    for codec in CODECS:
        assert stored[f"to-{codec}"] == {(codec, "CreateTime")}
    # Some clients leave a batch uncompressed that would not get smaller.
    assert {("snappy", "LogAppendTime")} <= stored["stamped"] <= {("snappy", "LogAppendTime"), ("none", "LogAppendTime")}


def stored_as(run, topic):
    """The codec and the type of the timestamps of each batch, as fetches bring them."""
    client, found, offset = RawClient(run.node.address, 30), set(), 0
    while offset < len(run.sent):
        answer = client.fetch({(topic, 0): offset}, 1 << 20, 1000)[topic, 0]
        assert answer.error == 0 and answer.data, (topic, offset, answer.error)
        at = 0
        while at + BATCH.size <= len(answer.data):
            base, length, _epoch, _magic, _crc, attributes, last = BATCH.unpack_from(answer.data, at)
            found.add((CODECS[attributes & 7], "LogAppendTime" if attributes & 8 else "CreateTime"))
            offset, at = base + last + 1, at + 12 + length
    client.close()
    return found


def as_told_by(client, sent):
    """kafkajs has a map of headers: each name once, with its values in their order."""
    if client != "kafkajs":
        return sent
    names = list(dict.fromkeys(key for key, _ in sent["headers"]))
    return {**sent, "headers": [[name, value] for name in names for key, value in sent["headers"] if key == name]}


@pytest.mark.parametrize("client, scenario", pairs(["group-eager", "group-cooperative", "group-consumer"]))
def test_a_group_rebalances_under_traffic_and_misses_nothing(runs, client, scenario):
    run = run_of(runs, client)
    if run.lacks(scenario):
        return
    facts = run.facts(scenario)
    for step, members in [("two", ["first", "second"]), ("three", ["first", "second", "third"]), ("left", ["first", "third"])]:
        assignments = facts[step]["assignments"]
        assert list(assignments) == members
        assert sorted(partition for owned in assignments.values() for partition in owned) == list(range(6)), step
        assert {len(owned) for owned in assignments.values()} == {6 // len(members)}, step
    assert facts["done"]["acknowledged"] > 0
    assert len(facts["done"]["missing"]) <= scenarios.DROPPED_AT_LEAVE_MAX.get(client, 0), facts["done"]
    if scenario == "group-cooperative" or (scenario == "group-consumer" and CONSUMER_GROUP_HEARTBEAT in run.announced):
        unaffected_keep_what_they_have(facts)


def unaffected_keep_what_they_have(facts):
    """Only what moves is revoked, and what stays is read on while the new member waits for its share."""
    before, three = facts["two"]["assignments"], facts["three"]
    for member, owned in before.items():
        moved = set(owned) - set(three["assignments"][member])
        assert set(three["revoked"][member]) == moved, member
        assert three["kept_records"][member] > 0, member
    assert three["lost"] == []


@pytest.mark.parametrize("client, scenario", pairs(["commit", "commit-consumer"]))
def test_a_group_goes_on_where_it_committed(runs, client, scenario):
    run = run_of(runs, client)
    if run.lacks(scenario):
        return
    facts = run.facts(scenario)
    at, values = {0: 0, 1: 0}, []
    for step, count in (("first", 70), ("second", 70), ("third", 60)):
        found = facts[step]["records"]
        assert len(found) == count
        for partition, offset, value in found:
            assert offset == at[partition], step
            at[partition] += 1
            values.append(value)
    assert sorted(values) == list(range(200)), "each once"
    assert facts["committed"]["offsets"] == {"0": 100, "1": 100}


@pytest.mark.parametrize("client, scenario", pairs(["reset"]))
def test_a_group_outside_of_the_log_goes_where_its_client_says(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    for step, first in (("within", 7), ("below-earliest", 4), ("above-earliest", 4)):
        assert facts[step] == {"step": step, "first": first, "begin": 4, "end": 10}
    for step in ("below-latest", "above-latest"):
        assert facts[step]["first"] >= facts[step]["end"] >= 10, step


# B22: where no record is of that time or later, there is no offset and no time; Java would throw at a time below 0.
@pytest.mark.parametrize("client, scenario", pairs(["times"]))
def test_a_look_up_by_time_finds_a_record_or_nothing(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    begin = 1_600_000_000_000
    assert facts["empty"]["found"] is None
    records = facts["records"]
    assert (records["begin"], records["exact"], records["later"]) == ([4, begin + 4], [7, begin + 7], None)
    assert facts["emptied"]["found"] is None


# B52: who comes again within its session takes its own place. Nobody else hears of it where the group was settled; where it was to
# rebalance anyway, that rebalance is the only one.
@pytest.mark.parametrize("client, scenario", pairs(["static"]))
def test_static_members_come_again_and_nobody_else_notices(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    for step, others in [("follower", ["first", "third"]), ("leader", ["second", "third"]), ("twice", ["first", "third"])]:
        told = facts[step]
        assert sorted(partition for owned in told["before"].values() for partition in owned) == list(range(6)), step
        assert told["after"] == told["before"], step
        assert told["changes"] == dict.fromkeys(others, 0), step
        assert told["generations"] == 0, step
    assert "fenced" in plain(facts["fenced"]["error"])
    told = facts["rebalancing"]
    assert plain(facts["waiting"]["state"]).startswith("preparingrebalanc")
    assert sorted(partition for owned in told["after"].values() for partition in owned) == list(range(6))
    assert told["changes"] == {"first": 2}, "revoked once, assigned once"
    assert told["generations"] == 1
    assert facts["described"]["instances"] == ["first", "fourth", "second", "third"]


@pytest.mark.parametrize("client, scenario", pairs(["migration"]))
def test_a_group_moves_to_the_other_protocol_and_back_without_a_gap(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    for step, members, kind in [
        ("classic", ["classic"], "Classic"),
        ("upgraded", ["classic", "modern"], "Consumer"),
        ("downgraded", ["classic"], "Classic"),
    ]:
        assignments = facts[step]["assignments"]
        assert sorted(assignments) == members, step
        assert sorted(partition for owned in assignments.values() for partition in owned) == list(range(6)), step
        assert facts[step]["type"] == kind, step
    assert facts["done"]["acknowledged"] > 0
    assert facts["done"]["missing"] == []


# B55: nothing of the old topic is left for the one of the same name, no record and no committed offset.
@pytest.mark.parametrize("client, scenario", pairs(["recreated"]))
def test_members_read_the_whole_topic_that_was_made_again(runs, client, scenario):
    facts = run_of(runs, client).facts(scenario)
    assert facts["before"]["committed"] == [50]
    for step in ("restarted", "running"):
        assert facts[step]["numbers"] == list(range(1000, 1100)), step


@pytest.mark.parametrize("client, scenario", pairs(["restarts"]))
def test_an_idempotent_producer_outlives_kills_of_its_node(runs, client, scenario):
    run = run_of(runs, client)
    done = run.facts(scenario)["done"]
    assert run.kills == len(scenarios.KILLS)
    assert len(done["acknowledged"]) == done["of"]
    stored = {(int(partition), offset): value for partition, found in done["consumed"].items() for offset, value in found}
    assert {(partition, offset): value for partition, offset, value in done["acknowledged"]} == stored
    for partition in range(3):
        expected = [[offset, partition + 3 * offset] for offset in range(done["of"] // 3)]
        assert done["consumed"][str(partition)] == expected, "each once, in order"


@pytest.mark.parametrize("client", clients())
def test_a_client_ends_well(runs, client):
    assert run_of(runs, client).steps["end"] == [{"step": "end", "code": 0}]
