"""What goes on while nodes die: librdkafka's idempotent producers, readers, deletions, topics that come and go."""

import functools
import random
import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from ledger import Ledger

# Retention of the topics that have one.
BYTES_KEPT = 300_000
MILLISECONDS_KEPT = 8_000

# Topic to partitions and settings. Of `keep` nothing may go.
TOPICS = {
    "keep": (4, {"retention.ms": "-1"}),
    "trimmed": (2, {"retention.ms": "-1"}),
    "by-size": (2, {"retention.bytes": str(BYTES_KEPT)}),
    "by-age": (2, {"retention.ms": str(MILLISECONDS_KEPT)}),
}
PRODUCERS = [("keep", "by-size"), ("trimmed", "by-age")]
BRIEF = "brief"
BRIEF_PARTITIONS = 2

# A delivery may outlast many restarts; one that fails is a finding.
MESSAGE_TIMEOUT_MS = 900_000

# A reader that is given nothing for so long, over dozens of restarts, will never be.
SILENCE_SECONDS_MAX = 40

# What a partition may answer while its node starts or its bucket is read again; the client asks again.
PASSING = {
    KafkaError._TRANSPORT,
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TIMED_OUT,
    KafkaError._PARTITION_EOF,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.BROKER_NOT_AVAILABLE,
}


def client(address, **options):
    return {
        "bootstrap.servers": address,
        "reconnect.backoff.ms": 20,
        "reconnect.backoff.max.ms": 150,
        "socket.timeout.ms": 20_000,
        "log_level": 1,
        "error_cb": lambda error: None,
        **options,
    }


def idempotent_producer(address, **options):
    settings = {
        "enable.idempotence": True,
        "acks": "all",
        "linger.ms": 3,
        "batch.num.messages": 40,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 200,
        "message.timeout.ms": MESSAGE_TIMEOUT_MS,
        "queue.buffering.max.messages": 20_000,
        **options,
    }
    return Producer(client(address, **settings))


def consumer(address, **options):
    settings = {
        "group.id": "unused",
        "enable.auto.commit": False,
        "auto.offset.reset": "earliest",
        "check.crcs": True,
        "fetch.wait.max.ms": 100,
        "fetch.error.backoff.ms": 50,
        **options,
    }
    return Consumer(client(address, **settings))


class Worker(threading.Thread):
    """A thread that works until it is told to end; what it raises is a finding."""

    def __init__(self, name, findings):
        super().__init__(name=name, daemon=True)
        self.findings = findings
        self.ended = threading.Event()

    def run(self):
        try:
            self.work()
        except Exception as error:  # noqa: BLE001 - whatever it is, it must be seen
            self.findings.add(f"{self.name}: {type(error).__name__}: {error}")

    def end(self):
        self.ended.set()


class Writer(Worker):
    """One idempotent producer on some partitions, in bursts: at a steady rate, or somewhat above it."""

    def __init__(self, address, ledgers, rate, seed, findings, is_steady=False, **options):
        super().__init__(f"writer of {ledgers[0]} and others", findings)
        self.producer = idempotent_producer(address, **options)
        self.ledgers = ledgers
        self.rate = rate
        self.is_steady = is_steady
        self.rng = random.Random(seed)

    def delivered(self, ledger, number, error, message):
        if error is not None:
            self.findings.add(f"{ledger}: record {number} was not delivered: {error.name()}: {error.str()}")
            return
        ledger.settle(number, message.offset(), self.findings)

    def send(self, ledger):
        number, key, value, headers, time_ms = ledger.append()
        told = functools.partial(self.delivered, ledger, number)
        while True:
            try:
                self.producer.produce(
                    ledger.topic, value, key, ledger.partition, on_delivery=told, timestamp=time_ms, headers=headers
                )
                return
            except BufferError:
                self.producer.poll(0.05)

    def work(self):
        begun, count = time.monotonic(), 0
        while not self.ended.is_set():
            for _ in range(self.rng.choice([1, 2, 5, 30])):
                self.send(self.rng.choice(self.ledgers))
                count += 1
            self.producer.poll(0)
            ahead = count / self.rate - (time.monotonic() - begun)
            if ahead > 0:
                self.producer.poll(min(ahead, 0.05))
            # Each poll ends with what it serves: only who is steady waits for the moment.
            while self.is_steady and ahead > 0 and not self.ended.is_set():
                ahead = count / self.rate - (time.monotonic() - begun)
                self.producer.poll(max(min(ahead, 0.05), 0))

    def flush(self, seconds):
        """How many are still not acknowledged."""
        return self.producer.flush(seconds)


