"""What the broker compresses itself is read by every client (B10, B19)."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaConsumer, TopicPartition

from test_confluent import consume, create, produce
from test_kcat import read

COUNT = 300


def by_kafka_python(node, topic):
    consumer = KafkaConsumer(bootstrap_servers=node.address, auto_offset_reset="earliest", consumer_timeout_ms=20000)
    consumer.assign([TopicPartition(topic, 0)])
    found = []
    for record in consumer:
        found.append((record.offset, record.key, record.value))
        if len(found) == COUNT:
            break
    consumer.close()
    return found


def by_aiokafka(node, topic):
    async def work():
        consumer = AIOKafkaConsumer(bootstrap_servers=node.address, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioTopicPartition(topic, 0)])
        found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(COUNT)]
        await consumer.stop()
        return [(record.offset, record.key, record.value) for record in found]

    return asyncio.run(work())


@pytest.mark.parametrize("written", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_what_the_broker_compressed_is_read_by_every_client(node, topic, written):
    create(AdminClient({"bootstrap.servers": node.address}), topic, retention_ms=-1, compression_type=written)
    records = [(f"k{i}".encode(), (f"value {i} " * 30).encode()) for i in range(COUNT)]
    for first, sent in enumerate(["none", "gzip", "snappy", "lz4", "zstd"]):
        produce(node, topic, records[first * 60 : first * 60 + 60], **{"compression.type": sent})
    expected = [(i, *record) for i, record in enumerate(records)]
    for state in ("hot", "cold"):
        if state == "cold":
            node.wait_cold(topic)
            node.drop_cache()
        assert [(m.offset(), m.key(), m.value()) for m in consume(node, topic, COUNT)] == expected, state
        assert by_kafka_python(node, topic) == expected, state
        assert by_aiokafka(node, topic) == expected, state
        by_kcat = [(r["offset"], r["key"].encode(), r["payload"].encode()) for r in read(node, topic, "-o", "beginning")]
        assert by_kcat == expected, state
