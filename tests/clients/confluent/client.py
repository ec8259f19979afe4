"""The scenarios with confluent-kafka (librdkafka)."""

import contextlib
import logging
import pathlib
import re
import sys
import time

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ElectionType,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import program  # noqa: E402

CONFIGS = {"retention.ms": "3600000", "max.message.bytes": "200000"}
STRATEGIES = {
    "eager": {"partition.assignment.strategy": "range", "session.timeout.ms": 10000, "heartbeat.interval.ms": 300},
    "cooperative": {
        "partition.assignment.strategy": "cooperative-sticky",
        "session.timeout.ms": 10000,
        "heartbeat.interval.ms": 300,
    },
    "consumer": {"group.protocol": "consumer"},
}


def text(value):
    return None if value is None else value.decode()


class Sender(program.Sender):
    """A producer that tells each outcome."""

    def __init__(self, bootstrap, **options):
        self.producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 1, **options})

    def send(self, topic, partition, number, done):
        def told(error, message):
            done(number, message.offset(), error)

        self.producer.produce(topic, value=str(number).encode(), partition=partition, on_delivery=told)
        self.producer.poll(0)

    def poll(self):
        self.producer.poll(0)

    def close(self):
        assert self.producer.flush(120) == 0


class Member(program.Member):
    def __init__(self, options, topic):
        super().__init__()
        self.consumer, self.topic = self.open(options), topic

    def open(self, options):
        return Consumer(options)

    def serve(self):
        def numbers(partitions):
            return [part.partition for part in partitions]

        self.consumer.subscribe(
            [self.topic],
            on_assign=lambda _, partitions: self.assigned(numbers(partitions)),
            on_revoke=lambda _, partitions: self.taken(numbers(partitions)),
            on_lost=lambda _, partitions: self.taken(numbers(partitions), lost=True),
        )
        try:
            while not self.over.is_set():
                message = self.consumer.poll(0.1)
                if message is None:
                    continue
                if message.error():
                    raise KafkaException(message.error())
                self.record(message.partition(), int(message.value()))
                self.consumer.store_offsets(message)
                self.consumer.commit(asynchronous=True)
        finally:
            self.consumer.close()


