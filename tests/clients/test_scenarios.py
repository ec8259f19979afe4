"""Every client through the scenarios of README.md: what each program told is what must be."""

import pytest

import scenarios
from conftest import run_of
from scenarios import CONSUMER_GROUP_HEARTBEAT, clients, pairs, plain

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


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


@pytest.mark.parametrize("state", ["hot", "cold"])
@pytest.mark.parametrize("client, scenario", pairs(["records"]))
def test_every_codec_and_shape_of_a_record_comes_back(runs, client, scenario, state):
    run = run_of(runs, client)
    run.facts(scenario)
    offsets = {step["codec"]: step["offsets"] for step in run.all(scenario, "produced")}
    assert offsets == {codec: list(range(len(run.sent))) for codec in CODECS}
    found = {step["codec"]: step["records"] for step in run.all(scenario, "consumed") if step["state"] == state}
    assert list(found) == CODECS
    for codec, records in found.items():
        assert len(records) == len(run.sent), codec
        for offset, (sent, record) in enumerate(zip(run.sent, records)):
            assert record["offset"] == offset, codec
            assert {"timestamp": sent["timestamp"], **record} == {**as_told_by(client, sent), "offset": offset}, codec


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
