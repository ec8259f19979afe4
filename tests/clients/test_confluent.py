"""confluent-kafka (librdkafka), unmodified."""

import confluent_kafka
import pytest
from confluent_kafka import OFFSET_BEGINNING, OFFSET_END, Consumer, KafkaError, KafkaException, Producer, TopicPartition
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

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]


@pytest.fixture
def admin(node):
    return AdminClient({"bootstrap.servers": node.address})


def create(admin, topic, partitions=1, **config):
    config = {key.replace("_", "."): str(value) for key, value in config.items()}
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


def produce(node, topic, records, partition=0, **options):
    """Produces (key, value[, timestamp]) and gives the offsets that were acknowledged."""
    producer = Producer({"bootstrap.servers": node.address, "linger.ms": 5, **options})
    delivered = []

    def done(error, message):
        assert error is None, error
        delivered.append(message.offset())

    for record in records:
        key, value, timestamp = record if len(record) == 3 else (*record, 0)
        producer.produce(topic, key=key, value=value, partition=partition, timestamp=timestamp, on_delivery=done)
        producer.poll(0)
    assert producer.flush(60) == 0
    return delivered


def consume(node, topic, count, offset=OFFSET_BEGINNING, partition=0, **options):
    consumer = Consumer(
        {"bootstrap.servers": node.address, "group.id": "unused", "enable.auto.commit": False, **options}
    )
    # Without a known leader it would look for one only half a second later.
    consumer.list_topics(topic, timeout=10)
    consumer.assign([TopicPartition(topic, partition, offset)])
    found = []
    while len(found) < count:
        messages = consumer.consume(count - len(found), timeout=20)
        assert messages, f"{len(found)} of {count} came"
        for message in messages:
            assert message.error() is None, message.error()
            found.append(message)
    consumer.close()
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_comes_back_hot_cold_and_cached(node, admin, topic, codec):
    create(admin, topic, retention_ms=-1)
    records = [(f"k{i}".encode(), (f"v{i}-" * 20).encode(), 1_600_000_000_000 + i) for i in range(1000)]
    assert produce(node, topic, records, **{"compression.type": codec}) == list(range(1000))
    for state in ("hot", "cold", "cached"):
        if state == "cold":
            node.wait_cold(topic)
            node.drop_cache()
        found = consume(node, topic, 1000)
        assert [(m.offset(), m.key(), m.value(), m.timestamp()[1]) for m in found] == [
            (i, *record) for i, record in enumerate(records)
        ], state


def test_an_idempotent_producer_stores_each_record_once_and_in_order(node, admin, topic):
    create(admin, topic, partitions=3)
    for partition in range(3):
        records = [(None, str(i).encode()) for i in range(2000)]
        offsets = produce(node, topic, records, partition=partition, **{"enable.idempotence": True, "batch.num.messages": 50})
        assert offsets == list(range(2000))
        found = consume(node, topic, 2000, partition=partition)
        assert [m.value() for m in found] == [str(i).encode() for i in range(2000)]


# B22: a hit is never below the asked time, and no hit is no offset.
def test_look_ups_by_time_are_exact_hot_and_cold(node, admin, topic):
    create(admin, topic, retention_ms=-1)
    base = 1_600_000_000_000
    # Times go up, fall back and go up again.
    times = [base + t for t in [0, 10, 20, 30, 5, 6, 40, 35, 50]]
    produce(node, topic, [(None, str(t).encode(), t) for t in times])
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "unused"})

    def look_up(time):
        return consumer.offsets_for_times([TopicPartition(topic, 0, time)], timeout=20)[0].offset

    for state in ("hot", "cold"):
        if state == "cold":
            node.wait_cold(topic)
            node.drop_cache()
        for asked in [base - 1000, base, base + 1, base + 11, base + 30, base + 31, base + 41, base + 50]:
            expected = next(i for i, t in enumerate(times) if t >= asked)
            assert look_up(asked) == expected, (state, asked)
        # librdkafka shows "no record at or after" as the end.
        assert look_up(base + 51) == OFFSET_END, state
    consumer.close()


def test_special_offsets_span_the_tiers(node, admin, topic):
    create(admin, topic, retention_ms=-1)
    base = 1_600_000_000_000
    produce(node, topic, [(None, b"x", base + t) for t in [1, 99, 2]])
    node.wait_cold(topic)
    produce(node, topic, [(None, b"y", base + 3)])

    def ask(spec):
        return admin.list_offsets({TopicPartition(topic, 0): spec})[TopicPartition(topic, 0)].result(20)

    assert ask(OffsetSpec.earliest()).offset == 0
    assert ask(OffsetSpec.latest()).offset == 4
    # B64: the largest time is in the bucket.
    assert ask(OffsetSpec.max_timestamp()).offset == 1


def test_partitions_are_added_and_topics_deleted(node, admin, topic):
    create(admin, topic, partitions=2)
    admin.create_partitions([NewPartitions(topic, 5)])[topic].result(30)
    assert len(admin.list_topics(topic, timeout=10).topics[topic].partitions) == 5
    admin.delete_topics([topic])[topic].result(30)
    assert topic not in admin.list_topics(timeout=10).topics


