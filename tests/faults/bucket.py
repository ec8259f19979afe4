"""The bucket misbehaves in every way that is known while clients work, and heals: then nothing may be lost, wrong or left.

    python bucket.py --binary tidelog --proxy bucket-proxy --endpoint http://HOST:PORT --store s3://BUCKET/PREFIX --objects DIR
                     --folder DIR --seconds 45 --seed 1

The node is the shipped program, its bucket a real S3 server (`--endpoint`, with its files below `--objects`) behind a proxy. Every
kind of fault comes once, then they come at random, several at once now and then, until the time is over. Prints the table by
kind, and a line of JSON with what was counted. Exits with 1 where anything was found, and leaves the folder then.
"""

import argparse
import bisect
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

from confluent_kafka.admin import AdminClient, NewTopic

import campaign
import check
from bucket_faults import HANGING, IDENTITY, KINDS, Kind, Proxy
from fault_node import ORPHAN_AGE_SECONDS, SETTINGS, START_SECONDS_MAX, Node, end_with_parent, wait_until
from ledger import Findings
from load import Load, Worker, client
from raw_fetch import Message, RawClient

PROBE = "probe"
THROTTLED_START = "start under 503"

# What stands still for longer is no slowness but a stall.
STALL_SECONDS_MAX = 5.0
# From the end of a fault until everything is as if it had not been: the limit on silence is 20 s, then it is tried again.
HEAL_SECONDS_MAX = 30.0
# One upload that hangs: the limit on silence, the time of its bytes at the floor rate, a pause, and the next one.
HANG_SECONDS_MAX = 28.0
# A request that meets a fault comes within this time.
MEET_SECONDS_MAX = 8.0
# A start serves what is hot within this time, whatever the bucket does.
HOT_START_SECONDS_MAX = 15.0

# Kafka's codes that clients ask again for: REPLICA_NOT_AVAILABLE, OFFSET_NOT_AVAILABLE; KAFKA_STORAGE_ERROR says that a copy is damaged.
RETRIABLE = {9, 78}
STORAGE_ERROR = 56


