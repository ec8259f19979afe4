"""Starts that cannot be: within seconds, with 1, with what is wrong and what to do, and nothing touched."""

import hashlib
import os
import pathlib
import socket
import subprocess
import time

import pytest

from conftest import BINARY, ENDPOINT, SCRATCH, STORE, free_port


def refused(folder, *arguments, store=None, within=15):
    """Runs a start that must be refused and gives what it said."""
    command = [BINARY, "serve", "--data-dir", str(folder)]
    for listener in ("--listen", "--admin-listen"):
        if listener not in arguments:
            command += [listener, f"127.0.0.1:{free_port()}"]
    command += ["--store", store or f"{STORE}-{folder.name}"]
    if ENDPOINT and (store is None or store.startswith("s3:")):
        command += ["--store-endpoint", ENDPOINT]
    begun = time.monotonic()
    done = subprocess.run([*command, *arguments], capture_output=True, timeout=60)
    assert done.returncode == 1, done.stderr.decode()
    assert time.monotonic() - begun < within, "within seconds"
    return done.stderr.decode()


def hashed(folder):
    files = sorted(path for path in pathlib.Path(folder).rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture
def folder(topic):
    return SCRATCH / f"refused-{topic}"


# B14
@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_an_advertised_wildcard_is_refused(folder, host):
    said = refused(folder, "--listen", f"{host}:{free_port()}")
    assert "reaches nobody from another machine" in said and "set an address" in said
    assert not folder.exists(), "nothing was touched"
    said = refused(folder, "--advertise", f"0.0.0.0:{free_port()}")
    assert "reaches nobody from another machine" in said


def test_every_wrong_setting_is_named_at_once(folder):
    said = refused(folder, "--node-id=-1", "--set", "log.retention.ms=x", "--set", "no.such.key=1", "--advertise", "nowhere")
    assert said.count("\n  ") >= 4, said
    for name in ("node_id", "log.retention.ms", "no.such.key", "advertise"):
        assert name in said, said


def test_a_port_in_use_is_named(folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused(folder, "--listen", f"127.0.0.1:{port}")
        assert str(port) in said and "use" in said, said
        said = refused(folder, "--admin-listen", f"127.0.0.1:{port}")
        assert str(port) in said and "use" in said, said


def test_a_data_directory_in_use_is_refused(node):
    said = refused(node.folder / "data")
    assert "in use" in said or "another process" in said, said
    assert node.get("/readyz")[0] == 200, "the one that runs is unharmed"


# B137: told before anything is written.
def test_a_data_directory_of_a_newer_version_is_refused_untouched(own_node):
    assert own_node.stop() == 0
    data = own_node.folder / "data"
    properties = data / "meta.properties"
    text = properties.read_text()
    assert "version=1" in text, text
    # With a line of its own: were the number all that does not fit the checksum, it would be a damaged file of this version.
    properties.write_text(text.replace("version=1", "version=99\nsomething=new"))
    before = hashed(data)
    said = refused(data, store=f"{STORE}-{own_node.name}")
    assert "99" in said and "version" in said, said
    assert hashed(data) == before, "byte for byte"
    properties.write_text(text)
    own_node.start()


def test_a_prefix_of_another_cluster_is_refused(own_node, folder):
    said = refused(folder, store=f"{STORE}-{own_node.name}")
    assert "another cluster" in said or "belongs to" in said, said


def test_a_store_that_cannot_be_is_refused(folder):
    for store in ("s4://bucket/prefix", "bucket", "s3://"):
        assert "store" in refused(folder, store=store)
    if ENDPOINT:
        said = refused(folder, store="s3://no-such-bucket-of-tidelog/x")
        assert "no-such-bucket-of-tidelog" in said and "bucket init" in said, said


@pytest.mark.parametrize("wrong", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_a_bucket_that_forbids_is_refused(folder, monkeypatch, wrong):
    if os.environ["TIDELOG_TEST_STORE_KIND"] not in ("versitygw", "minio"):
        pytest.skip("this store takes any key")
    monkeypatch.setenv(wrong, "not-the-one")
    said = refused(folder)
    assert STORE in said and "refuses" in said, said


def test_a_bucket_without_keys_is_refused(folder, monkeypatch):
    if not ENDPOINT:
        pytest.skip("a folder needs no keys")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    said = refused(folder)
    assert STORE in said and "credentials" in said, said