class StaticMember(Member):
    """It knows its generation, which librdkafka tells with each heartbeat, in the lines of its log and nowhere else."""

    generation = None

    def open(self, options):
        log = logging.Logger("consumer")
        log.addFilter(self.hear)
        return Consumer({"debug": "cgrp", **options}, logger=log)

    def hear(self, line):
        found = re.search(r"Heartbeat for group .* generation id (\d+)", line.getMessage())
        if found:
            self.generation = int(found[1])
        return False


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap})

    def create(self, topic, partitions, **config):
        self.admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)

    def delete(self, topic):
        self.admin.delete_topics([topic])[topic].result(30)

    def produce(self, topic, records, codec):
        producer = Producer({"bootstrap.servers": self.bootstrap, "compression.type": codec, "linger.ms": 20})
        offsets = []

        def done(error, message):
            assert error is None, error
            offsets.append(message.offset())

        for record in records:
            headers = [(key, value if value is None else value.encode()) for key, value in record["headers"]]
            producer.produce(
                topic, record["value"], record["key"], 0, timestamp=record["timestamp"], headers=headers, on_delivery=done
            )
        assert producer.flush(60) == 0
        return offsets

    def consume(self, topic, partition, count):
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "unused", "enable.auto.commit": False})
        # Without a known leader it would look for one only half a second later.
        consumer.list_topics(topic, timeout=10)
        consumer.assign([TopicPartition(topic, partition, OFFSET_BEGINNING)])
        found = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), timeout=20)
            assert messages, f"{len(found)} of {count} came"
            for message in messages:
                assert message.error() is None, message.error()
                found.append(
                    {
                        "offset": message.offset(),
                        "timestamp": message.timestamp()[1],
                        "key": text(message.key()),
                        "value": text(message.value()),
                        "headers": [[key, text(value)] for key, value in message.headers() or []],
                    }
                )
        consumer.close()
        return found

    def producer(self, idempotent):
        fast = {"reconnect.backoff.max.ms": 200, "retry.backoff.ms": 50, "batch.num.messages": 10}
        return Sender(self.bootstrap, **{"enable.idempotence": idempotent, **(fast if idempotent else {})})

    def options(self, group, strategy):
        return {
            "bootstrap.servers": self.bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            **STRATEGIES[strategy],
        }

    def member(self, topic, group, strategy):
        return Member(self.options(group, strategy), topic)

    def read_group(self, topic, group, count, strategy="eager"):
        consumer = Consumer(self.options(group, strategy))
        consumer.subscribe([topic])
        found = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None, f"{len(found)} of {count} came"
            if message.error():
                raise KafkaException(message.error())
            found.append([message.partition(), message.offset(), int(message.value())])
            consumer.store_offsets(message)
        consumer.commit(asynchronous=False)
        consumer.close()
        return found

    def committed(self, topic, group, partitions, strategy="eager"):
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition) for partition in range(partitions)])
        answer = self.admin.list_consumer_group_offsets([asked])[group].result(30)
        return {part.partition: part.offset for part in answer.topic_partitions}

    def administration(self, run):
        topic, admin = run.name(), self.admin
        resource = ConfigResource(ResourceType.TOPIC, topic)

        def configs():
            found = admin.describe_configs([resource])[resource].result(30)
            return {name: found[name].value for name in (*CONFIGS, "cleanup.policy")}

        def described():
            return admin.describe_topics(TopicCollection([topic]))[topic].result(30).partitions

        def partitions():
            return sorted(part.id for part in described())

        self.create(topic, 2, **CONFIGS)
        run.tell("created", error=self.refused(lambda: self.create(topic, 2)))
        run.tell("listed", found=topic in admin.list_topics(timeout=10).topics)
        replicas = [len(part.replicas) for part in described()]
        run.tell("described", partitions=partitions(), replicas=replicas)
        run.tell("configs", **configs())
        change = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
        altered = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
        admin.incremental_alter_configs([altered])[altered].result(30)
        run.tell("altered", **program.settled(configs, program.is_altered))
        admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
        run.tell("grown", partitions=program.settled(partitions, lambda found: len(found) == 5))
        self.delete(topic)
        program.wait_until(lambda: topic not in admin.list_topics(timeout=10).topics, "the topic is gone", 10)
        run.tell("deleted", error=self.refused(lambda: self.delete(topic)))

    @staticmethod
    def refused(call):
        return program.refusal(call, lambda error: error.args[0].name())

    def cluster(self):
        told = self.admin.describe_cluster().result(30)
        brokers = [[node.id, f"{node.host}:{node.port}"] for node in told.nodes]
        return {"brokers": brokers, "controller": told.controller.id, "id": told.cluster_id}

    def broker_configs(self):
        broker = ConfigResource(ResourceType.BROKER, "1")
        found = self.admin.describe_configs([broker])[broker].result(30)
        return {key: found[key].value for key in program.BROKER_KEYS}

    def alter_broker(self, change):
        """It alters incrementally: what is not to be set any more is deleted by name."""
        operation = AlterConfigOpType.SET if change else AlterConfigOpType.DELETE
        entries = [
            ConfigEntry(key, change.get(key), incremental_operation=operation) for key in program.BROKER_CHANGE
        ]
        broker = ConfigResource(ResourceType.BROKER, "1", incremental_configs=entries)
        self.admin.incremental_alter_configs([broker])[broker].result(30)

    def offsets(self, topic):
        asked = {
            "earliest": OffsetSpec.earliest(),
            "latest": OffsetSpec.latest(),
            "newest": OffsetSpec.max_timestamp(),
            "at": OffsetSpec.for_timestamp(program.TIMES_BEGIN + 7),
            "later": OffsetSpec.for_timestamp(program.TIMES_BEGIN + program.RECORDS),
        }
        part = TopicPartition(topic, 0)
        return {name: self.admin.list_offsets({part: spec})[part].result(30).offset for name, spec in asked.items()}

    def delete_records(self, topic, partition, offset):
        part = TopicPartition(topic, partition, offset)
        return self.admin.delete_records([part])[part].result(30).low_watermark

    def elected(self, topic):
        (error,) = self.admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, 0)]).result(30).values()
        return {"error": error.args[0].name() if isinstance(error, KafkaException) else error and error.name()}

    def described(self, group):
        told = self.admin.describe_consumer_groups([group])[group].result(30)
        return {
            "state": told.state.name,
            "assignor": told.partition_assignor,
            "members": [sorted(part.partition for part in member.assignment.topic_partitions) for member in told.members],
        }

    def listed(self, group):
        found = [told for told in self.admin.list_consumer_groups().result(30).valid if told.group_id == group]
        return {"groups": [[told.state.name, told.type.name] for told in found]}

    def alter_offset(self, topic, group, partition, offset):
        asked = ConsumerGroupTopicPartitions(group, [TopicPartition(topic, partition, offset)])
        self.admin.alter_consumer_group_offsets([asked])[group].result(30)

    def delete_group(self, group):
        self.admin.delete_consumer_groups([group])[group].result(30)


