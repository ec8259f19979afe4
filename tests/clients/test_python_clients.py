"""kafka-python and aiokafka, without an api_version: they guess what the broker is from what it announces (B04)."""

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_kafka_python_guesses_the_broker_and_works(node, topic, codec):
    producer = KafkaProducer(bootstrap_servers=node.address, compression_type=codec)
    for i in range(100):
        producer.send(topic, key=str(i).encode(), value=b"v" * 50, partition=0)
    producer.flush(30)
    producer.close()
    consumer = KafkaConsumer(bootstrap_servers=node.address, auto_offset_reset="earliest", consumer_timeout_ms=20000)
    consumer.assign([TopicPartition(topic, 0)])
    found = []
    for record in consumer:
        found.append((record.offset, record.key))
        if len(found) == 100:
            break
    guessed = consumer.config["api_version"]
    consumer.close()
    assert guessed >= (2, 0), guessed
    assert found == [(i, str(i).encode()) for i in range(100)]


def test_aiokafka_guesses_the_broker_and_works(node, topic):
    async def work():
        producer = AIOKafkaProducer(bootstrap_servers=node.address)
        await producer.start()
        for i in range(100):
            await producer.send_and_wait(topic, str(i).encode(), partition=0)
        await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=node.address, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioTopicPartition(topic, 0)])
        found = [(await asyncio.wait_for(consumer.getone(), 20)).value for _ in range(100)]
        await consumer.stop()
        return found

    assert asyncio.run(work()) == [str(i).encode() for i in range(100)]
