"""Syncs that fail, one in each life of a node: what they covered is lost, and the next sync says that all is well.

Nothing may be acknowledged on the strength of either. The node says what happened and ends, or goes on where nothing depended on
it; and the next start has every acknowledged record.
"""

import collections
import re
import signal
import time

import check
from fault_node import START_SECONDS_MAX, FaultNode, wait_until
from load import Load

# What is synced, with the range in which the sync lies that fails, and whether the node must end by itself: it may go on where
# what failed was made ahead of need, and is made anew.
FILES = {
    "journal": (120, True),
    "segment": (60, True),
    "index": (60, True),
    "epochs": (10, True),
    "producers": (40, True),
    "checkpoint": (6, True),
    "controller-log": (40, True),
    "controller-snapshot": (2, False),
    "journal-file": (2, False),
    "directory": (60, True),
}
# Where the disk says that it is full, and means what it was given before, and whether the node must end by itself: a checkpoint
# is written aside, and all of it anew once there is room.
FULL_TOO = {"journal": True, "segment": True, "checkpoint": False, "controller-log": True}
PATIENCE_SECONDS = 8
# From the failure to the end of the process.
END_SECONDS_MAX = 30
# A node that goes on is given this long to make something of it.
GOES_ON_SECONDS = 1.0
ERROR_LINE = re.compile(r"\b(ERROR|WARN)\b|^error: ", re.MULTILINE)


def plans(rng):
    """Endlessly: every file in turn, in another order each time."""
    while True:
        names = [(name, "") for name in FILES] + [(name, ":full") for name in FULL_TOO]
        rng.shuffle(names)
        # The ones that are synced before anything is acknowledged come first in a short run.
        names.sort(key=lambda plan: plan[0] not in ("journal", "segment", "checkpoint", "controller-log"))
        yield from names


class SyncNode(FaultNode):
    def start(self, failure=None):
        command = [self.binary, "--config", str(self.folder / "node.toml"), "--report", str(self.report)]
        if failure:
            command += ["--fail-sync", failure]
        self.said_before = (self.folder / "node.log").stat().st_size
        self.run(command)

    def said(self):
        """What this life has written to its log."""
        with open(self.folder / "node.log", "rb") as file:
            file.seek(self.said_before)
            return file.read().decode(errors="replace")


class FailedSyncs:
    def __init__(self, binary, folder, rng, findings):
        self.rng = rng
        self.findings = findings
        self.node = SyncNode(binary, folder)
        self.load = Load(self.node.address, rng.randrange(1 << 30), findings)
        self.failures = collections.Counter()
        self.ends = collections.Counter()
        self.missed = collections.Counter()

    def run(self, until):
        node = self.node
        node.start()
        wait_until(node.is_ready, START_SECONDS_MAX, "the first node serves")
        self.load.create_topics()
        self.load.start()
        time.sleep(1)
        node.stop()
        for file, full in plans(self.rng):
            if self.findings or time.monotonic() > until:
                break
            self.one(file, full)
        counted = {}
        if not self.findings:
            node.start()
            wait_until(node.is_ready, START_SECONDS_MAX, "the last node serves")
            self.load.end(60)
        if not self.findings:
            counted = check.all_of_it(node, self.load)
        if not self.findings:
            code = node.stop()
            if code != 0:
                self.findings.add(f"the last stop ended with {code}: {node.log_tail()}")
        return {
            "failed_syncs": dict(self.failures),
            "lives_ended_by": dict(self.ends),
            "planned_and_missed": dict(self.missed),
            "records_acknowledged": self.load.acknowledged(),
            **counted,
        }

    def one(self, file, full):
        """One life, in which one sync fails."""
        last, must_end = FILES[file]
        if full:
            must_end = FULL_TOO[file]
        plan = f"{file}:{self.rng.randint(1, last)}{full}"
        node = self.node
        node.start(plan)
        failed = self.wait_for_failure()
        if failed is None:
            self.missed[file] += 1
            node.kill()
            return
        self.failures[file + full] += 1
        began = time.monotonic()
        while node.process.poll() is None:
            waited = time.monotonic() - began
            if not must_end and waited > GOES_ON_SECONDS:
                break
            if waited > END_SECONDS_MAX:
                self.findings.add(f"{plan}: the node goes on {END_SECONDS_MAX} s after it failed: {node.log_tail()}")
                return
            time.sleep(0.02)
        if node.process.poll() is None:
            self.ends["a kill, since it may go on"] += 1
            node.kill()
        elif node.process.returncode == 1:
            self.ends["itself"] += 1
        else:
            self.findings.add(f"{plan}: the node ended with {node.process.returncode}: {node.log_tail()}")
        if not ERROR_LINE.search(node.said()):
            self.findings.add(f"{plan}: nothing in the log tells of it: {node.log_tail()}")

    def wait_for_failure(self):
        """The event; None where it does not come in time."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            for event in self.node.events():
                if event["event"] == "sync failed":
                    return event
            if self.node.process.poll() is not None:
                code = self.node.process.returncode
                failed = [event for event in self.node.events() if event["event"] == "sync failed"]
                if failed:
                    return failed[0]
                name = signal.Signals(-code).name if code < 0 else code
                self.findings.add(f"the node ended with {name} before a sync failed: {self.node.log_tail()}")
                return None
            if time.monotonic() > deadline or self.findings:
                return None
            time.sleep(0.02)

    def end(self):
        for worker in self.load.workers():
            worker.end()
        self.node.end()
