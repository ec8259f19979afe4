"""The scenarios with kcat, as it is used from a shell; topics, which it cannot make, come from confluent-kafka."""

import collections
import json
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import program  # noqa: E402

STRATEGIES = {"eager": "range", "cooperative": "cooperative-sticky"}
# Between two records: kcat tells an outcome when it sends another record, so outcomes cannot be waited for.
SEND_PAUSE_SECONDS = 0.004
# It reads its input in blocks of so many bytes: a number fills one, or it would wait for others.
LINE_BYTES = 1024


class Sender(program.Sender):
    """A kcat for each partition; it tells with `-vvv` what was stored, in the order of what it was given."""

    in_flight_max = 1 << 30

    def __init__(self, address, options):
        self.address, self.options = address, options
        self.programs = {}

    def send(self, topic, partition, number, done):
        if partition not in self.programs:
            self.programs[partition] = self.begin(topic, partition)
        process, waiting, _ = self.programs[partition]
        waiting.append((number, done))
        process.stdin.write(f"{number:0{LINE_BYTES - 1}}\n")
        process.stdin.flush()

    def begin(self, topic, partition):
        command = ["kcat", "-P", "-b", self.address, "-t", topic, "-p", str(partition), "-v", "-v", "-v", "-E"]
        for key, value in self.options.items():
            command += ["-X", f"{key}={value}"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        waiting = collections.deque()
        reader = threading.Thread(target=self.read, args=(process, waiting), daemon=True)
        reader.start()
        return process, waiting, reader

    @staticmethod
    def read(process, waiting):
        for line in process.stderr:
            stored = re.search(r"Message delivered to partition \d+ \(offset (\d+)\)", line)
            refused = re.search(r"Delivery failed for message: (.*)", line)
            if stored or refused:
                number, done = waiting.popleft()
                done(number, int(stored[1]) if stored else None, refused[1] if refused else None)
            else:
                sys.stderr.write(line)

    def poll(self):
        time.sleep(SEND_PAUSE_SECONDS)

    def close(self):
        for process, _, _ in self.programs.values():
            process.stdin.close()
        for process, _, reader in self.programs.values():
            assert process.wait(180) == 0
            reader.join(10)


class Member(program.Member):
    """`kcat -G`: what it is assigned is on standard error."""

    def __init__(self, command):
        super().__init__()
        self.command = command

    def serve(self):
        process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        readers = [threading.Thread(target=read, args=(process,), daemon=True) for read in (self.values, self.changes)]
        for reader in readers:
            reader.start()
        self.over.wait()
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        for reader in readers:
            reader.join(10)

    def values(self, process):
        for line in process.stdout:
            record = json.loads(line)
            self.record(record["partition"], int(record["payload"]))

    def changes(self, process):
        for line in process.stderr:
            sys.stderr.write(line)
            # "(memberid M): assigned: T [0], ...", and of cooperative ones "incremental assign of 1 partition(s) (memberid M, ...): T [0]".
            change = re.search(r"rebalanced.*(assign|revoke)", line)
            if change:
                partitions = [int(partition) for partition in re.findall(r"\[(\d+)\]", line)]
                (self.assigned if change[1] == "assign" else self.taken)(partitions)


class Client:
    # Interrupted, kcat drops the record that it has in hand, and commits it all the same.
    DROPPED_AT_LEAVE_MAX = 1

    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def kcat(self, *arguments, stdin=""):
        done = subprocess.run(
            ["kcat", "-b", self.bootstrap, *arguments], input=stdin, capture_output=True, timeout=120, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    def create(self, topic, partitions, **configs):
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=configs)])[topic].result(30)

    def produce(self, topic, records, codec):
        """A kcat for each run of records with the same headers and null where the others have nothing."""
        runs = []
        for record in records:
            # -Z makes null of what is empty.
            form = (record["headers"], record["value"] is None)
            if not runs or runs[-1][0] != form:
                runs.append((form, []))
            key, value = record["key"], record["value"] or ""
            empty = record["key"] is None and record["value"] is None
            runs[-1][1].append("|" if empty else value if key is None else f"{key}|{value}")
        for (headers, null), lines in runs:
            arguments = ["-P", "-t", topic, "-p", "0", "-K|", *(["-Z"] if null else [])]
            arguments += [] if codec == "none" else ["-z", codec]
            for key, value in headers:
                arguments += ["-H", key if value is None else f"{key}={value}"]
            self.kcat(*arguments, stdin="".join(f"{line}\n" for line in lines))
        return list(range(len(records)))

    def consume(self, topic, partition, count):
        # Its end waits for the fetch that waits for more.
        options = ["-e", "-q", "-J", "-X", "fetch.wait.max.ms=50"]
        out = self.kcat("-C", "-t", topic, "-p", str(partition), "-o", "beginning", *options)
        found = []
        for record in map(json.loads, out.splitlines()):
            headers = record.get("headers", [])
            found.append(
                {
                    "offset": record["offset"],
                    "key": record["key"],
                    "value": record["payload"],
                    "headers": [list(pair) for pair in zip(headers[::2], headers[1::2])],
                }
            )
        return found

    def producer(self, idempotent):
        fast = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "batch.num.messages": 10, "max.in.flight": 1}
        options = {"acks": "all", "linger.ms": 1, "enable.idempotence": str(idempotent).lower()}
        return Sender(self.bootstrap, {**options, **(fast if idempotent else {})})

    def member_command(self, topic, group, strategy):
        options = {
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 10000,
            "heartbeat.interval.ms": 300,
            "auto.commit.interval.ms": 100,
            "partition.assignment.strategy": STRATEGIES[strategy],
        }
        settings = [argument for key, value in options.items() for argument in ("-X", f"{key}={value}")]
        return ["-G", group, topic, "-J", "-u", *settings]

    def member(self, topic, group, strategy):
        return Member(["kcat", "-b", self.bootstrap, *self.member_command(topic, group, strategy)])

    def read_group(self, topic, group, count):
        out = self.kcat(*self.member_command(topic, group, "eager"), "-c", str(count))
        return [[r["partition"], r["offset"], int(r["payload"])] for r in map(json.loads, out.splitlines())]

    def committed(self, topic, group, partitions):
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition) for partition in range(partitions)])
        answer = self.admin.list_consumer_group_offsets([asked])[group].result(30)
        return {part.partition: part.offset for part in answer.topic_partitions}

    def administration(self, run):
        """What kcat can ask: that a topic is there, and of what it consists."""
        topic = run.name()
        self.create(topic, 2)
        listed = json.loads(self.kcat("-L", "-J"))
        run.tell("listed", found=topic in [entry["topic"] for entry in listed["topics"]])
        described = json.loads(self.kcat("-L", "-J", "-t", topic))["topics"][0]["partitions"]
        partitions = sorted(part["partition"] for part in described)
        run.tell("described", partitions=partitions, replicas=[len(part["replicas"]) for part in described])

    def cluster(self):
        told = json.loads(self.kcat("-L", "-J"))
        return {"brokers": [[broker["id"], broker["name"]] for broker in told["brokers"]], "controller": told["controllerid"]}

    def offsets(self, topic):
        """It cannot give a record its time: all are of now."""
        at, later = program.TIMES_BEGIN + 7, int(time.time() * 1000) + 3_600_000
        asked = {"earliest": -2, "latest": -1, "at": at, "later": later}
        # "T [0] offset 4".
        return {name: int(self.kcat("-Q", "-t", f"{topic}:0:{when}").split()[-1]) for name, when in asked.items()}


if __name__ == "__main__":
    program.main(Client)
