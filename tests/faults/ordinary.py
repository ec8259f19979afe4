"""The others, whose latencies are compared: `ordinary-client`, a native one that computes next to nothing, and a real library's.

A client's own wait for a processor is not the node's latency. So the native one runs before everything else where the system lets
it (SCHED_FIFO, as root), and what is judged is what it saw. The library's (librdkafka, in Python, at the node's priority) is told
beside it, and must get through like any other.
"""

import json
import math
import multiprocessing
import os
import statistics
import struct
import subprocess
import threading
import time

from confluent_kafka import OFFSET_END, TopicPartition

from fault_node import end_with_parent, wait_until
from load import client, consumer

CONTEXT = multiprocessing.get_context("spawn")
KINDS = ("produce", "tail")
FILLER = bytes(range(256)) * 4
# Of the library's records, in a second.
LIBRARY_RATE = 20


def before_everything_else():
    end_with_parent()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
    except PermissionError:
        pass


def p99_ms(seconds):
    own = sorted(seconds)
    return own[max(0, math.ceil(len(own) * 0.99) - 1)] * 1000 if own else math.nan


class Ordinary:
    """The native client's latencies, as they come: (due, seconds), by the monotonic clock of this machine."""

    def __init__(self, binary, address, topic, partitions, rate, findings):
        self.findings = findings
        self.samples = {kind: [] for kind in KINDS}
        self.records = 0
        command = [binary, "--address", address, "--topic", topic, "--partitions", str(partitions), "--rate", str(rate)]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            preexec_fn=before_everything_else,
        )
        self.is_first = os.sched_getscheduler(self.process.pid) == os.SCHED_FIFO
        self.thread = threading.Thread(target=self.collect, daemon=True)
        self.thread.start()

    def collect(self):
        begun = 0
        for line in self.process.stdout:
            told = json.loads(line) if line.startswith("{") else {"failure": line.strip()}
            begun = time.monotonic() if "begun" in told else begun
            self.records = told.get("ended", {}).get("records", self.records)
            if "failure" in told:
                self.findings.add(f"an ordinary client: {told['failure']}")
            for kind in KINDS:
                self.samples[kind] += [(begun + due, seconds) for due, seconds in told.get(kind, [])]
        if self.process.wait() != 0:
            self.findings.add(f"an ordinary client ended with {self.process.returncode}")

    def wait_for(self, due, what):
        """Until nearly everything that was due before is there."""
        last = lambda kind: max((at for at, _ in self.samples[kind][-200:]), default=0)  # noqa: E731
        try:
            wait_until(lambda: all(last(kind) >= due for kind in KINDS), 90, f"{what}: ordinary records get through")
        except TimeoutError as error:
            self.findings.add(str(error))

    def p99s(self, kind, begun, seconds, windows):
        """The p99 of each window, in milliseconds."""
        found = []
        for number in range(windows):
            first, last = begun + number * seconds, begun + (number + 1) * seconds
            found.append(p99_ms(took for due, took in self.samples[kind] if first <= due < last))
        return [found for found in found if not math.isnan(found)]

    def p50(self, kind, begun, ended):
        own = [took for due, took in self.samples[kind] if begun <= due < ended]
        return statistics.median(own) * 1000 if own else math.nan

    def end(self):
        """Everything that it sent is acknowledged and read, or is a finding."""
        self.process.stdin.close()
        self.thread.join(150)
        if self.thread.is_alive():
            self.process.kill()
            self.findings.add("an ordinary client does not come to its end")


class Library:
    """A real library's client in a process of its own: what it saw, and whether all came."""

    def __init__(self, address, topic, partitions, findings):
        self.findings = findings
        self.samples = {kind: [] for kind in KINDS}
        self.stop = CONTEXT.Event()
        self.pipe, theirs = CONTEXT.Pipe(duplex=False)
        self.process = CONTEXT.Process(target=run, args=(address, topic, partitions, self.stop, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.thread = threading.Thread(target=self.collect, daemon=True)
        self.thread.start()

    def collect(self):
        failures = 0
        try:
            while True:
                some, told = self.pipe.recv()
                for kind, due, seconds in some:
                    self.samples[kind].append((due, seconds))
                for failure in told[failures:]:
                    self.findings.add(failure)
                failures = len(told)
        except EOFError:
            pass

    def p99(self, kind, begun, ended):
        return p99_ms(took for due, took in self.samples[kind] if begun <= due < ended)

    def end(self):
        self.stop.set()
        self.thread.join(150)
        sent, read = (len(self.samples[kind]) for kind in KINDS)
        if read < sent:
            self.findings.add(f"of {sent} records of the library's client {read} were read")


def run(address, topic, partitions, stop, pipe):
    """The library's process: a list of (kind, due, seconds) a few times a second, `tail` until a consumer has it."""
    from confluent_kafka import Producer

    samples, lock, failures, sent = [], threading.Lock(), [], [0, 0]

    def note(kind, due):
        with lock:
            samples.append((kind, due, time.monotonic() - due))

    def produce():
        producer = Producer(client(address, acks="all", **{"linger.ms": 0, "message.timeout.ms": 120_000}))

        def told(due):
            def delivered(error, _):
                failures.append(f"a record was not delivered: {error}") if error else note("produce", due)

            return delivered

        polling = threading.Thread(target=lambda: [producer.poll(0.1) for _ in iter(stop.is_set, True)], daemon=True)
        polling.start()
        begun = time.monotonic()
        while not stop.is_set():
            due = begun + sent[0] / LIBRARY_RATE
            time.sleep(max(0, due - time.monotonic()))
            value = struct.pack(">d", due) + FILLER[:1016]
            producer.produce(topic, value, partition=sent[0] % partitions, on_delivery=told(due))
            sent[0] += 1
        if producer.flush(60):
            failures.append("a library's records are not acknowledged within 60 s")

    def read():
        source = consumer(address, **{"fetch.wait.max.ms": 500})
        source.assign([TopicPartition(topic, number, OFFSET_END) for number in range(partitions)])
        deadline = math.inf
        while writer.is_alive() or (sent[1] < sent[0] and time.monotonic() < deadline):
            deadline = min(deadline, math.inf if writer.is_alive() else time.monotonic() + 30)
            message = source.poll(0.1)
            if message is not None and message.error() is None:
                sent[1] += 1
                note("tail", struct.unpack_from(">d", message.value())[0])
        source.close()

    writer = threading.Thread(target=lambda: (time.sleep(2), produce()))
    writer.start()
    reader = threading.Thread(target=read)
    reader.start()
    while reader.is_alive():
        time.sleep(0.2)
        with lock:
            some, samples[:] = list(samples), []
        pipe.send((some, list(failures)))
    pipe.send((samples, list(failures)))
    pipe.close()
