"""Kills a node again and again while clients work, then looks for what was lost.

    python kill.py --binary fault-node --folder DIR --kills 50 --seed 1

At least five kills are placed at named operations in each of the eight phases (as many as there are kills for); the others come
from outside at random moments. Prints the histogram, and a line of JSON with what was counted. Exits with 1 where anything was
found, and leaves the folder then.
"""

import argparse
import collections
import json
import random
import signal
import time

import campaign
import check
from fault_node import START_SECONDS_MAX, FaultNode, wait_until
from ledger import Findings
from load import Load

# The phases that the fault node knows, each with the range in which the operation lies that is hit.
PHASES = {
    "produce": 400,
    "roll": 80,
    "checkpoint": 14,
    "upload": 24,
    "commit": 20,
    "eviction": 24,
    "retention-and-deletion": 24,
    "start-up": 20,
}
MOMENTS = ["before", "during", "after"]
PLACED_PER_PHASE = 5
# A phase that does not come round so long is not waited for: the kill comes from outside, and the phase is tried again.
PATIENCE_SECONDS = 6
# A clean stop now and then: its mark is what the next kill must not be fooled by.
KILLS_BETWEEN_STOPS = 12


def schedule(kills, rng):
    """What each kill is: the name of a phase, or None for one from outside."""
    placed = max(min(PLACED_PER_PHASE, kills // len(PHASES)), kills * 8 // (10 * len(PHASES)))
    plan = [phase for phase in PHASES for _ in range(placed)]
    plan += [None] * (kills - len(plan))
    rng.shuffle(plan)
    return plan


class Campaign:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.findings = Findings()
        self.node = FaultNode(arguments.binary, arguments.folder, arguments.mistake)
        self.load = Load(self.node.address, arguments.seed, self.findings, arguments.rate)
        self.kills = collections.Counter()
        self.operations = collections.Counter()
        self.start_operations = PHASES["start-up"]
        self.missed = 0
        self.stops = 0

    def end(self):
        for worker in self.load.workers():
            worker.end()
        self.node.end()

    def plan_text(self, phase):
        last = self.start_operations if phase == "start-up" else PHASES[phase]
        return f"{phase}:{self.rng.randint(1, max(last, 1))}:{self.rng.choice(MOMENTS)}"

    def note(self, events):
        """Takes what the node told; gives the kill, if there was one."""
        kill = None
        for event in events:
            if event["event"] == "serving":
                self.start_operations = event["start_operations"]
            elif event["event"] == "kill":
                kill = event
        return kill

    def wait_for_end(self, seconds):
        """Whether the node has ended by itself within a time."""
        deadline = time.monotonic() + seconds
        while self.node.process.poll() is None:
            if time.monotonic() > deadline or self.findings:
                return False
            time.sleep(0.01)
        return True

    def one(self, phase):
        """One life of the node. Gives whether its end was as planned."""
        self.node.start(self.plan_text(phase) if phase else None)
        began = time.monotonic()
        wait = PATIENCE_SECONDS if phase else self.rng.uniform(0.02, 2.5)
        if self.wait_for_end(wait) or (phase and self.ends_before_it_serves(began)):
            code = self.node.process.returncode
            kill = self.note(self.node.events())
            if code != -signal.SIGKILL or kill is None:
                self.findings.add(f"the node ended with {code}, and not by a kill: {self.node.log_tail()}")
                return True
            self.kills[kill["phase"]] += 1
            self.operations[f"{kill['phase']}: {kill['moment']} {kill['operation']}"] += 1
            return True
        code = self.node.kill()
        self.note(self.node.events())
        if code != -signal.SIGKILL:
            self.findings.add(f"the node ended with {code} before it was killed: {self.node.log_tail()}")
        self.kills["at random"] += 1
        self.missed += phase is not None
        return phase is None

    def ends_before_it_serves(self, began):
        """Waits for a slow start. Whether the planned kill came meanwhile."""
        settled = lambda: self.findings or self.node.process.poll() is not None or self.node.is_ready()  # noqa: E731
        try:
            wait_until(settled, START_SECONDS_MAX - (time.monotonic() - began), "the node serves")
        except TimeoutError as error:
            self.findings.add(f"{error}: {self.node.log_tail()}")
        return self.node.process.poll() is not None

    def clean_stop(self):
        """A stop in between, of a node that serves."""
        self.node.start()
        try:
            wait_until(self.node.is_ready, START_SECONDS_MAX, "the node serves")
        except TimeoutError as error:
            self.findings.add(f"{error}: {self.node.log_tail()}")
            return
        time.sleep(self.rng.uniform(0, 0.5))
        code = self.node.stop()
        self.note(self.node.events())
        self.stops += 1
        if code != 0:
            self.findings.add(f"a stop ended with {code}: {self.node.log_tail()}")

    def run(self):
        self.node.start()
        wait_until(self.node.is_ready, START_SECONDS_MAX, "the first node serves")
        self.load.create_topics()
        self.load.start()
        time.sleep(1)
        self.node.kill()
        self.note(self.node.events())
        self.kills["at random"] += 1
        waiting = schedule(self.arguments.kills - 1, self.rng)
        # What is missed is tried again, a few times.
        spare = max(8, self.arguments.kills // 5)
        begun, since_stop = time.monotonic(), 0
        while waiting and not self.findings:
            phase = waiting.pop()
            if not self.one(phase) and spare > 0:
                spare -= 1
                waiting.insert(0, phase)
            since_stop += 1
            if since_stop == KILLS_BETWEEN_STOPS and not self.findings:
                self.clean_stop()
                since_stop = 0
        print(f"{sum(self.kills.values())} kills in {time.monotonic() - begun:.0f} s", flush=True)
        return self.judge()

    def judge(self):
        """The last node, which is not killed, and what it must have."""
        counted = {}
        if not self.findings:
            self.node.start()
            wait_until(self.node.is_ready, START_SECONDS_MAX, "the last node serves")
            self.load.end(60)
        if not self.findings:
            counted = check.all_of_it(self.node, self.load)
        if not self.findings:
            code = self.node.stop()
            if code != 0:
                self.findings.add(f"the last stop ended with {code}: {self.node.log_tail()}")
        return counted

    def report(self, counted, seconds):
        for operation, count in sorted(self.operations.items()):
            print(f"  {count:4} {operation}")
        print("kills by phase")
        for phase in [*PHASES, "at random"]:
            print(f"  {phase:<24} {self.kills[phase]:4}  {'#' * self.kills[phase]}")
        few = [phase for phase in PHASES if self.kills[phase] < PLACED_PER_PHASE]
        if few and self.arguments.kills >= 50 and not self.findings:
            self.findings.add(f"fewer than {PLACED_PER_PHASE} kills in {', '.join(few)}")
        document = {
            "seed": self.arguments.seed,
            "mistake": self.arguments.mistake,
            "kills": sum(self.kills.values()),
            "kills_by_phase": dict(self.kills),
            "planned_and_missed": self.missed,
            "clean_stops": self.stops,
            "records_acknowledged": self.load.acknowledged(),
            "records_followed": self.load.follower.count,
            "records_replayed": self.load.replayer.count,
            "record_deletions": self.load.trimmer.count,
            "topics_made_and_deleted": self.load.lives.count,
            **counted,
            "seconds": round(seconds, 1),
            "findings": self.findings.texts,
        }
        print(json.dumps(document), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=2000, help="records a second")
    parser.add_argument("--mistake")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.kills} kills, folder {arguments.folder}", flush=True)
    campaign.run(Campaign(arguments), arguments.folder)


if __name__ == "__main__":
    main()