# B17, B16: what is set is told with its source, and only what is named is changed.
def test_configurations_are_described_and_altered(node, admin, topic):
    create(admin, topic, retention_ms=604800000, cleanup_policy="delete")

    def describe():
        resource = ConfigResource(ResourceType.TOPIC, topic)
        return admin.describe_configs([resource])[resource].result(30)

    found = describe()
    assert (found["retention.ms"].value, found["retention.ms"].is_default) == ("604800000", False)
    assert found["segment.bytes"].source != found["retention.ms"].source
    assert found["remote.storage.enable"].value == "true"
    change = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])
    admin.incremental_alter_configs([resource])[resource].result(30)
    found = describe()
    assert found["max.message.bytes"].value == "2000"
    assert found["retention.ms"].value == "604800000"
    with pytest.raises(KafkaException) as refused:
        produce_one(node, topic, b"x" * 4000)
    assert refused.value.args[0].code() == KafkaError.MSG_SIZE_TOO_LARGE


def produce_one(node, topic, value, key=None):
    producer = Producer({"bootstrap.servers": node.address})
    outcome = []
    producer.produce(topic, value=value, key=key, on_delivery=lambda error, message: outcome.append((error, message)))
    producer.flush(30)
    error, message = outcome[0]
    if error is not None:
        raise KafkaException(error)
    return message.offset()


# B31: refused at once, with each codec, and nothing stored.
@pytest.mark.parametrize("codec", CODECS)
def test_a_record_without_a_key_is_refused_by_a_compacted_topic(node, admin, topic, codec):
    create(admin, topic, cleanup_policy="compact")
    producer = Producer({"bootstrap.servers": node.address, "compression.type": codec})
    errors = []
    producer.produce(topic, value=b"x" * 200, on_delivery=lambda error, message: errors.append(error))
    producer.flush(30)
    assert [error.code() for error in errors] == [KafkaError.INVALID_RECORD]
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "unused"})
    assert consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=10) == (0, 0)
    consumer.close()
    assert produce_one(node, topic, b"x", key=b"k") == 0


# B62: the trimmed head never comes back.
def test_deleted_records_stay_deleted(node, admin, topic):
    create(admin, topic)
    produce(node, topic, [(None, str(i).encode()) for i in range(100)])
    node.wait_cold(topic)
    deleted = admin.delete_records([TopicPartition(topic, 0, 40)])
    assert [future.result(30).low_watermark for future in deleted.values()] == [40]
    found = consume(node, topic, 60)
    assert [m.offset() for m in found] == list(range(40, 100))
    # B56, B65: below the start is out of range for this partition, and the reset policy decides.
    found = consume(node, topic, 60, offset=3, **{"auto.offset.reset": "earliest"})
    assert found[0].offset() == 40


# B11: a batch above the fetch limits still comes whole.
def test_a_batch_above_the_fetch_limits_comes_whole_hot_and_cold(node, admin, topic):
    create(admin, topic, max_message_bytes=5 * 1024 * 1024)
    big = bytes(range(256)) * (3 * 4096)
    produce(node, topic, [(None, big)], **{"message.max.bytes": 5_000_000})
    produce(node, topic, [(None, str(i).encode()) for i in range(10)])
    limits = {"fetch.max.bytes": 1024, "max.partition.fetch.bytes": 1024, "message.max.bytes": 1000}
    for state in ("hot", "cold"):
        if state == "cold":
            node.wait_cold(topic)
            node.drop_cache()
        found = consume(node, topic, 11, **limits)
        assert found[0].value() == big, state
        assert [m.value() for m in found[1:]] == [str(i).encode() for i in range(10)], state


# B55: another life of a topic shows nothing of the one before.
def test_a_topic_created_again_starts_empty(node, admin, topic):
    create(admin, topic)
    produce(node, topic, [(None, b"old")] * 50)
    node.wait_cold(topic)
    admin.delete_topics([topic])[topic].result(30)
    create(admin, topic)
    produce(node, topic, [(None, b"new")] * 3)
    assert [(m.offset(), m.value()) for m in consume(node, topic, 3)] == [(0, b"new"), (1, b"new"), (2, b"new")]


def test_what_was_acknowledged_outlives_a_kill(own_node, topic):
    admin = AdminClient({"bootstrap.servers": own_node.address})
    create(admin, topic)
    produce(own_node, topic, [(None, f"before-{i}".encode()) for i in range(3000)])
    own_node.kill()
    own_node.start()
    produce(own_node, topic, [(None, f"after-{i}".encode()) for i in range(10)])
    values = [m.value().decode() for m in consume(own_node, topic, 3010)]
    assert values == [f"before-{i}" for i in range(3000)] + [f"after-{i}" for i in range(10)]


def test_librdkafka_is_the_one_that_the_run_installed():
    assert confluent_kafka.version() == "2.16.1"
