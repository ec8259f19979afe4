"""One flipped bit in each kind of file of a data directory, and of object of a bucket.

The kinds are those of a real node's directory and bucket, as a listing shows them: one that no table here knows is a finding, and
so is one of the table that no directory holds. Each flip has its own copy of both, and must be harmless (every record is read, as
it was written), or found and told: the start is refused and says which file and what to do, or the partition's damaged records are
refused and the log and a metric say so. What is served is always what was written; what is damaged never goes to the other tier;
no good copy is deleted for it; and every other partition goes on.
"""

import collections
import concurrent.futures
import copy
import pathlib
import re
import shutil
import struct
import subprocess
import threading
import time

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

import check
import fault_node
from fault_node import START_SECONDS_MAX, Node, wait_until
from flipped_kinds import EMPTY, FILES, MAY_BE_ABSENT, OBJECTS, PARTITION
from ledger import Findings, Ledger
from load import PASSING, Reading, Writer, client, consumer, idempotent_producer

SETTINGS = {
    **fault_node.SETTINGS,
    "log.local.retention.ms": "86400000",
    "tier.upload.max.lag.ms": "300",
    "tier.delete.grace.ms": "300",
    "tier.orphan.age.ms": "2000",
    "manifest.publish.ms": "200",
    "tier.object.target.bytes": "32768",
    "tier.cache.bytes": str(16 << 20),
}

# In both tiers; in the bucket alone; on local disk alone; and one whose newest records are lost, so that it is fenced.
BOTH, COLD, LOCAL, FENCED = "keep-both", "keep-cold", "keep-local", "fenced"
TOPICS = {
    BOTH: (2, 400, {}),
    COLD: (2, 1900, {"local.retention.ms": "1"}),
    LOCAL: (2, 400, {"remote.storage.enable": "false"}),
    FENCED: (1, 300, {"remote.storage.enable": "false"}),
}
# More than two snapshots of the controller take.
CHANGES_OF_CONFIG = 2300
CHANGES_AT_ONCE = 100

# What a start that is refused must say, beside the file.
ADVICE = re.compile(r"restore|run the version that wrote|give this node|give the store|with --data-dir|with another prefix|use another prefix")
TOLD = re.compile(r"^.*\b(ERROR|WARN)\b.*$|^error: .*$", re.MULTILINE)
# Metrics of damage: above 0 where something was found.
DAMAGE = (
    "log_corrupt_intervals_total",
    "log_rebuilt_indexes_total",
    "replica_fenced_partitions",
    "replica_failed_partitions",
    "tier_damaged_uploads_total",
    "tier_cold_corrupt_intervals_total",
    "tier_cold_missing_objects_total",
)
# What a reader of a damaged range is told.
DAMAGED_READS = {"KAFKA_STORAGE_ERROR", "REPLICA_NOT_AVAILABLE"}
SILENCE_SECONDS = 2.0
AT_ONCE = 6
# Each is of its own flip; the first ones are enough to look at.
FINDINGS_MAX = 8
RECORDS_MORE = 10


# From the best to the worst.
OUTCOMES = ["harmless", "found, and all is served", "found, and not served", "start refused", "a finding"]


class Quiet(Findings):
    """Findings of one flip, which are told with it."""

    def add(self, text):
        with self.lock:
            self.texts.append(text)


class PlainNode(Node):
    def start(self):
        self.run([self.binary, "serve", "--config", str(self.folder / "node.toml")])

    def said(self):
        return (self.folder / "node.log").read_text(errors="replace")

    def starts(self):
        """Whether it serves; False where it has ended instead."""
        self.start()
        wait_until(lambda: self.is_ready() or self.process.poll() is not None, START_SECONDS_MAX, "the node serves or ends")
        return self.process.poll() is None


def kind_of(kinds, path):
    return next((kind for kind, pattern in kinds.items() if re.fullmatch(pattern, path)), None)