class BucketNode(Node):
    """The shipped program on the store behind the proxy, with keys that are issued for its web identity."""

    def __init__(self, binary, folder, store, objects, proxy, orphan_age_seconds):
        settings = {
            **SETTINGS,
            "tier.orphan.age.ms": str(int(orphan_age_seconds * 1000)),
            "log.segment.bytes": "131072",
            "log.local.retention.ms": "1500",
            "tier.upload.max.lag.ms": "1000",
        }
        super().__init__(binary, folder, settings, f'store = "{store}"\nstore_endpoint = "{proxy.endpoint}"\n')
        self.bucket = objects
        identity = self.folder / "identity"
        identity.write_text(IDENTITY)
        self.environment = {
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(identity),
            "AWS_ROLE_ARN": "arn:aws:iam::1:role/tidelog",
            "AWS_ENDPOINT_URL_STS": proxy.issuer,
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def start(self):
        pairs = [f"{name}={value}" for name, value in self.environment.items()]
        keys = ["-u", "AWS_ACCESS_KEY_ID", "-u", "AWS_SECRET_ACCESS_KEY"]
        self.run(["env", *keys, *pairs, self.binary, "serve", "--config", str(self.folder / "node.toml")])


class Span:
    """A time with one fault, or with none."""

    def __init__(self, name, damages=False):
        self.name = name
        self.damages = damages
        self.begun = time.monotonic()
        self.ended = None
        self.healed_in = None
        self.hit = 0


class ColdReader(Worker):
    """Fetches by hand: an offset of the bucket and the newest record of another partition together, then the former alone."""

    def __init__(self, campaign, seed):
        super().__init__("cold reader", campaign.findings)
        self.campaign = campaign
        self.rng = random.Random(seed)
        self.raw = RawClient(campaign.node.address, 3 * campaign.stall_max)
        # By span: counts of what came.
        self.came = collections.defaultdict(collections.Counter)
        self.hot_seconds = []
        self.good_at = 0.0

    def work(self):
        keep = self.campaign.load.of("keep")
        while not self.ended.is_set() and not self.findings:
            cold, hot = self.rng.sample(keep, 2)
            to = self.campaign.cold_below.get(cold.partition, 0)
            if to < 2 or hot.acknowledged < 1:
                self.ended.wait(0.1)
                continue
            try:
                self.one(cold, self.rng.randrange(to), hot)
            except OSError as error:
                if not self.campaign.is_restarting():
                    self.findings.add(f"a fetch by hand: {type(error).__name__}: {error}")
                self.ended.wait(0.1)
            self.ended.wait(0.02)
        self.raw.close()

    def one(self, cold, offset, hot):
        begun, span = time.monotonic(), self.campaign.span
        # The newest but a few: of what is not yet synced nothing is known.
        newest = max(hot.acknowledged - 20, 0)
        place, beside = (cold.topic, cold.partition), (hot.topic, hot.partition)
        answer = self.raw.fetch({place: offset, beside: newest}, 20_000, 500)
        seconds = time.monotonic() - begun
        if not self.campaign.is_restarting(since=begun):
            self.hot_seconds.append((begun, seconds))
            if answer[beside].error != 0 or not self.right(hot, newest, answer[beside], "hot"):
                self.findings.add(f"{hot}: offset {newest} beside a cold read got error {answer[beside].error} and no records")
        # The hot records are an answer at once: nothing says that the others must be there by then.
        self.look(cold, offset, answer[place], span, begun, None)
        begun, span = time.monotonic(), self.campaign.span
        answer = self.raw.fetch({place: offset}, 20_000, 1000)
        self.look(cold, offset, answer[place], span, begun)

    def right(self, ledger, offset, fetched, what):
        """Whether records came; wrong ones are a finding."""
        due = offset
        for record in fetched.records(offset):
            if record.offset != due:
                self.findings.add(f"{ledger}: a {what} fetch gave offset {record.offset} where {due} was due")
                return True
            why = ledger.difference(Message(record))
            if why is not None:
                self.findings.add(f"a {what} fetch gave a wrong record: {why}")
                return True
            due += 1
        return due > offset

    def look(self, ledger, offset, fetched, span, begun, nothing="late"):
        if fetched.error == 0:
            if self.right(ledger, offset, fetched, "cold"):
                self.came[span]["ok"] += 1
                self.good_at = begun
            elif nothing:
                self.came[span][nothing] += 1
        elif fetched.error in RETRIABLE:
            self.came[span]["retriable"] += 1
        elif fetched.error == STORAGE_ERROR:
            self.came[span]["damaged"] += 1
            if not self.campaign.lies_lately():
                self.findings.add(f"{ledger}: offset {offset} is called damaged, and the bucket only was {span.name}")
        elif not self.campaign.is_restarting(since=begun):
            self.findings.add(f"{ledger}: a cold fetch of {offset} got error {fetched.error} during {span.name}")


class Campaign:
    def __init__(self, arguments):
        self.arguments = arguments
        self.rng = random.Random(arguments.seed)
        self.findings = Findings()
        folder = arguments.folder
        folder.mkdir(parents=True, exist_ok=True)
        # An upload that is older is fenced and begun anew: where the bucket is away for longer than a moment it must live on.
        self.patience = arguments.patience
        self.stall_max = STALL_SECONDS_MAX * self.patience
        self.orphan_age = ORPHAN_AGE_SECONDS if arguments.seconds < 120 else 25.0
        self.proxy = Proxy(arguments.proxy, arguments.endpoint, folder)
        self.node = BucketNode(arguments.binary, folder, arguments.store, arguments.objects, self.proxy, self.orphan_age)
        self.load = Load(self.node.address, arguments.seed, self.findings, arguments.rate, is_steady=True)
        self.probe = None
        self.samples = folder / "probe.txt"
        self.spans = []
        self.span = Span("no fault")
        self.restarts = []
        self.lied_at = float("-inf")
        # By partition of `keep`: below it nothing is on local disk.
        self.cold_below = {}
        self.readers = [ColdReader(self, arguments.seed + 20 + index) for index in range(2)]
        self.keep = None

    # What goes on

    def is_restarting(self, since=None):
        """Whether the node is away on purpose, or was since some moment."""
        return any(until is None or until > (since or time.monotonic()) for _, until in self.restarts)

    def lies_lately(self):
        return self.span.damages or time.monotonic() < self.lied_at + 10

    def begin_span(self, name, damages=False):
        now = time.monotonic()
        self.span.ended = now
        if self.span.damages:
            self.lied_at = now
        self.span = Span(name, damages)
        self.spans.append(self.span)
        return self.span

    def partitions(self):
        """(topic, partition) to its tiers; None where they are not told now."""
        status = self.node.get("/v1/tier/status")
        if status is None:
            return None
        return {(e["topic"], p["partition"]): p for e in status["topics"] for p in e["partitions"]}

    def ends(self):
        return {(l.topic, l.partition): l.acknowledged for l in self.load.ledgers}

    def drained(self, ends, without=()):
        """Whether everything below these ends is in the bucket, or gone by retention."""
        tiers = self.partitions()
        if tiers is None:
            return False
        for (topic, partition), tier in tiers.items():
            if topic == "keep":
                self.cold_below[partition] = min(tier["local_log_start"], tier["tiered_end"])
        return all(
            max(tiers[place]["tiered_end"], tiers[place]["log_start"]) >= end
            for place, end in ends.items()
            if place in tiers and place not in without
        )

    def is_up(self):
        return self.node.metrics().get("object_store_up") == 1

    # The faults

    def steps(self):
        """Lists of kinds: one list's come one after another, and then all must heal."""
        kinds, whole = KINDS[:], self.arguments.seconds >= 120
        if not whole:
            # What hangs holds the uploads that it meets for 20 s: what writes meet comes before the one that meets all of them,
            # and what reads meet comes meanwhile.
            self.rng.shuffle(kinds)
            writes = [kind for kind in kinds if kind.scope == "put"]
            rest = [kind for kind in kinds if kind.scope != "put"]
            yield [*HANGING[:0:-1], *writes, self.several(), HANGING[0], *rest]
            yield [THROTTLED_START]
            return
        first = [*kinds, *HANGING, THROTTLED_START]
        self.rng.shuffle(first)
        for kind in first:
            yield [kind]
        while True:
            draw = self.rng.random()
            if draw < 0.25:
                yield [self.several()]
            elif draw < 0.31:
                yield [THROTTLED_START]
            elif draw < 0.43:
                yield [self.rng.choice(HANGING)]
            else:
                yield [self.rng.choice(kinds)]

    def several(self):
        """Kinds at once: what reads meet, what writes meet, and now and then what everything else does."""
        plain = [kind for kind in KINDS if type(kind) is Kind]
        parts = [self.rng.choice([kind for kind in plain if kind.scope == scope]) for scope in ("get", "put")]
        if self.rng.random() < 0.4:
            parts.append(self.rng.choice([kind for kind in plain if kind.scope == "all"]))
        rules = [rule for part in parts for rule in part.rules]
        kind = Kind("several at once", "all", *rules, damages=any(part.damages for part in parts))
        kind.parts = " + ".join(part.name for part in parts)
        return kind

    def run_steps(self, until):
        short = self.arguments.seconds < 120
        for step in self.steps():
            if self.findings or (not short and time.monotonic() > until):
                return
            spans = []
            for kind in step:
                if kind == THROTTLED_START:
                    self.throttled_start(0.5 if short else self.rng.uniform(1, 8))
                    continue
                seconds = 0.5 if short else self.rng.uniform(1.5, 10)
                spans.append(self.one(kind, seconds))
                if self.findings:
                    return
            if spans:
                self.heal(spans, step)
            self.pause(0.5 if short else self.rng.uniform(1.0, 3.0))

    def one(self, kind, seconds):
        """One fault. Gives its span."""
        # What is read must come from the bucket.
        self.node.drop_cache()
        self.proxy.told()
        span = self.begin_span(kind.name, kind.damages)
        kind.begin(self.proxy, self.keep)
        self.wait(seconds)
        span.hit = self.proxy.told()
        meet_max = MEET_SECONDS_MAX * self.patience
        while kind.is_met and span.hit == 0 and time.monotonic() < span.begun + meet_max and not self.findings:
            self.wait(0.1)
            span.hit = self.proxy.told()
        self.proxy.order("clear")
        kind.end(self.proxy)
        span.hit += self.proxy.told()
        self.begin_span("no fault")
        if kind.is_met and span.hit == 0 and not self.findings:
            self.findings.add(f"no request met {kind.name} within {meet_max} s")
        return span

    def wait(self, seconds):
        """Lets time pass, while nothing is found."""
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.findings:
            time.sleep(0.05)

    def heal(self, spans, step):
        """Waits until nothing tells of what was: the store is up, everything is in the bucket, cold reads are served."""
        begun, ends = time.monotonic(), self.ends()
        # One that hangs is alone in its step where its limit is looked at: the others would use up its time.
        limit = (HANG_SECONDS_MAX if step == [HANGING[2]] else HEAL_SECONDS_MAX) * self.patience
        missing = {"the store is up", "everything is in the bucket", "cold reads are served"}

        def healed():
            missing.clear()
            if not self.is_up():
                missing.add("the store is up")
            if not self.drained(ends):
                missing.add("everything is in the bucket")
            if any(reader.good_at < begun for reader in self.readers):
                missing.add("cold reads are served")
            return self.findings or not missing

        try:
            wait_until(healed, limit, "it heals", every=0.1)
        except TimeoutError:
            names = ", ".join(span.name for span in spans)
            tiers = {place: (t["tiered_end"], ends.get(place)) for place, t in (self.partitions() or {}).items()}
            self.findings.add(f"{limit} s after {names} it is not so that {sorted(missing)}: {tiers}; {self.node.log_tail()}")
        for span in spans:
            span.healed_in = time.monotonic() - span.ended

    def pause(self, seconds):
        """No fault: what is usual."""
        self.begin_span("healthy")
        self.wait(seconds)
        self.begin_span("no fault")

    def throttled_start(self, seconds):
        """kill -9, and a start under 503: it waits for the bucket, and serves what is hot."""
        span = self.begin_span(THROTTLED_START)
        self.proxy.add({"status": [503, "SlowDown"]})
        self.restarts.append((time.monotonic(), None))
        self.node.kill()
        begun = time.monotonic()
        acknowledged, hot_max = self.ends(), HOT_START_SECONDS_MAX * self.patience
        self.node.start()
        try:
            hot = RawClient(self.node.address, 2)
            wait_until(lambda: self.serves_hot(hot, acknowledged), hot_max, "what is hot is served under 503")
            span.hot_in = time.monotonic() - begun
            before = sum(self.ends().values())
            wait_until(lambda: sum(self.ends().values()) > before, hot_max, "records are acknowledged under 503")
        except TimeoutError as error:
            self.findings.add(f"{error}: {self.node.log_tail()}")
        finally:
            hot.close()
        # Clients that are between two tries come back.
        time.sleep(0.5)
        self.restarts[-1] = (self.restarts[-1][0], time.monotonic())
        self.wait(seconds)
        if self.is_up():
            self.findings.add(f"a store that throttles is called up; {self.node.log_tail()}")
        self.proxy.order("clear")
        span.hit = self.proxy.told()
        self.begin_span("no fault")
        try:
            wait_until(lambda: self.findings or self.node.is_ready(), START_SECONDS_MAX * self.patience, "it is ready by itself")
        except TimeoutError as error:
            self.findings.add(f"{error}: {self.node.log_tail()}")
        self.heal([span], [])

    def serves_hot(self, raw, acknowledged):
        """Whether the newest record of every partition that keeps all is there."""
        if self.node.process.poll() is not None:
            raise TimeoutError(f"the node ended with {self.node.process.returncode} under 503")
        try:
            wanted = {place: end - 1 for place, end in acknowledged.items() if place[0] == "keep"}
            answer = raw.fetch(wanted, 4096, 0)
        except OSError:
            return False
        return all(
            fetched.error == 0 and self.readers[0].right(self.load.of("keep")[place[1]], wanted[place], fetched, "hot")
            for place, fetched in answer.items()
        )

    # The whole

    def start(self):
        self.node.start()
        wait_until(self.node.is_ready, START_SECONDS_MAX, "the node serves")
        self.load.create_topics()
        admin = AdminClient(client(self.node.address))
        admin.create_topics([NewTopic(PROBE, 1, 1, config={"retention.ms": "-1"})])[PROBE].result(30)
        command = [sys.executable, os.path.join(os.path.dirname(__file__), "bucket_probe.py")]
        command += ["--address", self.node.address, "--topic", PROBE, "--out", str(self.samples)]
        self.probe = subprocess.Popen(command, preexec_fn=end_with_parent)
        self.load.start()
        status = self.node.get("/v1/tier/status")
        ids = {entry["topic"]: entry["topic_id"] for entry in status["topics"]}
        self.keep = f"keep-{ids['keep']}"
        # Until there is something cold to read.
        wait_until(lambda: self.drained(self.ends()) or min(self.cold_below.values(), default=0) > 50, 30 * self.patience, "records are cold")
        for reader in self.readers:
            reader.start()
        self.heal([], [])
        self.pause(1.5 if self.arguments.seconds < 120 else 10)

    def run(self):
        begun = time.monotonic()
        self.start()
        self.run_steps(begun + self.arguments.seconds)
        for reader in self.readers:
            reader.end()
            reader.join(30)
        return self.judge()

    def judge(self):
        counted = {}
        self.probe.send_signal(signal.SIGTERM)
        if not self.findings:
            self.load.end(60)
            self.probe.wait(60)
            last = self.samples.read_text().splitlines()[-1]
            if not last.startswith("done"):
                self.findings.add(f"the probe: {last}")
        if not self.findings:
            counted = check.all_of_it(self.node, self.load, self.orphan_age)
        if not self.findings:
            counted["bucket_check"] = self.bucket_check()
            code = self.node.stop()
            if code != 0:
                self.findings.add(f"the last stop ended with {code}: {self.node.log_tail()}")
        return counted

    def bucket_check(self):
        """`tidelog bucket check`, past the proxy. Gives how many checks were made."""
        command = [self.node.binary, "bucket", "check", "--json"]
        command += ["--store", self.arguments.store, "--store-endpoint", self.arguments.endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        if done.returncode != 0:
            self.findings.add(f"`bucket check` ended with {done.returncode}: {done.stdout} {done.stderr}")
            return 0
        return len(json.loads(done.stdout)["checks"])

    # What is told

    def report(self, counted, seconds):
        table, stalls = self.table()
        if not self.findings:
            for text in stalls:
                self.findings.add(text)
        print(table)
        self.proxy_totals()
        document = {
            "seed": self.arguments.seed,
            "faults": sum(row["times"] for row in self.rows.values()),
            "requests": sum(self.proxy.asked.values()),
            "requests_hit": sum(self.proxy.hit.values()),
            "starts_under_503": len(self.restarts),
            "records_acknowledged": self.load.acknowledged(),
            "records_followed": self.load.follower.count,
            "records_replayed": self.load.replayer.count,
            "cold_fetches": dict(sum((c for r in self.readers for c in r.came.values()), collections.Counter())),
            "topics_made_and_deleted": self.load.lives.count,
            **counted,
            "by_kind": self.rows,
            "seconds": round(seconds, 1),
            "findings": self.findings.texts,
        }
        print(json.dumps(document), flush=True)

    def proxy_totals(self):
        print("requests hit, by method and fault")
        for name, count in sorted(self.proxy.hit.items()):
            print(f"  {count:6} {name[:100]}")

    def read_samples(self):
        """(what, moment, seconds), but for what a restart was in the middle of."""
        found = {"produce": [], "read": []}
        try:
            lines = self.samples.read_text().splitlines()
        except FileNotFoundError:
            lines = []
        for line in lines:
            words = line.split(" ")
            if words[0] not in found or len(words) != 3:
                continue
            at, took = float(words[1]), float(words[2])
            if any(at < (until or float("inf")) and at + took > since for since, until in self.restarts):
                continue
            found[words[0]].append((at, took))
        for samples in found.values():
            samples.sort()
        return found

    def table(self):
        """The table, and the stalls."""
        samples = self.read_samples()
        for reader in self.readers:
            samples.setdefault("hot", []).extend(reader.hot_seconds)
        samples.setdefault("hot", []).sort()
        keys = {what: [at for at, _ in found] for what, found in samples.items()}
        stalls = [
            f"{what} took {took:.1f} s at {at - self.spans[0].begun:.1f} s of the campaign, during {self.name_at(at)}"
            for what, found in samples.items()
            for at, took in found
            if took > self.stall_max
        ]
        spans = collections.defaultdict(list)
        for span in self.spans:
            spans[span.name].append(span)
        self.rows = {}
        for name, of_name in spans.items():
            values = {what: [] for what in samples}
            for span in of_name:
                for what, found in samples.items():
                    ended = span.ended or time.monotonic()
                    low, high = bisect.bisect_left(keys[what], span.begun), bisect.bisect_left(keys[what], ended)
                    values[what] += [took for _, took in found[low:high]]
            came = sum((reader.came[span] for reader in self.readers for span in of_name), collections.Counter())
            healed = [span.healed_in for span in of_name if span.healed_in is not None]
            self.rows[name] = {
                "times": len(of_name) if name not in ("no fault", "healthy") else 0,
                "seconds": round(sum((span.ended or time.monotonic()) - span.begun for span in of_name), 1),
                "hit": sum(span.hit for span in of_name),
                "produce_p50_ms": percentile(values["produce"], 50),
                "produce_p99_ms": percentile(values["produce"], 99),
                "read_p50_ms": percentile(values["read"], 50),
                "read_p99_ms": percentile(values["read"], 99),
                "hot_fetch_p99_ms": percentile(values["hot"], 99),
                **{what: came[what] for what in ("ok", "retriable", "late", "damaged")},
                "healed_in_max": round(max(healed), 1) if healed else None,
            }
        usual = self.rows.get("healthy", {})
        head = f"{'fault':<28} {'times':>5} {'s':>6} {'hit':>6} {'produce p50':>11} {'p99 ms':>7} {'ratio':>6} "
        head += f"{'hot p99':>8} {'ratio':>6} {'cold ok':>7} {'retriable':>9} {'late':>5} {'damaged':>7} {'healed in':>9}"
        lines = [head]
        for name, row in sorted(self.rows.items(), key=lambda item: (item[1]["times"] > 0, item[0])):
            lines.append(
                f"{name:<28} {row['times'] or '':>5} {row['seconds']:>6} {row['hit'] or '':>6} {row['produce_p50_ms']:>11} "
                f"{row['produce_p99_ms']:>7} {ratio(row, usual, 'produce_p99_ms'):>6} {row['read_p99_ms']:>8} "
                f"{ratio(row, usual, 'read_p99_ms'):>6} {row['ok']:>7} {row['retriable']:>9} {row['late']:>5} "
                f"{row['damaged']:>7} {row['healed_in_max'] if row['healed_in_max'] is not None else '':>9}"
            )
        return "\n".join(lines), stalls[:5]

    def name_at(self, moment):
        for span in self.spans:
            if span.begun <= moment and (span.ended is None or moment < span.ended):
                return span.name
        return "the start"

    def end(self):
        for worker in [*self.load.workers(), *self.readers]:
            worker.end()
        if self.probe is not None and self.probe.poll() is None:
            self.probe.kill()
            self.probe.wait(10)
        self.node.end()
        self.proxy.end()


def percentile(values, percent):
    if not values:
        return 0.0
    ordered = sorted(values)
    return round(ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] * 1000, 1)


def ratio(row, usual, what):
    return round(row[what] / usual[what], 1) if usual.get(what) else ""


def main():
    parser = argparse.ArgumentParser()
    for name in ("binary", "proxy", "endpoint", "store"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--objects", type=pathlib.Path, required=True)
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=int, default=1000, help="records a second")
    parser.add_argument("--patience", type=float, default=1.0, help="what limits of time are multiplied by")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}, {arguments.seconds} s, folder {arguments.folder}", flush=True)
    campaign.run(Campaign(arguments), arguments.folder)


if __name__ == "__main__":
    main()
