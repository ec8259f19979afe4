"""Another generation of the clients, in an environment of its own: what they make of the announced versions (B02, B04)."""

import json
import os
import pathlib
import subprocess

import pytest

PYTHON = os.environ["TIDELOG_TEST_OLDER_PYTHON"]
SCRIPT = pathlib.Path(__file__).with_name("older_client.py")


@pytest.mark.parametrize("client", ["kafka-python", "librdkafka", "aiokafka"])
def test_older_clients_guess_the_broker_and_keep_their_codecs(node, topic, client):
    node.cli("topic", "create", topic)
    done = subprocess.run([PYTHON, SCRIPT, client, node.address, topic], capture_output=True, timeout=120)
    log = done.stderr.decode()
    assert done.returncode == 0, log
    found = json.loads(done.stdout)
    assert found["records"] == [
        [index * 20 + number, f"{codec}-{number}" * 10]
        for index, codec in enumerate([None, "gzip", "snappy", "lz4", "zstd"])
        for number in range(20)
    ]
    if client == "librdkafka":
        # B02: a client that thinks the broker too old for a codec says so and sends uncompressed.
        assert "not compressing" not in log.lower()
    else:
        assert found["guessed"] >= [2, 0], found["guessed"]
