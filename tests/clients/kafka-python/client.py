"""The scenarios with kafka-python."""

import pathlib
import sys

import kafka.errors
from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, MemberToRemove, OffsetSpec
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import NoError, for_code
from kafka.structs import OffsetAndMetadata

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

    def member(self, topic, group, strategy, instance=None):
        return Member({**self.options(group, strategy), "group_instance_id": instance}, topic)

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

        self.create(topic, 2, **CONFIGS)
        run.tell("created", error=self.refused(lambda: self.create(topic, 2)))
        run.tell("listed", found=topic in admin.list_topics())
        run.tell("described", partitions=partitions(), replicas=[len(part["replica_nodes"]) for part in described()])
        run.tell("configs", **configs())
        admin.alter_configs([ConfigResource("topic", topic, {"retention.ms": "7200000"})])
        run.tell("altered", **program.settled(configs, program.is_altered))
        admin.create_partitions({topic: 5})
        run.tell("grown", partitions=program.settled(partitions, lambda found: len(found) == 5))
        admin.delete_topics([topic])
        program.wait_until(lambda: topic not in admin.list_topics(), "the topic is gone", 10)
        run.tell("deleted", error=self.refused(lambda: admin.delete_topics([topic])))

    @staticmethod
    def refused(call):
        return program.refusal(call, lambda error: type(error).__name__)

    @staticmethod
    def check(errors):
        """Some of its calls give their errors, as classes, where others raise them."""
        for error in errors:
            if error is not NoError:
                raise error()

    def cluster(self):
        told = self.admin.describe_cluster()
        brokers = [[broker["broker_id"], f"{broker['host']}:{broker['port']}"] for broker in told["brokers"]]
        return {"brokers": brokers, "controller": told["controller_id"], "id": told["cluster_id"]}

    def broker_configs(self):
        found = self.admin.describe_configs([ConfigResource("broker", "1")], config_filter="all")["broker"]["1"]
        return {key: found[key]["value"] for key in program.BROKER_KEYS}

    def alter_broker(self, change):
        configs = change or {key: ("DELETE", None) for key in program.BROKER_CHANGE}
        self.admin.alter_configs([ConfigResource("broker", "1", configs)])

    def offsets(self, topic):
        asked = {
            "earliest": OffsetSpec.EARLIEST,
            "latest": OffsetSpec.LATEST,
            "newest": OffsetSpec.MAX_TIMESTAMP,
            "at": program.TIMES_BEGIN + 7,
            "later": program.TIMES_BEGIN + program.RECORDS,
        }
        part = TopicPartition(topic, 0)
        return {name: self.admin.list_partition_offsets({part: spec})[part].offset for name, spec in asked.items()}

    def delete_records(self, topic, partition, offset):
        part = TopicPartition(topic, partition)
        return self.admin.delete_records({part: offset})[part]["low_watermark"]

    def log_dirs(self, topic):
        (told,) = self.admin.describe_log_dirs([topic])
        parts = [part for folder in told["log_dirs"] for entry in folder["topics"] for part in entry["partitions"]]
        names = ("partition_index", "partition_size", "offset_lag", "is_future_key")
        return {"broker": told["broker"], "partitions": sorted([part[name] for name in names] for part in parts)}

    def elected(self, topic):
        answer = self.admin.elect_leaders(0, {topic: [0]})
        (part,) = answer.replica_election_results[0].partition_result
        return {"error": for_code(part.error_code).__name__}

    def reassignments(self, topic):
        return {"ongoing": [list(part) for part in self.admin.list_partition_reassignments()]}

    def producers(self, topic):
        part = TopicPartition(topic, 0)
        found = self.admin.describe_producers([part])[part].active_producers
        return {"producers": [[producer.producer_epoch, producer.last_sequence] for producer in found]}

    def features(self, topic):
        return {"finalized": sorted(name for name, told in self.admin.describe_features().items() if "finalized" in told)}

    def quorum(self, topic):
        (told,) = self.admin.describe_metadata_quorum()["topics"][0]["partitions"]
        return {
            "leader": told["leader_id"],
            "voters": [voter["replica_id"] for voter in told["current_voters"]],
            "observers": [observer["replica_id"] for observer in told["observers"]],
        }

    def resources(self, topic):
        found = self.admin.list_config_resources(["TOPIC", "CLIENT_METRICS"])
        names = {kind.lower(): names for kind, names in found.items()}
        return {"topic": topic in names.get("topic", []), "metrics": len(names.get("client_metrics", []))}

    def described(self, group):
        told = self.admin.describe_groups([group])[group]
        assigned = [member["member_assignment"]["assigned_partitions"] for member in told["members"]]
        members = [sorted(part for topic in topics for part in topic["partitions"]) for topics in assigned]
        return {"state": told["group_state"], "assignor": told["protocol_data"], "members": members}

    def listed(self, group):
        found = [told for told in self.admin.list_groups() if told["group_id"] == group]
        return {"groups": [[told["group_state"], told["group_type"]] for told in found]}

    def alter_offset(self, topic, group, partition, offset):
        at = {TopicPartition(topic, partition): OffsetAndMetadata(offset, "", -1)}
        self.check(self.admin.alter_group_offsets(group, at).values())

    def delete_offset(self, topic, group, partition):
        self.check(self.admin.delete_group_offsets(group, [TopicPartition(topic, partition)]).values())

    def remove_member(self, group, instance):
        self.check(self.admin.remove_group_members(group, [MemberToRemove(group_instance_id=instance)]).values())

    def delete_group(self, group):
        """It gives the name of an error."""
        told = self.admin.delete_groups([group])[group]
        if told != "OK":
            raise getattr(kafka.errors, told)()


if __name__ == "__main__":
    program.main(Client)
