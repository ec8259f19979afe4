"""How long an append and a hot read take, from a process of their own: one small record every 20 ms on a topic of the node's.

    python bucket_probe.py --address HOST:PORT --topic NAME --out FILE

Each line of the file is `produce` or `read`, the moment at which the record was sent (seconds of the monotonic clock, which all
processes of a machine share) and the seconds that it took to be acknowledged with acks=all, or to be read at the tail. SIGTERM
ends it: then everything is read again from the beginning, and `done`, or what is wrong, is the last line.
"""

import argparse
import signal
import struct
import time

from confluent_kafka import OFFSET_BEGINNING, TopicPartition

from fault_node import end_with_parent
from load import consumer, idempotent_producer

EVERY_SECONDS = 0.02


class Probe:
    def __init__(self, address, topic, out):
        self.topic = topic
        self.out = open(out, "w", buffering=1)
        self.address = address
        self.producer = idempotent_producer(address, **{"linger.ms": 0})
        self.reader = self.reader_from(OFFSET_BEGINNING)
        self.sent = self.acknowledged = self.read = 0
        self.wrong = []
        self.ended = False

    def reader_from(self, offset):
        reader = consumer(self.address, **{"fetch.wait.max.ms": 500})
        reader.assign([TopicPartition(self.topic, 0, offset)])
        return reader

    def send(self):
        number, now = self.sent, time.monotonic()
        self.sent += 1

        def told(error, message):
            if error is not None:
                self.wrong.append(f"record {number} was not delivered: {error}")
                return
            self.acknowledged += 1
            if message.offset() >= 0 and message.offset() != number:
                self.wrong.append(f"record {number} was acknowledged at {message.offset()}")
            self.out.write(f"produce {now:.6f} {time.monotonic() - now:.6f}\n")

        self.producer.produce(self.topic, struct.pack(">qd", number, now), partition=0, on_delivery=told)

    def take(self, message):
        """Looks at the next record."""
        if message is None or message.error() is not None:
            return None
        number, sent = struct.unpack(">qd", message.value())
        if message.offset() != self.read or number != self.read:
            self.wrong.append(f"record {number} was read at {message.offset()} where {self.read} was due")
        self.read = message.offset() + 1
        return sent

    def work(self):
        due = time.monotonic()
        while not self.ended and not self.wrong:
            if time.monotonic() >= due:
                # What was late is not made up for: a stall is one late record, not a burst.
                due = max(due + EVERY_SECONDS, time.monotonic() - EVERY_SECONDS)
                self.send()
            self.producer.poll(0)
            sent = self.take(self.reader.poll(0.002))
            if sent is not None:
                self.out.write(f"read {sent:.6f} {time.monotonic() - sent:.6f}\n")

    def judge(self):
        left = self.producer.flush(30)
        if left:
            self.wrong.append(f"{left} records are not acknowledged within 30 s")
        self.read, last = 0, time.monotonic()
        again = self.reader_from(OFFSET_BEGINNING)
        while self.read < self.sent and not self.wrong:
            for message in again.consume(1000, timeout=0.5):
                if self.take(message) is not None:
                    last = time.monotonic()
            if time.monotonic() > last + 30:
                self.wrong.append(f"only {self.read} of {self.sent} records can be read")
        self.out.write(f"wrong {self.wrong[:3]}\n" if self.wrong else f"done {self.read}\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--address", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    end_with_parent()
    probe = Probe(arguments.address, arguments.topic, arguments.out)

    def end(*_):
        probe.ended = True

    signal.signal(signal.SIGTERM, end)
    probe.work()
    probe.judge()


if __name__ == "__main__":
    main()
