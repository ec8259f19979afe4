"""The nodes of the campaigns: the product's own, over layers that end the process where the campaign says so, or as it is."""

import ctypes
import json
import os
import pathlib
import signal
import subprocess
import time
import urllib.error
import urllib.request

from ports import free_port

# Small files and short waits: every phase comes round within a second or two.
SETTINGS = {
    "auto.create.topics.enable": "false",
    "log.segment.bytes": "32768",
    "log.index.interval.bytes": "4096",
    "log.journal.bytes.max": "8388608",
    "log.journal.file.bytes": "1048576",
    "log.local.retention.ms": "300",
    "log.retention.ms": "-1",
    "tier.check.interval.ms": "100",
    "tier.upload.max.lag.ms": "400",
    "tier.delete.grace.ms": "700",
    "tier.orphan.age.ms": "4000",
    "manifest.publish.ms": "300",
    "tier.cache.bytes": "0",
}
ORPHAN_AGE_SECONDS = 4.0
GRACE_SECONDS = 0.7

# A start that takes longer does not come to its end.
START_SECONDS_MAX = 30


PR_SET_PDEATHSIG = 1
LIBC = ctypes.CDLL(None)


def end_with_parent():
    """Has the kernel end this process with the campaign, however that ends."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Node:
    """A node in a folder of its own, with a bucket beside it unless `store` says otherwise, as lines of its file. What is started
    is the subclass's."""

    def __init__(self, binary, folder, settings, store=None):
        self.binary = binary
        self.folder = pathlib.Path(folder)
        self.data = self.folder / "data"
        self.bucket = self.folder / "bucket"
        self.port = free_port()
        self.admin_port = free_port()
        self.process = None
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log = open(self.folder / "node.log", "ab")
        settings = "".join(f'"{key}" = "{value}"\n' for key, value in settings.items())
        (self.folder / "node.toml").write_text(
            f'data_dir = "{self.data}"\n'
            f"{store or self.folder_store()}"
            f'admin_listen = "127.0.0.1:{self.admin_port}"\n'
            f'[[listeners]]\nname = "PLAINTEXT"\nlisten = "{self.address}"\n'
            f"[settings]\n{settings}"
        )

    def folder_store(self):
        return f'store = "file://{self.bucket}"\n'

    @property
    def address(self):
        return f"127.0.0.1:{self.port}"

    def run(self, command):
        self.log.write(f"--- start {' '.join(command)}\n".encode())
        self.log.flush()
        self.process = subprocess.Popen(command, stdout=self.log, stderr=self.log, preexec_fn=end_with_parent)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        return self.process.wait(10)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(40)

    def end(self):
        """Leaves no process behind, whatever happened."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        self.log.close()

    def log_tail(self):
        self.log.flush()
        return (self.folder / "node.log").read_text(errors="replace")[-3000:]

    def get(self, path):
        """A document of the admin listener; None where it does not answer now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}{path}", timeout=20) as answer:
                return json.loads(answer.read())
        except (OSError, urllib.error.HTTPError, ValueError):
            return None

    def is_ready(self):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/readyz", timeout=5) as answer:
                return answer.status == 200
        except (OSError, urllib.error.HTTPError):
            return False

    def metrics(self):
        """Every sample of /metrics by its name and labels; empty where it does not answer now."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.admin_port}/metrics", timeout=30) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return {}
        samples = (line.rsplit(" ", 1) for line in lines if line and not line.startswith("#"))
        return {name: float(value) for name, value in samples}

    def drop_cache(self):
        request = urllib.request.Request(f"http://127.0.0.1:{self.admin_port}/v1/cache/clear", method="POST")
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 200

    def objects(self):
        """Every file of the bucket: key to length."""
        found = {}
        for folder, _, names in os.walk(self.bucket):
            for name in names:
                path = pathlib.Path(folder) / name
                try:
                    found[str(path.relative_to(self.bucket))] = path.stat().st_size
                except FileNotFoundError:
                    pass
        return found


class FaultNode(Node):
    """The product's node over layers that end it."""

    def __init__(self, binary, folder, mistake=None):
        super().__init__(binary, folder, SETTINGS)
        self.mistake = mistake
        self.report = self.folder / "report.jsonl"
        self.read_lines = 0

    def start(self, plan=None):
        command = [self.binary, "--config", str(self.folder / "node.toml"), "--report", str(self.report)]
        if plan:
            command += ["--kill-at", plan]
        if self.mistake:
            command += ["--mistake", self.mistake]
        self.run(command)

    def events(self):
        """What the node has told since the last look."""
        try:
            lines = self.report.read_text().splitlines()
        except FileNotFoundError:
            return []
        new, self.read_lines = lines[self.read_lines :], len(lines)
        return [json.loads(line) for line in new]


class LimitedNode(Node):
    """The shipped program, under a limit of descriptors."""

    def __init__(self, binary, folder, settings, descriptors):
        super().__init__(binary, folder, settings)
        self.descriptors = descriptors

    def start(self):
        serve = f"ulimit -n {self.descriptors}; exec {self.binary} serve --config {self.folder / 'node.toml'}"
        self.run(["sh", "-c", serve])


def wait_until(condition, seconds, what, every=0.05):
    """Gives what `condition` gave once it was true; raises where it never was."""
    deadline = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {seconds} s: {what}")
        time.sleep(every)
