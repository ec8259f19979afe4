"""Ports for nodes of tests and campaigns."""

import random
import socket

# Of so many at least one is free, or the machine has none.
TRIES = 100


def free_port():
    """Below those that the kernel gives to sockets of clients: one of these would else take it before the node does."""
    chance = random.SystemRandom()
    for _ in range(TRIES):
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", chance.randrange(10_000, 32_000)))
            except OSError:
                continue
            return listener.getsockname()[1]
    raise OSError(f"no port of {TRIES} is free")
