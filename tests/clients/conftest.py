"""A node for the client tests: the real program, on the store that the run is about."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
import uuid

import pytest

sys.path.append(str(pathlib.Path(__file__).parents[1] / "faults"))
import scenarios  # noqa: E402
from ports import free_port  # noqa: E402
from wire import announced  # noqa: E402

BINARY = os.environ["TIDELOG_BIN"]
STORE = os.environ["TIDELOG_TEST_STORE"]
ENDPOINT = os.environ["TIDELOG_TEST_ENDPOINT"]
SCRATCH = pathlib.Path(os.environ["TIDELOG_TEST_SCRATCH"])

# Small segments and short waits, so that records are cold within a second or two.
FAST_TIER = {
    "log.segment.bytes": "65536",
    "tier.check.interval.ms": "100",
    "tier.upload.max.lag.ms": "500",
    "log.local.retention.ms": "1000",
    "log.journal.file.bytes": "4194304",
}

# Nobody waits for members that do not come, and members hear soon of a change, so that a group settles at once.
GROUP_SETTINGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.min.heartbeat.interval.ms": "200",
    "group.consumer.heartbeat.interval.ms": "300",
}


class Node:
    """A running `tidelog serve`."""

    def __init__(self, name, settings, endpoint=ENDPOINT):
        self.name = name
        self.endpoint = endpoint
        self.settings = settings
        self.folder = SCRATCH / name
        self.port = free_port()
        self.admin_port = free_port()
        self.process = None
        self.log = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def start(self, until_ready=True):
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = open(self.folder / "node.log", "ab")
        command = [BINARY, "serve", "--data-dir", str(self.folder / "data")]
        command += ["--listen", self.address, "--admin-listen", f"127.0.0.1:{self.admin_port}"]
        command += ["--store", f"{STORE}-{self.name}"]
        if self.endpoint:
            command += ["--store-endpoint", self.endpoint]
        for key, value in self.settings.items():
            command += ["--set", f"{key}={value}"]
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log)
        if not until_ready:
            return
        wait_until(lambda: self.alive() and self.get("/readyz")[0] == 200, 60, f"{self.name} is ready, see {self.log.name}")

    def alive(self):
        code = self.process.poll()
        assert code is None, f"the node ended with {code}: {(self.folder / 'node.log').read_text()[-4000:]}"
        return True

    def get(self, path):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)
        self.log.close()

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(30)
        self.log.close()
        return code

    def cli(self, *arguments, stdin=None):
        """Runs a verb with --json and gives its document."""
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TIDELOG_")}
        where = ["--admin", f"127.0.0.1:{self.admin_port}"] if arguments[0] == "tier" else ["--bootstrap", self.address]
        command = [BINARY, *arguments, *where, "--json"]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=60, env=environment)
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)

    def partitions(self, topic):
        """The partitions of a topic as `tier status` tells them."""
        topics = self.cli("tier", "status")["topics"]
        return [part for entry in topics if entry["topic"] == topic for part in entry["partitions"]]

    def wait_cold(self, topic):
        """Waits until everything that was written is in the bucket and gone from local disk."""

        def cold():
            return all(
                part["tiered_end"] == part["log_end"] and part["local_log_start"] == part["log_end"]
                for part in self.partitions(topic)
            )

        wait_until(cold, 60, f"{topic} is cold: {self.partitions(topic)}")

    def log_files(self, topic):
        """The `.log` files of a topic, once all of it is in them: what is uploaded was sealed in one, the rest is in the journal."""

        def sealed():
            return all(part["tiered_end"] == part["log_end"] for part in self.partitions(topic))

        wait_until(sealed, 60, f"{topic} is sealed: {self.partitions(topic)}")
        ids = {entry["topic"]: entry["topic_id"] for entry in self.cli("topic", "list")["topics"]}
        return sorted((self.folder / "data").glob(f"{ids[topic]}-*/*.log"))

    def drop_cache(self):
        """Empties the cache of cold chunks, so that the next read comes from the bucket."""
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}/v1/cache/clear", method="POST")
        with urllib.request.urlopen(request, timeout=10) as answer:
            assert answer.status == 200


def wait_until(condition, seconds, what):
    deadline = time.monotonic() + seconds
    while True:
        if condition():
            return
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


@pytest.fixture(scope="session")
def node():
    """One node for all tests that leave it as they found it."""
    running = Node(f"shared-{uuid.uuid4().hex[:8]}", FAST_TIER)
    running.start()
    yield running
    assert running.stop() == 0
    shutil.rmtree(running.folder, ignore_errors=True)


@pytest.fixture
def own_node():
    """A node that the test may kill."""
    running = Node(f"own-{uuid.uuid4().hex[:8]}", FAST_TIER)
    running.start()
    yield running
    if running.process.poll() is None:
        running.kill()
    shutil.rmtree(running.folder, ignore_errors=True)


@pytest.fixture
def topic():
    """A topic name that nobody used."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def runs():
    """Each client's run through its scenarios, made when its first test asks for it."""
    made = {}
    yield made
    for run in made.values():
        run.node.stop()
        shutil.rmtree(run.node.folder, ignore_errors=True)


def run_of(runs, client):
    if client not in runs:
        name = f"{client}-{uuid.uuid4().hex[:8]}"
        if scenarios.AGAINST_KAFKA:
            node = scenarios.kafka_node(name, SCRATCH)
        else:
            node = Node(name, {**FAST_TIER, **GROUP_SETTINGS})
        node.start()
        runs[client] = scenarios.Run(client, node, SCRATCH / "clients", announced(node.address))
        runs[client].run()
    return runs[client]
