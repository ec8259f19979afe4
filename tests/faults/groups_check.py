"""What must hold of a group, from what its members and the campaign have written down.

    python groups_check.py        the checker must see each mistake of a set of hand-made ledgers, and none where there is none

Events are those of `groups_member.py`. A fetch is (asked, answered, {partition: offset}): what a stranger was told of the group's
offsets. Times are those of one monotonic clock.
"""

import bisect
import collections
import dataclasses

from groups_member import SESSION_MS

# From when the node is ready again: a session time-out, and a client's way back.
FENCED_AFTER_SECONDS = SESSION_MS / 1000 + 2


@dataclasses.dataclass
class Commit:
    """One partition's part of a commit. `generation` is None where the client was in more than one while it lasted."""

    member: str
    number: int
    partition: int
    offset: int
    generation: int | None
    sent: float
    acknowledged: float | None = None


def commits_of(events):
    """Every commit, by partition, in the order of sending."""
    begun, commits = {}, collections.defaultdict(list)
    for event in events:
        if event["e"] == "send":
            parts = [
                Commit(event["m"], event["n"], int(partition), offset, event["g"], event["t"])
                for partition, offset in event["o"].items()
            ]
            begun[event["n"]] = parts
            for part in parts:
                commits[part.partition].append(part)
        elif event["e"] == "ack":
            for part in begun[event["n"]]:
                part.acknowledged = event["t"]
                if event["g"] != part.generation or part.generation < 0:
                    part.generation = None
    return commits


class Told:
    """The acknowledged commits of one partition, by who was told first."""

    def __init__(self, commits):
        self.commits = sorted((one for one in commits if one.acknowledged is not None), key=lambda one: one.acknowledged)
        self.times = [one.acknowledged for one in self.commits]
        self.highest = []
        for one in self.commits:
            former = self.highest[-1] if self.highest else one
            self.highest.append(one if one.offset >= former.offset else former)

    def highest_before(self, time):
        """The highest that was acknowledged before a time."""
        count = bisect.bisect_left(self.times, time)
        return self.highest[count - 1] if count else None


def gone_back(group, commits, fetches):
    """Offsets that are lower than one that was acknowledged before they were asked for, or that nobody sent."""
    told = {partition: Told(parts) for partition, parts in commits.items()}
    for asked, answered, offsets in fetches:
        for partition, acknowledged in told.items():
            highest, found = acknowledged.highest_before(asked), offsets.get(partition)
            if highest is not None and (found is None or found < highest.offset):
                yield (
                    f"{group}: partition {partition} has offset {found} at {asked:.3f}, and {highest.offset} was "
                    f"acknowledged to {highest.member} at {highest.acknowledged:.3f} (commit {highest.number})"
                )
        for partition, found in offsets.items():
            if not any(part.offset == found and part.sent < answered for part in commits.get(partition, [])):
                yield f"{group}: partition {partition} has offset {found}, which nobody sent"
    for partition, acknowledged in told.items():
        for later in acknowledged.commits:
            one = acknowledged.highest_before(later.sent)
            # Whoever began after another was told had to read on from there.
            if one is not None and one.offset > later.offset:
                yield (
                    f"{group}: partition {partition} was committed back to {later.offset} by {later.member} at "
                    f"{later.sent:.3f} in generation {later.generation}, after {one.offset} by {one.member} at "
                    f"{one.acknowledged:.3f} in generation {one.generation}"
                )
                break


def two_owners(group, events, commits):
    """Partitions that two members had in one generation, and commits that were taken of one who had been followed."""
    owners, assigns = {}, collections.defaultdict(list)

    def claim(partition, generation, member, at, how):
        first = owners.setdefault((partition, generation), (member, at, how))
        if first[0] != member:
            return (
                f"{group}: partition {partition} has two owners in generation {generation}: {first[0]} ({first[2]} at "
                f"{first[1]:.3f}) and {member} ({how} at {at:.3f})"
            )
        return None

    claims = []
    for event in events:
        if event["e"] == "assign" and event["g"] >= 0:
            for partition in event["p"]:
                claims.append((event["t"], partition, event["g"], event["m"], "assigned"))
                assigns[partition].append((event["t"], event["g"], event["m"]))
    for partition, parts in commits.items():
        for part in parts:
            if part.acknowledged is None or part.generation is None:
                continue
            claims.append((part.sent, partition, part.generation, part.member, "committed"))
            for at, generation, member in assigns[partition]:
                if at < part.sent and generation > part.generation and member != part.member:
                    yield (
                        f"{group}: partition {partition}: a commit of {part.member} in generation {part.generation} was "
                        f"taken at {part.sent:.3f}, after {member} had it in generation {generation} at {at:.3f}"
                    )
                    break
    for at, partition, generation, member, how in sorted(claims):
        finding = claim(partition, generation, member, at, how)
        if finding:
            yield finding


def generations_gone_back(group, events):
    """A member that is given partitions in a generation below one in which anybody was given some before."""
    highest = (0, "", 0.0)
    for event in sorted((one for one in events if one["e"] == "assign" and one["g"] >= 0), key=lambda one: one["t"]):
        # Callbacks of one rebalance and the next may pass each other by a hair; two generations do not.
        if event["g"] < highest[0] - 1:
            yield (
                f"{group}: {event['m']} was assigned {event['p']} in generation {event['g']} at {event['t']:.3f}, after "
                f"{highest[1]} in generation {highest[0]} at {highest[2]:.3f}"
            )
        highest = max(highest, (event["g"], event["m"], event["t"]))


