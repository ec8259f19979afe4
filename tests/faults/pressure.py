"""Puts a node under pressure, at `ulimit -n 4096`, and looks at what the others notice.

    python pressure.py --binary tidelog --folder DIR [--seconds 15] [--quick]

The node is the shipped program with 10,000 partitions, each with a rolled and an open segment. Ordinary clients (a librdkafka
producer with acks=all at a fixed rate, a consumer at the tail) run all the time; each pressure of `pressures.py` is put beside
them alone, and then all of them together. What must hold: resident memory stays below the sum of the configured budgets and a
stated base; descriptors stay below the limit; the ordinary clients' p99 stays within three times of alone; whoever is slow gets
what is his once he reads; and afterwards memory and connections are what they were. Prints a table and a line of JSON; exits with
1 where anything else was seen, and leaves the folder then.

The node, the clients and the pressures share the machine. So pressures run at nice 10, and `alone` is measured beside processes
that are as busy at nice 10 and do nothing to the node.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import socket
import statistics
import struct
import threading
import time

import campaign
import frames
import ordinary
import pressures
from confluent_kafka.admin import AdminClient, NewTopic
from fault_node import LimitedNode, wait_until
from ledger import Findings
from load import client

MIB = 1 << 20
DESCRIPTORS = 4096
# Allowed beside descriptors of clients and segments: what the node says it keeps for itself is below the limit anyway.
DESCRIPTORS_SPARE = 64

# The budgets that can be set, made small so that going over them is seen.
TAIL_MIB, PRODUCE_MIB, COLD_READ_MIB = 64, 64, 64
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.tail.bytes": str(TAIL_MIB * MIB),
    "queued.max.request.bytes": str(PRODUCE_MIB * MIB),
    "tier.read.memory.bytes": str(COLD_READ_MIB * MIB),
    "tier.check.interval.ms": "1000",
    "tier.delete.grace.ms": "5000",
}
# Every budget that the node has, by the names of docs/OPERATIONS.md.
BUDGETS_MIB = {
    "log.tail.bytes": TAIL_MIB,
    "queued.max.request.bytes": PRODUCE_MIB,
    "other requests": 64,
    "answers of fetches": 256,
    "answers of other requests": 64,
    # With the quarter that it may be exceeded by.
    "reads of the bucket for fetches": 160,
    "tier.read.memory.bytes": COLD_READ_MIB,
    "chunks of the bucket in memory": 32,
}
# What is not in a budget: an idle node has 40 MiB, a partition 40 KiB (80 MiB with 1,000), and a connection 32 KiB and the
# batch of 64 KiB that a fetch finds in any case.
BASE_MIB, PARTITION_KIB, CONNECTION_KIB = 40, 40, 96

MANY_TOPICS, MANY_PARTITIONS = 10, 1000
MANY_SEGMENT_BYTES = 4096
# In a quick run so many of the partitions have a rolled segment: rolling and uploading all takes minutes on a slow disk.
QUICK_ROLLED = 500
BIG_PARTITIONS, BIG_BYTES = 4, 64 * MIB
BIG_BATCH_RECORDS, BIG_VALUE_BYTES = 64, 4000
COLD_SEGMENT_BYTES = 16 * MIB
FLOOD_PARTITIONS = 4
RATE = 200
ORDINARY_PARTITIONS = 4
RATIO_MAX = 3.0
SETTLE_SECONDS = 1.0
RECOVERY_SECONDS = 45

CONTEXT = multiprocessing.get_context("spawn")


class Process:
    """A pressure, or the ordinary clients, in a process of its own."""

    def __init__(self, target, *arguments):
        self.stop = CONTEXT.Event()
        self.pipe, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=target, args=(*arguments, self.stop, theirs), daemon=True)
        self.process.start()
        theirs.close()

    def told(self, seconds):
        """The next word; None where none comes in time or the process is gone."""
        try:
            return self.pipe.recv() if self.pipe.poll(seconds) else None
        except EOFError:
            return None


class Others:
    """The ordinary clients' latencies, as they come."""

    def __init__(self, address, findings):
        self.findings = findings
        self.samples = {"produce": [], "tail": []}
        self.told_failures = 0
        self.process = Process(ordinary.run, address, "ordinary", ORDINARY_PARTITIONS, RATE)
        self.thread = threading.Thread(target=self.collect, daemon=True)
        self.thread.start()

    def collect(self):
        while (told := self.process.told(120)) is not None:
            some, failures = told
            for kind, due, seconds in some:
                self.samples[kind].append((due, seconds))
            for failure in failures[self.told_failures :]:
                self.findings.add(failure)
            self.told_failures = len(failures)

    def wait_for(self, due, what):
        """Until nearly everything that was due before is there."""
        last = lambda kind: max((at for at, _ in self.samples[kind][-RATE:]), default=0)  # noqa: E731
        try:
            wait_until(lambda: all(last(kind) >= due for kind in self.samples), 90, f"{what}: ordinary records get through")
        except TimeoutError as error:
            self.findings.add(str(error))

    def p99s(self, kind, begun, seconds, windows):
        """The p99 of each window, in milliseconds."""
        found = []
        for number in range(windows):
            first, last = begun + number * seconds, begun + (number + 1) * seconds
            own = sorted(took for due, took in self.samples[kind] if first <= due < last)
            if own:
                found.append(own[max(0, math.ceil(len(own) * 0.99) - 1)] * 1000)
        return found

    def p50(self, kind, begun, ended):
        own = [took for due, took in self.samples[kind] if begun <= due < ended]
        return statistics.median(own) * 1000 if own else math.nan

    def end(self):
        self.process.stop.set()
        self.thread.join(150)


