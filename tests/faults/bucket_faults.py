"""What is done to the bucket, by name: orders to the proxy before the real S3 server."""

import json
import socket
import subprocess
import threading

from fault_node import end_with_parent

IDENTITY = "the-nodes-web-identity"

# Objects and pages by their path; listings have their prefix in the query, with its slash escaped.
OBJECTS = "/topics/"
SEGMENTS = ".seg"


class Proxy:
    """The program `bucket-proxy`."""

    def __init__(self, binary, endpoint, folder):
        upstream = endpoint.removeprefix("http://")
        command = [binary, "--upstream", upstream, "--identity", IDENTITY]
        self.log = open(folder / "proxy.log", "ab")
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self.log, preexec_fn=end_with_parent, text=True
        )
        place = json.loads(self.process.stdout.readline())
        self.endpoint = place["store"]
        self.issuer = place["issuer"]
        host, port = place["orders"].rsplit(":", 1)
        self.orders = socket.create_connection((host, int(port)), 10).makefile("rw")
        self.lock = threading.Lock()
        self.asked, self.hit = {}, {}

    def order(self, order):
        with self.lock:
            self.orders.write(json.dumps(order) + "\n")
            self.orders.flush()
            answer = json.loads(self.orders.readline())
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def add(self, fault, method=None, target="", count=None):
        order = {"fault": fault, "method": method, "target": target}
        self.order({"add": order if count is None else {**order, "count": count}})

    def told(self):
        """How many requests were hit since the last time."""
        answer = self.order("tell")
        for total, part in ((self.asked, answer["asked"]), (self.hit, answer["hit"])):
            for name, count in part.items():
                total[name] = total.get(name, 0) + count
        return sum(answer["hit"].values())

    def end(self):
        self.process.kill()
        self.process.wait(10)
        self.log.close()


class Kind:
    """One way to misbehave."""

    def __init__(self, name, scope, *rules, damages=False):
        self.name = name
        # What it hits: "get", "put" or "all".
        self.scope = scope
        # Fault, method, part of the target, and how many; the last may be left out.
        self.rules = rules
        # Whether a copy may be called damaged: bytes or lengths lie.
        self.damages = damages
        # Whether the proxy sees the requests that it hits.
        self.is_met = True

    def begin(self, proxy, _keep):
        for fault, method, target, *count in self.rules:
            proxy.add(fault, method, target, *count)

    def end(self, proxy):
        """Beyond the rules, which go for all kinds at once."""


class Down(Kind):
    """Nothing listens."""

    def begin(self, proxy, _keep):
        self.is_met = False
        proxy.order("shut")

    def end(self, proxy):
        proxy.order("open")


class Bursts(Kind):
    """503 for 0.4 s, and nothing for 0.3 s."""

    def begin(self, proxy, _keep):
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.work, args=(proxy,), daemon=True)
        self.thread.start()

    def work(self, proxy):
        while True:
            proxy.add({"status": [503, "SlowDown"]})
            if self.ended.wait(0.4):
                return
            proxy.order("clear")
            if self.ended.wait(0.3):
                return

    def end(self, proxy):
        self.ended.set()
        self.thread.join()
        proxy.order("clear")


class ExpiredKeys(Kind):
    """All keys are past their end, and who issues them is away."""

    def begin(self, proxy, _keep):
        proxy.order({"issue": self.rules[0]})
        proxy.order("expire-keys")

    def end(self, proxy):
        proxy.order({"issue": "issues"})


class OneUploadHangs(Kind):
    """The next segment of one partition is taken half, and nothing more of it."""

    def begin(self, proxy, keep):
        proxy.add({"freeze-upload": 1000}, "PUT", f"{keep}/0/", 1)


KINDS = [
    Down("down", "all"),
    Kind("connections break", "all", ("reset", None, "")),
    Kind("slow: 2 s to the first byte", "all", ({"delay-ms": 2000}, None, "")),
    Kind("503", "all", ({"status": [503, "SlowDown"]}, None, "")),
    Bursts("503 in bursts", "all"),
    Kind("500", "all", ({"status": [500, "InternalError"]}, None, "")),
    Kind("1 MiB/s", "all", ({"shared-rate": 1 << 20}, None, "")),
    ExpiredKeys("expired keys, issuer down", "all", "down"),
    ExpiredKeys("expired keys, renewed", "all", "issues"),
    Kind("half a body", "get", ({"cut-body": 1500}, "GET", "")),
    Kind("half a body, then nothing", "get", ({"freeze-body": 1500}, "GET", OBJECTS)),
    Kind("wrong length", "get", ({"answer-header": ["content-length", "1000"]}, "GET", OBJECTS), damages=True),
    Kind(
        "wrong total", "get", ({"answer-header": ["content-range", "bytes 0-999/12345678"]}, "GET", OBJECTS), damages=True
    ),
    Kind("wrong range", "get", ({"moved-answer": 100}, "GET", OBJECTS)),
    Kind("wrong range, right name", "get", ({"lying-answer": 100}, "GET", OBJECTS), damages=True),
    Kind("ignored range", "get", ("whole-answer", "GET", OBJECTS)),
    Kind("wrong bytes", "get", ({"wrong-byte": 700}, "GET", OBJECTS), damages=True),
    Kind("another ETag", "get", ({"answer-header": ["etag", '"another"']}, "GET", OBJECTS), damages=True),
    Kind("put landed, connection lost", "put", ("forward-then-drop", "PUT", "")),
    Kind("409", "put", ({"status": [409, "ConditionalRequestConflict"]}, "PUT", "")),
    Kind("412", "put", ({"status": [412, "PreconditionFailed"]}, "PUT", "")),
    Kind("200 with an error", "put", ("error-in-success", "PUT", "")),
    Kind("no right to write", "put", ({"status": [403, "AccessDenied"]}, "PUT", "")),
]

# These hold what they hit for the limit on silence.
HANGING = [
    Kind("hangs for ever", "all", ("silence", None, "")),
    Kind("put landed, no answer", "put", ("forward-then-silence", "PUT", SEGMENTS, 3)),
    OneUploadHangs("one upload hangs", "put"),
]
