"""kcat, unmodified: every codec in, everything out, hot and cold."""

import json
import subprocess

import pytest

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


def kcat(node, *arguments, stdin=b""):
    done = subprocess.run(
        ["kcat", "-b", node.address, *arguments], input=stdin, capture_output=True, timeout=120
    )
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode(), done.stderr.decode()


def read(node, topic, *arguments):
    out, _ = kcat(node, "-C", "-t", topic, "-e", "-q", "-J", *arguments)
    return [json.loads(line) for line in out.splitlines()]


# B02: a client that thinks the broker too old for a codec says so and sends uncompressed.
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_hot_and_cold(node, topic, codec):
    lines = [f"key-{i}:value-{i}-{'x' * 100}" for i in range(500)]
    arguments = ["-P", "-t", topic, "-K:", "-d", "feature,msg"]
    if codec != "none":
        arguments += ["-z", codec]
    _, log = kcat(node, *arguments, stdin="\n".join(lines).encode())
    assert "not compressing" not in log.lower()
    expected = [(i, f"key-{i}", f"value-{i}-{'x' * 100}") for i in range(500)]
    hot = [(r["offset"], r["key"], r["payload"]) for r in read(node, topic, "-o", "beginning")]
    assert hot == expected
    node.wait_cold(topic)
    node.drop_cache()
    cold = [(r["offset"], r["key"], r["payload"]) for r in read(node, topic, "-o", "beginning")]
    assert cold == expected
    cached = [(r["offset"], r["key"], r["payload"]) for r in read(node, topic, "-o", "beginning")]
    assert cached == expected


def test_reading_starts_at_an_offset_and_at_the_end(node, topic):
    kcat(node, "-P", "-t", topic, stdin="\n".join(str(i) for i in range(100)).encode())
    assert [r["payload"] for r in read(node, topic, "-o", "90")] == [str(i) for i in range(90, 100)]
    assert [r["payload"] for r in read(node, topic, "-o", "-3")] == ["97", "98", "99"]
    assert read(node, topic, "-o", "end") == []


def test_reading_starts_at_a_time_hot_and_cold(node, topic):
    kcat(node, "-P", "-t", topic, stdin=b"first")
    first = read(node, topic, "-o", "beginning")[0]["ts"]
    kcat(node, "-P", "-t", topic, stdin=b"second\nthird")
    for _ in ("hot", "cold"):
        at_first = [r["payload"] for r in read(node, topic, "-o", f"s@{first}")]
        after_first = [r["payload"] for r in read(node, topic, "-o", f"s@{first + 1}")]
        assert (at_first, after_first) == (["first", "second", "third"], ["second", "third"])
        node.wait_cold(topic)
        node.drop_cache()


# C1: no abort index is asked for where there never was a transaction.
def test_read_committed_reads_cold_data_that_never_had_a_transaction(node, topic):
    kcat(node, "-P", "-t", topic, stdin="\n".join(str(i) for i in range(1000)).encode())
    node.wait_cold(topic)
    node.drop_cache()
    counts = [
        len(read(node, topic, "-o", "beginning", "-X", f"isolation.level={level}"))
        for level in ("read_committed", "read_uncommitted")
    ]
    assert counts == [1000, 1000]


def test_metadata_lists_the_node_and_the_topic(node, topic):
    kcat(node, "-P", "-t", topic, stdin=b"x")
    out, _ = kcat(node, "-L", "-J", "-t", topic)
    metadata = json.loads(out)
    assert [broker["name"] for broker in metadata["brokers"]] == [node.address]
    assert [t["topic"] for t in metadata["topics"]] == [topic]
    assert metadata["topics"][0]["partitions"][0]["leader"] == metadata["brokers"][0]["id"]


def test_headers_null_and_empty_values_come_back_as_sent(node, topic):
    kcat(node, "-P", "-t", topic, "-H", "a=1", "-H", "a=2", "-H", "empty=", "-K:", stdin=b"k:v\n")
    kcat(node, "-P", "-t", topic, "-Z", "-K:", stdin=b"tombstone:\n")
    for _ in ("hot", "cold"):
        records = read(node, topic, "-o", "beginning")
        assert records[0]["headers"] == ["a", "1", "a", "2", "empty", ""]
        assert (records[0]["key"], records[0]["payload"]) == ("k", "v")
        assert (records[1]["key"], records[1]["payload"]) == ("tombstone", None)
        node.wait_cold(topic)
        node.drop_cache()
