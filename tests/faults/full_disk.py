"""A data disk that fills up while clients work: by the records, or by a file of somebody else's.

While it is full producers get an error that may be retried, before the file system refuses anything; reads of both tiers, uploads,
deletions of records and of topics go on; and once there is space, by whatever means, the node takes records again by itself.
"""

import collections
import contextlib
import os
import shutil
import time

from confluent_kafka import OFFSET_BEGINNING, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

import check
import small_disk
from fault_node import START_SECONDS_MAX, Node, wait_until
from ledger import Ledger
from load import Reading, Writer, client, consumer, idempotent_producer, take_all

# Large enough that a node keeps something aside for a start without space.
DISK_BYTES = 192 << 20
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.segment.bytes": str(1 << 20),
    "log.retention.ms": "-1",
    # Nothing leaves local disk by itself, so that it fills.
    "local.disk.bytes.max": str(1 << 40),
    "log.tail.bytes": str(16 << 20),
    "tier.check.interval.ms": "100",
    "tier.upload.max.lag.ms": "1000",
    "tier.object.target.bytes": str(4 << 20),
    "tier.delete.grace.ms": "700",
    "tier.cache.bytes": "0",
}
# A topic whose records are in the bucket alone, one of which records are deleted, and one to ask whether records are taken.
COLD, TRIMMED, PROBE = "keep-cold", "trimmed", "probe"
COLD_RECORDS = 400
# What a producer may be told while the disk is full; all of it may be retried.
REFUSALS = {"KAFKA_STORAGE_ERROR", "_MSG_TIMED_OUT", "_TIMED_OUT", "REQUEST_TIMED_OUT"}
# Where somebody else's file has most of the disk.
LEFT_TO_RECORDS = 40 << 20
# From free space to the first record that is taken.
RECOVERY_SECONDS_MAX = 10
FILL_SECONDS_MAX = 60
# How long the disk stays full, at least.
FULL_SECONDS = 2.0
DEEDS_SECONDS_MAX = 20

PADDING = os.urandom(1 << 17)


class BulkLedger(Ledger):
    """Large records, so that a disk fills soon."""

    def __init__(self, topic, partition, size):
        super().__init__(topic, partition)
        self.size = size

    def content(self, number):
        start = number * 4099 % 65536
        return super().content(number) + PADDING[start : start + self.size]


class DiskNode(Node):
    """The shipped program with its data on a small file system."""

    def __init__(self, binary, folder, disk_bytes=DISK_BYTES, settings=SETTINGS):
        super().__init__(binary, folder, settings)
        small_disk.mount(self.data, disk_bytes)
        self.ballast = self.data / "ballast"

    def start(self):
        self.run([self.binary, "serve", "--config", str(self.folder / "node.toml")])

    def take_space(self, left):
        """A file of somebody else's takes what is free, but for some bytes."""
        with open(self.ballast, "ab", buffering=0) as file:
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while small_disk.free(self.data) >= left + size or left == 0:
                        file.write(bytes(size))

    def give_space_back(self):
        self.ballast.unlink(missing_ok=True)

    @contextlib.contextmanager
    def bucket_away(self):
        """Every request to the bucket fails while this lasts."""
        hidden = self.bucket.with_name("bucket-hidden")
        self.bucket.rename(hidden)
        self.bucket.write_bytes(b"a file where the bucket's folder was")
        try:
            yield
        finally:
            self.bucket.unlink()
            hidden.rename(self.bucket)


class Scenario:
    """How the disk fills, and what makes space again."""

    def __init__(self, way, bucket, partitions, rate, record_bytes):
        self.way, self.bucket, self.partitions, self.rate, self.record_bytes = way, bucket, partitions, rate, record_bytes

    def __str__(self):
        rate = f"{self.rate} records/s" if self.rate < 1e6 else "as fast as it goes"
        return f"{self.way}, bucket {self.bucket}, {self.partitions} partitions, {rate} of {self.record_bytes} bytes"


def scenarios(rng):
    """Endlessly; the first ones are those of a short run."""
    yield Scenario("records", "well", 16, 1e9, 16_000)
    yield Scenario("ballast", "away", 1, 1e9, 60_000)
    yield Scenario("ballast", "well", 48, 3000, 2_000)
    while True:
        way, bucket = rng.choice(["records", "ballast"]), rng.choice(["well", "away"])
        partitions = rng.choice([1, 3, 16, 64])
        rate, size = rng.choice([(1e9, 100_000), (1e9, 16_000), (1e9, 1_000), (4000, 4_000), (1500, 16_000)])
        if way == "records" and rate * size < 12e6:
            way = "ballast"
        yield Scenario(way, bucket, partitions, rate, size)


