"""The scenarios that every client goes through: how a client's program is run, and the records that it is given.

A program takes `--bootstrap HOST:PORT --prefix NAME --records FILE --scenario NAME,NAME...` and prints JSON, one line for each step.
Where a step needs the runner (a topic that gets cold, a node that is killed), its line says so, and it goes on after a line on
its standard input or at once, as README.md tells.
"""

import json
import os
import subprocess
import threading
import time

import pytest

from kafka_node import KafkaNode

COMMANDS = json.loads(os.environ.get("TIDELOG_TEST_CLIENTS", "{}"))
AGAINST_KAFKA = os.environ.get("TIDELOG_TEST_AGAINST") == "kafka"

# No client has more than this to do, on a machine where two of them share two cores; Kafka takes its time to start again.
RUN_SECONDS_MAX = 900 if AGAINST_KAFKA else 420
# At each of these shares of what is to be acknowledged the node is killed.
KILLS = [0.1, 0.4, 0.7]

ADMINISTRATION = ["administration", "administration-cluster", "administration-groups"]
ALL = [*ADMINISTRATION, "records", "group-eager", "commit", "restarts"]
JAVA = ["tools", "tools-groups", "verifiable", "reset", "times", "static", "migration", "recreated"]
WITH = {"cooperative": ["group-cooperative"], "consumer": ["group-consumer", "commit-consumer"]}

# The scenarios of each client, in their order: the node of a run is killed in the last one.
CLIENTS = {
    "kcat": [*WITH["cooperative"], *(name for name in ALL if name != "administration-groups")],
    "confluent": ["static", "recreated", *WITH["cooperative"], *WITH["consumer"], *ALL],
    "kafka-python": [*WITH["cooperative"], *ALL],
    "aiokafka": ALL,
    "kafkajs": ["reset", "recreated", *ALL],
    "franz-go": ["recreated", *WITH["cooperative"], *WITH["consumer"], *ALL],
    "sarama": [*WITH["cooperative"], *ALL],
    "java": [*JAVA, *WITH["cooperative"], *WITH["consumer"], *ALL],
}

BROKER = ["broker", "broker-altered", "broker-restored"]
# What each client's program tells of the cluster, beside the first step, and of a group: all that the client has a call for.
ASKED = ["log-dirs", "elected", "reassignments", "producers", "features", "quorum", "resources"]
CLUSTER = {
    "kcat": ["offsets"],
    "confluent": [*BROKER, "offsets", "records-deleted", "elected"],
    "kafka-python": [*BROKER, "offsets", "records-deleted", *ASKED],
    "aiokafka": [*BROKER, "records-deleted"],
    "kafkajs": [*BROKER, "offsets", "records-deleted", "reassignments"],
    "franz-go": [*BROKER, "offsets", "records-deleted", *(step for step in ASKED if step != "quorum")],
    "sarama": [*BROKER, "offsets", "records-deleted", *ASKED[:3]],
    "java": [*BROKER, "offsets", "records-deleted", *ASKED],
}
LOOKED_AT = ["member", "empty", "listed", "offsets"]
GROUP = ["member", "refused", "subscribed", "empty", "listed", "offsets", "altered", "offset-deleted", "deleted"]
# A static member goes, and is removed by its instance.
STATIC_GROUP = [*GROUP[:3], "stayed", *GROUP[3:]]
GROUPS = {
    "confluent": [step for step in GROUP if step not in ("subscribed", "offset-deleted")],
    "kafka-python": STATIC_GROUP,
    "aiokafka": LOOKED_AT,
    "kafkajs": [step for step in GROUP if step not in ("subscribed", "offset-deleted")],
    "franz-go": STATIC_GROUP,
    "sarama": STATIC_GROUP,
    "java": [*STATIC_GROUP, *(f"consumer-{step}" for step in GROUP)],
}

