"""Nodes that die or stop under load, with librdkafka's idempotent producer: each record is there once, in order."""

import signal
import threading

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from test_confluent import consume, create, produce


def load(node, topic, count, on_progress, **options):
    """Produces numbers and gives {value: offset} of what was acknowledged; `on_progress` is told after each acknowledgement."""
    producer = Producer(
        {
            "bootstrap.servers": node.address,
            "enable.idempotence": True,
            "linger.ms": 0,
            "batch.num.messages": 20,
            "message.timeout.ms": 120_000,
            "reconnect.backoff.max.ms": 200,
            "retry.backoff.ms": 50,
            "queue.buffering.max.messages": 500,
            **options,
        }
    )
    offsets, errors = {}, []

    def done(error, message):
        if error is not None:
            errors.append(error)
            return
        offsets[message.value()] = message.offset()
        on_progress(len(offsets))

    for number in range(count):
        value = str(number).encode()
        while True:
            try:
                producer.produce(topic, value=value, partition=0, on_delivery=done)
                break
            except BufferError:
                producer.poll(0.05)
        producer.poll(0)
    assert producer.flush(120) == 0
    assert errors == []
    return offsets


# B23: killed between an append and its answer. B28: a clean stop is no worse.
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_an_idempotent_producer_outlives_a_restart_of_its_node(own_node, topic, how):
    create(AdminClient({"bootstrap.servers": own_node.address}), topic, retention_ms=-1)
    count, restarts = 6000, [1000, 3000]
    due = threading.Event()

    def on_progress(acknowledged):
        if restarts and acknowledged >= restarts[0]:
            restarts.pop(0)
            due.set()

    stopped = []

    def restart_when_due():
        for _ in range(2):
            assert due.wait(60)
            due.clear()
            own_node.process.send_signal(how)
            stopped.append(own_node.process.wait(30))
            own_node.log.close()
            own_node.start()

    restarter = threading.Thread(target=restart_when_due)
    restarter.start()
    offsets = load(own_node, topic, count, on_progress)
    restarter.join(60)
    assert stopped == [0 if how == signal.SIGTERM else -signal.SIGKILL] * 2
    found = consume(own_node, topic, count)
    assert [m.value() for m in found] == [str(i).encode() for i in range(count)], "each once, in order"
    assert {m.value(): m.offset() for m in found} == offsets, "where the acknowledgement said"


# B25: the producer is forgotten with its records, and goes on.
def test_an_idle_producer_goes_on_after_its_records_were_deleted(node, topic):
    admin = AdminClient({"bootstrap.servers": node.address})
    create(admin, topic)
    producer = Producer({"bootstrap.servers": node.address, "enable.idempotence": True})
    delivered = []

    def send(*values):
        for value in values:
            producer.produce(topic, value=value, on_delivery=lambda error, message: delivered.append((error, message)))
        assert producer.flush(30) == 0

    send(b"a", b"b")
    deleted = admin.delete_records([TopicPartition(topic, 0, 2)])
    assert [future.result(30).low_watermark for future in deleted.values()] == [2]
    send(b"c", b"d")
    assert [(error, message.offset()) for error, message in delivered] == [(None, i) for i in range(4)]


# B98: the log start outlives everything, and an old position goes on where it was.
def test_a_cold_position_goes_on_after_a_restart(own_node, topic):
    create(AdminClient({"bootstrap.servers": own_node.address}), topic, retention_ms=-1)
    produce(own_node, topic, [(None, str(i).encode()) for i in range(2000)])
    own_node.wait_cold(topic)
    own_node.kill()
    own_node.start()
    own_node.drop_cache()
    found = consume(own_node, topic, 1995, offset=5, **{"auto.offset.reset": "latest"})
    assert [m.offset() for m in found] == list(range(5, 2000))