class Reading:
    """What one reader has seen of one partition, in order."""

    def __init__(self, ledger, may_jump):
        self.ledger = ledger
        self.may_jump = may_jump
        self.next = None

    def take(self, message):
        """Why a message may not come now, or None."""
        offset = message.offset()
        if self.next is None:
            if offset != 0 and not self.may_jump:
                return f"{self.ledger}: the first record read has offset {offset}"
        elif offset < self.next or (offset > self.next and not self.may_jump):
            return f"{self.ledger}: offset {offset} was read where {self.next} was due"
        self.next = offset + 1
        return self.ledger.difference(message)


def take_all(source, readings, findings, count=1000, wait=0.2):
    """Reads once, and checks what came. Answers how much it was."""
    messages = source.consume(count, timeout=wait)
    good = 0
    for message in messages:
        error = message.error()
        if error is not None:
            if error.code() not in PASSING:
                findings.add(f"{message.topic()}-{message.partition()}: a reader got {error.name()}: {error.str()}")
            continue
        why = readings[message.topic(), message.partition()].take(message)
        if why is not None:
            findings.add(f"read during the campaign: {why}")
            return good
        good += 1
    return good


class Follower(Worker):
    """A consumer at the tail of every lasting partition, across all restarts."""

    def __init__(self, address, ledgers, findings):
        super().__init__("follower", findings)
        self.address = address
        self.readings = {(l.topic, l.partition): Reading(l, l.topic != "keep") for l in ledgers}
        self.count = 0

    def work(self):
        source = consumer(self.address)
        source.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in self.readings])
        while not self.ended.is_set() and not self.findings:
            self.count += take_all(source, self.readings, self.findings)
        source.close()


class Replayer(Worker):
    """Reads one partition after another from its beginning, which is in the bucket mostly."""

    def __init__(self, address, ledgers, seed, findings):
        super().__init__("replayer", findings)
        self.address = address
        self.ledgers = ledgers
        self.rng = random.Random(seed)
        self.count = 0

    def work(self):
        source = consumer(self.address)
        while not self.ended.is_set() and not self.findings:
            ledger = self.rng.choice(self.ledgers)
            reading = Reading(ledger, ledger.topic != "keep")
            source.assign([TopicPartition(ledger.topic, ledger.partition, OFFSET_BEGINNING)])
            # At most a few seconds on one partition: the newest records are the follower's.
            until, end = time.monotonic() + 4, ledger.acknowledged
            while not self.ended.is_set() and time.monotonic() < until and (reading.next or 0) < end:
                readings = {(ledger.topic, ledger.partition): reading}
                self.count += take_all(source, readings, self.findings)
                if self.findings:
                    break
            self.ended.wait(0.3)
        source.close()


class Trimmer(Worker):
    """DeleteRecords, now and then."""

    def __init__(self, address, ledgers, seed, findings):
        super().__init__("trimmer", findings)
        self.admin = AdminClient(client(address))
        self.ledgers = ledgers
        self.rng = random.Random(seed)
        self.count = 0

    def work(self):
        while not self.ended.wait(0.3):
            ledger = self.rng.choice(self.ledgers)
            to = ledger.acknowledged - self.rng.randrange(100, 1500)
            if to <= ledger.trimmed_to:
                continue
            ledger.asked_to = max(ledger.asked_to, to)
            place = TopicPartition(ledger.topic, ledger.partition, to)
            try:
                low = self.admin.delete_records([place], request_timeout=10)[place].result(15).low_watermark
            except (KafkaException, TimeoutError):
                # Whether it was done is not known; the next one tells more.
                continue
            if low < max(to, ledger.trimmed_to) or low > ledger.asked_to:
                self.findings.add(f"{ledger}: DeleteRecords to {to} answered {low}, after {ledger.trimmed_to}")
            ledger.trimmed_to = max(ledger.trimmed_to, low)
            self.count += 1


