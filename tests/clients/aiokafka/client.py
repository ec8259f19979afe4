"""The scenarios with aiokafka: its event loop has a thread of its own, and the scenarios ask it to do things."""

import asyncio
import contextlib
import pathlib
import sys
import threading

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic, RecordsToDelete
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import CommitFailedError, IllegalStateError, RebalanceInProgressError, for_code

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import program  # noqa: E402

CONFIGS = {"retention.ms": "3600000", "max.message.bytes": "200000"}
LOOP = asyncio.new_event_loop()


def do(work):
    """Has the loop do something, and gives what comes of it."""
    return asyncio.run_coroutine_threadsafe(work, LOOP).result(180)


def text(value):
    return None if value is None else value.decode()


def raw(value):
    return None if value is None else value.encode()


async def started(made):
    await made.start()
    return made


class Sender(program.Sender):
    """A producer that tells each outcome; what is sent goes in its order."""

    def __init__(self, bootstrap, **options):
        async def begin():
            return await started(AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=1, **options))

        self.producer = do(begin())

    def send(self, topic, partition, number, done):
        async def enqueue():
            future = await self.producer.send(topic, str(number).encode(), partition=partition)
            future.add_done_callback(told)

        def told(future):
            error = future.exception()
            done(number, None if error else future.result().offset, error)

        do(enqueue())

    def close(self):
        do(self.producer.stop())