QUIET_SECONDS = 1


def static(run, client):
    """Static members that come again within their session: into a settled group, beside themselves, and into a rebalance."""
    topic, group = run.name(), run.name("-group")
    client.create(topic, program.GROUP_PARTITIONS)
    members = {}

    def begin(name):
        options = {**client.options(group, "eager"), "group.instance.id": name, "session.timeout.ms": 30_000}
        members[name] = StaticMember(options, topic)
        members[name].start()

    def described():
        return client.admin.describe_consumer_groups([group])[group].result(30)

    def second():
        return next(member.member_id for member in described().members if member.group_instance_id == "second")

    def rejoin():
        before = second()
        begin("second")
        program.wait_until(lambda: second() != before, "the second is another member")

    def agreed():
        """The generation that all speak of."""
        generations = {member.generation for member in members.values()}
        return generations.pop() if len(generations) == 1 else None

    @contextlib.contextmanager
    def around(step):
        """Tells what changed for the members, and for those who were there before and stayed."""
        before, earlier = program.stable(members), dict(members)
        program.wait_until(agreed, "all are of one generation")
        changes, generation = {name: member.change_count for name, member in members.items()}, agreed()
        yield
        program.stable(members)
        program.wait_until(agreed, "all are of one generation")
        # Some heartbeats: who has to join again hears of it within one.
        time.sleep(QUIET_SECONDS)
        run.tell(
            step,
            before=before,
            after=program.stable(members),
            changes={name: member.change_count - changes[name] for name, member in earlier.items() if members[name] is member},
            generations=agreed() - generation,
        )

    begin("first")
    program.stable(members)
    begin("second")
    begin("third")
    # The first has been there longest, and leads.
    for step, name in (("follower", "second"), ("leader", "first")):
        with around(step):
            members[name].leave()
            begin(name)
    old = members["second"]
    with around("twice"):
        begin("second")
    program.wait_until(lambda: old.error, "the old one is told")
    run.tell("fenced", error=old.error)
    with around("rebalancing"):
        members["second"].leave()
        members["third"].leave()
        begin("fourth")
        program.wait_until(lambda: described().state == ConsumerGroupState.PREPARING_REBALANCING, "a rebalance begins")
        rejoin()
        # Gone while its join waits for the third.
        members["second"].leave()
        rejoin()
        run.tell("waiting", state=described().state.name)
        begin("third")
    run.tell("described", instances=sorted(member.group_instance_id for member in described().members))
    for member in members.values():
        member.leave()


program.SCENARIOS["static"] = static

if __name__ == "__main__":
    program.main(Client)
