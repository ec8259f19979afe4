"""Kafka's frames, made by hand: for thousands of connections at once, and for clients that no library would be."""

import random
import struct
import time

FETCH_BYTES = 50 * 1024 * 1024


def _crc32c_table():
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_TABLE = _crc32c_table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    return crc ^ 0xFFFFFFFF


def varint(number):
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while True:
        byte, number = number & 0x7F, number >> 7
        if not number:
            out.append(byte)
            return bytes(out)
        out.append(byte | 0x80)


def batch(records, value_bytes):
    """A batch of equal records whose bytes do not compress. Offsets and epoch are not covered by its checksum, so it can be
    sent as often as one likes."""
    time_ms = int(time.time() * 1000)
    value = random.Random(value_bytes).randbytes(value_bytes)
    body = bytearray()
    for number in range(records):
        record = b"\0" + varint(0) + varint(number) + varint(-1) + varint(len(value)) + value + varint(0)
        body += varint(len(record)) + record
    covered = struct.pack(">hiqqqhii", 0, records - 1, time_ms, time_ms, -1, -1, -1, records) + bytes(body)
    inner = struct.pack(">ibI", -1, 2, crc32c(covered)) + covered
    return struct.pack(">qi", 0, len(inner)) + inner


def string(text):
    data = text.encode()
    return struct.pack(">h", len(data)) + data


def frame(api, version, correlation, body, client="pressure"):
    inner = struct.pack(">hhi", api, version, correlation) + string(client) + body
    return struct.pack(">i", len(inner)) + inner


def api_versions(correlation=0):
    return frame(18, 0, correlation, b"")


def metadata(topics=None, correlation=0):
    """Of all topics where none is named."""
    if topics is None:
        return frame(3, 1, correlation, struct.pack(">i", -1))
    return frame(3, 1, correlation, struct.pack(">i", len(topics)) + b"".join(map(string, topics)))


def produce(topic, partitions, records, acks, correlation=0):
    """The same batch to each of some partitions."""
    parts = b"".join(struct.pack(">ii", number, len(records)) + records for number in partitions)
    body = struct.pack(">hhii", -1, acks, 30_000, 1) + string(topic) + struct.pack(">i", len(partitions)) + parts
    return frame(0, 7, correlation, body)


def produce_errors(topic, answer):
    """The error codes in the answer to a `produce` of one topic, without its size."""
    at = 4 + 4 + 2 + len(topic)
    (count,) = struct.unpack_from(">i", answer, at)
    return [struct.unpack_from(">h", answer, at + 4 + index * 30 + 4)[0] for index in range(count)]


def fetch(topic, partition, offset, correlation=0, bytes_max=FETCH_BYTES, wait_ms=500):
    body = struct.pack(">iiiibi", -1, wait_ms, 1, bytes_max, 0, 1) + string(topic)
    body += struct.pack(">iiqi", 1, partition, offset, bytes_max)
    return frame(1, 4, correlation, body)


def fetched_head_bytes(topic):
    """Bytes of the answer to a `fetch`, without its size, before the records begin."""
    return 4 + 4 + 4 + 2 + len(topic) + 4 + 4 + 2 + 8 + 8 + 4 + 4


def fetched(topic, head):
    """Of such a head: the error's code, and how many bytes of records follow."""
    at = 4 + 4 + 4 + 2 + len(topic) + 4 + 4
    error, _, _, _, records = struct.unpack_from(">hqqii", head, at)
    return error, max(records, 0)