class Member(program.Member):
    def __init__(self, options, topic):
        super().__init__()
        self.options, self.topic = options, topic

    def serve(self):
        do(self.work())

    async def work(self):
        member = self

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, revoked):
                member.taken([part.partition for part in revoked])

            def on_partitions_assigned(self, assigned):
                member.assigned([part.partition for part in assigned])

        consumer = AIOKafkaConsumer(**self.options)
        consumer.subscribe([self.topic], listener=Listener())
        await consumer.start()
        try:
            while not self.over.is_set():
                found = await consumer.getmany(timeout_ms=100)
                for part, messages in found.items():
                    for message in messages:
                        self.record(part.partition, int(message.value))
                # What a rebalance took away meanwhile its next owner reads again.
                with contextlib.suppress(CommitFailedError, IllegalStateError, RebalanceInProgressError):
                    await consumer.commit()
        finally:
            await consumer.stop()


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap

        async def begin():
            return await started(AIOKafkaAdminClient(bootstrap_servers=bootstrap))

        self.admin = do(begin())

    def create(self, topic, partitions, **configs):
        answer = do(self.admin.create_topics([NewTopic(topic, partitions, 1, topic_configs=configs)]))
        self.check(answer.topic_errors)

    @staticmethod
    def check(codes):
        """aiokafka gives the answer as it came."""
        for _, code, *_ in codes:
            if code:
                raise for_code(code)()

    def produce(self, topic, records, codec):
        async def work():
            codec_name = None if codec == "none" else codec
            producer = AIOKafkaProducer(bootstrap_servers=self.bootstrap, compression_type=codec_name, linger_ms=20)
            await producer.start()
            sent = []
            for record in records:
                headers = [(key, raw(value)) for key, value in record["headers"]]
                at, key, value = record["timestamp"], raw(record["key"]), raw(record["value"])
                sent.append(await producer.send(topic, value, key, 0, timestamp_ms=at, headers=headers))
            offsets = [(await future).offset for future in sent]
            await producer.stop()
            return offsets

        return do(work())

    def consume(self, topic, partition, count):
        async def work():
            consumer = await started(AIOKafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest"))
            consumer.assign([TopicPartition(topic, partition)])
            found = []
            while len(found) < count:
                record = await asyncio.wait_for(consumer.getone(), 20)
                found.append(
                    {
                        "offset": record.offset,
                        "timestamp": record.timestamp,
                        "key": text(record.key),
                        "value": text(record.value),
                        "headers": [[key, text(value)] for key, value in record.headers],
                    }
                )
            await consumer.stop()
            return found

        return do(work())

    def producer(self, idempotent):
        fast = {"retry_backoff_ms": 50, "request_timeout_ms": 120_000}
        return Sender(self.bootstrap, enable_idempotence=idempotent, **(fast if idempotent else {}))

    def options(self, group):
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": 10000,
            "heartbeat_interval_ms": 300,
            "partition_assignment_strategy": (RangePartitionAssignor,),
        }

    def member(self, topic, group, strategy):
        return Member(self.options(group), topic)

    def read_group(self, topic, group, count):
        async def work():
            consumer = await started(AIOKafkaConsumer(topic, **self.options(group)))
            found = []
            while len(found) < count:
                record = await asyncio.wait_for(consumer.getone(), 30)
                found.append([record.partition, record.offset, int(record.value)])
            await consumer.commit()
            await consumer.stop()
            return found

        return do(work())

    def committed(self, topic, group, partitions):
        found = do(self.admin.list_consumer_group_offsets(group))
        return {part.partition: at.offset for part, at in found.items()}

    def administration(self, run):
        topic, admin = run.name(), self.admin

        def configs():
            found = self.configs(ConfigResource(ConfigResourceType.TOPIC, topic))
            return {name: found[name] for name in (*CONFIGS, "cleanup.policy")}

        def described():
            return do(admin.describe_topics([topic]))[0]["partitions"]

        def delete():
            self.check(do(admin.delete_topics([topic])).topic_error_codes)

        def partitions():
            return sorted(part["partition"] for part in described())

        self.create(topic, 2, **CONFIGS)
        run.tell("created", error=self.refused(lambda: self.create(topic, 2)))
        run.tell("listed", found=topic in do(admin.list_topics()))
        run.tell("described", partitions=partitions(), replicas=[len(part["replicas"]) for part in described()])
        run.tell("configs", **configs())
        # It has the call that sets all of them, and no other.
        do(admin.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {**CONFIGS, "retention.ms": "7200000"})]))
        run.tell("altered", **program.settled(configs, program.is_altered))
        do(admin.create_partitions({topic: NewPartitions(5)}))
        run.tell("grown", partitions=program.settled(partitions, lambda found: len(found) == 5))
        delete()
        program.wait_until(lambda: topic not in do(admin.list_topics()), "the topic is gone", 10)
        run.tell("deleted", error=self.refused(delete))

    @staticmethod
    def refused(call):
        return program.refusal(call, lambda error: type(error).__name__)

    def configs(self, resource):
        (answer,) = do(self.admin.describe_configs([resource]))
        ((code, message, _, _, entries),) = answer.resources
        assert code == 0, message
        return {entry[0]: entry[1] for entry in entries}

    def cluster(self):
        told = do(self.admin.describe_cluster())
        brokers = [[broker["node_id"], f"{broker['host']}:{broker['port']}"] for broker in told["brokers"]]
        return {"brokers": brokers, "controller": told["controller_id"], "id": told["cluster_id"]}

    def broker_configs(self):
        found = self.configs(ConfigResource(ConfigResourceType.BROKER, "1"))
        return {key: found[key] for key in program.BROKER_KEYS}

    def alter_broker(self, change):
        """What is set is all that is set."""
        for answer in do(self.admin.alter_configs([ConfigResource(ConfigResourceType.BROKER, "1", change)])):
            for code, *_ in answer.resources:
                self.check([("", code)])

    def delete_records(self, topic, partition, offset):
        part = TopicPartition(topic, partition)
        return do(self.admin.delete_records({part: RecordsToDelete(before_offset=offset)}))[part]

    def described(self, group):
        (answer,) = do(self.admin.describe_consumer_groups([group]))
        ((_, _, state, _, assignor, members, *_),) = answer.groups
        owned = [ConsumerProtocolMemberAssignment.decode(member[-1]).assignment for member in members]
        return {
            "state": state,
            "assignor": assignor,
            "members": [sorted(part for _, partitions in assignment for part in partitions) for assignment in owned],
        }

    def listed(self, group):
        """Their names and their kind of protocol, which is all that it asks for."""
        return {"groups": [list(told[1:]) for told in do(self.admin.list_consumer_groups()) if told[0] == group]}


if __name__ == "__main__":
    threading.Thread(target=LOOP.run_forever, daemon=True).start()
    program.main(Client)
