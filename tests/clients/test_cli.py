"""The program's own verbs against a running node."""

import os
import subprocess

import pytest

from conftest import BINARY, ENDPOINT, STORE


def test_topics_are_created_listed_described_altered_and_deleted(node, topic):
    created = node.cli("topic", "create", topic, "--partitions", "3", "--config", "retention.ms=1000000")
    assert (created["topic"], created["partitions"]) == (topic, 3)
    listed = {entry["topic"]: entry for entry in node.cli("topic", "list")["topics"]}
    assert listed[topic]["topic_id"] == created["topic_id"]
    node.cli("topic", "alter", topic, "--set", "max.message.bytes=5000", "--unset", "retention.ms")
    described = node.cli("topic", "describe", topic)
    configs = {entry["name"]: entry for entry in described["configs"]}
    assert configs["max.message.bytes"] == {"name": "max.message.bytes", "value": "5000", "overridden": True}
    assert configs["retention.ms"]["overridden"] is False
    assert node.cli("topic", "delete", topic) == {"topic": topic, "result": "deleted"}
    assert topic not in {entry["topic"] for entry in node.cli("topic", "list")["topics"]}


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_lines_go_in_and_come_out(node, topic, codec):
    node.cli("topic", "create", topic)
    lines = b"".join(b"k%d:v%d\n" % (i, i) for i in range(500))
    produced = node.cli("produce", topic, "--key-separator", ":", "--compression", codec, stdin=lines)
    assert produced == {"topic": topic, "records": 500}
    for state in ("hot", "cold"):
        if state == "cold":
            node.wait_cold(topic)
            node.drop_cache()
        records = node.cli("consume", topic)["records"]
        assert [(r["offset"], r["key"], r["value"]) for r in records] == [(i, f"k{i}", f"v{i}") for i in range(500)]
    assert len(node.cli("consume", topic, "--from", "490")["records"]) == 10
    assert len(node.cli("consume", topic, "--count", "7")["records"]) == 7


def test_the_cluster_and_the_tier_tell_what_they_hold(node, topic):
    node.cli("topic", "create", topic)
    node.cli("produce", topic, stdin=b"a\nb\n")
    node.wait_cold(topic)
    cluster = node.cli("cluster", "status")
    assert [entry["port"] for entry in cluster["nodes"]] == [node.port]
    segments = node.cli("tier", "segments", topic)["segments"]
    assert [(s["partition"], s["base_offset"], s["end_offset"]) for s in segments] == [(0, 0, 2)]


def test_a_verb_fails_with_1_and_a_wrong_use_with_2(node, topic):
    def code(*arguments):
        return subprocess.run([BINARY, *arguments], capture_output=True, timeout=30).returncode

    assert code("topic", "describe", topic, "--bootstrap", node.address) == 1
    assert code("topic", "frobnicate") == 2


def test_the_bucket_check_passes_and_its_findings_are_advice(node):
    command = [BINARY, "bucket", "check", "--store", STORE, "--json"]
    if ENDPOINT:
        command += ["--store-endpoint", ENDPOINT]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDELOG_")}
    done = subprocess.run(command, capture_output=True, timeout=60, env=environment)
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()


def test_a_node_with_tiered_data_refuses_a_prefix_that_was_nobodys(own_node, topic):
    own_node.cli("topic", "create", topic)
    own_node.cli("produce", topic, stdin=b"a\nb\n")
    own_node.wait_cold(topic)
    assert own_node.stop() == 0
    command = [BINARY, "serve", "--data-dir", str(own_node.folder / "data"), "--listen", own_node.address]
    command += ["--admin-listen", f"127.0.0.1:{own_node.admin_port}", "--store", f"{STORE}-{own_node.name}-other"]
    if ENDPOINT:
        command += ["--store-endpoint", ENDPOINT]
    # Twice: a refused start leaves no claim behind.
    for _ in range(2):
        refused = subprocess.run(command, capture_output=True, timeout=30)
        assert refused.returncode == 1
        assert b"give the store that it was started with" in refused.stderr, refused.stderr.decode()
    own_node.start()
    assert [r["value"] for r in own_node.cli("consume", topic)["records"]] == ["a", "b"]
