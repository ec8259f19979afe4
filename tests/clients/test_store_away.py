"""The bucket away: through a door in front of the real S3 server that the test shuts."""

import socket
import threading
import uuid

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient

from conftest import ENDPOINT, FAST_TIER, Node, wait_until
from test_confluent import consume, create, produce


class Door:
    """Passes bytes to the store; shut, it takes connections and requests and answers nothing, as a lost network does."""

    def __init__(self, endpoint):
        host, port = endpoint.removeprefix("http://").split(":")
        self.target = (host, int(port))
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.is_open = True
        self.sockets = []
        threading.Thread(target=self.accept, daemon=True).start()

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def accept(self):
        while True:
            try:
                client, _ = self.listener.accept()
            except OSError:
                return
            server = socket.create_connection(self.target)
            self.sockets += [client, server]
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self.copy, args=(source, sink), daemon=True).start()

    def copy(self, source, sink):
        try:
            while data := source.recv(65536):
                if self.is_open:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass

    def shut(self):
        self.is_open = False

    def open(self):
        # What hangs stays hung; new connections pass.
        self.is_open = True
        for one in self.sockets:
            one.close()
        self.sockets = []

    def close(self):
        self.listener.close()
        self.open()


@pytest.fixture
def away():
    """A node, and the door to its store."""
    assert ENDPOINT.startswith("http://")
    door = Door(ENDPOINT)
    running = Node(f"away-{uuid.uuid4().hex[:8]}", FAST_TIER, endpoint=door.endpoint)
    running.start()
    yield running, door
    if running.process.poll() is None:
        running.kill()
    door.close()


def watermarks(node, topic):
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "unused"})
    found = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    consumer.close()
    return found


if ENDPOINT:

    # B94: readers that wait for a store that does not answer keep no node from stopping.
    def test_the_bucket_away_stops_neither_produce_nor_hot_reads_nor_a_stop(away, topic):
        node, door = away
        create(AdminClient({"bootstrap.servers": node.address}), topic, retention_ms=-1)
        produce(node, topic, [(None, b"%d" % i * 20) for i in range(1000)])
        node.wait_cold(topic)
        node.drop_cache()
        door.shut()
        # Cold reads are under way and get nothing, or an error that passes.
        reader = Consumer({"bootstrap.servers": node.address, "group.id": "unused", "enable.partition.eof": False})
        reader.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        for message in reader.consume(1, timeout=3):
            assert message.error() is not None and message.error().code() != KafkaError.OFFSET_OUT_OF_RANGE
        offsets = produce(node, topic, [(None, b"hot-%d" % i) for i in range(500)])
        assert offsets == list(range(1000, 1500))
        hot = consume(node, topic, 500, offset=1000)
        assert [m.value() for m in hot] == [b"hot-%d" % i for i in range(500)]
        part = node.partitions(topic)[0]
        assert part["tiered_end"] == 1000, "nothing is called uploaded that is not"
        assert part["local_log_start"] == 1000, "and nothing of it is evicted"
        assert watermarks(node, topic) == (0, 1500), "the log start is what it was"
        # Groups commit, and their lag is told.
        group = Consumer({"bootstrap.servers": node.address, "group.id": f"{topic}-group"})
        for committed in (1200, 1450):
            group.commit(offsets=[TopicPartition(topic, 0, committed)], asynchronous=False)
            assert group.committed([TopicPartition(topic, 0)], timeout=20)[0].offset == committed
            where = f'group="{topic}-group",topic="{topic}",partition="0"'
            assert f"group_lag_records{{{where}}} {1500 - committed}\n" in node.get("/metrics")[1]
        group.close()
        # It heals by itself.
        door.open()
        reader.close()
        node.wait_cold(topic)
        node.drop_cache()
        found = consume(node, topic, 1500)
        assert [m.offset() for m in found] == list(range(1500))
        # Shut again with readers inside: SIGTERM ends the node in time, with 0.
        node.drop_cache()
        door.shut()
        readers = []
        for _ in range(10):
            one = Consumer({"bootstrap.servers": node.address, "group.id": "unused"})
            one.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
            one.poll(0.2)
            readers.append(one)
        assert node.stop() == 0
        for one in readers:
            one.close()

    def test_a_node_starts_and_serves_what_is_hot_while_the_bucket_is_away(away, topic):
        node, door = away
        create(AdminClient({"bootstrap.servers": node.address}), topic, retention_ms=-1)
        produce(node, topic, [(None, b"cold-%d" % i) for i in range(100)])
        node.wait_cold(topic)
        produce(node, topic, [(None, b"hot")])
        node.kill()
        door.shut()
        node.start(until_ready=False)
        wait_until(lambda: node.alive() and node.get("/healthz")[0] == 200, 20, "it is alive")
        assert consume(node, topic, 1, offset=100)[0].value() == b"hot"
        assert produce(node, topic, [(None, b"more")]) == [101]
        door.open()
        wait_until(lambda: node.get("/readyz")[0] == 200, 60, "it is ready by itself")
        assert [m.offset() for m in consume(node, topic, 102)] == list(range(102))
