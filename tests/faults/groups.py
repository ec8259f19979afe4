"""Kills a node in the middle of rebalances and of commits, and looks whether a group lost anything by it.

    python groups.py --binary tidelog [--fault-node fault-node] --folder DIR --kills 50 --seed 1

Prints kills by what they hit, and a line of JSON with what was counted. Exits with 1 where anything was found, and leaves the
folder then: `node.log`, and a file of events for each group.
"""

import argparse
import collections
import itertools
import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

import campaign
import groups_check
import groups_wire
from fault_node import SETTINGS, START_SECONDS_MAX, Node, end_with_parent, wait_until
from groups_member import SESSION_MS
from ledger import Findings, Ledger
from load import Writer, client

# Group to kind of member. Three of one client each, of three clients.
GROUPS = {
    "eager": "confluent-range",
    "cooperative": "confluent-cooperative",
    "eager-static": "confluent-range-static",
    "cooperative-static": "confluent-cooperative-static",
    "consumer": "confluent-consumer-uniform",
    "consumer-static": "confluent-consumer-range-static",
    "kafka-python": "kafka-range",
    "aiokafka": "aiokafka-range",
}
SLOTS = ["0", "1", "2"]
PARTITIONS = 6
SESSION_SECONDS = SESSION_MS / 1000
# A session that ran out is seen at the latest so much after it.
TICK_SECONDS = 0.5
CONSUMERS = [name for name, kind in GROUPS.items() if "consumer" in kind]
CLASSIC = [name for name in GROUPS if name not in CONSUMERS]
# What the coordinator calls a group in a rebalance.
MOVING = ("PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling")
# A kill that comes later than this after the coordinator was asked is not called in a rebalance.
STATES_SECONDS = 0.1
# How long a kill waits for rebalances to be in.
AIMING_SECONDS = 4.0
# In a short run, too, each comes.
AIMS = ["commit", "rebalance"] * 4 + ["other", "rebalance"]
PATIENCE_SECONDS = 8

