"""The members of one group: a thread and a client of its own for each. What they own, consume and commit goes into a file.

    python groups_member.py --address HOST:PORT --group NAME --topic TOPIC --kind KIND --ledger FILE

Orders come on standard input: `join SLOT`, `leave SLOT`, `hold` (begin no commit), `go`, `end`. Every line of the file is an event with
its time of the machine's monotonic clock, written before what it tells of goes on: a commit that is sent is there before it is sent.
"""

import argparse
import asyncio
import contextlib
import json
import struct
import sys
import threading
import time

from ledger import Ledger

# The least that a broker lets a classic member ask for, unless it is told otherwise.
SESSION_MS = 6_000
HEARTBEAT_MS = 500
POLL_INTERVAL_MS = 10_000
# A member polls so often before it commits what it has.
POLLS_PER_COMMIT = 40
LEAVE_SECONDS_MAX = 10
# How librdkafka tells of FENCED_INSTANCE_ID and UNRELEASED_INSTANCE_ID, which end its client.
FENCED = ("Static consumer fenced", "instance ID is still used")


class Told:
    """The file of events."""

    def __init__(self, path):
        self.file = open(path, "a", buffering=1)
        self.lock = threading.Lock()
        self.commits = 0

    def tell(self, event, **facts):
        with self.lock:
            self.file.write(json.dumps({"e": event, "t": time.monotonic(), **facts}) + "\n")

    def next_commit(self):
        with self.lock:
            self.commits += 1
            return self.commits


class Fenced(Exception):
    """The client has given up: the node said that another has its instance."""


class Member(threading.Thread):
    """One member from its joining to its leaving. `name` is who owns partitions: of a static member its instance."""

    def __init__(self, options, told, held, slot, life, former):
        self.instance = f"{options.group}-{slot}" if "static" in options.kind else None
        super().__init__(name=self.instance or f"{options.group}-{slot}.{life}", daemon=True)
        self.options, self.told, self.held, self.former = options, told, held, former
        self.over = threading.Event()
        # What it owns, and what of that is to be committed, by partition; a rebalance takes it away.
        self.owned, self.positions, self.lock = set(), {}, threading.Lock()
        self.ledgers = {}

    def run(self):
        # An instance is one process at a time.
        if self.instance and self.former is not None:
            self.former.join(30)
        self.tell("joining")
        while True:
            try:
                self.work()
            except Fenced:
                # As an application would: with a new client. Whether there was a reason for it is for the campaign to judge.
                self.tell("fenced")
                self.owned.clear()
                self.positions.clear()
                # An instance that is not released is so for its session time-out at most.
                if not self.over.wait(0.3):
                    continue
            except Exception as error:  # noqa: BLE001 - whatever ends a member is for the campaign to judge
                self.tell("broken", why=f"{type(error).__name__}: {error}"[:500])
            break
        self.tell("left")

    def tell(self, event, **facts):
        self.told.tell(event, m=self.name, **facts)

    def assigned(self, partitions):
        with self.lock:
            self.owned.update(partitions)
        self.tell("assign", g=self.generation(), p=sorted(partitions))

    def taken(self, partitions, how="revoke"):
        with self.lock:
            self.owned.difference_update(partitions)
            for partition in partitions:
                self.positions.pop(partition, None)
        self.tell(how, g=self.generation(), p=sorted(partitions))

    def consumed(self, partition, offset, value):
        ledger = self.ledgers.setdefault(partition, Ledger(self.options.topic, partition))
        if value != ledger.content(offset):
            self.tell("broken", why=f"{ledger}: offset {offset} holds {bytes(value or b'')[:60]}")
        with self.lock:
            self.positions[partition] = offset + 1

    def seen(self, ranges):
        for partition, (first, end) in ranges.items():
            self.tell("seen", p=partition, first=first, end=end)

    def take_positions(self):
        """What a commit is about, told as begun; None where there is nothing, or no commit is to begin."""
        with self.lock:
            if self.held.is_set() or not self.positions:
                return None
            offsets, self.positions = self.positions, {}
        number, before = self.told.next_commit(), self.generation()
        self.tell("send", n=number, g=before, o=offsets)
        return number, offsets

    def settled(self, number, offsets, error=None):
        if error is None:
            self.tell("ack", n=number, g=self.generation())
        else:
            # Committed with the next ones: of a partition's last record there is no other commit.
            with self.lock:
                self.positions = {part: at for part, at in offsets.items() if part in self.owned} | self.positions
            self.tell("refused", n=number, g=self.generation(), why=f"{type(error).__name__}: {error}"[:200])


