"""What the programs of the Python clients (and of kcat) share: their arguments, their lines, and the scenarios over an adapter.

An adapter has the client's own calls: `create`, `produce`, `consume`, `producer`, `member`, `read_group`, `administration`, and of
those that administer what its client offers.
"""

import argparse
import json
import sys
import threading
import time
import traceback

WAIT_SECONDS_MAX = 60
GROUP_PARTITIONS = 6
# Between two records of the traffic under a rebalance.
TRAFFIC_PAUSE_SECONDS = 0.004
# Restarts: records of each partition, and how many may be without an answer.
RESTART_PARTITIONS = 3
RESTART_RECORDS = 400
IN_FLIGHT_MAX = 60
RESTART_SECONDS_MAX = 180
# A topic that is deleted and made again: what its group had read, where another stood, and what comes into the new one.
OLD_RECORDS = 300
OLD_COMMITTED = 50
NEW_BEGIN = 1000
NEW_RECORDS = 100
# Commit and resume: how many records each member in turn reads before it commits and goes; in all what was sent.
COMMIT_SESSIONS = {"first": 70, "second": 70, "third": 60}
# Administration: so many records, a millisecond from each to the next, of which the first are deleted.
RECORDS = 10
DELETED = 4
TIMES_BEGIN = 1_600_000_000_000
BROKER_KEYS = ("group.consumer.heartbeat.interval.ms", "message.max.bytes")
BROKER_DEFAULT = {"message.max.bytes": "1048588"}
BROKER_CHANGE = {"message.max.bytes": "2000000"}
INSTANCE = "instance"


# A line is written whole, whichever thread it comes from.
LINES = threading.Lock()


class Program:
    """One run: where the node is, what is asked, and the lines that tell of it."""

    def __init__(self, scenario, arguments):
        self.scenario, self.arguments = scenario, arguments
        self.bootstrap = arguments.bootstrap
        told = json.loads(open(arguments.records).read())
        self.records, self.topics = told["records"], told["topics"]

    def name(self, suffix=""):
        """A topic's or group's name that no other scenario has."""
        return f"{self.arguments.prefix}-{self.scenario}{suffix}"

    def tell(self, step, **facts):
        line = json.dumps({"scenario": self.scenario, "step": step, **facts}) + "\n"
        with LINES:
            sys.stdout.write(line)
            sys.stdout.flush()

    def wait(self, what, topics):
        """Has the runner do something, and gives its answer."""
        self.tell("wait", **{"for": what, "topics": topics})
        return sys.stdin.readline().strip()


def wait_until(condition, what, seconds=WAIT_SECONDS_MAX):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what() if callable(what) else what}"
        time.sleep(0.02)


def settled(look, wanted, seconds=10):
    """What `look` finds once it is as `wanted`, or at last: a change is not everywhere when it is acknowledged."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if wanted(found) or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def is_altered(configs):
    return configs["retention.ms"] == "7200000"


def records(program, client):
    """Every codec and shape of a record goes in, and comes back from local disk and from the bucket."""
    sent = program.records
    topics = {topic["topic"]: program.name(f"-{topic['topic']}") for topic in program.topics}
    for topic in program.topics:
        name = topics[topic["topic"]]
        client.create(name, 1, **topic["configs"])
        program.tell("produced", topic=topic["topic"], offsets=client.produce(name, sent, topic["codec"]))
    for state in ("hot", "cold"):
        if state == "cold":
            program.wait("cold", list(topics.values()))
        for topic, name in topics.items():
            program.tell("consumed", state=state, topic=topic, records=client.consume(name, 0, len(sent)))


class Traffic(threading.Thread):
    """Numbers into a topic's partitions in turn, until it is stopped."""

    def __init__(self, producer, topic, partitions):
        super().__init__(daemon=True)
        self.producer, self.topic, self.partitions = producer, topic, partitions
        self.acknowledged, self.errors = set(), []
        self.over = threading.Event()

    def run(self):
        number = 0
        while not self.over.wait(TRAFFIC_PAUSE_SECONDS):
            self.producer.send(self.topic, number % self.partitions, number, self.done)
            number += 1
        self.producer.close()

    def done(self, number, offset, error):
        if error is None:
            self.acknowledged.add(number)
        else:
            self.errors.append(str(error))

    def stop(self):
        self.over.set()
        self.join(WAIT_SECONDS_MAX)
        assert not self.errors, self.errors[:3]


