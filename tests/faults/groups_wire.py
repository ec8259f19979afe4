"""What a stranger asks of groups, by hand: a connection that is made anew for each question and never waits for more than its answer."""

import socket
import struct

OFFSET_FETCH, DESCRIBE_GROUPS, CONSUMER_GROUP_DESCRIBE = 9, 15, 69
SECONDS_MAX = 5


class Answer:
    """An answer's bytes, read from the front."""

    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, form):
        (value,) = struct.unpack_from(form, self.data, self.at)
        self.at += struct.calcsize(form)
        return value

    def bytes(self, length):
        taken = self.data[self.at : self.at + length]
        if len(taken) != length:
            raise ValueError("an answer that is too short")
        self.at += length
        return taken

    def string(self):
        length = self.take(">h")
        return None if length < 0 else self.bytes(length).decode()

    def blob(self):
        length = self.take(">i")
        return b"" if length < 0 else self.bytes(length)

    def varint(self):
        value, shift = 0, 0
        while True:
            byte = self.take(">B")
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def compact(self):
        length = self.varint()
        return None if length == 0 else self.bytes(length - 1).decode()

    def tags(self):
        for _ in range(self.varint()):
            self.varint()
            self.bytes(self.varint())

    def array(self, one):
        return [one() for _ in range(self.take(">i"))]

    def compact_array(self, one):
        return [one() for _ in range(max(self.varint() - 1, 0))]


def text(value):
    return struct.pack(">h", len(value)) + value.encode()


def ask(address, api, version, body, flexible=False):
    """Raises OSError where nobody answers."""
    host, port = address.rsplit(":", 1)
    head = struct.pack(">hhi", api, version, 1) + text("stranger") + (b"\0" if flexible else b"")
    with socket.create_connection((host, int(port)), timeout=SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">i", len(head) + len(body)) + head + body)
        (length,) = struct.unpack(">i", exactly(connection, 4))
        answer = Answer(exactly(connection, length))
    answer.take(">i")
    if flexible:
        answer.tags()
    return answer


def exactly(connection, length):
    data = b""
    while len(data) < length:
        more = connection.recv(length - len(data))
        if not more:
            raise ConnectionError("closed in the middle of an answer")
        data += more
    return data


def offsets(address, group):
    """All offsets of a group of one topic: the code of what went wrong, and partition to offset."""
    answer = ask(address, OFFSET_FETCH, 2, text(group) + struct.pack(">i", -1))

    def partition():
        number, offset, _, code = answer.take(">i"), answer.take(">q"), answer.string(), answer.take(">h")
        codes.add(code)
        return number, offset

    def topic():
        return answer.string(), answer.array(partition)

    codes = set()
    topics = answer.array(topic)
    codes.add(answer.take(">h"))
    found = {number: offset for _, partitions in topics for number, offset in partitions if offset >= 0}
    return max(codes, key=abs), found


def described(address, group, is_consumer):
    """The code of what went wrong, the state, and the partitions of each member."""
    return (described_consumer if is_consumer else described_classic)(address, [group])[group]


def states(address, classic, consumers):
    """The state of each group of which there is one."""
    found = described_classic(address, classic) | described_consumer(address, consumers)
    return {group: state for group, (code, state, _) in found.items() if code == 0}


def described_classic(address, groups):
    answer = ask(address, DESCRIBE_GROUPS, 0, struct.pack(">i", len(groups)) + b"".join(text(group) for group in groups))

    def member():
        name, _, _ = answer.string(), answer.string(), answer.string()
        answer.blob()
        return name, assigned(answer.blob())

    def group():
        code, name, state, _, _ = answer.take(">h"), answer.string(), answer.string(), answer.string(), answer.string()
        return name, (code, state, answer.array(member))

    return dict(answer.array(group))


def assigned(data):
    """The partitions of an assignment, in the clients' own form."""
    if not data:
        return []
    answer = Answer(data)
    answer.take(">h")
    topics = answer.array(lambda: (answer.string(), answer.array(lambda: answer.take(">i"))))
    return [partition for _, partitions in topics for partition in partitions]


def described_consumer(address, groups):
    names = b"".join(bytes([len(group.encode()) + 1]) + group.encode() for group in groups)
    body = bytes([len(groups) + 1]) + names + b"\0\0"
    answer = ask(address, CONSUMER_GROUP_DESCRIBE, 0, body, flexible=True)

    def topic():
        answer.bytes(16)
        answer.compact()
        partitions = answer.compact_array(lambda: answer.take(">i"))
        answer.tags()
        return partitions

    def assignment():
        topics = answer.compact_array(topic)
        answer.tags()
        return [partition for partitions in topics for partition in partitions]

    def member():
        member_id, _, _ = answer.compact(), answer.compact(), answer.compact()
        answer.take(">i")
        answer.compact(), answer.compact()
        answer.compact_array(answer.compact)
        answer.compact()
        current, _ = assignment(), assignment()
        answer.tags()
        return member_id, current

    def group():
        code, _, name, state = answer.take(">h"), answer.compact(), answer.compact(), answer.compact()
        answer.take(">i"), answer.take(">i"), answer.compact()
        members = answer.compact_array(member)
        answer.take(">i")
        answer.tags()
        return name, (code, state, members)

    answer.take(">i")
    return dict(answer.compact_array(group))