CONSUMER_GROUP_HEARTBEAT = 68
# What a client does that is told to use the consumer protocol of KIP-848 and finds that the node does not announce it.
TELLS, FALLS_BACK, WAITS = "tells", "falls back", "waits"
WITHOUT_CONSUMER_GROUPS = {"java": TELLS, "franz-go": FALLS_BACK, "confluent": WAITS}

# What a client's records are sent with, into topics of which settings: a topic for each codec that a client writes; then those where
# the broker writes another codec than what came, each once; then one where it puts its own time on what came.
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
TOPICS = [{"topic": codec, "codec": codec, "configs": {}} for codec in CODECS]
TOPICS += [
    {"topic": f"to-{written}", "codec": sent, "configs": {"compression.type": "uncompressed" if written == "none" else written}}
    for written, sent in zip(CODECS, ["zstd", *CODECS])
]
TOPICS += [{"topic": "stamped", "codec": "snappy", "configs": {"message.timestamp.type": "LogAppendTime"}}]

# Records that a client has in hand, and takes for read, when it leaves its group.
DROPPED_AT_LEAVE_MAX = {"kcat": 1}

# What a client itself refuses to send or cannot say, by the shapes' keys.
UNSENDABLE = {
    "kcat": {"no name"},
    "kafka-python": {"nothing", "null header", "null value with headers"},
    "aiokafka": {"nothing"},
    "kafkajs": {"null header", "null value with headers"},
}


def pairs(wanted):
    return [
        pytest.param(client, name, marks=pytest.mark.xdist_group(client))
        for client, names in CLIENTS.items()
        for name in names
        if name in wanted and client in COMMANDS
    ]


def clients():
    return [pytest.param(client, marks=pytest.mark.xdist_group(client)) for client in COMMANDS]


def plain(error):
    return "".join(letter for letter in error.lower() if letter.isalpha())


def is_unsupported(error):
    return any(word in plain(error) for word in ("unsupportedversion", "unsupportedfeature", "doesnotsupport", "notsupported"))


def shapes():
    """Records of every shape: what a key, a value and headers can be. In text, since JSON carries them."""
    made = [
        {"key": "k", "value": "v", "headers": []},
        {"key": None, "value": "no key", "headers": []},
        {"key": "", "value": "empty key", "headers": []},
        {"key": "null value", "value": None, "headers": []},
        {"key": "empty value", "value": "", "headers": []},
        {"key": None, "value": None, "headers": []},
        {"key": "", "value": "", "headers": []},
        {"key": "one header", "value": "v", "headers": [["a", "1"]]},
        {"key": "empty header", "value": "v", "headers": [["a", ""]]},
        {"key": "null header", "value": "v", "headers": [["a", None]]},
        {"key": "repeated", "value": "v", "headers": [["a", "1"], ["b", "2"], ["a", "3"], ["a", "1"]]},
        {"key": "no name", "value": "v", "headers": [["", "x"]]},
        {"key": "null value with headers", "value": None, "headers": [["a", "1"], ["b", None]]},
        {"key": "ключ", "value": "größer 値 🦀", "headers": [["名", "é"]]},
        {"key": "many", "value": "v", "headers": [[f"h{i}", str(i) * i] for i in range(40)]},
        {"key": "long", "value": "0123456789abcdef" * 4000, "headers": []},
    ]
    made += [{"key": f"k{i}", "value": f"value {i} " * 20, "headers": []} for i in range(150)]
    first = int(time.time() * 1000) - 60_000
    return [{**record, "timestamp": first + number} for number, record in enumerate(made)]


def shape_of(record):
    """What a record is listed as where a client cannot send it: its key, or what it lacks."""
    return "nothing" if record["key"] is None and record["value"] is None else record["key"]