class Sender:
    """A client's producer: `send` has `done(number, offset, error)` told once for each record."""

    in_flight_max = IN_FLIGHT_MAX

    def poll(self):
        """For clients that tell outcomes when they are asked."""


class Member(threading.Thread):
    """A member of a group with a thread of its own: `serve` is the client's, and tells what comes and what is assigned."""

    def __init__(self):
        super().__init__(daemon=True)
        self.owned, self.revoked, self.lost = set(), set(), set()
        self.seen, self.times = set(), []
        self.first_assigned = None
        # How often anything was said of its assignment.
        self.change_count = 0
        self.over = threading.Event()
        self.error = None

    def run(self):
        try:
            self.serve()
        except Exception:  # told by the scenario, in its thread
            self.error = traceback.format_exc()

    def assigned(self, partitions):
        self.change_count += 1
        self.owned |= set(partitions)
        if partitions and self.first_assigned is None:
            self.first_assigned = time.monotonic()

    def taken(self, partitions, lost=False):
        self.change_count += 1
        self.owned -= set(partitions)
        (self.lost if lost else self.revoked).update(partitions)

    def record(self, partition, number):
        self.seen.add(number)
        self.times.append((time.monotonic(), partition, number))

    def leave(self):
        self.over.set()
        self.join(WAIT_SECONDS_MAX)
        assert self.error is None, self.error
        assert not self.is_alive(), "a member does not end"


def stable(members):
    """Waits until each has its share and nobody another's."""
    share = GROUP_PARTITIONS // len(members)

    def settled():
        failed = [member.error for member in members.values() if member.error]
        assert not failed, failed[0]
        owned = [set(member.owned) for member in members.values()]
        fair = all(len(part) >= share for part in owned) and sum(map(len, owned)) == GROUP_PARTITIONS
        return fair and len(set().union(*owned)) == GROUP_PARTITIONS

    wait_until(settled, lambda: f"assignments settle: { {name: member.owned for name, member in members.items()} }")
    return {name: sorted(member.owned) for name, member in members.items()}


def group(strategy):
    """Two members under traffic; a third comes, one of the first leaves, and nothing that was acknowledged is missed."""

    def run(program, client):
        topic = program.name()
        client.create(topic, GROUP_PARTITIONS)
        traffic = Traffic(client.producer(False), topic, GROUP_PARTITIONS)
        traffic.start()
        members = {name: client.member(topic, program.name("-group"), strategy) for name in ("first", "second", "third")}
        first, second, third = members.values()
        try:
            # One after the other: kafka-python's second member was left out now and then on a machine under load, by Apache Kafka too.
            first.start()
            wait_until(lambda: first.error or len(first.owned) == GROUP_PARTITIONS, "the first member has everything")
            second.start()
            before = stable({"first": first, "second": second})
            program.tell("two", assignments=before)
            for member in (first, second):
                member.revoked.clear()
            # Of what each has now: what the first one read before the second came says nothing of it.
            settled = time.monotonic()

            def read():
                return all(records_of(members[name], parts, settled, time.monotonic()) for name, parts in before.items())

            wait_until(read, "records come")
            begun = time.monotonic()
            third.start()
            after = stable(members)
            kept = {name: sorted(set(before[name]) & set(after[name])) for name in before}
            program.tell(
                "three",
                assignments=after,
                revoked={name: sorted(members[name].revoked) for name in before},
                lost=sorted(first.lost | second.lost),
                kept_records={name: records_of(members[name], kept[name], begun, third.first_assigned) for name in before},
            )
            second.leave()
            program.tell("left", assignments=stable({"first": first, "third": third}))
            traffic.stop()
            acknowledged = traffic.acknowledged

            def missing():
                return sorted(acknowledged - first.seen - second.seen - third.seen)

            dropped = getattr(client, "DROPPED_AT_LEAVE_MAX", 0)
            wait_until(lambda: len(missing()) <= dropped, lambda: f"everything is seen, but {missing()[:10]}")
            first.leave()
            third.leave()
        finally:
            traffic.over.set()
            for member in members.values():
                member.over.set()
        program.tell("done", acknowledged=len(acknowledged), missing=missing())

    return run


