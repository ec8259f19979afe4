"""The real Apache Kafka in the place of a node: what the clients do there is what they must do with Tidelog."""

import pathlib
import signal
import socket
import subprocess
import sys
import time

sys.path.append(str(pathlib.Path(__file__).parents[1] / "faults"))
from ports import free_port  # noqa: E402

# On a machine that builds meanwhile.
START_SECONDS_MAX = 180

SETTINGS = """process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/data
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
group.consumer.min.heartbeat.interval.ms=200
group.consumer.heartbeat.interval.ms=300
"""


class KafkaNode:
    """One combined node; its topics do not get cold, since the shapes of records are what is compared."""

    def __init__(self, name, folder, jars):
        self.name, self.folder, self.jars = name, folder / name, jars
        self.port, self.controller = free_port(), free_port()
        self.process = self.log = None

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def java(self, *arguments):
        return ["java", "-Xmx768m", "-XX:+UseSerialGC", "-cp", f"{self.jars}/*", *arguments]

    def start(self):
        self.folder.mkdir(parents=True, exist_ok=True)
        properties = self.folder / "server.properties"
        if not properties.exists():
            properties.write_text(SETTINGS.format(port=self.port, controller=self.controller, folder=self.folder))
            form = self.java("kafka.tools.StorageTool", "format", "-t", "dGlkZWxvZy1iZW5jaC1rZg", "-c", str(properties))
            subprocess.run(form, check=True, capture_output=True, cwd=self.folder)
        self.log = open(self.folder / "node.log", "ab")
        self.process = subprocess.Popen(
            self.java("kafka.Kafka", str(properties)), stdout=self.log, stderr=self.log, cwd=self.folder
        )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self.listens():
            assert self.process.poll() is None, f"Kafka ended, see {self.log.name}"
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"Kafka does not listen, see {self.log.name}")
            time.sleep(0.1)

    def listens(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
            return True
        except OSError:
            return False

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(120)
        self.log.close()

    def stop(self):
        self.kill()
        return 0

    def wait_cold(self, topic):
        pass

    def drop_cache(self):
        pass

    def log_files(self, topic):
        return sorted((self.folder / "data").glob(f"{topic}-[0-9]*/*.log"))


def dev():
    """A node until standard input ends: `python kafka_node.py FOLDER JARS`."""
    node = KafkaNode("kafka", pathlib.Path(sys.argv[1]), sys.argv[2])
    node.start()
    print(node.address, flush=True)
    try:
        sys.stdin.read()
    finally:
        node.kill()


if __name__ == "__main__":
    dev()
