"""Datasets while the disk, the gateway or the client fails: a clear refusal, nothing half, and never a failed read of S3."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.digests import rows_of, write
from rig.gateways import Running, Settings, gateway, start
from rig.mounts import filled, mounted
from rig.origin import FakeOrigin, OriginThread
from rig.processes import wait_until
from rig.signed_requests import ClientSigner
from rig.v1 import GWA, ask, register


@pytest.fixture
def origin() -> Iterator[FakeOrigin]:
    """An origin with one object."""
    with OriginThread() as started:
        started.put("data", "object", b"bytes")
        yield started


@pytest.fixture
def file(tmp_path: Path) -> bytes:
    """A digest file of 20,000 items."""
    return write(tmp_path / "digests", rows_of(20_000)).read_bytes()


def assert_reads(running: Running) -> None:
    """S3 answers."""
    assert running.client().get_object(Bucket="data", Key="object")["Body"].read() == b"bytes"


def drafts(cache: Path) -> list[Path]:
    """Incomplete registrations."""
    return list((cache / "datasets" / "tmp").iterdir())


def test_a_full_disk(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: on a full disk registering gets 503, known datasets stay, and S3 reads continue."""
    with mounted(tmp_path / "small", "size=24m") as small:
        settings = Settings(origin.endpoint, small / "cache")
        with gateway(settings, tmp_path / "home", isolated=True) as running:
            assert register(running, "before", file).status == 201
            with filled(small):
                reply = register(running, "after", file)
                assert (reply.status, reply.code) == (503, "ServiceUnavailable")
                assert "disk" in reply.json["detail"]
                assert "retry-after" in reply.headers
                assert ask(running, "GET", "/v1/datasets/before").json["items"] == 20_000
                assert_reads(running)
            assert register(running, "after", file).status == 201
            assert drafts(settings.cache) == []


def test_a_disk_that_is_filled_by_the_dataset(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: a dataset may not use the space of cache.reserve; a refused attempt leaves no file."""
    with mounted(tmp_path / "small", "size=80m") as small:
        settings = Settings(origin.endpoint, small / "cache", reserve="82MB")
        with gateway(settings, tmp_path / "home", isolated=True) as running:
            reply = register(running, "d", file)
            assert (reply.status, reply.code) == (503, "ServiceUnavailable")
            assert "full" in reply.json["detail"]
            assert drafts(settings.cache) == []
            assert list((settings.cache / "datasets" / "contents").iterdir()) == []


def test_a_read_only_disk(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: a gateway that starts on a read-only disk serves its datasets, and registers and removes none."""
    with mounted(tmp_path / "small", "size=24m") as small:
        settings = Settings(origin.endpoint, small / "cache")
        with gateway(settings, tmp_path / "home") as running:
            before = register(running, "d", file).json
        subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
        with gateway(settings, tmp_path / "home") as running:
            assert ask(running, "GET", f"/v1/datasets/{before['id']}").json == before
            assert register(running, "other", file).code == "ServiceUnavailable"
            assert ask(running, "DELETE", "/v1/datasets/d").code == "ServiceUnavailable"
            assert ask(running, "GET", "/v1/datasets/d").json == before
            assert_reads(running)


def test_the_datasets_are_deleted(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: a dataset whose files were deleted under a running gateway is unknown, and can be registered again."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    with gateway(settings, tmp_path / "home") as running:
        register(running, "d", file)
        subprocess.run(["rm", "-r", str(settings.cache / "datasets")], check=True)

        def statuses() -> set[int]:
            return {ask(running, "GET", "/v1/datasets/d").status for _ in range(8)}

        wait_until(lambda: statuses() == {404}, 10, "forgetting in both workers")
        assert ask(running, "GET", "/v1/datasets/d").code == "UnknownDataset"
        assert register(running, "d", file).status == 201
        assert statuses() == {200}


def test_the_cache_is_deleted(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: after the whole cache directory was deleted, datasets can be registered as soon as the store has made it again."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with gateway(settings, tmp_path / "home") as running:
        register(running, "d", file)
        # Renamed in one step, because the store creates missing files again.
        settings.cache.rename(tmp_path / "deleted")
        shutil.rmtree(tmp_path / "deleted")
        wait_until(lambda: ask(running, "GET", "/v1/datasets/d").status == 404, 10, "forgetting")
        assert_reads(running)
        wait_until(lambda: register(running, "d", file).status == 201, 60, "a registration on the new directory")
        assert ask(running, "GET", "/v1/datasets/d").json["items"] == 20_000


def test_a_restart(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: registrations outlive the gateway, and are the same for another number of workers."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with gateway(settings, tmp_path / "home") as running:
        before = register(running, "d", file, query="?caching=static").json
    settings.workers = 2
    with gateway(settings, tmp_path / "home") as running:
        assert ask(running, "GET", "/v1/datasets/d").json == before


def half_sent(running: Running, name: str, file: bytes) -> socket.socket:
    """A connection over which the first half of a digest file was sent."""
    signed = ClientSigner(*GWA).header("PUT", f"{running.endpoint}/-/v1/datasets/{name}", body=file)
    lines = [f"PUT /-/v1/datasets/{name} HTTP/1.1", f"Content-Length: {len(file)}"]
    lines += [f"{key.decode()}: {value.decode()}" for key, value in signed.headers if key != b"content-length"]
    connection = socket.create_connection(("127.0.0.1", running.port))
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + file[: len(file) // 2])
    return connection


def test_a_client_that_leaves(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: an upload that breaks off registers nothing, leaves no file, and causes no internal error."""
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with gateway(settings, tmp_path / "home") as running:
        with half_sent(running, "d", file * 4):
            wait_until(lambda: bool(drafts(settings.cache)), 10, "the upload's arrival")
        wait_until(lambda: not drafts(settings.cache), 10, "the end of the draft")
        assert ask(running, "GET", "/v1/datasets/d").status == 404
        assert "Traceback" not in running.log.read_text()


def test_killed_with_half_an_upload(origin: FakeOrigin, file: bytes, tmp_path: Path) -> None:
    """Rule: after kill -9 in the middle of an upload, earlier registrations are known and no partial file is left."""
    settings = Settings(origin.endpoint, tmp_path / "cache", workers=2)
    running = start(settings, tmp_path / "home")
    try:
        before = register(running, "d", file).json
        with half_sent(running, "d", file * 4):
            wait_until(lambda: bool(drafts(settings.cache)), 10, "the upload's arrival")
            running.kill()
    finally:
        if running.process.poll() is None:
            running.kill()
        running.process.stdout.close()
    assert drafts(settings.cache) != []
    with gateway(settings, tmp_path / "home") as again:
        assert ask(again, "GET", "/v1/datasets/d").json == before
        wait_until(lambda: not drafts(settings.cache), 60, "the removal of the drafts")
