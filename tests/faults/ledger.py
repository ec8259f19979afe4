"""What was sent and what was acknowledged, and what a record must look like.

A record is named by its number in its partition. Its content follows from topic, life of the topic, partition and number, so that
a reader knows every byte. One producer writes each partition from its beginning, so the number is the offset: a lost, doubled or
reordered record shifts what is behind it.
"""

import random
import threading
import time
from array import array

FILLER = random.Random(7).randbytes(1 << 16)


class Findings:
    """What must not be, from any thread."""

    def __init__(self):
        self.lock = threading.Lock()
        self.texts = []

    def add(self, text):
        with self.lock:
            if len(self.texts) < 50:
                self.texts.append(text)
                print(f"FINDING: {text}", flush=True)

    def __bool__(self):
        return bool(self.texts)


class Ledger:
    """One partition of one life of a topic."""

    def __init__(self, topic, partition, life=0):
        self.topic = topic
        self.partition = partition
        self.life = life
        # By number: time of sending; offset, -1 until it is acknowledged, -2 where the answer had none.
        self.times = array("q")
        self.offsets = array("q")
        self.acknowledged = 0
        # DeleteRecords: what was confirmed, and what was ever asked for.
        self.trimmed_to = 0
        self.asked_to = 0

    def __str__(self):
        return f"{self.topic}-{self.partition}" + (f" (life {self.life})" if self.life else "")

    @property
    def sent(self):
        return len(self.times)

    def content(self, number):
        start = number * 7919 % 60000
        body = FILLER[start : start + 40 + number * 31 % 500]
        return f"{self.topic}/{self.partition}/{self.life}/{number}|".encode() + body

    def append(self):
        """The next record: number, key, value, headers, time."""
        number = len(self.times)
        now = int(time.time() * 1000)
        self.offsets.append(-1)
        self.times.append(now)
        return number, str(number).encode(), self.content(number), [("number", str(number).encode())], now

    def settle(self, number, offset, findings):
        """An acknowledgement."""
        if self.offsets[number] != -1:
            findings.add(f"{self}: record {number} was acknowledged twice")
        self.offsets[number] = offset if offset is not None and offset >= 0 else -2
        self.acknowledged += 1
        if self.offsets[number] >= 0 and offset != number:
            findings.add(f"{self}: record {number} was acknowledged at offset {offset}")

    def difference(self, message):
        """Why a message is not the record of its offset, or None."""
        number = message.offset()
        if number >= self.sent:
            return f"{self}: offset {number} holds a record, and only {self.sent} were sent"
        if message.key() != str(number).encode() or message.value() != self.content(number):
            return f"{self}: offset {number} holds key {message.key()}, value {message.value()[:60]}"
        if message.headers() != [("number", str(number).encode())]:
            return f"{self}: offset {number} has headers {message.headers()}"
        if message.timestamp()[1] != self.times[number]:
            return f"{self}: offset {number} has time {message.timestamp()}, not {self.times[number]}"
        return None
