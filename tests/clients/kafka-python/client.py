"""The scenarios with kafka-python."""

import pathlib
import sys

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor

sys.path.append(str(pathlib.Path(__file__).parents[1]))
import program  # noqa: E402

CONFIGS = {"retention.ms": "3600000", "max.message.bytes": "200000"}
STRATEGIES = {"eager": RangePartitionAssignor, "cooperative": CooperativeStickyAssignor}


def text(value):
    return None if value is None else value.decode()


def raw(value):
    return None if value is None else value.encode()


class Sender(program.Sender):
    """A producer that tells each outcome."""

    def __init__(self, bootstrap, **options):
        self.producer = KafkaProducer(bootstrap_servers=bootstrap, acks="all", linger_ms=1, **options)

    def send(self, topic, partition, number, done):
        future = self.producer.send(topic, value=str(number).encode(), partition=partition)
        future.add_callback(lambda metadata: done(number, metadata.offset, None))
        future.add_errback(lambda error: done(number, None, error))

    def close(self):
        self.producer.flush(120)
        self.producer.close()


class Member(program.Member):
    def __init__(self, options, topic):
        super().__init__()
        self.options, self.topic = options, topic

    def serve(self):
        member = self

        class Listener(ConsumerRebalanceListener):
            def on_partitions_revoked(self, partitions):
                member.taken([part.partition for part in partitions])

            def on_partitions_lost(self, partitions):
                member.taken([part.partition for part in partitions], lost=True)

            def on_partitions_assigned(self, partitions):
                member.assigned([part.partition for part in partitions])

        consumer = KafkaConsumer(**self.options)
        consumer.subscribe([self.topic], listener=Listener())
        # Known before it first joins: a join that only new metadata asked for is forgotten by kafka-python 3.0.12 when the time of a
        # poll ends between its JoinGroup and its SyncGroup, by Apache Kafka too, and the member then owns nothing for good.
        program.wait_until(lambda: consumer.partitions_for_topic(self.topic), "the topic is known")
        try:
            while not self.over.is_set():
                for part, messages in consumer.poll(timeout_ms=100).items():
                    for message in messages:
                        self.record(part.partition, int(message.value))
                consumer.commit_async()
        finally:
            consumer.close()


class Client:
    def __init__(self, bootstrap):
        self.bootstrap = bootstrap
        self.admin = KafkaAdminClient(bootstrap_servers=bootstrap)

    def create(self, topic, partitions, **configs):
        self.admin.create_topics({topic: {"num_partitions": partitions, "replication_factor": 1, "configs": configs}})

    def produce(self, topic, records, codec):
        codec = None if codec == "none" else codec
        producer = KafkaProducer(bootstrap_servers=self.bootstrap, compression_type=codec, linger_ms=20)
        sent = [
            producer.send(
                topic,
                key=raw(record["key"]),
                value=raw(record["value"]),
                headers=[(key, raw(value)) for key, value in record["headers"]],
                partition=0,
                timestamp_ms=record["timestamp"],
            )
            for record in records
        ]
        offsets = [future.get(60).offset for future in sent]
        producer.close()
        return offsets

    def consume(self, topic, partition, count):
        consumer = KafkaConsumer(bootstrap_servers=self.bootstrap, auto_offset_reset="earliest", consumer_timeout_ms=20000)
        consumer.assign([TopicPartition(topic, partition)])
        consumer.seek_to_beginning()
        found = []
        for record in consumer:
            found.append(
                {
                    "offset": record.offset,
                    "timestamp": record.timestamp,
                    "key": text(record.key),
                    "value": text(record.value),
                    "headers": [[key, text(value)] for key, value in record.headers],
                }
            )
            if len(found) == count:
                break
        consumer.close()
        assert len(found) == count, f"{len(found)} of {count} came"
        return found

    def producer(self, idempotent):
        fast = {"reconnect_backoff_max_ms": 200, "retry_backoff_ms": 50, "delivery_timeout_ms": 120_000}
        return Sender(self.bootstrap, enable_idempotence=idempotent, **(fast if idempotent else {}))

    def options(self, group, strategy):
        return {
            "bootstrap_servers": self.bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "enable_auto_commit": False,
            "session_timeout_ms": 10000,
            "heartbeat_interval_ms": 300,
            "partition_assignment_strategy": (STRATEGIES[strategy],),
        }

    def member(self, topic, group, strategy):
        return Member(self.options(group, strategy), topic)

    def read_group(self, topic, group, count):
        consumer = KafkaConsumer(topic, consumer_timeout_ms=30000, max_poll_records=10, **self.options(group, "eager"))
        found = []
        for record in consumer:
            found.append([record.partition, record.offset, int(record.value)])
            if len(found) == count:
                break
        # The position, not what was fetched: the iterator moves it record by record.
        consumer.commit()
        consumer.close()
        assert len(found) == count, f"{len(found)} of {count} came"
        return found

    def committed(self, topic, group, partitions):
        return {part.partition: at.offset for part, at in self.admin.list_group_offsets([group])[group].items()}

    def administration(self, run):
        topic, admin = run.name(), self.admin

        def configs():
            found = admin.describe_configs([ConfigResource("topic", topic)], config_filter="all")["topic"][topic]
            return {name: found[name]["value"] for name in (*CONFIGS, "cleanup.policy")}

        def described():
            return admin.describe_topics([topic])[0]["partitions"]

        def partitions():
            return sorted(part["partition_index"] for part in described())

        def refused(call):
            return program.refusal(call, lambda error: type(error).__name__)

        self.create(topic, 2, **CONFIGS)
        run.tell("created", error=refused(lambda: self.create(topic, 2)))
        run.tell("listed", found=topic in admin.list_topics())
        run.tell("described", partitions=partitions(), replicas=[len(part["replica_nodes"]) for part in described()])
        run.tell("configs", **configs())
        admin.alter_configs([ConfigResource("topic", topic, {"retention.ms": "7200000"})])
        run.tell("altered", **program.settled(configs, program.is_altered))
        admin.create_partitions({topic: 5})
        run.tell("grown", partitions=program.settled(partitions, lambda found: len(found) == 5))
        admin.delete_topics([topic])
        program.wait_until(lambda: topic not in admin.list_topics(), "the topic is gone", 10)
        run.tell("deleted", error=refused(lambda: admin.delete_topics([topic])))


if __name__ == "__main__":
    program.main(Client)
