"""The others: a producer with acks=all at a fixed rate, and a consumer at the tail, both librdkafka, whose latencies are compared.

The rate is open: a record is due when it is due, however slow those before it were, and its latency counts from then.
"""

import struct
import threading
import time

from confluent_kafka import OFFSET_END, TopicPartition

from load import client, consumer

FILLER = bytes(range(256)) * 4


def run(address, topic, partitions, rate, stop, pipe):
    """Sends a list of (kind, due, seconds) a few times a second: `produce` until the ack, `tail` until a consumer has it."""
    from confluent_kafka import Producer

    samples, lock, failures = [], threading.Lock(), []

    def note(kind, due):
        with lock:
            samples.append((kind, due, time.monotonic() - due))

    def produce():
        producer = Producer(client(address, acks="all", **{"linger.ms": 0, "message.timeout.ms": 120_000}))

        def told(due):
            def delivered(error, _):
                failures.append(f"a record was not delivered: {error}") if error else note("produce", due)

            return delivered

        polling = threading.Thread(target=lambda: [producer.poll(0.1) for _ in iter(stop.is_set, True)], daemon=True)
        polling.start()
        begun, number = time.monotonic(), 0
        while not stop.is_set():
            due = begun + number / rate
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            value = struct.pack(">d", due) + FILLER[:1016]
            producer.produce(topic, value, partition=number % partitions, on_delivery=told(due))
            number += 1
        if producer.flush(60):
            failures.append("ordinary records are not acknowledged within 60 s")

    def read():
        source = consumer(address, **{"fetch.wait.max.ms": 500})
        source.assign([TopicPartition(topic, number, OFFSET_END) for number in range(partitions)])
        while not stop.is_set():
            message = source.poll(0.1)
            if message is not None and message.error() is None:
                note("tail", struct.unpack_from(">d", message.value())[0])
        source.close()

    reader, writer = threading.Thread(target=read), threading.Thread(target=produce)
    reader.start()
    time.sleep(1)
    writer.start()
    while not stop.is_set():
        time.sleep(0.2)
        with lock:
            some, samples[:] = list(samples), []
        pipe.send((some, list(failures)))
    writer.join()
    reader.join()
    pipe.send((samples, list(failures)))
    pipe.close()