class Confluent(Member):
    """librdkafka: calls back in the thread that polls."""

    def work(self):
        from confluent_kafka import Consumer, KafkaError

        kind = self.options.kind
        settings = {
            "bootstrap.servers": self.options.address,
            "group.id": self.options.group,
            "client.id": self.name,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 50,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 150,
            "max.poll.interval.ms": POLL_INTERVAL_MS,
            "log_level": 1,
            "error_cb": lambda error: None,
        }
        if "consumer" in kind:
            settings |= {"group.protocol": "consumer", "group.remote.assignor": "range" if "range" in kind else "uniform"}
        else:
            strategy = "cooperative-sticky" if "cooperative" in kind else "range"
            settings |= {
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        if self.instance:
            settings["group.instance.id"] = self.instance
        self.consumer = Consumer(settings)
        numbers = lambda partitions: [part.partition for part in partitions]  # noqa: E731

        def revoked(_, partitions):
            self.commit()
            self.taken(numbers(partitions))

        self.consumer.subscribe(
            [self.options.topic],
            on_assign=lambda _, partitions: self.assigned(numbers(partitions)),
            on_revoke=revoked,
            on_lost=lambda _, partitions: self.taken(numbers(partitions), "lost"),
        )
        try:
            while not self.over.is_set():
                ranges = {}
                for turn in range(POLLS_PER_COMMIT):
                    message = self.consumer.poll(0 if turn else 0.05)
                    if message is None:
                        break
                    if message.error():
                        if message.error().fatal() or message.error().code() == KafkaError._FATAL:
                            raise self.fatal(message.error())
                        continue
                    partition, offset = message.partition(), message.offset()
                    self.consumed(partition, offset, message.value())
                    if partition in ranges and ranges[partition][1] == offset:
                        ranges[partition][1] = offset + 1
                    else:
                        self.seen({partition: ranges[partition]} if partition in ranges else {})
                        ranges[partition] = [offset, offset + 1]
                self.seen(ranges)
                self.commit()
        finally:
            self.tell("leaving")
            self.consumer.close()

    def generation(self):
        # librdkafka writes it behind a mark of seven bytes.
        packed = self.consumer.consumer_group_metadata()
        return struct.unpack_from("<i", packed, 7)[0]

    @staticmethod
    def fatal(error):
        is_fenced = any(sign in str(error) for sign in FENCED)
        return Fenced() if is_fenced else RuntimeError(str(error))

    def commit(self):
        from confluent_kafka import KafkaException, TopicPartition

        begun = self.take_positions()
        if begun is None:
            return
        number, offsets = begun
        parts = [TopicPartition(self.options.topic, partition, offset) for partition, offset in offsets.items()]
        try:
            answered = self.consumer.commit(offsets=parts, asynchronous=False)
        except KafkaException as error:
            self.settled(number, offsets, error)
            return
        wrong = [part.error for part in answered if part.error]
        self.settled(number, offsets, RuntimeError(wrong) if wrong else None)


class KafkaPython(Member):
    """kafka-python: it has a thread of its own for the group."""

    def work(self):
        from kafka import ConsumerRebalanceListener, KafkaConsumer, OffsetAndMetadata, TopicPartition
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.errors import KafkaError

        member = self

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, partitions):
                member.taken([part.partition for part in partitions])

            def on_partitions_lost(self, partitions):
                member.taken([part.partition for part in partitions], "lost")

            def on_partitions_assigned(self, partitions):
                member.assigned([part.partition for part in partitions])

        strategy = CooperativeStickyAssignor if "cooperative" in self.options.kind else RangePartitionAssignor
        self.consumer = KafkaConsumer(
            bootstrap_servers=self.options.address,
            group_id=self.options.group,
            client_id=self.name,
            group_instance_id=self.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            reconnect_backoff_ms=20,
            reconnect_backoff_max_ms=150,
            request_timeout_ms=8_000,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            partition_assignment_strategy=[strategy],
            max_poll_records=POLLS_PER_COMMIT,
        )
        self.consumer.subscribe([self.options.topic], listener=Listener())
        self.learn_topic()
        try:
            while not self.over.is_set():
                try:
                    polled = self.consumer.poll(timeout_ms=50)
                except KafkaError as error:
                    self.tell("poll", why=f"{type(error).__name__}: {error}"[:200])
                    time.sleep(0.1)
                    continue
                for part, messages in polled.items():
                    for message in messages:
                        self.consumed(part.partition, message.offset, message.value)
                        self.seen({part.partition: (message.offset, message.offset + 1)})
                begun = self.take_positions()
                if begun is None:
                    continue
                number, offsets = begun
                wanted = {
                    TopicPartition(self.options.topic, partition): OffsetAndMetadata(offset, "", -1)
                    for partition, offset in offsets.items()
                }
                try:
                    self.consumer.commit(wanted, timeout_ms=8_000)
                    self.settled(number, offsets)
                except (KafkaError, AssertionError) as error:
                    self.settled(number, offsets, error)
        finally:
            self.tell("leaving")
            self.consumer.close()

    def learn_topic(self):
        """Waits until the client knows its topic. A join that only new metadata asked for is forgotten by kafka-python 3.0.12
        when the time of a poll ends between its JoinGroup and its SyncGroup, by Apache Kafka too: the member then owns nothing
        for good.
        """
        from kafka.errors import KafkaError

        while not self.over.is_set():
            with contextlib.suppress(KafkaError):
                if self.consumer.partitions_for_topic(self.options.topic):
                    return
            time.sleep(0.1)

    def generation(self):
        return self.consumer._coordinator._generation.generation_id


