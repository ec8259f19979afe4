"""The one request that is asked without a client: what a node announces."""

import socket
import struct

API_VERSIONS = 18


def announced(address):
    """The lowest and highest version of each API key that a node announces."""
    host, port = address.split(":")
    request = struct.pack(">hhih", API_VERSIONS, 0, 1, -1)
    with socket.create_connection((host, int(port)), 10) as stream:
        stream.sendall(struct.pack(">i", len(request)) + request)
        answer = read(stream, struct.unpack(">i", read(stream, 4))[0])
    correlation, error, count = struct.unpack_from(">ihi", answer)
    assert (correlation, error) == (1, 0), (correlation, error)
    keys = (struct.unpack_from(">hhh", answer, 10 + 6 * number) for number in range(count))
    return {key: (lowest, highest) for key, lowest, highest in keys}


def read(stream, count):
    found = b""
    while len(found) < count:
        part = stream.recv(count - len(found))
        assert part, "the node closed the connection"
        found += part
    return found