def records_of(member, partitions, begin, end):
    """How many records of partitions a member got between two moments."""
    return sum(1 for when, partition, _ in list(member.times) if begin <= when <= end and partition in partitions)


def commit(**options):
    """What was committed is where the next member of the group begins."""

    def run(program, client):
        topic, name = program.name(), program.name("-group")
        client.create(topic, 2)
        produce(client, topic, 2, range(sum(COMMIT_SESSIONS.values())))
        for step, count in COMMIT_SESSIONS.items():
            found = client.read_group(topic, name, count, **options)
            program.tell(step, records=found)
        program.tell("committed", offsets=client.committed(topic, name, 2, **options))

    return run


def produce(client, topic, partitions, numbers):
    producer, errors = client.producer(False), []
    for number in numbers:
        producer.send(topic, number % partitions, number, lambda number, offset, error: errors.append(error) if error else None)
    producer.close()
    assert not errors, errors[0]


def recreated(program, client):
    """A topic is deleted and made again under a member that runs, and under a group whose member comes again."""
    topic, group, stopped = program.name(), program.name("-group"), program.name("-stopped")
    client.create(topic, 1)
    produce(client, topic, 1, range(OLD_RECORDS))
    program.wait("cold", [topic])
    running, again = client.member(topic, group, "eager"), client.member(topic, stopped, "eager")
    running.start()
    client.read_group(topic, stopped, OLD_COMMITTED)

    def committed(group):
        return [offset for offset in client.committed(topic, group, 1).values() if offset >= 0]

    wait_until(lambda: committed(group) == [OLD_RECORDS], lambda: f"the end is committed: {committed(group)}")
    program.tell("before", committed=committed(stopped))
    client.delete(topic)
    wait_until(lambda: not committed(stopped), "its offsets are gone")
    client.create(topic, 1)
    produce(client, topic, 1, range(NEW_BEGIN, NEW_BEGIN + NEW_RECORDS))
    again.start()
    for name, member, begin in (("restarted", again, 0), ("running", running, NEW_BEGIN)):
        wait_until(lambda: member.error or NEW_BEGIN + NEW_RECORDS - 1 in member.seen, f"{name} sees the last record")
        member.leave()
        program.tell(name, numbers=[number for _, _, number in member.times if number >= begin])


def restarts(program, client):
    """An idempotent producer while its node is killed again and again."""
    topic = program.name()
    client.create(topic, RESTART_PARTITIONS)
    producer = client.producer(True)
    acknowledged, errors, total = [], [], RESTART_PARTITIONS * RESTART_RECORDS

    def done(number, offset, error):
        if error is not None:
            errors.append(str(error))
            return
        acknowledged.append([number % RESTART_PARTITIONS, offset, number])
        if len(acknowledged) % 10 == 0:
            program.tell("progress", acknowledged=len(acknowledged), of=total)

    for number in range(total):
        producer.send(topic, number % RESTART_PARTITIONS, number, done)

        def answered():
            producer.poll()
            # The first of each partition alone: Kafka takes any sequence number from a producer that it does not know, so that a
            # second batch may pass the first where the partition has only just come to be.
            limit = 1 if number < RESTART_PARTITIONS and producer.in_flight_max == IN_FLIGHT_MAX else producer.in_flight_max
            return number + 1 - len(acknowledged) - len(errors) < limit

        wait_until(answered, "an answer", RESTART_SECONDS_MAX)
    producer.close()
    assert not errors, f"{len(errors)} were not acknowledged: {errors[0]}"
    consumed = {}
    for partition in range(RESTART_PARTITIONS):
        found = client.consume(topic, partition, RESTART_RECORDS)
        consumed[partition] = [[record["offset"], int(record["value"])] for record in found]
    program.tell("done", acknowledged=acknowledged, consumed=consumed, of=total)


def administration(program, client):
    client.administration(program)