NODE_SETTINGS = SETTINGS | {
    "log.segment.bytes": "131072",
    "log.local.retention.ms": "5000",
    "tier.check.interval.ms": "1000",
    "tier.upload.max.lag.ms": "2000",
    "offsets.topic.num.partitions": "5",
    "offsets.topic.segment.bytes": "131072",
    "group.initial.rebalance.delay.ms": "100",
    "group.consumer.min.session.timeout.ms": str(SESSION_MS),
    "group.consumer.session.timeout.ms": str(SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "500",
    "group.consumer.assignment.interval.ms": "100",
}


class GroupsNode(Node):
    """The shipped program, or the same node over a disk that ends it at a named operation."""

    def __init__(self, binary, fault_node, folder):
        super().__init__(binary, folder, NODE_SETTINGS)
        self.fault_node = fault_node

    def start(self, plan=None):
        config = ["--config", str(self.folder / "node.toml")]
        if plan and self.fault_node:
            self.run([self.fault_node, *config, "--report", str(self.folder / "report.jsonl"), "--kill-at", plan])
        else:
            self.run([self.binary, "serve", *config])


class Group:
    """One group's process, and what its file has told so far."""

    def __init__(self, name, kind, address, folder, topic):
        self.name, self.topic = name, topic
        self.path = folder / f"{name}.jsonl"
        program = Path(__file__).with_name("groups_member.py")
        command = [sys.executable, "-B", program, "--address", address, "--group", name, "--topic", self.topic]
        command += ["--kind", kind, "--ledger", self.path]
        errors = open(folder / f"{name}.err", "ab")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=errors, stderr=errors, text=True, preexec_fn=end_with_parent
        )
        self.reader, self.rest = None, ""
        self.events, self.fetches = [], []
        self.inside = set()
        # The member of each slot that joined last.
        self.current = {}
        self.owned = collections.defaultdict(set)
        self.open, self.held = {}, 0

    def order(self, order, slot=""):
        self.process.stdin.write(f"{order} {slot}\n")
        self.process.stdin.flush()
        if order == "join":
            self.inside.add(slot)
        if order == "leave":
            self.inside.discard(slot)

    def look(self):
        """Takes in what its file has of new."""
        if self.reader is None:
            if not self.path.exists():
                return
            self.reader = open(self.path)
        text = self.rest + self.reader.read()
        *lines, self.rest = text.split("\n")
        for line in lines:
            event = json.loads(line)
            self.events.append(event)
            what = event["e"]
            if what == "send":
                self.open[event["n"]] = event["t"]
            elif what in ("ack", "refused"):
                self.open.pop(event["n"], None)
            elif what == "held":
                self.held += 1
            elif what == "assign":
                # A static member's next life begins with nothing of its former one.
                self.owned[event["m"]] |= set(event["p"])
            elif what in ("revoke", "lost"):
                self.owned[event["m"]] -= set(event["p"])
            elif what in ("joining", "left", "fenced"):
                self.owned.pop(event["m"], None)
                if what == "joining":
                    self.current[self.slot(event["m"])] = event["m"]

    def slot(self, member):
        return member.removeprefix(f"{self.name}-")[0]

    def owned_inside(self):
        """What the members that are to be there have by their own word: slot and partition."""
        self.look()
        # Who was told to leave may be long about it; what he believes meanwhile is nobody's concern.
        inside = [(slot, member) for slot, member in self.current.items() if slot in self.inside]
        return [(slot, part) for slot, member in inside for part in self.owned.get(member, ())]

    def members_have_all(self):
        """Whether by their own word the members have each partition once."""
        return sorted(part for _, part in self.owned_inside()) == list(range(PARTITIONS))

    def is_settled(self):
        """Whether they have each partition once, and each of them some: nobody waits to be let in, or for what another leaves."""
        return self.members_have_all() and {slot for slot, _ in self.owned_inside()} == self.inside