class Lives(Worker):
    """One topic that is made, written, read back and deleted, over and over under one name."""

    def __init__(self, address, seed, findings):
        super().__init__("lives of a topic", findings)
        self.address = address
        self.admin = AdminClient(client(address))
        self.rng = random.Random(seed)
        self.count = 0
        self.records = 0

    def work(self):
        life = 0
        while not self.ended.is_set() and not self.findings:
            life += 1
            self.create(life)
            ledgers = [Ledger(BRIEF, partition, life) for partition in range(BRIEF_PARTITIONS)]
            self.write(ledgers)
            self.read(ledgers)
            self.delete()
            self.count = life

    def create(self, life):
        answered = True
        while True:
            try:
                self.admin.create_topics([NewTopic(BRIEF, BRIEF_PARTITIONS, 1)], request_timeout=10)[BRIEF].result(15)
                return
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                    if answered:
                        self.findings.add(f"{BRIEF}: it was deleted, and is there again before life {life}")
                    return
                answered = False
                time.sleep(0.05)

    def write(self, ledgers):
        writer = Writer(self.address, ledgers, 1000, self.rng.random(), self.findings)
        for _ in range(self.rng.randrange(200, 1200)):
            writer.send(self.rng.choice(ledgers))
            writer.producer.poll(0)
        deadline = time.monotonic() + 120
        while writer.flush(2) and not self.findings:
            if time.monotonic() > deadline:
                self.findings.add(f"{BRIEF}: life {ledgers[0].life} is not acknowledged within 120 s")
        self.records += sum(ledger.acknowledged for ledger in ledgers)

    def read(self, ledgers):
        readings = {(l.topic, l.partition): Reading(l, False) for l in ledgers}
        source = consumer(self.address)
        source.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for topic, number in readings])
        silent_since = time.monotonic()
        while any((reading.next or 0) < reading.ledger.sent for reading in readings.values()) and not self.findings:
            if take_all(source, readings, self.findings):
                silent_since = time.monotonic()
            if time.monotonic() > silent_since + SILENCE_SECONDS_MAX:
                at = [(str(r.ledger), r.next, r.ledger.sent) for r in readings.values()]
                self.findings.add(f"{BRIEF}: nothing is read any more: {at}")
        source.close()

    def delete(self):
        while True:
            try:
                self.admin.delete_topics([BRIEF], operation_timeout=10, request_timeout=12)[BRIEF].result(15)
                break
            except (KafkaException, TimeoutError) as error:
                if isinstance(error, KafkaException) and error.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                    break
                time.sleep(0.05)
        # Both answers may come while it is hosted yet: a write by its name would still go to what is deleted.
        while not self.ended.is_set():
            try:
                if BRIEF not in self.admin.list_topics(timeout=10).topics:
                    return
            except KafkaException:
                pass
            time.sleep(0.05)


class Load:
    """All of it."""

    def __init__(self, address, seed, findings, rate=2000, is_steady=False):
        self.address = address
        self.findings = findings
        self.ledgers = [Ledger(topic, part) for topic, (parts, _) in TOPICS.items() for part in range(parts)]
        self.writers = [
            Writer(address, self.of(*topics), rate / len(PRODUCERS), seed + index, findings, is_steady, **options)
            for index, (topics, options) in enumerate(zip(PRODUCERS, [{}, {"compression.type": "lz4"}]))
        ]
        self.follower = Follower(address, self.ledgers, findings)
        self.replayer = Replayer(address, self.ledgers, seed + 10, findings)
        self.trimmer = Trimmer(address, self.of("trimmed"), seed + 11, findings)
        self.lives = Lives(address, seed + 12, findings)

    def of(self, *topics):
        return [ledger for ledger in self.ledgers if ledger.topic in topics]

    def create_topics(self):
        admin = AdminClient(client(self.address))
        topics = [NewTopic(name, parts, 1, config=config) for name, (parts, config) in TOPICS.items()]
        for future in admin.create_topics(topics).values():
            future.result(30)

    def workers(self):
        return [*self.writers, self.follower, self.replayer, self.trimmer, self.lives]

    def start(self):
        for worker in self.workers():
            worker.start()

    def end(self, seconds):
        """Ends everything; what was sent is acknowledged then, or is a finding."""
        for worker in self.workers():
            worker.end()
        for writer in self.writers:
            writer.join(seconds)
            left = writer.flush(seconds)
            if left:
                self.findings.add(f"{writer.name}: {left} records are not acknowledged within {seconds} s")
        for worker in self.workers():
            # One that reads what cannot be read says so first.
            worker.join(seconds + SILENCE_SECONDS_MAX)
            if worker.is_alive() and not self.findings:
                self.findings.add(f"{worker.name} does not come to its end")

    def acknowledged(self):
        return sum(ledger.acknowledged for ledger in self.ledgers) + self.lives.records