def administration_cluster(program, client):
    """The cluster, a broker's settings, and what of a partition is asked and changed by hand: as far as a client offers it."""
    topic = program.name()
    client.create(topic, 2, **{"retention.ms": "-1"})
    texts = [{"key": None, "value": str(number), "headers": [], "timestamp": TIMES_BEGIN + number} for number in range(RECORDS)]
    client.produce(topic, texts, "none")
    program.tell("cluster", **client.cluster())
    if hasattr(client, "alter_broker"):
        program.tell("broker", configs=client.broker_configs())
        for step, change in (("broker-altered", BROKER_CHANGE), ("broker-restored", {})):
            client.alter_broker(change)
            wanted = change or BROKER_DEFAULT
            found = settled(client.broker_configs, lambda found: wanted.items() <= found.items())
            program.tell(step, configs=found)
    if hasattr(client, "offsets"):
        program.tell("offsets", offsets=client.offsets(topic))
    if hasattr(client, "delete_records"):
        program.tell("records-deleted", low=client.delete_records(topic, 0, DELETED), first=client.consume(topic, 0, 1)[0]["offset"])
    for step in ("log-dirs", "elected", "reassignments", "producers", "features", "quorum", "resources"):
        look = getattr(client, step.replace("-", "_"), None)
        if look:
            program.tell(step, **look(topic))


def administration_groups(program, client):
    """A group is looked at and changed by hand: with a member, without one, and until it is no more."""
    topic, group = program.name(), program.name("-group")
    client.create(topic, 2)
    produce(client, topic, 2, range(RECORDS))
    removes = hasattr(client, "remove_member")
    # Who has an instance goes without a word, and stays in the group until somebody removes it.
    member = client.member(topic, group, "eager", **({"instance": INSTANCE} if removes else {}))
    member.start()
    # Before that Apache Kafka may have no coordinator yet, for which not every client waits.
    wait_until(lambda: member.error or len(member.seen) == RECORDS, "everything is read")
    assert member.error is None, member.error
    committed = dict.fromkeys(range(2), RECORDS // 2)
    wait_until(lambda: client.committed(topic, group, 2) == committed, "the end is committed")
    program.tell("member", **client.described(group))
    if hasattr(client, "delete_group"):
        program.tell("refused", error=client.refused(lambda: client.delete_group(group)))
    if hasattr(client, "delete_offset"):
        program.tell("subscribed", error=client.refused(lambda: client.delete_offset(topic, group, 0)))
    member.leave()
    if removes:
        program.tell("stayed", **client.described(group))
        client.remove_member(group, INSTANCE)
    program.tell("empty", **settled(lambda: client.described(group), lambda found: not found["members"]))
    program.tell("listed", **client.listed(group))
    program.tell("offsets", offsets=client.committed(topic, group, 2))
    if hasattr(client, "alter_offset"):
        client.alter_offset(topic, group, 0, 2)
        program.tell("altered", offsets=client.committed(topic, group, 2))
    if hasattr(client, "delete_offset"):
        client.delete_offset(topic, group, 0)
        program.tell("offset-deleted", offsets=client.committed(topic, group, 2))
    if hasattr(client, "delete_group"):
        client.delete_group(group)
        program.tell("deleted", error=client.refused(lambda: client.delete_group(group)), **client.listed(group))


SCENARIOS = {
    "administration": administration,
    "administration-cluster": administration_cluster,
    "administration-groups": administration_groups,
    "records": records,
    "group-eager": group("eager"),
    "group-cooperative": group("cooperative"),
    "group-consumer": group("consumer"),
    "commit": commit(),
    "commit-consumer": commit(strategy="consumer"),
    "recreated": recreated,
    "restarts": restarts,
}


def main(client_of):
    """Runs the scenarios that are asked for: each tells how it ended, and none ends the others."""
    parser = argparse.ArgumentParser()
    for option in ("--bootstrap", "--prefix", "--records", "--scenario"):
        parser.add_argument(option, required=True)
    arguments = parser.parse_args()
    for name in arguments.scenario.split(","):
        program = Program(name, arguments)
        try:
            SCENARIOS[name](program, client_of(arguments.bootstrap))
            program.tell("end")
        except Exception:
            program.tell("failed", error=traceback.format_exc())


class Refused(Exception):
    """A call that had to be refused was not."""


def refusal(call, name_of):
    """The error that a call ends with."""
    try:
        call()
    except Exception as error:
        return name_of(error)
    raise Refused(call)