class Watch(threading.Thread):
    """The node's descriptors and its memory, several times a second. The kernel keeps the peak of memory itself."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid = pid
        self.descriptors_max = 0
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.1):
            try:
                self.descriptors_max = max(self.descriptors_max, len(os.listdir(f"/proc/{self.pid}/fd")))
            except FileNotFoundError:
                return

    def begin_phase(self):
        self.descriptors_max = 0
        with open(f"/proc/{self.pid}/clear_refs", "w") as peak:
            peak.write("5")

    def memory_mib(self, name):
        with open(f"/proc/{self.pid}/status") as status:
            for line in status:
                if line.startswith(name):
                    return int(line.split()[1]) / 1024
        return math.nan


class Direct:
    """One connection that is asked and answers."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)

    def ask(self, frame):
        self.socket.sendall(frame)
        (size,) = struct.unpack(">i", self.take(4))
        return self.take(size)

    def take(self, size):
        got = bytearray()
        while len(got) < size:
            more = self.socket.recv(size - len(got))
            if not more:
                raise ConnectionError("closed by the node")
            got += more
        return bytes(got)


class Campaign:
    def __init__(self, arguments):
        self.begun = time.monotonic()
        self.arguments = arguments
        self.quick = arguments.quick
        self.findings = Findings()
        self.windows, self.window_seconds = (1, 3.0) if self.quick else (3, arguments.seconds / 3)
        self.node = LimitedNode(arguments.binary, arguments.folder, SETTINGS, DESCRIPTORS)
        self.phases = []
        self.setup = {}
        self.starved = 0
        self.peak_mib = 0
        self.partitions = 0

    def log(self, text):
        print(f"[{time.monotonic() - self.begun:6.1f}] {text}", flush=True)

    # What is there before anything is measured.

    def start(self):
        self.node.start()
        wait_until(lambda: self.node.process.poll() is not None or self.node.is_ready(), 30, "the node serves")
        limit = resource.prlimit(self.node.process.pid, resource.RLIMIT_NOFILE)
        if limit != (DESCRIPTORS, DESCRIPTORS):
            self.findings.add(f"the node runs under {limit} descriptors")
        self.watch = Watch(self.node.process.pid)
        self.watch.start()
        self.setup["idle_mib"] = round(self.watch.memory_mib("VmRSS"))

    def create_topics(self):
        begun = time.monotonic()
        admin = AdminClient(client(self.node.address, **{"socket.timeout.ms": 150_000}))
        small = {"segment.bytes": str(MANY_SEGMENT_BYTES)}
        topics = [NewTopic(f"many-{n}", MANY_PARTITIONS, 1, config=small) for n in range(MANY_TOPICS)]
        topics.append(NewTopic("ordinary", ORDINARY_PARTITIONS, 1))
        topics.append(NewTopic("big", BIG_PARTITIONS, 1))
        cold = {"segment.bytes": str(COLD_SEGMENT_BYTES), "local.retention.ms": "1000"}
        topics.append(NewTopic("cold", BIG_PARTITIONS, 1, config=cold))
        short = {"segment.bytes": str(COLD_SEGMENT_BYTES), "retention.bytes": str(COLD_SEGMENT_BYTES)}
        topics.append(NewTopic("flood", FLOOD_PARTITIONS, 1, config=short))
        for future in admin.create_topics(topics, operation_timeout=120, request_timeout=120).values():
            future.result(150)
        self.partitions = sum(topic.num_partitions for topic in topics)
        self.setup["create_seconds"] = round(time.monotonic() - begun, 1)
        self.log(f"{self.partitions} partitions were created in {self.setup['create_seconds']} s")

    def ask_produce(self, direct, topic, partitions, batch, acks):
        errors = frames.produce_errors(topic, direct.ask(frames.produce(topic, partitions, batch, acks)))
        if any(errors):
            self.findings.add(f"{topic}: the data before the pressures was refused with {sorted(set(errors))}")

    def fill(self):
        """Two batches for each partition, of which the second rolls the segment; big ones for those that are read."""
        begun, direct = time.monotonic(), Direct(self.node.port)
        batch, step = frames.batch(2, 1100), 500
        for roll in (False, True):
            for number in range(MANY_TOPICS if not (roll and self.quick) else 1):
                for first in range(0, MANY_PARTITIONS if not (roll and self.quick) else QUICK_ROLLED, step):
                    self.ask_produce(direct, f"many-{number}", range(first, first + step), batch, 1)
        self.setup["fill_seconds"] = round(time.monotonic() - begun, 1)
        self.big_batch = frames.batch(BIG_BATCH_RECORDS, BIG_VALUE_BYTES)
        self.big_batches = (BIG_BYTES if not self.quick else BIG_BYTES // 4) // len(self.big_batch)
        # Beyond what is read a segment more, which stays active: what is read can all be uploaded.
        extra = COLD_SEGMENT_BYTES // len(self.big_batch) + 2
        for topic in ("cold", "big"):
            for _ in range(self.big_batches + extra):
                self.ask_produce(direct, topic, range(BIG_PARTITIONS), self.big_batch, 1)
        self.log(f"all have data, {self.setup['fill_seconds']} s for the {MANY_TOPICS * MANY_PARTITIONS} small ones")

    def wait_for_tiers(self):
        """Until what shall be cold is, and the rolled segments are in the bucket."""
        begun = time.monotonic()

        def cold():
            status = self.node.get("/v1/tier/status") or {"topics": []}
            parts = [part for entry in status["topics"] if entry["topic"] == "cold" for part in entry["partitions"]]
            wanted = self.big_batches * BIG_BATCH_RECORDS
            return parts and all(part["local_log_start"] >= wanted for part in parts)

        wait_until(cold, 60, "the cold topic is cold", every=0.5)
        self.setup["cold_seconds"] = round(time.monotonic() - begun, 1)
        if not self.quick:
            drained = lambda: sum(v for k, v in self.node.metrics().items() if k.startswith("tier_upload_lag_segments")) == 0  # noqa: E731
            wait_until(drained, 600, "the rolled segments are in the bucket", every=1)
            self.setup["uploaded_seconds"] = round(time.monotonic() - begun, 1)
        self.log(f"cold after {self.setup['cold_seconds']} s, uploaded after {self.setup.get('uploaded_seconds')} s")

    # Phases.

    def bound_mib(self):
        base = BASE_MIB + self.partitions * PARTITION_KIB / 1024 + DESCRIPTORS / 2 * CONNECTION_KIB / 1024
        return sum(BUDGETS_MIB.values()) + base

    def phase(self, name, kinds):
        """Puts pressures beside the ordinary clients, measures, and takes them away."""
        if self.findings and not self.arguments.go_on:
            return
        before = self.node.metrics()
        self.watch.begin_phase()
        under = [(kind, Process(pressures.run, kind, self.node.address, options)) for kind, options in kinds]
        for kind, process in under:
            told = process.told(90)
            if told is None or told[0] == "failed":
                self.findings.add(f"{name}: {kind} did not begin: {told}")
        time.sleep(SETTLE_SECONDS)
        begun = time.monotonic()
        time.sleep(self.windows * self.window_seconds)
        ended = time.monotonic()
        during = self.node.metrics()
        for _, process in under:
            process.stop.set()
        counted = {}
        for kind, process in under:
            told = process.told(3 * pressures.DRAIN_SECONDS)
            label = f"{kind}-{len(counted)}" if kind in counted else kind
            if told is None or told[0] != "done":
                self.findings.add(f"{name}: {kind} did not come to its end: {told}")
                continue
            counted[label] = told[1]
            self.starved += len(told[2])
            for text in told[2][:3]:
                self.findings.add(f"{name}: starved: {kind}: {text}")
            process.process.join(20)
        self.others.wait_for(ended, name)
        self.note(name, begun, ended, counted, before, during)

    def note(self, name, begun, ended, counted, before, during):
        peak, descriptors = self.watch.memory_mib("VmHWM"), self.watch.descriptors_max
        row = {
            "phase": name,
            "peak_mib": round(peak),
            "descriptors": descriptors,
            "connections": int(during.get("broker_connections", -1)),
            "refused": int(during.get("broker_connections_refused_total", 0) - before.get("broker_connections_refused_total", 0)),
            "seconds_in_all": round(time.monotonic() - begun, 1),
            "counted": counted,
        }
        for kind in ("produce", "tail"):
            p99s = self.others.p99s(kind, begun, self.window_seconds, self.windows)
            row[f"{kind}_p50_ms"] = round(self.others.p50(kind, begun, ended), 2)
            row[f"{kind}_p99_ms"] = [round(p99, 1) for p99 in p99s]
            alone = self.phases[0][f"{kind}_p99_ms"] if self.phases else []
            ratio = statistics.median(p99s) / statistics.median(alone) if p99s and alone else math.nan
            row[f"{kind}_ratio"] = round(ratio, 2)
        self.phases.append(row)
        self.peak_mib = max(self.peak_mib, peak)
        if peak > self.bound_mib():
            self.findings.add(f"{name}: {peak:.0f} MiB are resident, and budgets and base are {self.bound_mib():.0f} MiB")
        if descriptors > DESCRIPTORS - DESCRIPTORS_SPARE:
            self.findings.add(f"{name}: {descriptors} descriptors of {DESCRIPTORS} are open")
        text = " ".join(f"{k} p50 {row[f'{k}_p50_ms']} p99 {row[f'{k}_p99_ms']} ms x{row[f'{k}_ratio']}," for k in ("produce", "tail"))
        self.log(f"{name}: {text} peak {peak:.0f} MiB, {descriptors} descriptors, {row['connections']} connections, {json.dumps(counted)}")

    def kinds(self):
        """Every pressure with its options, by the name of its phase."""
        few = self.quick
        big = {
            "topic": "big",
            "partitions": BIG_PARTITIONS,
            "batch_bytes": len(self.big_batch),
            "batch_records": BIG_BATCH_RECORDS,
            "batches": self.big_batches,
            "offsets": self.big_batches * BIG_BATCH_RECORDS,
        }
        many = {"topic": "many-0", "partitions": MANY_PARTITIONS}
        flood = {"topic": "flood", "partitions": FLOOD_PARTITIONS, "connections": 4, "batch_bytes": 1_000_000}
        return {
            "2,000 connections": [("Chatty", {**many, "connections": 2000, "talkers": 200})],
            "slow readers": [("SlowReaders", {**big, "asks": "fetch", "connections": 300, "requests": 4})],
            "half frames": [("HalfFrames", {**many, "connections": 300})],
            "flood of acks=0": [("Flood", {**flood, "acks": 0})],
            "flood of acks=1": [("Flood", {**flood, "acks": 1})],
            "metadata of all": [
                ("AskersForAll", {"connections": 20}),
                ("SlowReaders", {"asks": "metadata", "connections": 500, "requests": 8}),
            ],
            "50 MiB hot": [("Consumers", {**big, "connections": 10 if few else 100})],
            "50 MiB cold": [("Consumers", {**big, "topic": "cold", "connections": 10 if few else 100})],
        }

    def together(self):
        """All at one time: 2,000 connections in all."""
        sizes = {"Chatty": 1000, "HalfFrames": 100, "SlowReaders": 300}
        found = []
        for kinds in self.kinds().values():
            found += [(kind, {**options, "connections": sizes.get(kind, options["connections"])}) for kind, options in kinds]
        return found

    def run(self):
        self.start()
        self.create_topics()
        self.fill()
        self.wait_for_tiers()
        self.others = Others(self.node.address, self.findings)
        time.sleep(3)
        settled = self.watch.memory_mib("VmRSS")
        self.setup["with_partitions_mib"] = round(settled)
        connections = self.node.metrics().get("broker_connections", 0)
        self.phase("alone", [("Busy", {})] * (os.cpu_count() or 2))
        if not self.quick:
            for name, kinds in self.kinds().items():
                self.node.drop_cache()
                if not self.arguments.only or self.arguments.only in name:
                    self.phase(name, kinds)
        if not self.arguments.only or self.arguments.only in "together":
            self.phase("all together", self.together())
        if not self.arguments.only or self.arguments.only in "beyond the limit":
            self.phase("beyond the limit", [("BeyondTheLimit", {"connections": 2400})])
        self.afterwards(settled, connections)
        self.compare()
        self.others.end()
        self.judge_log()
        code = self.node.stop()
        if code != 0:
            self.findings.add(f"the stop ended with {code}: {self.node.log_tail()}")

    def afterwards(self, settled, connections):
        """Connections are what they were; so is memory, but for what the caches may keep."""
        begun = time.monotonic()
        may_keep = BUDGETS_MIB["log.tail.bytes"] + BUDGETS_MIB["chunks of the bucket in memory"] + COLD_READ_MIB + 64
        try:
            gone = lambda: self.node.metrics().get("broker_connections", math.inf) <= connections + 2  # noqa: E731
            wait_until(gone, RECOVERY_SECONDS, "the pressures' connections are closed", every=0.5)
            idle = lambda: self.watch.memory_mib("VmRSS") <= settled + may_keep  # noqa: E731
            wait_until(idle, RECOVERY_SECONDS, f"memory is back at {settled:.0f} MiB and {may_keep} of caches", every=0.5)
        except TimeoutError as error:
            self.findings.add(f"{error}: {self.watch.memory_mib('VmRSS'):.0f} MiB, {self.node.metrics().get('broker_connections')} connections")
        self.setup["afterwards_mib"] = round(self.watch.memory_mib("VmRSS"))
        self.setup["afterwards_seconds"] = round(time.monotonic() - begun, 1)

    def compare(self):
        """The ratios to `alone`. Timed, so only in the campaign, on the median of its windows."""
        for row in self.phases[1:]:
            for kind in ("produce", "tail"):
                if not self.quick and not row[f"{kind}_ratio"] <= RATIO_MAX:
                    self.findings.add(f"{row['phase']}: {kind} p99 {row[f'{kind}_p99_ms']} ms is {row[f'{kind}_ratio']} x of alone")

    def judge_log(self):
        text = (self.node.folder / "node.log").read_text(errors="replace")
        for sign in ("Too many open files", "os error 24", "panicked", '"level":"ERROR"', " ERROR "):
            line = next((line for line in text.splitlines() if sign in line), None)
            if line:
                self.findings.add(f"the node's log says: {line[:300]}")

    def end(self):
        for child in multiprocessing.active_children():
            child.kill()
        self.node.end()

    def report(self, _counted, seconds):
        print(f"{'phase':<18} {'produce p50':>11} {'p99':>7} {'ratio':>6} {'tail p50':>9} {'p99':>7} {'ratio':>6} {'peak MiB':>9} {'fds':>5} {'conns':>6}")
        middle = lambda values: statistics.median(values) if values else math.nan  # noqa: E731
        for row in self.phases:
            print(
                f"{row['phase']:<18} {row['produce_p50_ms']:>11} {middle(row['produce_p99_ms']):>7} {row['produce_ratio']:>6}"
                f" {row['tail_p50_ms']:>9} {middle(row['tail_p99_ms']):>7} {row['tail_ratio']:>6} {row['peak_mib']:>9}"
                f" {row['descriptors']:>5} {row['connections']:>6}"
            )
        document = {
            "partitions": self.partitions,
            "descriptors": DESCRIPTORS,
            "bound_mib": round(self.bound_mib()) if self.partitions else None,
            "peak_mib": round(self.peak_mib),
            **self.setup,
            "starved": self.starved,
            "phases": self.phases,
            "seconds": round(seconds, 1),
            "findings": self.findings.texts,
        }
        print(json.dumps(document), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seconds", type=float, default=15, help="how long each pressure is measured")
    parser.add_argument("--quick", action="store_true", help="all together alone, and no comparison of times")
    parser.add_argument("--only", help="phases whose names hold this")
    parser.add_argument("--go-on", action="store_true", help="after a finding, too")
    arguments = parser.parse_args()
    campaign.run(Campaign(arguments), arguments.folder)


if __name__ == "__main__":
    main()