class Run:
    """One client's program on a node of its own, through all of its scenarios, and what it said."""

    def __init__(self, client, node, folder, announced):
        self.client, self.node, self.announced = client, node, announced
        wanted = os.environ.get("TIDELOG_TEST_SCENARIOS")
        names = wanted.split(",") if wanted else CLIENTS[client]
        if CONSUMER_GROUP_HEARTBEAT not in announced and WITHOUT_CONSUMER_GROUPS.get(client) == WAITS:
            names = [name for name in names if name not in WITH["consumer"]]
        self.prefix = f"{client}-{node.name[-8:]}"
        self.sent = [record for record in shapes() if shape_of(record) not in UNSENDABLE.get(client, set())]
        self.steps = {name: [] for name in names}
        self.kills = 0
        self.begun, self.wall_clock = time.monotonic(), int(time.time() * 1000)
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{client}.log"
        records = folder / f"{client}-records.json"
        records.write_text(json.dumps({"records": self.sent, "topics": TOPICS}))
        command, environment = COMMANDS[client]["command"], COMMANDS[client].get("environment", {})
        self.command = [*command, "--bootstrap", node.address, "--prefix", self.prefix, "--records", str(records)]
        self.command += ["--scenario", ",".join(names)]
        self.environment = {**os.environ, **environment}

    def run(self):
        with open(self.log, "ab") as log:
            program = subprocess.Popen(
                self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, env=self.environment, cwd=self.log.parent, text=True
            )
            late = threading.Timer(RUN_SECONDS_MAX, program.kill)
            late.start()
            try:
                for line in program.stdout:
                    log.write(line.encode())
                    log.flush()
                    if line.startswith("{"):
                        self.step(json.loads(line), program)
                code = program.wait()
            finally:
                late.cancel()
                program.kill()
                program.wait()
            for name, steps in self.steps.items():
                log.write(f"{name} took {steps[-1].get('seconds') if steps else None} s\n".encode())
        self.steps["end"] = [{"step": "end", "code": code}]

    def step(self, step, program):
        name = step.pop("scenario")
        if step["step"] in ("end", "failed"):
            step["seconds"] = round(time.monotonic() - self.begun, 1)
            self.begun = time.monotonic()
        if step["step"] == "wait":
            answer = self.prepare(step)
            program.stdin.write(answer + "\n")
            program.stdin.flush()
        elif step["step"] == "progress":
            if self.kills < len(KILLS) and step["acknowledged"] >= KILLS[self.kills] * step["of"]:
                self.kills += 1
                self.node.kill()
                self.node.start()
        else:
            self.steps[name].append(step)

    def prepare(self, step):
        """What a program waits for; what it is told then."""
        if step["for"] == "cold":
            for topic in step["topics"]:
                self.node.wait_cold(topic)
            self.node.drop_cache()
            return "cold"
        if step["for"] == "files":
            return json.dumps([str(path) for path in self.node.log_files(step["topics"][0])])
        raise AssertionError(f"{self.client} waits for {step}")

    def facts(self, scenario):
        """The steps of a scenario by name; fails with what the client told where it ended early."""
        steps = self.steps[scenario]
        failed = [step for step in steps if step["step"] == "failed"]
        assert not failed, f"{self.client} {scenario}: {failed[0]['error']}\nsee {self.log}"
        assert steps and steps[-1]["step"] == "end", f"{self.client} {scenario} did not end: {steps[-1:]}, see {self.log}"
        return {step["step"]: step for step in steps}

    def lacks(self, scenario):
        """Whether a scenario asks for what the node does not announce and the client does without; then it fails cleanly."""
        if scenario not in WITH["consumer"] or CONSUMER_GROUP_HEARTBEAT in self.announced:
            return False
        how = WITHOUT_CONSUMER_GROUPS[self.client]
        if how == TELLS:
            told = [step["error"] for step in self.steps[scenario] if step["step"] == "failed"]
            assert told and is_unsupported(told[0]), f"{self.client} {scenario} is to be refused: {told}"
        return how != FALLS_BACK

    def all(self, scenario, name):
        return [step for step in self.steps[scenario] if step["step"] == name]


def kafka_node(name, folder):
    """The real Apache Kafka, for the comparison."""
    return KafkaNode(name, folder, os.environ["TIDELOG_TEST_JARS"])