class Campaign:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.findings = Findings()
        folder = Path(arguments.folder)
        self.node = GroupsNode(arguments.binary, arguments.fault_node, folder)
        self.ledgers = {name: [Ledger(f"of-{name}", part) for part in range(PARTITIONS)] for name in GROUPS}
        everything = [ledger for ledgers in self.ledgers.values() for ledger in ledgers]
        self.writer = Writer(self.node.address, everything, arguments.rate, arguments.seed, self.findings)
        self.groups = [Group(name, kind, self.node.address, folder, f"of-{name}") for name, kind in GROUPS.items()]
        self.kills = collections.Counter()
        # When the coordinator was asked last for the states of the groups, and what it said; who is in a rebalance by that.
        self.asked, self.states, self.moving = 0.0, {}, []
        self.states_hit = collections.Counter()
        self.placed = 0
        self.settled = []
        # From each kill until the node was ready again.
        self.outages = []
        # Whether this life's node is to end at an operation of its disk.
        self.planned = False
        self.mistakes_seen = 0
        self.commit_lives = 0

    def end(self):
        self.writer.end()
        for group in self.groups:
            if group.process.poll() is None:
                group.process.kill()
            group.process.wait(10)
        self.node.end()

    # What goes on.

    def churn(self, groups):
        """A member joins or leaves in each of these."""
        for group in groups:
            outside = [slot for slot in SLOTS if slot not in group.inside]
            if outside and (len(group.inside) < 2 or self.rng.random() < 0.6):
                group.order("join", self.rng.choice(outside))
            elif len(group.inside) > 1:
                group.order("leave", self.rng.choice(sorted(group.inside)))

    def fill(self):
        for group in self.groups:
            for slot in SLOTS:
                if slot not in group.inside:
                    group.order("join", slot)

    def is_dead(self):
        return self.node.process.poll() is not None

    def wait_alive(self, seconds, asking=False):
        """Waits, unless the node ends before; asks for the states meanwhile. Whether it ended."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self.is_dead():
            if asking and time.monotonic() > self.asked + STATES_SECONDS / 2:
                self.ask()
            time.sleep(0.005)
        return self.is_dead()

    def ask(self):
        """Asks the coordinator which groups are in a rebalance."""
        asked = time.monotonic()
        try:
            self.states = groups_wire.states(self.node.address, CLASSIC, CONSUMERS)
        except OSError:
            # The node has ended meanwhile.
            return
        self.asked = asked
        self.moving = self.unsettled(group for group in self.groups if self.states.get(group.name) in MOVING)

    @staticmethod
    def unsettled(groups):
        """Those that by their members' word are not settled now."""
        return [group for group in groups if not group.is_settled()]

    def wait_for_rebalances(self):
        """Members join and leave until, at a moment after a random one, some groups are in a rebalance. Whether the node ended."""
        begun = time.monotonic()
        wanted, from_then = self.rng.randint(1, 3), begun + self.rng.uniform(0.0, 0.6)
        self.churn(self.rng.sample(self.groups, self.rng.randint(3, 6)))
        churned = begun
        while time.monotonic() < begun + AIMING_SECONDS:
            if self.wait_alive(max(from_then - time.monotonic(), 0.005)):
                return True
            self.ask()
            if len(self.moving) >= wanted:
                break
            if time.monotonic() > churned + 1:
                # These groups were fast, or what they were told makes no rebalance: a static member that leaves says nothing.
                wanted, churned = 1, time.monotonic()
                self.churn(self.rng.sample(self.groups, self.rng.randint(3, 6)))
        return self.is_dead()

    def wait_for_commit(self):
        """Until some group has a commit under way."""
        deadline = time.monotonic() + 2
        while time.monotonic() < deadline:
            for group in self.rng.sample(self.groups, len(self.groups)):
                group.look()
                if group.open and max(group.open.values()) > time.monotonic() - 0.05:
                    return
            time.sleep(0.001)

    def kill(self, aim):
        """Ends the node as aimed; what it hit is counted from what the members wrote."""
        if aim == "rebalance":
            ended = self.wait_for_rebalances()
        elif aim == "commit":
            self.fill()
            ended = self.wait_alive(self.rng.uniform(0.5, 2.5), asking=True)
            if not ended and not self.planned:
                self.ask()
                self.wait_for_commit()
            elif not ended:
                ended = self.wait_alive(PATIENCE_SECONDS, asking=True)
        else:
            self.churn(self.rng.sample(self.groups, 2))
            ended = self.wait_alive(self.rng.uniform(0.5, 3), asking=True)
        planned = ended and self.planned
        code = self.node.process.returncode if ended else self.node.kill()
        at = time.monotonic()
        # Who has settled since the coordinator was asked is in no rebalance.
        self.moving = self.unsettled(self.moving) if at < self.asked + STATES_SECONDS else []
        self.outages.append([at, float("inf")])
        if code != -signal.SIGKILL or (ended and not planned):
            self.findings.add(f"the node ended with {code}, and not by a kill: {self.node.log_tail()}")
        self.placed += planned
        return at

    def note(self, at):
        """What the kill at a time was in the middle of."""
        rebalances, commits = len(self.moving), 0
        self.states_hit.update(self.states[group.name] for group in self.moving)
        for group in self.groups:
            group.look()
            outcome = {event["n"]: event["t"] for event in group.events[-4000:] if event["e"] in ("ack", "refused")}
            sent = [event for event in group.events[-4000:] if event["e"] == "send" and at - 5 < event["t"] < at]
            commits += sum(outcome.get(event["n"], at + 1) >= at for event in sent)
        self.kills["in a rebalance"] += bool(rebalances)
        self.kills["in a commit"] += bool(commits)
        self.kills["in both"] += bool(rebalances and commits)
        self.kills["in neither"] += not rebalances and not commits
        self.kills["rebalances hit"] += rebalances
        self.kills["commits hit"] += commits

    # What is looked at.

    def hold(self):
        """From now on no member begins a commit: what is fetched after the restart is what the node has kept."""
        before = {group.name: group.held for group in self.groups}
        for group in self.groups:
            group.order("hold")

        def all_held():
            for group in self.groups:
                group.look()
            return all(group.held > before[group.name] for group in self.groups)

        wait_until(all_held, 30, "the members hold their commits", every=0.01)

    def fetch(self, group):
        """A group's offsets, as a stranger is told; None where the node ended meanwhile."""
        deadline, why = time.monotonic() + 20, None
        while not self.is_dead():
            asked = time.monotonic()
            try:
                why, offsets = groups_wire.offsets(self.node.address, group.name)
                if why == 0:
                    group.fetches.append((asked, time.monotonic(), offsets))
                    return offsets
            except OSError as error:
                why = error
            if time.monotonic() > deadline:
                self.findings.add(f"{group.name}: its offsets are not to be had 20 s after the node was ready: {why}")
                return None
            time.sleep(0.05)
        return None

    def described(self, group):
        """What is wrong with a group by the node's word, None where it is stable and has each partition once; and how many members
        it has."""
        is_consumer = "consumer" in GROUPS[group.name]
        try:
            code, state, members = groups_wire.described(self.node.address, group.name, is_consumer)
        except OSError as error:
            return f"describe: {error}", 0
        parts = sorted(part for _, partitions in members for part in partitions)
        if code != 0 or state != "Stable":
            return f"code {code}, state {state}, members {members}", len(members)
        if len(parts) != len(set(parts)):
            self.findings.add(f"{group.name}: stable, and a partition has two owners: {members}")
        if len(members) != len(group.inside) or parts != list(range(PARTITIONS)):
            return f"{len(members)} members of {len(group.inside)}: {members}", len(members)
        return None, len(members)

    def limit(self):
        return SESSION_SECONDS * self.arguments.patience

    @staticmethod
    def loaded(group, ready):
        """When the node had the group at the latest, from which on the sessions of its members run: it told its offsets."""
        return max(ready, group.fetches[-1][1]) if group.fetches else ready

    @classmethod
    def begins(cls, group, since, ready, members):
        """From when on a group has its session time-out to be stable again: the node is ready, and nobody is in the group any more who
        died with the node. Such a one has a session of his own to run out; a static member's new client is told until then that his
        instance is not released.
        """
        over = cls.loaded(group, ready) + SESSION_SECONDS + TICK_SECONDS
        now = time.monotonic()
        group.look()
        lately = itertools.takewhile(lambda event: event["t"] > ready, reversed(group.events))
        told = [event["t"] for event in lately if event["e"] == "fenced"]
        seen = ([now] if members > len(group.inside) else []) + told
        return max([since, *(at for at in seen if at < over)])

    def settle(self, ready):
        """Every group is stable again within its session time-out. False where the node ended before."""
        limit = self.limit()
        waiting = {group.name: ready for group in self.groups}
        while waiting and not self.is_dead():
            for group in [group for group in self.groups if group.name in waiting]:
                why, members = self.described(group)
                since = waiting[group.name] = self.begins(group, waiting[group.name], ready, members)
                now = time.monotonic()
                held = now - self.loaded(group, ready)
                if members > len(group.inside) and held > (SESSION_SECONDS + TICK_SECONDS) * self.arguments.patience:
                    self.findings.add(f"{group.name}: who died with the node is in it {held:.1f} s after it was loaded: {why}")
                    del waiting[group.name]
                elif why is None and group.members_have_all():
                    del waiting[group.name]
                    self.settled.append((now - since, now - ready, group.name))
                elif now - since > limit and not self.is_dead():
                    self.findings.add(
                        f"{group.name} is not stable {now - since:.1f} s after it could be, {now - ready:.1f} s after the node was "
                        f"ready: {why or 'by the node it is'}; members say {dict(group.owned)}, "
                        f"inside {sorted(group.inside)}, last events {group.events[-6:]}"
                    )
                    del waiting[group.name]
            time.sleep(0.02)
        return not self.is_dead()

    def life(self, aim):
        """One life of the node, from its start to its kill."""
        plan = None
        self.commit_lives += aim == "commit"
        if aim == "commit" and self.arguments.fault_node and self.commit_lives % 2:
            plan = f"produce:{self.rng.randint(200, 3000)}:{self.rng.choice(['before', 'during', 'after'])}"
        self.planned = plan is not None
        self.node.start(plan)
        wait_until(lambda: self.is_dead() or self.node.is_ready(), START_SECONDS_MAX, "the node serves", every=0.02)
        ready = self.outages[-1][1] = time.monotonic()
        for group in self.groups:
            self.fetch(group)
        for group in self.groups:
            group.order("go")
        if self.settle(ready) and self.findings:
            return
        self.kill_and_hold(aim)

    def run(self):
        self.mistakes_seen = groups_check.prove()
        self.node.start()
        wait_until(self.node.is_ready, START_SECONDS_MAX, "the first node serves")
        topics = [NewTopic(f"of-{name}", PARTITIONS, 1, config={"retention.ms": "-1"}) for name in GROUPS]
        admin = AdminClient(client(self.node.address))
        for created in admin.create_topics(topics).values():
            created.result(30)
        self.writer.start()
        self.fill()
        begun = time.monotonic()
        # The clients' own first steps take longer than any of the node's.
        self.settle(begun + 20)
        self.settled.clear()
        if not self.findings:
            self.kill_and_hold("rebalance")
        aims = [AIMS[at % len(AIMS)] for at in range(self.arguments.kills - 1)]
        self.rng.shuffle(aims)
        for aim in aims:
            if self.findings:
                break
            self.life(aim)
            self.check(is_last=False)
        # Of a few kills none may hit one; of many that is the campaign's own fault.
        enough = len(self.outages) // 4 if len(self.outages) >= 20 else 0
        if not self.findings and self.kills["in a rebalance"] < enough:
            self.findings.add(f"only {self.kills['in a rebalance']} of {len(self.outages)} kills were in a rebalance")
        print(f"{len(self.outages)} kills in {time.monotonic() - begun:.0f} s", flush=True)
        return self.judge()

    def kill_and_hold(self, aim):
        at = self.kill(aim)
        self.hold()
        self.note(at)

    def judge(self):
        """The last life, which is not ended by a kill: all is consumed and committed, then the ledgers are read."""
        if not self.findings:
            self.node.start()
            wait_until(self.node.is_ready, START_SECONDS_MAX, "the last node serves")
            ready = self.outages[-1][1] = time.monotonic()
            for group in self.groups:
                self.fetch(group)
                group.order("go")
            self.settle(ready)
            self.fill()
            self.writer.end()
            self.writer.join(10)
            left = self.writer.flush(60)
            if left:
                self.findings.add(f"{left} records are not acknowledged")
            self.drain()
        for group in self.groups:
            group.order("end")
        ends = [threading.Thread(target=group.process.wait, daemon=True) for group in self.groups]
        for end in ends:
            end.start()
        for end in ends:
            end.join(30)
        return self.check(is_last=True)

    def drain(self):
        """Until each group has committed the end of each partition."""
        deadline = time.monotonic() + 60
        for group in self.groups:
            ends = {ledger.partition: ledger.sent for ledger in self.ledgers[group.name] if ledger.sent}
            while (found := self.fetch(group)) != ends:
                if time.monotonic() > deadline or found is None:
                    self.findings.add(f"{group.name}: not all is consumed and committed after 60 s: {found} of {ends}")
                    break
                time.sleep(0.2)

    def check(self, is_last):
        """Reads the ledgers. What nobody consumed is known in the end alone."""
        counted = collections.Counter()
        by_client = collections.Counter()
        more = (self.arguments.patience - 1) * groups_check.FENCED_AFTER_SECONDS
        outages = [(kill, ready + more) for kill, ready in self.outages]
        for group in self.groups:
            group.look()
            is_complete = is_last and not self.findings
            ends = {one.partition: one.acknowledged for one in self.ledgers[group.name]} if is_complete else {}
            for finding in groups_check.of_group(group.name, group.events, group.fetches, ends, outages):
                if finding not in self.findings.texts:
                    self.findings.add(finding)
            events = collections.Counter(event["e"] for event in group.events)
            counted["commits_sent"] += events["send"]
            counted["commits_acknowledged"] += events["ack"]
            counted["commits_refused"] += events["refused"]
            counted["assignments"] += events["assign"]
            counted["fenced_after_kills"] += events["fenced"]
            counted["partitions_lost"] += events["lost"]
            counted["joined"] += events["joining"]
            counted["records_consumed"] += sum(one["end"] - one["first"] for one in group.events if one["e"] == "seen")
            counted["generations"] += max((one["g"] for one in group.events if one["e"] == "assign"), default=0)
            by_client[GROUPS[group.name].split("-")[0]] += events["ack"]
        counted["fetches_compared"] = sum(len(group.fetches) for group in self.groups)
        return {**counted, "acknowledged_by_client": dict(by_client)}

    def report(self, counted, seconds):
        print("kills by what they hit")
        for what, count in sorted(self.kills.items()):
            print(f"  {what:<24} {count:4}")
        slowest = {}
        for seconds_taken, _, name in sorted(self.settled):
            slowest[name] = round(seconds_taken, 2)
        times = sorted(taken for taken, _, _ in self.settled)
        since_ready = sorted(taken for _, taken, _ in self.settled)
        waited = sum(since_ready > taken for taken, since_ready, _ in self.settled)
        allowed = f"{self.limit():.1f} s allowed (session time-out {SESSION_SECONDS} s, times {self.arguments.patience:g})"
        print(f"stable again after {max(times, default=0.0):.1f} s at most, of {allowed}")
        print(f"  {waited} of {len(times)} times first had to wait until who had died with the node was put out;")
        print(f"  from when the node was ready {max(since_ready, default=0.0):.1f} s at most")
        document = {
            "seed": self.arguments.seed,
            "kills": len(self.outages),
            "kills_by_what_they_hit": dict(self.kills),
            "rebalances_hit_by_state": dict(self.states_hit),
            "kills_at_a_disk_operation": self.placed,
            "checker_mistakes_seen": self.mistakes_seen,
            "records_acknowledged": sum(one.acknowledged for ledgers in self.ledgers.values() for one in ledgers),
            **counted,
            "times_stable_again": len(times),
            "seconds_until_stable_median": round(times[len(times) // 2], 2) if times else None,
            "seconds_until_stable_most": slowest,
            "times_somebody_had_died": waited,
            "seconds_since_ready_median": round(since_ready[len(times) // 2], 2) if times else None,
            "seconds_since_ready_most": round(max(since_ready, default=0.0), 2),
            "session_seconds": SESSION_SECONDS,
            "seconds_until_stable_allowed": self.limit(),
            "seconds": round(seconds, 1),
            "findings": self.findings.texts,
        }
        print(json.dumps(document), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--binary", required=True)
    parser.add_argument("--fault-node")
    parser.add_argument("--folder", required=True)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=200, help="records a second")
    parser.add_argument("--patience", type=float, default=1.0, help="what limits of time are multiplied by")
    arguments = parser.parse_args()
    Path(arguments.folder).mkdir(parents=True, exist_ok=True)
    print(f"seed {arguments.seed}, {arguments.kills} kills, folder {arguments.folder}", flush=True)
    campaign.run(Campaign(arguments), arguments.folder)


if __name__ == "__main__":
    main()
