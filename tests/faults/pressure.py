"""Puts a node under pressure, at `ulimit -n 4096`, and looks at what the others notice.

    python pressure.py --binary tidelog --client ordinary-client --folder DIR [--seconds 15] [--quick]

The node is the shipped program with 10,000 partitions, each with a rolled and an open segment. Ordinary clients (`ordinary.py`:
records with acks=all at a fixed rate, a consumer at the tail) run all the time; each pressure of `pressures.py` is put beside
them alone, and then all of them together. What must hold: resident memory stays below the sum of the configured budgets and a
stated base; descriptors stay below the limit; the ordinary clients' p99 stays within three times of alone; whoever is slow gets
what is his once he reads; and afterwards memory and connections are what they were. Prints a table and a line of JSON; exits with
1 where anything else was seen, and leaves the folder then.

The node, the clients and the pressures share the machine. So pressures run at nice 10, and `alone` is measured beside processes
that are as busy at nice 10 and do nothing to the node: at the beginning, after every third pressure and at the end, for a machine's
speed moves. The native client whose latencies are judged runs before all others.
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
# What is not in a budget, of which the first two are looked at before anything is put beside: an idle node has 40 MiB, a partition
# 16 KiB, and a connection 32 KiB and the batch of 64 KiB that a fetch finds in any case.
BASE_MIB, PARTITION_KIB, CONNECTION_KIB = 40, 16, 96

MANY_TOPICS, QUICK_MANY_TOPICS, MANY_PARTITIONS = 10, 2, 1000
MANY_SEGMENT_BYTES = 4096
# So many of the partitions have a rolled segment, too: rolling and uploading all of them takes minutes. In a quick run none has.
ROLLED = 1000
BIG_PARTITIONS, BIG_BYTES = 4, 32 * MIB
BIG_BATCH_RECORDS, BIG_VALUE_BYTES = 64, 4000
COLD_SEGMENT_BYTES, QUICK_COLD_SEGMENT_BYTES = 16 * MIB, 4 * MIB
FLOOD_PARTITIONS = 4
RATE = 200
ORDINARY_PARTITIONS = 4
RATIO_MAX = 3.0
SETTLE_SECONDS = 1.0
# Before a phase begins, what the one before it left for the disk and the bucket is done, or so much time has passed.
QUIET_SECONDS, QUIET_KB = 5, 32_000
RECOVERY_SECONDS = 45

CONTEXT = multiprocessing.get_context("spawn")
KINDS = ordinary.KINDS


class Process:
    """A pressure in a process of its own."""

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


class Watch(threading.Thread):
    """The node's descriptors and its memory, several times a second. The kernel keeps the peak of memory itself."""

    def __init__(self, pid):
        super().__init__(daemon=True)
        self.pid = pid
        self.descriptors_max = 0
        self.ended = threading.Event()

    def run(self):
        while not self.ended.wait(0.25):
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
        self.many_topics = QUICK_MANY_TOPICS if self.quick else MANY_TOPICS
        self.cold_segment_bytes = QUICK_COLD_SEGMENT_BYTES if self.quick else COLD_SEGMENT_BYTES
        self.windows, self.window_seconds = (1, 3.0) if self.quick else (3, arguments.seconds / 3)
        self.node = LimitedNode(arguments.binary, arguments.folder, SETTINGS, DESCRIPTORS)
        self.phases = []
        self.others = self.library = None
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
        topics = [NewTopic(f"many-{n}", MANY_PARTITIONS, 1, config=small) for n in range(self.many_topics)]
        topics.append(NewTopic("ordinary", ORDINARY_PARTITIONS, 1))
        topics.append(NewTopic("library", ORDINARY_PARTITIONS, 1))
        topics.append(NewTopic("big", BIG_PARTITIONS, 1))
        cold = {"segment.bytes": str(self.cold_segment_bytes), "local.retention.ms": "1000"}
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
        """A batch for each partition, and a second one for some, which rolls the segment; big ones for those that are read."""
        begun, direct = time.monotonic(), Direct(self.node.port)
        batch, step = frames.batch(2, 1100), 200
        for number in range(self.many_topics):
            for first in range(0, MANY_PARTITIONS, step):
                self.ask_produce(direct, f"many-{number}", range(first, first + step), batch, 1)
        self.setup["fill_seconds"] = round(time.monotonic() - begun, 1)
        self.big_batch = frames.batch(BIG_BATCH_RECORDS, BIG_VALUE_BYTES)
        self.big_batches = (BIG_BYTES if not self.quick else BIG_BYTES // 4) // len(self.big_batch)
        # Beyond what is read a segment more, which stays active: what is read can all be uploaded.
        extra = self.cold_segment_bytes // len(self.big_batch) + 2
        for topic in ("cold", "big"):
            for _ in range(self.big_batches + extra):
                self.ask_produce(direct, topic, range(BIG_PARTITIONS), self.big_batch, 1)
        for first in range(0, 0 if self.quick else ROLLED, step):
            self.ask_produce(direct, "many-0", range(first, first + step), batch, 1)
        self.log(f"all have data, {self.setup['fill_seconds']} s for the {self.many_topics * MANY_PARTITIONS} small ones")

    def wait_for_tiers(self):
        """Until what shall be cold is, and the rolled segments are in the bucket."""
        begun = time.monotonic()

        def cold():
            status = self.node.get("/v1/tier/status") or {"topics": []}
            parts = [part for entry in status["topics"] if entry["topic"] == "cold" for part in entry["partitions"]]
            wanted = self.big_batches * BIG_BATCH_RECORDS
            return parts and all(part["local_log_start"] >= wanted for part in parts)

        wait_until(cold, 180, "the cold topic is cold", every=0.5)
        self.setup["cold_seconds"] = round(time.monotonic() - begun, 1)
        if not self.quick:
            drained = lambda: sum(v for k, v in self.node.metrics().items() if k.startswith("tier_upload_lag_segments")) == 0  # noqa: E731
            wait_until(drained, 600, "the rolled segments are in the bucket", every=1)
            self.setup["uploaded_seconds"] = round(time.monotonic() - begun, 1)
        self.log(f"cold after {self.setup['cold_seconds']} s, uploaded after {self.setup.get('uploaded_seconds')} s")

    # Phases.

    def base_mib(self):
        return BASE_MIB + self.partitions * PARTITION_KIB / 1024

    def bound_mib(self):
        return sum(BUDGETS_MIB.values()) + self.base_mib() + DESCRIPTORS / 2 * CONNECTION_KIB / 1024

    def phase(self, name, kinds):
        """Puts pressures beside the ordinary clients, measures, and takes them away."""
        if self.findings and not self.arguments.go_on:
            return
        if not self.quick:
            self.wait_until_quiet()
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

    def wait_until_quiet(self):
        """Until nothing of an earlier phase is to be uploaded, or in memory for the disk."""

        def quiet():
            lines = dict(line.split(":") for line in open("/proc/meminfo"))
            waiting = sum(int(lines[name].split()[0]) for name in ("Dirty", "Writeback"))
            lag = sum(v for k, v in self.node.metrics().items() if k.startswith("tier_upload_lag_segments"))
            return waiting < QUIET_KB and lag == 0

        try:
            wait_until(quiet, QUIET_SECONDS, "the machine is quiet", every=0.5)
        except TimeoutError:
            self.log("the disk is not quiet")

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
        for kind in KINDS:
            p99s = self.others.p99s(kind, begun, self.window_seconds, self.windows)
            row[f"{kind}_p50_ms"] = round(self.others.p50(kind, begun, ended), 2)
            row[f"{kind}_p99_ms"] = [round(p99, 1) for p99 in p99s]
            row[f"{kind}_library_p99_ms"] = round(self.library.p99(kind, begun, ended), 1)
            alone = self.alone_ms(kind)
            row[f"{kind}_ratio"] = round(statistics.median(p99s) / alone if p99s else math.nan, 2)
        self.phases.append(row)
        self.peak_mib = max(self.peak_mib, peak)
        if peak > self.bound_mib():
            self.findings.add(f"{name}: {peak:.0f} MiB are resident, and budgets and base are {self.bound_mib():.0f} MiB")
        if descriptors > DESCRIPTORS - DESCRIPTORS_SPARE:
            self.findings.add(f"{name}: {descriptors} descriptors of {DESCRIPTORS} are open")
        text = " ".join(f"{k} p50 {row[f'{k}_p50_ms']} p99 {row[f'{k}_p99_ms']} ms x{row[f'{k}_ratio']}," for k in KINDS)
        self.log(f"{name}: {text} peak {peak:.0f} MiB, {descriptors} descriptors, {row['connections']} connections, {json.dumps(counted)}")

    def alone_ms(self, kind):
        """The median of all windows in which nothing was put beside the ordinary clients."""
        p99s = [p99 for row in self.phases if row["phase"].startswith("alone") for p99 in row[f"{kind}_p99_ms"]]
        return statistics.median(p99s) if p99s else math.nan

    def alone(self):
        """What others are compared with; not in a quick run, which compares nothing."""
        if not self.quick:
            self.phase("alone", [("Busy", {})] * (os.cpu_count() or 2))

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
        """All at one time: 2,000 connections in all, or 1,400 in a quick run."""
        sizes = {"Chatty": 1000, "HalfFrames": 100, "SlowReaders": 100 if self.quick else 300}
        found = []
        for kinds in self.kinds().values():
            found += [(kind, {**options, "connections": sizes.get(kind, options["connections"])}) for kind, options in kinds]
        return found

    def run(self):
        self.start()
        self.create_topics()
        self.fill()
        self.wait_for_tiers()
        self.others = ordinary.Ordinary(
            self.arguments.client, self.node.address, "ordinary", ORDINARY_PARTITIONS, RATE, self.findings
        )
        self.library = ordinary.Library(self.node.address, "library", ORDINARY_PARTITIONS, self.findings)
        time.sleep(4)
        settled = self.watch.memory_mib("VmRSS")
        self.setup["with_partitions_mib"] = round(settled)
        if settled > self.base_mib() + TAIL_MIB:
            self.findings.add(f"with {self.partitions} partitions {settled:.0f} MiB are resident: the base and the tail are {self.base_mib() + TAIL_MIB:.0f}")
        connections = self.node.metrics().get("broker_connections", 0)
        self.alone()
        if not self.quick:
            for number, (name, kinds) in enumerate(self.kinds().items()):
                self.node.drop_cache()
                if not self.arguments.only or self.arguments.only in name:
                    self.phase(name, kinds)
                if not self.arguments.only and number % 3 == 2:
                    self.alone()
        if not self.arguments.only or self.arguments.only in "together":
            self.phase("all together", self.together())
        if not self.arguments.only or self.arguments.only in "beyond the limit":
            self.phase("beyond the limit", [("BeyondTheLimit", {"connections": 2400})])
        self.afterwards(settled, connections)
        self.alone()
        self.compare()
        self.others.end()
        self.library.end()
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
        for row in self.phases:
            for kind in KINDS:
                alone = self.alone_ms(kind)
                row[f"{kind}_ratio"] = round(statistics.median(row[f"{kind}_p99_ms"] or [math.nan]) / alone, 2)
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
            "ordinary_records": self.others.records if self.others else 0,
            "ordinary_runs_first": bool(self.others and self.others.is_first),
            "library_records": len(self.library.samples["tail"]) if self.library else 0,
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
    parser.add_argument("--client", required=True, help="the program ordinary-client")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--seconds", type=float, default=15, help="how long each pressure is measured")
    parser.add_argument("--quick", action="store_true", help="all together alone, and no comparison of times")
    parser.add_argument("--only", help="phases whose names hold this")
    parser.add_argument("--go-on", action="store_true", help="after a finding, too")
    arguments = parser.parse_args()
    campaign.run(Campaign(arguments), arguments.folder)


if __name__ == "__main__":
    main()