def listing(folder):
    """Files below a folder: path to length."""
    files = (path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def flip(path, position, bit):
    with open(path, "r+b") as file:
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ (1 << bit)]))


class Image:
    """A stopped node's directory and bucket, to be copied."""

    def __init__(self, folder, ledgers):
        self.folder, self.ledgers = folder, ledgers
        self.files = listing(folder / "data")
        self.objects = listing(folder / "bucket")


class Flip:
    """One bit of one file, before a start or while the node runs."""

    def __init__(self, kind, image, root, path, part, position, bit, running=False):
        self.kind, self.image, self.root, self.path, self.part = kind, image, root, path, part
        self.position, self.bit, self.running = position, bit, running

    def __str__(self):
        when = ", while it runs" if self.running else ""
        return f"{self.kind} ({self.part}): {self.root}/{self.path} of {self.image.folder.name}, bit {self.bit} of byte {self.position}{when}"


class Places:
    """Where in a file bits are flipped: at its head, in its middle and at its tail, by what it holds."""

    def __init__(self, image, rng):
        self.image, self.rng = image, rng

    def parts(self, kind, path, length):
        if kind == "segment object":
            return self.sections(path)
        used = self.used(kind, path, length)
        if used == 0:
            return {"unused": (0, length)}
        edge = min(64, max(used // 3, 1))
        return {"head": (0, edge), "middle": (edge, max(used - edge, edge + 1)), "tail": (max(used - edge, 0), used)}

    def sections(self, path):
        """The sections of a segment object, as its footer names them."""
        content = (self.image.folder / "bucket" / path).read_bytes()
        names = ["batches", "serving index", "index", "aborted transactions", "leader epochs", "producers"]
        found, footer = {}, content[-512:]
        for number, name in enumerate(names):
            position, length, _ = struct.unpack_from(">QQI", footer, 140 + 20 * number)
            if length and name != "serving index":
                found[name] = (position, position + length)
        found["footer"] = (len(content) - 512, len(content))
        return found

    def used(self, kind, path, length):
        """How much of a file says something: files that are allocated ahead end in zeros."""
        if kind == "journal":
            return self.known_synced(path)
        if kind in ("controller log", "cache"):
            content = (self.image.folder / "data" / path).read_bytes()
            return len(content.rstrip(b"\0"))
        return length

    def known_synced(self, path):
        """Up to where a journal file's own headers say that it was synced: behind it nobody can tell rot from a torn round."""
        content = (self.image.folder / "data" / path).read_bytes()
        if content[:4] != b"TLJF":
            return 0
        generation, base = struct.unpack_from(">QQ", content, 8)
        synced = base
        for at in range(4096, len(content), 4096):
            if content[at : at + 4] == b"TLJR" and struct.unpack_from(">Q", content, at + 8)[0] == generation:
                synced = max(synced, struct.unpack_from(">Q", content, at + 24)[0])
        return max(min(synced - base, len(content)), 0)


def wait_for_tiers(node, uploaded, evicted, but=()):
    """Until the partitions of some topics are in the bucket, and those of some are nowhere else."""

    def done():
        status = node.get("/v1/tier/status") or {"topics": []}
        parts = {(e["topic"], p["partition"]): p for e in status["topics"] for p in e["partitions"]}
        wanted = {place: part for place, part in parts.items() if place not in but}
        return (
            parts
            and all(p["tiered_end"] == p["log_end"] for place, p in wanted.items() if place[0] in uploaded)
            and all(p["local_log_start"] == p["log_end"] for place, p in wanted.items() if place[0] in evicted)
        )

    what = f"{sorted(uploaded)} are uploaded and {sorted(evicted)} evicted, but for {sorted(but)}"
    try:
        wait_until(done, 30, what, every=0.1)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {node.get('/v1/tier/status')}") from error


class Read:
    """What came of one partition."""

    def __init__(self, ledger, low, high):
        self.reading = Reading(ledger, False)
        self.low, self.high = low, high
        self.errors = set()

    @property
    def next(self):
        return self.reading.next or 0

    @property
    def is_whole(self):
        return self.next >= self.high == self.reading.ledger.sent


def read_everything(node, ledgers, findings, starts=None):
    """Reads partitions to their ends, or until nothing comes any more. Gives a `Read` for each, and how many records came."""
    source = consumer(node.address)
    reads = {}
    for place, ledger in ledgers.items():
        try:
            low, high = source.get_watermark_offsets(TopicPartition(*place), timeout=30)
            reads[place] = Read(ledger, low, high)
        except KafkaException as error:
            reads[place] = Read(ledger, 0, ledger.sent)
            reads[place].errors.add(error.args[0].name())
        reads[place].reading.next = (starts or {}).get(place, 0)
    source.assign([TopicPartition(*place, (starts or {}).get(place, 0)) for place in reads])
    count, silent_since = 0, time.monotonic()
    while any(read.next < read.high for read in reads.values()) and not findings:
        messages = source.consume(2000, timeout=0.1)
        for message in messages:
            place = message.topic(), message.partition()
            error = message.error()
            if error is not None:
                if place in reads:
                    reads[place].errors.add(error.name())
                continue
            why = reads[place].reading.take(message)
            if why is not None:
                findings.add(f"it was served: {why}")
                break
            count += 1
            silent_since = time.monotonic()
        if time.monotonic() > silent_since + SILENCE_SECONDS:
            break
    source.close()
    return reads, count


class FlippedBits:
    def __init__(self, binary, folder, rng, findings, everything):
        self.binary, self.folder, self.rng, self.findings, self.everything = binary, pathlib.Path(folder), rng, findings, everything
        self.node = PlainNode(binary, self.folder / "first", SETTINGS)
        self.outcomes = collections.Counter()
        self.by_kind = {}
        self.lock = threading.Lock()
        self.records = 0

    def end(self):
        self.node.end()

    def run(self, until):
        begun = time.monotonic()
        images = self.prepare()
        flips = self.flips(images) if not self.findings else []
        print(f"flipped bits: {len(flips)} of {sum(map(len, self.by_kind_planned.values()))} planned; "
              f"ready after {time.monotonic() - begun:.1f} s", flush=True)
        with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
            for done in [pool.submit(self.guarded, number, one, until) for number, one in enumerate(flips)]:
                done.result()
        return {
            "flips": sum(self.outcomes.values()),
            "outcomes": dict(self.outcomes),
            "by_kind": {kind: dict(outcomes) for kind, outcomes in sorted(self.by_kind.items())},
            "records_compared": self.records,
        }

    # The images.

    def prepare(self):
        node = self.node
        node.start()
        wait_until(node.is_ready, START_SECONDS_MAX, "the first node serves")
        admin = AdminClient(client(node.address))
        topics = [NewTopic(name, parts, 1, config=config) for name, (parts, _, config) in TOPICS.items()]
        for future in admin.create_topics(topics).values():
            future.result(30)
        ledgers = {(name, part): Ledger(name, part) for name, (parts, _, _) in TOPICS.items() for part in range(parts)}
        self.write(node, ledgers, {place: TOPICS[place[0]][1] for place in ledgers})
        self.change_configurations(admin)
        wait_for_tiers(node, {BOTH, COLD}, {COLD})
        self.warm_cache(node, ledgers)
        self.topic_names = {entry["topic_id"]: entry["topic"] for entry in node.get("/v1/tier/status")["topics"]}
        self.expect_stop(node)
        self.lose_the_newest(node)
        # The fence is made, and the cache's disk part is filled.
        if not node.starts():
            self.findings.add(f"a node with a lost segment does not start: {node.log_tail()}")
            return {}
        self.warm_cache(node, ledgers)
        self.expect_stop(node)
        clean = Image(self.copy(node, "clean"), copy.deepcopy(ledgers))
        node.start()
        wait_until(node.is_ready, START_SECONDS_MAX, "the node serves again")
        self.write(node, {place: ledger for place, ledger in ledgers.items() if place[0] != FENCED}, dict.fromkeys(ledgers, 60))
        node.kill()
        return {"clean": clean, "killed": Image(self.copy(node, "killed"), copy.deepcopy(ledgers))}

    def expect_stop(self, node):
        code = node.stop()
        if code != 0:
            self.findings.add(f"a stop ended with {code}: {node.log_tail()}")

    def write(self, node, ledgers, counts):
        writer = Writer(node.address, list(ledgers.values()), 1e9, 1, self.findings, **{"batch.num.messages": 10})
        for place, ledger in ledgers.items():
            for _ in range(counts[place]):
                writer.send(ledger)
        if writer.flush(60):
            self.findings.add("records are not acknowledged within 60 s")

    def change_configurations(self, admin):
        """Entries of the controller's log, so that there are snapshots of it."""
        for first in range(0, CHANGES_OF_CONFIG, CHANGES_AT_ONCE):
            futures = []
            for number in range(first, first + CHANGES_AT_ONCE):
                resource = ConfigResource(ResourceType.TOPIC, LOCAL)
                value = str(86_400_000 + number)
                resource.add_incremental_config(ConfigEntry("segment.ms", value, incremental_operation=AlterConfigOpType.SET))
                futures += admin.incremental_alter_configs([resource]).values()
            for future in futures:
                future.result(30)

    def warm_cache(self, node, ledgers):
        """Chunks that are read twice, by two readers, go to the cache."""
        for _ in range(3):
            cold = {place: ledger for place, ledger in ledgers.items() if place[0] == COLD}
            read_everything(node, cold, self.findings)

    def lose_the_newest(self, node):
        topic_id = next(topic_id for topic_id, name in self.topic_names.items() if name == FENCED)
        max((node.data / f"{topic_id}-0").glob("*.log")).unlink()

    def copy(self, node, name):
        target = self.folder / name
        target.mkdir()
        for part in ("data", "bucket"):
            subprocess.run(["cp", "-a", "--sparse=always", node.folder / part, target / part], check=True)
        return target

    # What is flipped.

    def flips(self, images):
        """The plan: every kind at every place, or a choice of it."""
        planned = collections.defaultdict(list)
        for image in images.values():
            for path, length in sorted(image.files.items()):
                kind = kind_of(FILES, path)
                if kind is None:
                    self.findings.add(f"{path}: no kind of file of the table: {image.folder}")
                elif length > 0:
                    self.plan_file(planned, image, kind, path, length)
                    continue
                elif kind not in EMPTY and kind != "producers":
                    self.findings.add(f"{path} is empty, and is no file that may be")
                if kind is not None:
                    planned.setdefault(kind, [])
        clean = images["clean"]
        for path, length in sorted(clean.objects.items()):
            kind = kind_of(OBJECTS, path)
            if kind is None:
                self.findings.add(f"{path}: no kind of object of the table")
                continue
            for running in (False, True):
                self.plan_places(planned, clean, kind, "bucket", path, length, running)
        for kind in [*FILES, *OBJECTS]:
            if kind not in planned and kind not in MAY_BE_ABSENT:
                self.findings.add(f"no node's directory or bucket holds a {kind}: the table is wrong, or the campaign")
        self.by_kind_planned = planned
        return self.choose(planned)

    def plan_file(self, planned, image, kind, path, length):
        if (kind == "journal") != (image.folder.name == "killed") and kind in ("journal", "controller log"):
            # A clean stop leaves nothing in the journal; and a kill leaves a last record that nobody can tell from a torn one.
            planned.setdefault(kind, [])
            return
        if image.folder.name == "killed" and kind not in ("journal", "segment", "checkpoint", "producers", "in the making"):
            return
        self.plan_places(planned, image, kind, "data", path, length, False)

    def plan_places(self, planned, image, kind, root, path, length, running):
        for part, (start, end) in Places(image, self.rng).parts(kind, path, length).items():
            position = self.said_at(image, root, path, start, max(end, start + 1))
            planned[kind].append(Flip(kind, image, root, path, part, position, self.rng.randrange(8), running))

    def said_at(self, image, root, path, start, end):
        """A place where something is written, as far as there is one: most of what is padded is zeros."""
        with open(image.folder / root / path, "rb") as file:
            for _ in range(20):
                position = self.rng.randrange(start, end)
                file.seek(position)
                if file.read(1) != b"\0":
                    break
        return position

    def choose(self, planned):
        """All of it is thousands: of each kind, place and moment some are taken, the ones first that differ most."""
        rounds = 3 if self.everything else 1
        chosen, rest = [], []
        for kind in sorted(planned):
            groups = collections.defaultdict(list)
            for one in planned[kind]:
                topic = self.topic_of(one)
                groups[one.part, one.running, one.image.folder.name, topic].append(one)
            picks = [one for group in groups.values() for one in self.rng.sample(group, min(rounds, len(group)))]
            self.rng.shuffle(picks)
            chosen += picks[:1]
            rest += picks[1:]
        self.rng.shuffle(chosen)
        self.rng.shuffle(rest)
        # One of each kind first, then whatever the time allows.
        self.at_least = len(chosen)
        return chosen + rest

    def topic_of(self, one):
        """The topic whose file or object it is; None where it is of no partition."""
        match = re.match(PARTITION, one.path) if one.root == "data" else None
        if match:
            return self.topic_names.get(match["id"])
        match = check.SEGMENT.match(one.path) or check.PAGE.match(one.path) or check.MANIFEST.match(one.path)
        return match["topic"] if match else None

    def places_of(self, one):
        """The partitions that a flip may hurt: its own, or all, where it is of no partition."""
        match = re.match(PARTITION, one.path) if one.root == "data" else None
        match = match or check.SEGMENT.match(one.path) or check.PAGE.match(one.path) or check.MANIFEST.match(one.path)
        if match:
            return {(self.topic_of(one), int(match["partition"]))}
        return set(one.image.ledgers) if one.kind == "journal" else set()

    # One flip.

    def guarded(self, number, one, until):
        late = time.monotonic() > until and number >= self.at_least and not self.everything
        if late or len(self.findings.texts) >= FINDINGS_MAX:
            return
        folder = self.folder / f"flip-{number}"
        case = Case(self, one, folder)
        try:
            outcome = case.run()
        except Exception as error:  # noqa: BLE001 - it ends this one, with what was found so far
            self.findings.add(f"{one}: {type(error).__name__}: {error}; {case.node.log_tail()}")
            outcome = "a finding"
        finally:
            case.node.end()
        with self.lock:
            self.records += case.records
            self.outcomes[outcome] += 1
            self.by_kind.setdefault(one.kind, collections.Counter())[outcome] += 1
        if not case.findings:
            shutil.rmtree(folder, ignore_errors=True)
        for text in case.findings.texts:
            self.findings.add(f"{one}: {text}")


class Case:
    """One flip, in a copy of its own."""

    def __init__(self, campaign, one, folder):
        self.one, self.folder = one, folder
        self.findings = Quiet()
        self.names = campaign.topic_names
        self.ledgers = copy.deepcopy(one.image.ledgers)
        self.hurt = campaign.places_of(one)
        self.topic = campaign.topic_of(one)
        self.records = 0
        folder.mkdir()
        for part in ("data", "bucket"):
            subprocess.run(["cp", "-a", "--sparse=always", one.image.folder / part, folder / part], check=True)
        self.node = PlainNode(campaign.binary, folder, SETTINGS)
        self.path = folder / one.root / one.path

    def flip(self):
        flip(self.path, self.one.position, self.one.bit)

    def run(self):
        if not self.one.running:
            self.flip()
        if not self.node.starts():
            return self.refused()
        if self.one.running:
            self.node.drop_cache()
            self.flip()
        outcome = self.judge("at first")
        if not self.findings:
            self.produce()
            self.make_cold()
        if not self.findings:
            outcome = max(outcome, self.judge("cold"), key=OUTCOMES.index)
            self.keeps_good_copies()
        if not self.findings:
            self.stop()
        if not self.findings and self.node.starts():
            outcome = max(outcome, self.judge("started again"), key=OUTCOMES.index)
            self.stop()
        return outcome if not self.findings else "a finding"

    def stop(self):
        code = self.node.stop()
        if code != 0:
            self.findings.add(f"a stop ended with {code}: {self.node.log_tail()}")

    def refused(self):
        """A start that is refused says which file and what to do, has changed nothing, and goes on once the file is as it was."""
        said, code = self.node.said(), self.node.process.returncode
        error = said[said.rfind("\nerror: ") :]
        if code != 1 or pathlib.Path(self.one.path).name not in error or not ADVICE.search(error):
            self.findings.add(f"the start ended with {code}, and said {error or said[-2000:]}")
            return "a finding"
        self.flip()
        if not self.node.starts():
            self.findings.add(f"the file is as it was, and the start is refused: {self.node.log_tail()}")
            return "a finding"
        self.hurt = set()
        self.judge("with the file as it was")
        self.keeps_good_copies()
        self.stop()
        return "start refused"

    def judge(self, when):
        """Reads everything: what is served is right, and what is not served is told."""
        reads, count = read_everything(self.node, self.ledgers, self.findings)
        self.records += count
        metrics = self.node.metrics()
        missing = set()
        for place, read in reads.items():
            if place[0] == FENCED:
                continue
            unexpected = read.errors - {KafkaError(code).name() for code in PASSING}
            if place not in self.hurt and unexpected:
                self.findings.add(f"{when}: {place} is not hurt, and its reader got {unexpected}")
            if not read.is_whole:
                missing.add(place)
                if place not in self.hurt:
                    at = f"read up to {read.next} of {read.high}, {read.reading.ledger.sent} were acknowledged"
                    self.findings.add(f"{when}: {place} is not hurt, and is {at}: {self.told() or self.node.log_tail()}")
        if not metrics.get("replica_fenced_partitions"):
            self.findings.add(f"{when}: the partition that was fenced is not any more")
        if self.findings:
            return "a finding"
        damage = {name: metrics.get(name, 0) for name in DAMAGE}
        damage["replica_fenced_partitions"] -= 1
        told = self.told()
        if missing:
            if not told or not any(value > 0 for value in damage.values()):
                self.findings.add(f"{when}: {missing} are not whole, and nobody is told: {told}, {damage}; {self.node.log_tail()}")
            self.reads_on_behind(when, {place: reads[place] for place in missing})
            for place in missing:
                read = reads[place]
                if read.high < read.reading.ledger.sent and damage["replica_fenced_partitions"] < 1:
                    self.findings.add(f"{when}: {place} ends at {read.high} of {read.reading.ledger.sent}, and is not fenced")
        if self.one.kind == "journal":
            # One entry is hurt, and whose it is, is told: all others go on.
            fences = self.node.get("/v1/fences")["fences"]
            self.hurt &= missing | {(fence["topic"], fence["partition"]) for fence in fences}
        if missing:
            return "found, and not served"
        return "found, and all is served" if told or any(value > 0 for value in damage.values()) else "harmless"

    def told(self):
        """Lines of the log that tell of this damage."""
        name, folder = pathlib.Path(self.one.path).name, pathlib.Path(self.one.path).parent.name
        words = {name, folder if re.fullmatch(PARTITION, folder) else name, "the journal"}
        words |= {f"partition={number} topic={topic}" for topic, number in self.hurt}
        lines = (match[0] for match in TOLD.finditer(self.node.said()))
        return [line for line in lines if any(word in line for word in words)]

    def reads_on_behind(self, when, reads):
        """What lies behind the damaged segment is served, where the log reaches so far."""
        for place, read in reads.items():
            bases = [base for base in self.bases(place) if read.next < base < read.high]
            if not bases:
                continue
            # A page holds many of them.
            start = {place: max(bases) if self.one.kind == "page" else min(bases)}
            behind, count = read_everything(self.node, {place: self.ledgers[place]}, self.findings, start)
            self.records += count
            if behind[place].next <= start[place]:
                self.findings.add(f"{when}: {place} is hurt at {read.next}, and nothing is served from {start[place]} on")

    def bases(self, place):
        """First offsets of its segments and objects, in the image."""
        found = set()
        for path in [*self.one.image.files, *self.one.image.objects]:
            name = pathlib.Path(path).name
            match = re.match(r"(\d{20})(?:-\d+-\d+-\d+\.seg|\.log)$", name)
            if match and self.owner(path) == place:
                found.add(int(match[1]))
        return found

    def owner(self, path):
        match = re.match(PARTITION, path) or check.SEGMENT.match(path)
        return (self.names.get(match["id"]), int(match["partition"])) if match else None

    def produce(self):
        """More records to every partition; those that are hurt may refuse them."""
        for place, ledger in self.ledgers.items():
            before, failed = ledger.sent, []
            options = {"enable.idempotence": False, "message.timeout.ms": 5000 if place in self.hurt or place[0] == FENCED else 20_000}
            producer = idempotent_producer(self.node.address, **options)
            for _ in range(RECORDS_MORE):
                number, key, value, headers, time_ms = ledger.append()

                def delivered(error, message, number=number):
                    if error is not None:
                        failed.append(error.name())
                    else:
                        ledger.settle(number, message.offset(), self.findings)

                producer.produce(
                    place[0], value, key, place[1], on_delivery=delivered, timestamp=time_ms, headers=headers
                )
            left = producer.flush(30)
            if left or failed:
                if place not in self.hurt and place[0] != FENCED:
                    self.findings.add(f"{place} is not hurt, and takes no records: {set(failed)}; {self.node.log_tail()}")
                if len(failed) != RECORDS_MORE:
                    self.findings.add(f"{place} took some records: {failed}, {left} left")
                del ledger.times[before:], ledger.offsets[before:]
            elif place[0] == FENCED:
                self.findings.add(f"{place} is fenced, and took records")

    def make_cold(self):
        """What may leaves local disk. Where an object is hurt whose records local disk has, these stay."""
        spared = self.hurt if self.one.root == "bucket" and self.topic == BOTH else set()
        if not spared:
            admin = AdminClient(client(self.node.address))
            resource = ConfigResource(ResourceType.TOPIC, BOTH)
            entry = ConfigEntry("local.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
            resource.add_incremental_config(entry)
            admin.incremental_alter_configs([resource])[resource].result(30)
        wait_for_tiers(self.node, {BOTH, COLD}, {COLD} if spared else {BOTH, COLD}, self.hurt)
        self.node.drop_cache()

    def keeps_good_copies(self):
        """Every segment object of before is there with its bytes, the hurt one too; and whatever a manifest names."""
        for path in self.one.image.objects:
            if not path.endswith(".seg") and path != "cluster.json":
                continue
            now, before = self.folder / "bucket" / path, self.one.image.folder / "bucket" / path
            if not now.exists():
                self.findings.add(f"{path} was deleted")
            elif path != self.one.path and now.read_bytes() != before.read_bytes():
                self.findings.add(f"{path} is not what it was")
        if self.one.kind != "page":
            check.nothing_named_is_missing(self.node, self.findings)
        if self.topic == LOCAL and self.one.root == "data":
            # Nothing else has these.
            for path in self.one.image.files:
                if self.owner(path) in self.hurt and path.endswith(".log") and not (self.folder / "data" / path).exists():
                    self.findings.add(f"{path} was deleted, and it is nowhere else")
