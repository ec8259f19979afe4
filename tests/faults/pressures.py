"""What a node is put under: clients that no library would be, thousands of connections in one process.

Each pressure runs in a process of its own, at a lower priority than the node and the ordinary clients. It works until it is told
to stop, and is then the client that it should have been: it reads what it never read, ends what it left half done, or comes back
where the node closed it. Whoever does not get what is his within `DRAIN_SECONDS` is starved.
"""

import asyncio
import os
import random
import socket
import time

import frames

DRAIN_SECONDS = 60
NICE = 10
SCRATCH = bytearray(1 << 18)
CONNECTS_AT_ONCE = 64


class Peer(asyncio.BufferedProtocol):
    """One connection. Answers are counted, and their heads kept; nothing else of them is."""

    def __init__(self, head_bytes=16):
        self.head_bytes = head_bytes
        self.transport = None
        self.answers = 0
        self.bytes = 0
        self.heads = []
        self.closed = False
        self.changed = asyncio.Event()
        self.may_write = asyncio.Event()
        self.may_write.set()
        # Of the answer that is coming: its size's bytes, what is still to come, and its head.
        self.prefix = bytearray()
        self.left = 0
        self.head = bytearray()

    def connection_made(self, transport):
        self.transport = transport
        transport.set_write_buffer_limits(high=1)

    def connection_lost(self, error):
        self.closed = True
        self.may_write.set()
        self.changed.set()

    def pause_writing(self):
        self.may_write.clear()

    def resume_writing(self):
        self.may_write.set()

    def get_buffer(self, size_hint):
        return SCRATCH

    def buffer_updated(self, count):
        self.bytes += count
        at = 0
        while at < count:
            if self.left == 0:
                took = min(4 - len(self.prefix), count - at)
                self.prefix += SCRATCH[at : at + took]
                at += took
                if len(self.prefix) == 4:
                    self.left, self.prefix, self.head = int.from_bytes(self.prefix, "big"), bytearray(), bytearray()
                continue
            took = min(self.left, count - at)
            if len(self.head) < self.head_bytes:
                self.head += SCRATCH[at : at + min(took, self.head_bytes - len(self.head))]
            at += took
            self.left -= took
            if self.left == 0:
                self.answers += 1
                self.heads.append(bytes(self.head))
                self.changed.set()

    def eof_received(self):
        return False

    def send(self, data):
        if not self.closed:
            self.transport.write(data)

    async def sent(self):
        """Until the socket took everything, or is closed."""
        await self.may_write.wait()

    async def answered(self, count, seconds):
        """Whether so many answers are there within a time."""
        deadline = time.monotonic() + seconds
        while self.answers < count and not self.closed and time.monotonic() < deadline:
            self.changed.clear()
            try:
                await asyncio.wait_for(self.changed.wait(), min(1, max(0.01, deadline - time.monotonic())))
            except asyncio.TimeoutError:
                pass
        return self.answers >= count

    def close(self):
        if self.transport is not None:
            self.transport.abort()


