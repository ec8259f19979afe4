"""Runs under older versions of the clients: produces and consumes with every codec, and prints what came back as JSON.

Started by test_older_clients.py as `python older_client.py CLIENT ADDRESS TOPIC`; librdkafka's debug lines go to standard error.
"""

import asyncio
import json
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, libversion
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

CODECS = [None, "gzip", "snappy", "lz4", "zstd"]
EACH = 20


def kafka_python(address, topic):
    for codec in CODECS:
        producer = KafkaProducer(bootstrap_servers=address, compression_type=codec)
        for number in range(EACH):
            producer.send(topic, value=f"{codec}-{number}".encode() * 10, partition=0)
        producer.flush(30)
        producer.close()
    consumer = KafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest", consumer_timeout_ms=20000)
    consumer.assign([TopicPartition(topic, 0)])
    found = []
    for record in consumer:
        found.append([record.offset, record.value.decode()])
        if len(found) == EACH * len(CODECS):
            break
    guessed = list(consumer.config["api_version"])
    consumer.close()
    return {"guessed": guessed, "records": found}


def librdkafka(address, topic):
    for codec in CODECS:
        options = {"bootstrap.servers": address, "debug": "feature,msg", "compression.type": codec or "none", "linger.ms": 50}
        producer = Producer(options)
        for number in range(EACH):
            producer.produce(topic, value=f"{codec}-{number}".encode() * 10, partition=0)
        assert producer.flush(30) == 0
    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([ConfluentTopicPartition(topic, 0, OFFSET_BEGINNING)])
    found = []
    while len(found) < EACH * len(CODECS):
        messages = consumer.consume(EACH, timeout=20)
        assert messages
        for message in messages:
            assert message.error() is None, message.error()
            found.append([message.offset(), message.value().decode()])
    consumer.close()
    return {"guessed": libversion()[0], "records": found}


def aiokafka(address, topic):
    async def work():
        for codec in CODECS:
            producer = AIOKafkaProducer(bootstrap_servers=address, compression_type=codec)
            await producer.start()
            for number in range(EACH):
                await producer.send_and_wait(topic, f"{codec}-{number}".encode() * 10, partition=0)
            await producer.stop()
        consumer = AIOKafkaConsumer(bootstrap_servers=address, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([AioTopicPartition(topic, 0)])
        found = [await asyncio.wait_for(consumer.getone(), 20) for _ in range(EACH * len(CODECS))]
        guessed = consumer._client.api_version
        await consumer.stop()
        return {"guessed": list(guessed), "records": [[r.offset, r.value.decode()] for r in found]}

    return asyncio.run(work())


if __name__ == "__main__":
    client = {"kafka-python": kafka_python, "librdkafka": librdkafka, "aiokafka": aiokafka}[sys.argv[1]]
    print(json.dumps(client(sys.argv[2], sys.argv[3])))