def unseen(group, events, acknowledged):
    """Acknowledged records that no member consumed. `acknowledged` is the number of records of each partition."""
    ranges = collections.defaultdict(list)
    for event in events:
        if event["e"] == "seen":
            ranges[event["p"]].append((event["first"], event["end"]))
    for partition, count in acknowledged.items():
        reached = 0
        for first, end in sorted(ranges[partition]):
            if first > reached:
                break
            reached = max(reached, end)
        if reached < count:
            yield f"{group}: partition {partition}: record {reached} of {count} was consumed by nobody"


def broken(group, events, outages):
    """Members that ended for no reason. librdkafka's static members have one while the node is away and just after it: who was
    without an answer for his session time-out, or his poll interval, begins anew, and what is under way or not left yet then speaks
    of an instance that Kafka, too, says is another's.
    """
    for event in events:
        if event["e"] == "broken":
            yield f"{group}: {event['m']}: {event['why']}"
        if event["e"] == "fenced" and not any(kill < event["t"] < ready + FENCED_AFTER_SECONDS for kill, ready in outages):
            yield f"{group}: {event['m']} was fenced at {event['t']:.3f}, and the node had been there"


def of_group(group, events, fetches, acknowledged, outages=()):
    """Every finding of a group; `outages` are from when until when the node was away."""
    commits = commits_of(events)
    yield from broken(group, events, outages)
    yield from gone_back(group, commits, fetches)
    yield from two_owners(group, events, commits)
    yield from generations_gone_back(group, events)
    yield from unseen(group, events, acknowledged)


# A quiet life of two members: a has both partitions, b takes one over.
GOOD = [
    {"e": "assign", "t": 1.0, "m": "a", "g": 1, "p": [0, 1]},
    {"e": "seen", "t": 1.1, "m": "a", "p": 0, "first": 0, "end": 5},
    {"e": "seen", "t": 1.1, "m": "a", "p": 1, "first": 0, "end": 9},
    {"e": "send", "t": 1.2, "m": "a", "n": 1, "g": 1, "o": {"0": 5, "1": 9}},
    {"e": "ack", "t": 1.3, "m": "a", "n": 1, "g": 1},
    {"e": "send", "t": 1.4, "m": "a", "n": 2, "g": 1, "o": {"1": 10}},
    {"e": "refused", "t": 1.5, "m": "a", "n": 2, "g": 2, "why": "the node was killed"},
    {"e": "revoke", "t": 1.6, "m": "a", "g": 2, "p": [1]},
    {"e": "assign", "t": 1.7, "m": "b", "g": 3, "p": [1]},
    {"e": "seen", "t": 1.8, "m": "b", "p": 1, "first": 9, "end": 12},
    {"e": "send", "t": 1.9, "m": "b", "n": 3, "g": 3, "o": {"1": 12}},
    {"e": "ack", "t": 2.0, "m": "b", "n": 3, "g": 3},
]
GOOD_FETCHES = [(1.55, 1.56, {0: 5, 1: 10}), (2.1, 2.2, {0: 5, 1: 12})]
ACKNOWLEDGED = {0: 5, 1: 12}


def changed(index, **facts):
    return [{**event, **facts} if at == index else event for at, event in enumerate(GOOD)]


LATE = {"e": "send", "t": 2.1, "m": "a", "n": 4, "g": 1, "o": {"1": 13}}
LATE_ACK = {"e": "ack", "t": 2.2, "m": "a", "n": 4, "g": 1}

# Each mistake: events, fetches, and what must be said of it.
MISTAKES = {
    "an offset went back over a restart": (GOOD, [(1.55, 1.56, {0: 4, 1: 10})], "has offset 4 at"),
    "an offset is gone": (GOOD, [(1.55, 1.56, {1: 10})], "has offset None at"),
    "an offset that nobody sent": (GOOD, [(2.1, 2.2, {0: 6, 1: 12})], "which nobody sent"),
    "an offset before it was sent": (GOOD, [(1.35, 1.36, {0: 5, 1: 12})], "which nobody sent"),
    "a member went back": (changed(10, o={"1": 8}), [], "committed back to 8 by b"),
    "two were given a partition": (changed(8, g=1), [], "two owners in generation 1"),
    "two commit in one generation": (changed(10, g=1)[:-1] + [{**GOOD[11], "g": 1}], [], "two owners in generation 1"),
    "a commit of one who was followed": (GOOD + [LATE, LATE_ACK], [], "was taken at 2.100, after b had it"),
    "a generation went back": (GOOD + [{"e": "assign", "t": 3.0, "m": "c", "g": 1, "p": [2]}], [], "in generation 1 at 3.000, after"),
    "a record was skipped": (changed(9, first=11), [], "record 9 of 12 was consumed by nobody"),
    "a member was fenced": (GOOD + [{"e": "fenced", "t": 3.0, "m": "a"}], [], "a was fenced at 3.000"),
    "a member broke": (GOOD + [{"e": "broken", "t": 3.0, "m": "a", "why": "fenced"}], [], "a: fenced"),
}


def prove():
    """Raises where a mistake is not seen, or one is seen where there is none. Gives how many were seen."""
    quiet = list(of_group("g", GOOD, GOOD_FETCHES, ACKNOWLEDGED))
    assert not quiet, f"of a good ledger: {quiet}"
    # A zombie's own view may last longer, so long as nobody takes its commits.
    zombie = GOOD + [LATE, {**LATE_ACK, "e": "refused", "why": "ILLEGAL_GENERATION"}]
    quiet = list(of_group("g", zombie, GOOD_FETCHES, ACKNOWLEDGED))
    assert not quiet, f"of a zombie: {quiet}"
    for mistake, (events, fetches, sign) in MISTAKES.items():
        found = list(of_group("g", events, fetches, ACKNOWLEDGED))
        assert any(sign in finding for finding in found), f"{mistake}: not seen, only {found}"
    return len(MISTAKES)


if __name__ == "__main__":
    print(f"{prove()} mistakes seen")