class Pressure:
    """One kind of client, many times."""

    def __init__(self, address, options):
        host, port = address.split(":")
        self.place = (host, int(port))
        self.options = options
        self.peers = []
        self.starved = []
        self.gate = asyncio.Semaphore(CONNECTS_AT_ONCE)
        self.rng = random.Random(options.get("seed", 1))

    async def connect(self, received_bytes=None, **options):
        """One more peer; closed where the node does not take it."""
        peer = Peer(**options)
        sock = socket.socket()
        sock.setblocking(False)
        if received_bytes:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received_bytes)
        loop = asyncio.get_running_loop()
        async with self.gate:
            try:
                await asyncio.wait_for(loop.sock_connect(sock, self.place), 20)
                await loop.create_connection(lambda: peer, sock=sock)
            except (OSError, asyncio.TimeoutError):
                sock.close()
                peer.closed = True
        return peer

    async def connect_all(self, count, **options):
        self.peers += await asyncio.gather(*[self.connect(**options) for _ in range(count)])

    async def ask_again(self, frame, what, seconds=DRAIN_SECONDS, **options):
        """Comes back, as a client does whose connection was closed, until it is answered."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            peer = await self.connect(**options)
            peer.send(frame)
            done = await peer.answered(1, deadline - time.monotonic())
            peer.close()
            if done:
                return peer
            await asyncio.sleep(0.2)
        self.starved.append(what)
        return None

    async def begin(self):
        raise NotImplementedError

    async def work(self, stopped):
        await stopped.wait()

    async def drain(self):
        """Becomes a good client. Gives what was counted."""
        raise NotImplementedError

    def count_closed(self):
        return sum(peer.closed for peer in self.peers)


class Chatty(Pressure):
    """Connections that are there, some of which say something now and then."""

    async def begin(self):
        await self.connect_all(self.options["connections"])
        for peer in self.peers:
            peer.send(frames.api_versions())
        await asyncio.gather(*[peer.answered(1, 30) for peer in self.peers])

    async def work(self, stopped):
        topic = self.options["topic"]
        batch = frames.batch(1, 100)
        asks = [
            lambda: frames.metadata([topic]),
            lambda: frames.fetch(topic, self.rng.randrange(self.options["partitions"]), 0, bytes_max=4096, wait_ms=10),
            lambda: frames.produce(topic, [self.rng.randrange(self.options["partitions"])], batch, 1),
        ]
        talkers = self.peers[: self.options["talkers"]]
        while not stopped.is_set():
            begun = time.monotonic()
            for peer in talkers:
                peer.send(self.rng.choice(asks)())
                # Spread over the second.
                await asyncio.sleep(0.5 / len(talkers))
            await asyncio.sleep(max(0, 1 - (time.monotonic() - begun)))

    async def drain(self):
        closed = self.count_closed()
        answers = [peer.answers for peer in self.peers]
        for peer in self.peers:
            peer.send(frames.api_versions())
        done = await asyncio.gather(*[peer.answered(had + 1, DRAIN_SECONDS) for peer, had in zip(self.peers, answers)])
        self.starved += [f"connection {n}" for n, (ok, peer) in enumerate(zip(done, self.peers)) if not ok and not peer.closed]
        return {"connections": len(self.peers), "closed": closed, "answers": sum(peer.answers for peer in self.peers)}


class SlowReaders(Pressure):
    """Ask for a lot, again and again, and never read a byte."""

    def question(self, number):
        kind = self.options["asks"]
        if kind == "metadata":
            return frames.metadata()
        spread = self.options["offsets"]
        return frames.fetch(self.options["topic"], number % self.options["partitions"], number * 7919 % spread)

    async def begin(self):
        count = self.options["connections"]
        peers = await asyncio.gather(*[self.connect(received_bytes=4096) for _ in range(count)])
        for number, peer in enumerate(peers):
            if not peer.closed:
                peer.transport.pause_reading()
            peer.send(self.question(number) * self.options["requests"])
        self.peers += peers

    async def drain(self):
        open_before = [peer for peer in self.peers if not peer.closed]
        for peer in open_before:
            peer.transport.resume_reading()
        done = await asyncio.gather(*[peer.answered(1, DRAIN_SECONDS) for peer in open_before])
        # A paused connection learns only now that it was closed; it comes back.
        again = [n for n, peer in enumerate(self.peers) if peer.closed and peer.answers == 0]
        self.starved += [f"a reader: {peer.bytes} bytes, {peer.left} left" for peer, ok in zip(open_before, done) if not ok and not peer.closed]
        for peer in self.peers:
            peer.close()
        for first in range(0, len(again), 50):
            asked = [self.ask_again(self.question(n), f"reader {n}, come back") for n in again[first : first + 50]]
            await asyncio.gather(*asked)
        read = sum(peer.bytes for peer in self.peers)
        return {"connections": len(self.peers), "came_back": len(again), "answered": sum(done), "bytes": read}


class HalfFrames(Pressure):
    """Begin frames and do not end them: a few bytes, half of one, or the beginning of one of 90 MB."""

    async def begin(self):
        topic, partitions = self.options["topic"], self.options["partitions"]
        batch = frames.batch(4, 250_000)
        self.whole = [frames.produce(topic, [number], batch, 1) for number in range(partitions)]
        await self.connect_all(self.options["connections"])
        self.rest = []
        for number, peer in enumerate(self.peers):
            frame = self.whole[number % partitions]
            if number % 10 == 9:
                huge = (90_000_000).to_bytes(4, "big") + frame[4:70_000]
                peer.send(huge)
                self.rest.append(None)
                continue
            sent = 6 if number % 3 == 0 else len(frame) // 2
            peer.send(frame[:sent])
            self.rest.append(frame[sent:])

    async def drain(self):
        closed = self.count_closed()
        waiting = [(n, peer) for n, peer in enumerate(self.peers) if self.rest[n] is not None]
        for n, peer in waiting:
            peer.send(self.rest[n])
        done = await asyncio.gather(*[peer.answered(1, DRAIN_SECONDS) for _, peer in waiting])
        again = []
        for (n, peer), ok in zip(waiting, done):
            if not ok and peer.closed:
                again.append(n)
            elif not ok:
                self.starved.append(f"the second half of frame {n}")
        for peer in self.peers:
            peer.close()
        for first in range(0, len(again), 50):
            asked = [self.ask_again(self.whole[n % len(self.whole)], f"frame {n}, sent again") for n in again[first : first + 50]]
            await asyncio.gather(*asked)
        return {"connections": len(self.peers), "closed": closed, "ended_and_answered": sum(done), "sent_again": len(again)}


class Flood(Pressure):
    """Produces as fast as the node takes it, and reads no answer."""

    async def begin(self):
        topic, partitions = self.options["topic"], self.options["partitions"]
        batch = frames.batch(8, self.options["batch_bytes"] // 8)
        self.frames = [frames.produce(topic, [number], batch, self.options["acks"]) for number in range(partitions)]
        head = 4 + 4 + 2 + len(topic) + 4 + 30
        self.peers = [await self.connect(head_bytes=head) for _ in range(self.options["connections"])]
        self.sent = [0] * len(self.peers)
        if self.options["acks"] == 1:
            for peer in self.peers:
                peer.transport.pause_reading()

    async def work(self, stopped):
        async def one(index, peer):
            while not stopped.is_set() and not peer.closed:
                waiting = asyncio.ensure_future(peer.sent())
                ended = asyncio.ensure_future(stopped.wait())
                await asyncio.wait([waiting, ended], return_when=asyncio.FIRST_COMPLETED)
                ended.cancel()
                if not waiting.done():
                    waiting.cancel()
                    return
                peer.send(self.frames[(self.sent[index] + index) % len(self.frames)])
                self.sent[index] += 1

        await asyncio.gather(*[one(index, peer) for index, peer in enumerate(self.peers)])

    async def drain(self):
        acks, topic, errors = self.options["acks"], self.options["topic"], 0
        for index, peer in enumerate(self.peers):
            if acks == 1 and not peer.closed:
                peer.transport.resume_reading()
            # Behind everything that was sent.
            peer.send(frames.api_versions())
            wanted = 1 + (self.sent[index] if acks == 1 else 0)
            if not await peer.answered(wanted, DRAIN_SECONDS):
                # It read nothing for longer than the node waits: then it is closed, which is not starving.
                if not peer.closed:
                    self.starved.append(f"flood {index}: {peer.answers} of {wanted} answers")
            for head in peer.heads[:-1] if acks == 1 else []:
                errors += any(frames.produce_errors(topic, head))
        sent = sum(self.sent)
        return {
            "connections": len(self.peers),
            "frames": sent,
            "megabytes": sent * len(self.frames[0]) // 1_000_000,
            "answers": sum(peer.answers for peer in self.peers),
            "refused": errors,
            "closed": self.count_closed(),
        }


class AskersForAll(Pressure):
    """Ask for the metadata of every partition, one after the other, and read it."""

    async def begin(self):
        await self.connect_all(self.options["connections"])

    async def work(self, stopped):
        async def one(peer):
            while not stopped.is_set() and not peer.closed:
                had = peer.answers
                peer.send(frames.metadata())
                if not await peer.answered(had + 1, DRAIN_SECONDS) and not peer.closed:
                    self.starved.append("metadata of all partitions")
                    return

        await asyncio.gather(*[one(peer) for peer in self.peers])

    async def drain(self):
        answers = sum(peer.answers for peer in self.peers)
        return {"connections": len(self.peers), "answers": answers, "megabytes": sum(p.bytes for p in self.peers) // 1_000_000}


class Consumers(Pressure):
    """Each wants 50 MiB, and then again; what it reads are equal batches, so its place follows from how much came."""

    async def begin(self):
        self.head = frames.fetched_head_bytes(self.options["topic"])
        self.turns = [0] * self.options["connections"]
        self.first_seconds = [None] * self.options["connections"]
        self.total = 0
        await self.connect_all(self.options["connections"], head_bytes=self.head)

    async def one(self, number, peer, stopped):
        topic, partitions = self.options["topic"], self.options["partitions"]
        batch_bytes, batch_records = self.options["batch_bytes"], self.options["batch_records"]
        batches = self.options["batches"]
        begun, got = time.monotonic(), 0
        # Anywhere, so that no two read the same at one time.
        at = number * 37 % batches
        while self.turns[number] == 0 or not stopped.is_set():
            had = peer.answers
            peer.send(frames.fetch(topic, number % partitions, at * batch_records))
            if not await peer.answered(had + 1, DRAIN_SECONDS):
                self.starved.append(f"consumer {number} at {got} bytes of its turn {self.turns[number]}")
                return
            error, records = frames.fetched(topic, peer.heads[-1])
            peer.heads.clear()
            if error != 0:
                # One that passes; the turn must come to its end all the same.
                await asyncio.sleep(0.1)
                self.errors = getattr(self, "errors", 0) + 1
            whole = records // batch_bytes
            if records % batch_bytes:
                self.starved.append(f"consumer {number} was given {records} bytes, which are no whole batches")
                return
            at = (at + whole) % batches
            got += records
            self.total += records
            if got >= frames.FETCH_BYTES:
                self.turns[number] += 1
                if self.first_seconds[number] is None:
                    self.first_seconds[number] = time.monotonic() - begun
                got = 0

    async def work(self, stopped):
        async def bounded(number, peer):
            await self.one(number, peer, stopped)

        self.tasks = [asyncio.ensure_future(bounded(n, peer)) for n, peer in enumerate(self.peers)]
        await stopped.wait()

    async def drain(self):
        # Who has not had its first 50 MiB gets the time to.
        _, late = await asyncio.wait(self.tasks, timeout=2 * DRAIN_SECONDS)
        for task in late:
            task.cancel()
        self.starved += [f"{len(late)} consumers have not had 50 MiB"] if late else []
        firsts = sorted(seconds for seconds in self.first_seconds if seconds is not None)
        return {
            "connections": len(self.peers),
            "megabytes": self.total // 1_000_000,
            "turns": [min(self.turns), max(self.turns)],
            "first_50_mib_seconds": [round(firsts[0], 1), round(firsts[-1], 1)] if firsts else None,
            "errors": getattr(self, "errors", 0),
        }


class BeyondTheLimit(Pressure):
    """More connections than the node takes. Each is answered, or closed at once."""

    async def begin(self):
        await self.connect_all(self.options["connections"])
        for peer in self.peers:
            peer.send(frames.api_versions())
        await asyncio.gather(*[peer.answered(1, 30) for peer in self.peers])
        self.taken = sum(peer.answers > 0 for peer in self.peers)

    async def drain(self):
        hanging = [n for n, peer in enumerate(self.peers) if peer.answers == 0 and not peer.closed]
        self.starved += [f"{len(hanging)} connections are neither answered nor closed"] if hanging else []
        for peer in self.peers:
            peer.close()
        await asyncio.sleep(0.5)
        # There is room again.
        await self.ask_again(frames.api_versions(), "a connection when the others are gone", 10)
        return {"connections": len(self.peers), "taken": self.taken, "closed_at_once": len(self.peers) - self.taken - len(hanging)}


class Busy(Pressure):
    """Nothing to the node: it keeps the processor as busy as a pressure's own process may, for a measure to compare with."""

    async def begin(self):
        pass

    async def work(self, stopped):
        while not stopped.is_set():
            until = time.monotonic() + 0.02
            while time.monotonic() < until:
                frames.crc32c(b"busy" * 64)
            await asyncio.sleep(0)

    async def drain(self):
        return {}


def run(kind, address, options, stop, pipe):
    """The whole of a pressure's process: says "begun", waits for the stop, drains, and gives what was counted."""
    os.nice(NICE)

    async def whole():
        pressure = globals()[kind](address, options)
        await pressure.begin()
        pipe.send(("begun", len(pressure.peers), pressure.count_closed()))
        stopped = asyncio.Event()
        work = asyncio.ensure_future(pressure.work(stopped))
        while not stop.is_set():
            await asyncio.sleep(0.05)
            if work.done():
                await work
        stopped.set()
        await work
        counted = await pressure.drain()
        for peer in pressure.peers:
            peer.close()
        pipe.send(("done", counted, pressure.starved))

    try:
        asyncio.run(whole())
    except Exception as error:  # noqa: BLE001 - whatever it is, it must be seen
        pipe.send(("failed", f"{kind}: {type(error).__name__}: {error}"))