class AioKafka(Member):
    """aiokafka, in an event loop of the member's thread; a rebalance waits for the commit that is under way."""

    def work(self):
        asyncio.run(self.main())

    async def main(self):
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.errors import IllegalStateError, KafkaError

        member, committing = self, asyncio.Lock()

        class Listener(ConsumerRebalanceListener):
            async def on_partitions_revoked(self, revoked):
                async with committing:
                    member.taken([part.partition for part in revoked])

            async def on_partitions_assigned(self, assigned):
                member.assigned([part.partition for part in assigned])

        self.consumer = AIOKafkaConsumer(
            bootstrap_servers=self.options.address,
            group_id=self.options.group,
            client_id=self.name,
            group_instance_id=self.instance,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            fetch_max_wait_ms=100,
            request_timeout_ms=8_000,
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=POLL_INTERVAL_MS,
            rebalance_timeout_ms=POLL_INTERVAL_MS,
            partition_assignment_strategy=(RangePartitionAssignor,),
        )
        await self.begin(KafkaError)
        self.consumer.subscribe([self.options.topic], listener=Listener())
        try:
            while not self.over.is_set():
                polled = await self.consumer.getmany(timeout_ms=50, max_records=POLLS_PER_COMMIT)
                for part, messages in polled.items():
                    for message in messages:
                        self.consumed(part.partition, message.offset, message.value)
                        self.seen({part.partition: (message.offset, message.offset + 1)})
                async with committing:
                    begun = self.take_positions()
                    if begun is None:
                        continue
                    number, offsets = begun
                    wanted = {TopicPartition(self.options.topic, partition): at for partition, at in offsets.items()}
                    try:
                        await self.consumer.commit(wanted)
                        self.settled(number, offsets)
                    except (KafkaError, IllegalStateError) as error:
                        self.settled(number, offsets, error)
        finally:
            self.tell("leaving")
            # It may wait for ever for a node that was killed just then.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self.consumer.stop(), LEAVE_SECONDS_MAX)

    async def begin(self, passing):
        """Its first connection; a node that is away just then comes back."""
        while not self.over.is_set():
            try:
                return await self.consumer.start()
            except passing:
                await asyncio.sleep(0.1)

    def generation(self):
        coordinator = getattr(self.consumer, "_coordinator", None)
        return getattr(coordinator, "generation", -1)


def kind_of(name):
    return {"confluent": Confluent, "kafka": KafkaPython, "aiokafka": AioKafka}[name.split("-")[0]]


def main():
    parser = argparse.ArgumentParser()
    for name in ("--address", "--group", "--topic", "--kind", "--ledger"):
        parser.add_argument(name, required=True)
    options = parser.parse_args()
    told, held, members, lives = Told(options.ledger), threading.Event(), {}, 0
    for line in sys.stdin:
        order, _, slot = line.strip().partition(" ")
        if order == "join":
            lives += 1
            members[slot] = kind_of(options.kind)(options, told, held, slot, lives, members.get(slot))
            members[slot].start()
        elif order == "leave" and slot in members:
            members[slot].over.set()
        elif order == "hold":
            held.set()
            told.tell("held", m="")
        elif order == "go":
            held.clear()
        elif order == "end":
            break
    for member in members.values():
        member.over.set()
    deadline = time.monotonic() + 20
    for member in members.values():
        member.join(max(deadline - time.monotonic(), 0))


if __name__ == "__main__":
    main()
