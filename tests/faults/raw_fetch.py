"""Fetches made by hand, of several partitions at once: a library would hide which of them got an error, and ask again."""

import socket
import struct

from kafka.record.memory_records import MemoryRecords

from frames import frame, string

FETCH = 1
VERSION = 4


class Fetched:
    """What one partition was answered."""

    def __init__(self, error, high_watermark, data):
        self.error = error
        self.high_watermark = high_watermark
        self.data = data

    def records(self, offset):
        """The records from an offset on; batches begin before it."""
        records = MemoryRecords(self.data)
        while (batch := records.next_batch()) is not None:
            if not batch.validate_crc():
                raise ValueError(f"a batch at {batch.base_offset} has another checksum")
            for record in batch:
                if record.offset >= offset:
                    yield record


class Message:
    """A record as the ledger looks at messages of librdkafka."""

    def __init__(self, record):
        self.record = record

    def offset(self):
        return self.record.offset

    def key(self):
        return self.record.key

    def value(self):
        return self.record.value

    def headers(self):
        return [(name, value) for name, value in self.record.headers]

    def timestamp(self):
        return 1, self.record.timestamp


class RawClient:
    """One connection, opened anew where it ends."""

    def __init__(self, address, seconds_max):
        host, port = address.rsplit(":", 1)
        self.address = (host, int(port))
        self.seconds_max = seconds_max
        self.connection = None
        self.correlation = 0

    def close(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def exactly(self, count):
        pieces = []
        while count > 0:
            piece = self.connection.recv(min(count, 1 << 16))
            if not piece:
                raise ConnectionError("the node closed the connection")
            pieces.append(piece)
            count -= len(piece)
        return b"".join(pieces)

    def fetch(self, wanted, bytes_max, wait_ms):
        """`wanted`: (topic, partition) to offset. Gives (topic, partition) to what was answered. Raises OSError."""
        topics = {}
        for (topic, partition), offset in wanted.items():
            topics.setdefault(topic, []).append((partition, offset))
        body = struct.pack(">iiiibi", -1, wait_ms, 1, 50 << 20, 0, len(topics))
        for topic, partitions in topics.items():
            body += string(topic) + struct.pack(">i", len(partitions))
            for partition, offset in partitions:
                body += struct.pack(">iqi", partition, offset, bytes_max)
        self.correlation += 1
        try:
            if self.connection is None:
                self.connection = socket.create_connection(self.address, self.seconds_max)
                self.connection.settimeout(self.seconds_max)
            self.connection.sendall(frame(FETCH, VERSION, self.correlation, body, "bucket-campaign"))
            (size,) = struct.unpack(">i", self.exactly(4))
            return self.read(self.exactly(size))
        except OSError:
            self.close()
            raise

    def read(self, answer):
        at = 0

        def take(form):
            nonlocal at
            values = struct.unpack_from(form, answer, at)
            at += struct.calcsize(form)
            return values

        correlation, _throttle, topic_count = take(">iii")
        assert correlation == self.correlation, "an answer to another request"
        found = {}
        for _ in range(topic_count):
            (length,) = take(">h")
            topic = answer[at : at + length].decode()
            at += length
            (partition_count,) = take(">i")
            for _ in range(partition_count):
                partition, error, high_watermark, _stable, aborted_count = take(">ihqqi")
                for _ in range(max(aborted_count, 0)):
                    take(">qq")
                (size,) = take(">i")
                size = max(size, 0)
                found[topic, partition] = Fetched(error, high_watermark, answer[at : at + size])
                at += size
        return found