class Prober:
    """Asks whether records are taken: one at a time, without a retry of the client."""

    def __init__(self, address, findings):
        options = {"enable.idempotence": False, "retries": 0, "linger.ms": 0, "message.timeout.ms": 4000}
        self.producer = idempotent_producer(address, **options)
        self.findings = findings
        self.answers = collections.Counter()
        self.taken = 0

    def ask(self):
        """None where it was taken, else the error's name."""
        told = []
        self.producer.produce(PROBE, b"taken?", on_delivery=lambda error, message: told.append(error))
        while not told:
            self.producer.poll(0.1)
        if told[0] is None:
            self.taken += 1
            return None
        name = told[0].name()
        self.answers[name] += 1
        if name not in REFUSALS:
            self.findings.add(f"a producer was told {name}: {told[0].str()}, which is none of {sorted(REFUSALS)}")
        return name


class FullDisk:
    """The campaign: one node, one scenario after another."""

    def __init__(self, binary, folder, rng, findings):
        self.rng = rng
        self.findings = findings
        self.node = DiskNode(binary, folder)
        self.admin = AdminClient(client(self.node.address))
        self.ledgers = [Ledger(TRIMMED, 0), Ledger(TRIMMED, 1)]
        self.counted = collections.Counter()
        self.refusals = collections.Counter()
        self.longest_recovery = 0.0
        self.least_free = DISK_BYTES
        self.number = 0

    # What check.py reads of a load.
    @property
    def load(self):
        return self

    def create(self, name, partitions, **config):
        self.admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(30)

    def run(self, until):
        node = self.node
        node.start()
        wait_until(node.is_ready, START_SECONDS_MAX, "the node serves")
        self.prepare()
        for scenario in scenarios(self.rng):
            if self.findings or time.monotonic() > until:
                break
            print(f"full disk: {scenario}", flush=True)
            self.one(scenario)
        if not self.findings:
            self.restart("at the end")
        if not self.findings:
            code = node.stop()
            if code != 0:
                self.findings.add(f"the last stop ended with {code}: {node.log_tail()}")
        return {
            "refusals": dict(self.refusals),
            "longest_recovery_seconds": round(self.longest_recovery, 2),
            "least_free_bytes": self.least_free,
            **self.counted,
        }

    def prepare(self):
        self.create(COLD, 1, **{"local.retention.ms": "1", "segment.bytes": "65536"})
        self.create(TRIMMED, 2, **{"segment.bytes": "65536"})
        self.create(PROBE, 1, **{"retention.bytes": "1048576"})
        cold = BulkLedger(COLD, 0, 4000)
        self.ledgers.append(cold)
        writer = Writer(self.node.address, self.ledgers, 1e9, 1, self.findings)
        for _ in range(COLD_RECORDS):
            writer.send(cold)
        for _ in range(600):
            for ledger in self.ledgers[:2]:
                writer.send(ledger)
        if writer.flush(30):
            self.findings.add("the first records are not acknowledged within 30 s")
        self.trimmer = writer

        def is_cold():
            status = check.partition_status(self.node, COLD, 0)
            return status and status["local_log_start"] == status["log_end"] == COLD_RECORDS

        wait_until(is_cold, 30, f"{COLD} is in the bucket alone", every=0.1)
        self.prober = Prober(self.node.address, self.findings)

    def one(self, scenario):
        self.number += 1
        bulk, gone = f"keep-bulk-{self.number}", f"gone-{self.number}"
        self.create(bulk, scenario.partitions)
        self.create(gone, 2)
        new = [BulkLedger(bulk, part, scenario.record_bytes) for part in range(scenario.partitions)]
        self.ledgers += new
        self.write_some(gone)
        options = {"queue.buffering.max.kbytes": 16384, "batch.size": 262144, "batch.num.messages": 1000}
        writers = [Writer(self.node.address, new, scenario.rate, self.number, self.findings, **options)]
        before = self.errors()
        if scenario.way == "ballast":
            # However fast the records come: most of the space is not theirs, and its end is enough for all of them.
            self.node.take_space(LEFT_TO_RECORDS)
        with contextlib.ExitStack() as stack:
            if scenario.bucket == "away":
                stack.enter_context(self.node.bucket_away())
            for writer in writers:
                writer.start()
            self.fill(scenario)
            if not self.findings:
                self.while_full(scenario, new, gone, before)
            if scenario.way == "ballast" and scenario.bucket == "well" and not self.findings:
                self.starts_without_space(scenario)
            for writer in writers:
                writer.end()
            if not self.findings:
                self.make_space(scenario, bulk)
        if self.findings:
            return
        self.settle(scenario, writers, new)
        if not self.findings and self.number % 3 == 0:
            self.restart(str(scenario))
        # The next one needs the space.
        self.admin.delete_topics([bulk])[bulk].result(30)
        self.ledgers = [ledger for ledger in self.ledgers if ledger not in new]
        wait_until(self.is_roomy, 20, "a deleted topic's space is free", every=0.1)
        self.counted["scenarios"] += 1

    def write_some(self, topic):
        ledgers = [BulkLedger(topic, part, 2000) for part in range(2)]
        writer = Writer(self.node.address, ledgers, 1e9, 1, self.findings)
        for _ in range(100):
            writer.send(self.rng.choice(ledgers))
        if writer.flush(30):
            self.findings.add(f"{topic}: not acknowledged within 30 s")

    def fill(self, scenario):
        """Until producers are refused."""
        if scenario.way == "ballast":
            time.sleep(self.rng.uniform(0.1, 0.8))
            self.node.take_space(0)
        begun = time.monotonic()
        while self.prober.ask() is None:
            if time.monotonic() > begun + FILL_SECONDS_MAX:
                status = self.node.get("/v1/tier/status")
                self.findings.add(f"{scenario}: records are taken after {FILL_SECONDS_MAX} s: {status}")
                return
            if self.ended():
                return
            time.sleep(0.01)

    def while_full(self, scenario, ledgers, gone, before):
        begun = time.monotonic()
        deeds = [
            lambda: self.reads_hot(ledgers[0]),
            lambda: self.reads_cold(scenario),
            self.deletes_records,
            lambda: self.deletes_topic(gone),
            lambda: self.uploads(scenario),
        ]
        # Deletions make space: whoever waits for it is quick.
        free = small_disk.free(self.node.data)
        self.least_free = min(self.least_free, free)
        if scenario.way == "records":
            errors = self.errors() - before
            self.counted["write_errors_without_ballast"] += errors
            if errors:
                self.findings.add(f"{scenario}: the file system refused {errors} writes: {self.node.log_tail()}")
        for deed in deeds:
            if not self.findings:
                deed()
        while time.monotonic() < begun + FULL_SECONDS and not self.findings:
            # What a deleted topic had may be filled anew, so that now and then a record is taken.
            self.prober.ask()
            time.sleep(0.05)
            if self.ended():
                return
        self.stands(scenario)

    def starts_without_space(self, scenario):
        """A node that was killed on a full disk starts on it."""
        # Whatever was freed meanwhile goes, too.
        self.node.take_space(0)
        self.node.kill()
        self.node.start()
        try:
            wait_until(lambda: self.node.is_ready() or self.ended(), START_SECONDS_MAX, "the node starts without space")
        except TimeoutError as error:
            self.findings.add(f"{scenario}: {error}: {self.node.log_tail()}")
        self.counted["starts_without_space"] += 1

    def ended(self):
        """Whether the node is gone, which it must not be."""
        if self.node.process.poll() is None:
            return False
        self.findings.add(f"the node ended with {self.node.process.returncode}: {self.node.log_tail()}")
        return True

    def stands(self, scenario):
        metrics = self.node.metrics()
        for name in ("log_failed", "replica_failed_partitions", "replica_fenced_partitions", "runtime_task_panics_total"):
            if metrics.get(name):
                self.findings.add(f"{scenario}: {name} is {metrics[name]}: {self.node.log_tail()}")

    def errors(self):
        """Writes and syncs that the file system refused."""
        metrics = self.node.metrics()
        return sum(metrics.get(f'runtime_disk_errors_total{{operation="{kind}"}}', 0) for kind in ("write", "sync"))

    def read(self, ledger, count, seconds):
        """Reads the first records of a partition. Gives how many came."""
        source = consumer(self.node.address)
        place = (ledger.topic, ledger.partition)
        readings = {place: Reading(ledger, False)}
        source.assign([TopicPartition(*place, OFFSET_BEGINNING)])
        came, deadline = 0, time.monotonic() + seconds
        while came < count and time.monotonic() < deadline and not self.findings:
            came += take_all(source, readings, self.findings, count=count - came, wait=0.1)
        source.close()
        return came

    def reads_hot(self, ledger):
        wanted = min(200, ledger.acknowledged)
        came = self.read(ledger, wanted, DEEDS_SECONDS_MAX)
        self.counted["hot_records_read_while_full"] += came
        if came < wanted:
            self.findings.add(f"{ledger}: {came} of {wanted} hot records came while the disk was full")

    def reads_cold(self, scenario):
        cold = self.ledgers[2]
        self.node.drop_cache()
        if scenario.bucket == "away":
            # Not there, and not wrong either: the reader is told to come again.
            self.read(cold, 1, 1.0)
            return
        came = self.read(cold, COLD_RECORDS, DEEDS_SECONDS_MAX)
        self.counted["cold_records_read_while_full"] += came
        if came < COLD_RECORDS:
            self.findings.add(f"{cold}: {came} of {COLD_RECORDS} cold records came while the disk was full")

    def deletes_records(self):
        ledger = self.rng.choice(self.ledgers[:2])
        to = ledger.trimmed_to + 20
        if to > ledger.acknowledged:
            return
        ledger.asked_to = to
        place = TopicPartition(ledger.topic, ledger.partition, to)
        try:
            low = self.admin.delete_records([place], request_timeout=10)[place].result(DEEDS_SECONDS_MAX).low_watermark
        except (KafkaException, TimeoutError) as error:
            self.findings.add(f"{ledger}: records are not deleted while the disk is full: {error}; {self.node.log_tail()}")
            return
        if low != to:
            self.findings.add(f"{ledger}: DeleteRecords to {to} answered {low}")
        ledger.trimmed_to = low
        self.counted["record_deletions_while_full"] += 1

    def deletes_topic(self, topic):
        status = self.node.get("/v1/tier/status")
        topic_id = next(entry["topic_id"] for entry in status["topics"] if entry["topic"] == topic)
        self.admin.delete_topics([topic], request_timeout=10)[topic].result(DEEDS_SECONDS_MAX)

        def is_gone():
            return not list(self.node.data.glob(f"{topic_id}-*"))

        try:
            wait_until(is_gone, DEEDS_SECONDS_MAX, f"{topic} leaves the full disk", every=0.05)
        except TimeoutError as error:
            self.findings.add(f"{error}: {self.node.log_tail()}")
        self.counted["topics_deleted_while_full"] += 1

    def uploads(self, scenario):
        """What is sealed goes to the bucket, also while the disk is full."""
        if scenario.bucket == "away":
            return

        def lag():
            status = self.node.get("/v1/tier/status")
            parts = [part for entry in (status or {"topics": []})["topics"] for part in entry["partitions"]]
            return sum(part["lag_bytes"] for part in parts) if parts else None

        try:
            wait_until(lambda: lag() == 0, DEEDS_SECONDS_MAX, "sealed segments leave a full disk for the bucket", every=0.1)
        except TimeoutError as error:
            self.findings.add(f"{scenario}: {error}: {lag()} bytes are left; {self.node.log_tail()}")
        self.counted["uploads_drained_while_full"] += 1

    def make_space(self, scenario, bulk):
        """By the ballast's end; or by a shorter local retention, once the bucket takes the records."""
        if scenario.way == "ballast":
            self.node.give_space_back()
        else:
            resource = ConfigResource(ResourceType.TOPIC, bulk)
            entry = ConfigEntry("local.retention.ms", "1", incremental_operation=AlterConfigOpType.SET)
            resource.add_incremental_config(entry)
            self.admin.incremental_alter_configs([resource], request_timeout=10)[resource].result(20)

    def settle(self, scenario, writers, ledgers):
        """Records are taken again, those that waited too; and all are there."""
        begun = time.monotonic()
        seconds = RECOVERY_SECONDS_MAX + (20 if scenario.way == "records" else 0)
        try:
            wait_until(lambda: self.ended() or self.prober.ask() is None, seconds, "records are taken again")
        except TimeoutError as error:
            self.findings.add(f"{scenario}: {error}: {self.node.metrics().get('log_free_bytes')}; {self.node.log_tail()}")
            return
        if scenario.way == "ballast":
            self.longest_recovery = max(self.longest_recovery, time.monotonic() - begun)
        self.refusals.update(self.prober.answers)
        self.prober.answers.clear()
        for writer in writers:
            writer.join(60)
            left = writer.flush(60)
            if left or writer.is_alive():
                self.findings.add(f"{scenario}: {left} records are not acknowledged 60 s after there was space")
        self.stands(scenario)
        self.counted["records_acknowledged"] += sum(ledger.acknowledged for ledger in ledgers)
        if not self.findings:
            read = check.every_acknowledged_record_is_there_once_in_order(self.node, self, f"after {scenario}")
            self.counted["records_compared"] += read

    def is_roomy(self):
        return small_disk.free(self.node.data) > DISK_BYTES * 6 // 10

    def restart(self, where):
        """By a stop or a kill; every record is there."""
        if self.rng.random() < 0.5:
            code = self.node.stop()
            if code != 0:
                self.findings.add(f"{where}: a stop ended with {code}: {self.node.log_tail()}")
        else:
            self.node.kill()
        self.node.start()
        try:
            wait_until(lambda: self.node.is_ready() or self.ended(), START_SECONDS_MAX, "the node serves again")
        except TimeoutError as error:
            self.findings.add(f"{where}: {error}: {self.node.log_tail()}")
        if not self.findings:
            read = check.every_acknowledged_record_is_there_once_in_order(self.node, self, f"restarted, {where}")
            self.counted["records_compared"] += read
            self.counted["restarts"] += 1

    def end(self):
        self.node.end()
        shutil.rmtree(self.node.data, ignore_errors=True)
