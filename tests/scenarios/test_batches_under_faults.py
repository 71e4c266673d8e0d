"""Batches under faults: origin, gateway, disk and clients fail, and every item is still delivered correctly, exactly once."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import numpy as np
import pytest

from larder.base.retry import Retry
from larder.http.client import Client
from larder.http.credentials import Credentials
from larder.reading.batch import BatchReader, Fetched
from larder.reading.frames import HIT
from rig.batches import Stock, bytes_of, packed, stock
from rig.clients import Client as Raw
from rig.clients import client_of_each_worker as clients_of
from rig.clients import workers_of
from rig.gateways import Running, Settings, gateway, start
from rig.mounts import filled, mounted
from rig.origin_faults import DieAfter, Hang, Refuse
from rig.processes import free_port, wait_until
from rig.v1 import GWA
from rig.world import SOON, Origin, doomed

CREDENTIALS = Credentials(*GWA)
PATIENT = Retry(attempts=60, base=0.02, longest=0.5)


@contextmanager
def reader_of(running: Running, made: Stock, retry: Retry | None = None) -> Iterator[BatchReader]:
    """The client's reader of a dataset that the gateway knows."""
    dataset = Client(running.endpoint, credentials=CREDENTIALS).dataset(made.name)
    reader = BatchReader(
        running.endpoint, dataset, credentials=CREDENTIALS, retry=retry, digest_file=made.file, timeout=20
    )
    yield reader
    reader.close()


def assert_right(made: Stock, fetched: Fetched, wanted: list[int] | None = None) -> None:
    """Every item with its bytes; all that were wanted, each exactly once."""
    assert [bytes(data) for data in fetched.data] == [made.bodies[index] for index in fetched.indices]
    if wanted is not None:
        assert sorted(fetched.indices.tolist()) == sorted(wanted)
        assert fetched.failed == {}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The directory of the test's gateway."""
    return tmp_path / "home"


def named(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses."""
    return f"f-{abs(hash(request.node.name)):x}"


def test_an_origin_that_cuts_its_answers_costs_repetitions_only(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """Wherever the origin breaks off, items come whole, in every caching mode."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(24, 5000, "cut"))
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), home) as running:
        for caching in ("full", "none"):
            made.register(running, caching)
            with reader_of(running, made) as reader:
                for number, size in enumerate((0, 1, 24, 100, 1000, 2500, 4095, 4096, 4998, 4999)):
                    origin.inject(DieAfter(path=f"/data/{made.name}", size=size, times=3))
                    wanted = [number * 2, number * 2 + 1, 22, 23]
                    assert_right(made, reader.fetch(wanted), wanted)
        origin.heal()


def test_a_gateway_that_is_killed_mid_batch_and_comes_back(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """kill -9 in the middle of a batch, and a restart at the same address: the fetch ends with every item exactly once."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(200, 20_000, "killed"))
    port = free_port()
    settings = Settings(origin.endpoint, tmp_path / "cache", server={"port": port})
    settings.toml = lambda made=settings.toml: made().replace("port = 0\n", "", 1)  # type: ignore[method-assign]
    result: list[Fetched] = []
    with doomed(settings, home) as running:
        made.register(running)
        hang = origin.inject(Hang(path=made.path(150), after=5000))
        with reader_of(running, made, PATIENT) as reader:
            thread = threading.Thread(target=lambda: result.append(reader.fetch(range(200))))
            thread.start()
            hang.gate.arrival.result(SOON)
            wait_until(lambda: len(made.missing(running)) < 150, SOON, "some items")
            running.kill()
            hang.gate.open()
            again = start(settings, home)
            try:
                thread.join(SOON)
                assert not thread.is_alive()
            finally:
                again.stop()
                again.process.stdout.close()
    assert_right(made, result[0], list(range(200)))


def open_files(pid: int) -> int:
    """Descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident_memory(pid: int) -> int:
    """Bytes of memory that a process has."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


def stalled(running: Running, made: Stock, indices: list[int], query: str = "") -> socket.socket:
    """A client that asks for a batch, reads its beginning, and then no more."""
    raw = Raw(running.endpoint)
    raw.connection.connect()
    raw.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    raw.send("POST", f"/-/v1/datasets/{made.id}/batch{query}", body=packed(indices))
    sock = raw.connection.sock
    assert sock.recv(15) == b"HTTP/1.1 200 OK"
    raw.connection.sock = None
    return sock


@pytest.mark.parametrize("caching", ["full", "none"])
def test_clients_that_stop_reading_hold_up_nobody(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest, caching: str
) -> None:
    """Forty stand still in index form, frames, or streams of loose items; others go on, memory and files are bounded."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(60, 1_000_000, "stalled"))
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), home) as running:
        made.register(running, caching)
        with reader_of(running, made) as reader:
            assert_right(made, reader.fetch(range(30)), list(range(30)))
            pid = running.process.pid
            files, memory = open_files(pid), resident_memory(pid)
            still = [stalled(running, made, list(range(30))) for _ in range(20)]
            still += [stalled(running, made, list(range(60))) for _ in range(20)]
            assert_right(made, reader.fetch([1, 2, 3]), [1, 2, 3])
            assert_right(made, reader.fetch(range(60)), list(range(60)))
            assert resident_memory(pid) - memory < 250 * 1024**2
            for sock in still:
                sock.close()
            wait_until(lambda: open_files(pid) < files + 80, SOON, "the end of what they held")
            assert_right(made, reader.fetch(range(60)), list(range(60)))


def _on(origin: Origin, disk: Path, home: Path) -> AbstractContextManager[Running]:
    return gateway(Settings(origin.endpoint, disk / "cache"), home)


def test_the_disk_is_filled_while_batches_run(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """Without a free byte every item is delivered; with space again, items are kept."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(60, 30_000, "filled"))
    with mounted(tmp_path / "small", "size=20m") as small, _on(origin, small, home) as running:
        made.register(running)
        with reader_of(running, made) as reader:
            assert_right(made, reader.fetch(range(20)), list(range(20)))
            with filled(small):
                assert_right(made, reader.fetch(range(60)), list(range(60)))
                assert_right(made, reader.fetch(range(60), mode="substitute", take=50))

            def kept() -> bool:
                assert_right(made, reader.fetch(range(60)), list(range(60)))
                return made.missing(running) == []

            wait_until(kept, SOON, "items that are kept again")


@contextmanager
def read_only(path: Path) -> Iterator[None]:
    """The same files where nothing can be written: the directory is mounted over itself."""
    subprocess.run(["mount", "--bind", path, path], check=True)
    try:
        subprocess.run(["mount", "-o", "remount,bind,ro", path], check=True)
        yield
    finally:
        subprocess.run(["umount", "--lazy", path], check=True)


def test_the_disk_turns_read_only_while_batches_run(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """A read-only disk still serves cached items; others pass through. Once it is writable, items are stored again."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(40, 30_000, "read-only"))
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with gateway(settings, home) as running:
        made.register(running)
        with reader_of(running, made) as reader:
            assert_right(made, reader.fetch(range(20)), list(range(20)))
            with read_only(settings.cache):
                for _ in range(3):
                    fetched = reader.fetch(range(40))
                    assert_right(made, fetched, list(range(40)))
                    assert np.count_nonzero(fetched.flags & HIT) == 20

            def kept() -> bool:
                assert_right(made, reader.fetch(range(40)), list(range(40)))
                return made.missing(running) == []

            wait_until(kept, SOON, "items that are kept again")


def test_the_cache_directory_is_deleted_while_batches_run(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """The dataset is forgotten with it; the client registers it again, and every item comes."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(40, 30_000, "deleted"))
    settings = Settings(origin.endpoint, tmp_path / "cache")
    with gateway(settings, home) as running:
        made.register(running)
        with reader_of(running, made, PATIENT) as reader:
            assert_right(made, reader.fetch(range(20)), list(range(20)))
            shutil.rmtree(settings.cache.rename(tmp_path / "deleted"))
            for _ in range(3):
                assert_right(made, reader.fetch(range(40)), list(range(40)))


def test_a_gateway_that_is_told_to_stop_finishes_its_batches(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """After SIGTERM a batch in progress is completed."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(10, 30_000, "drained"))
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), home) as running:
        made.register(running)
        hang = origin.inject(Hang(path=made.path(9), after=100))
        result: list[Fetched] = []
        with reader_of(running, made, Retry(attempts=1)) as reader:
            thread = threading.Thread(target=lambda: result.append(reader.fetch(range(10))))
            thread.start()
            hang.gate.arrival.result(SOON)
            running.process.send_signal(signal.SIGTERM)
            wait_until(lambda: _refuses(running), SOON, "a gateway that takes no more connections")
            hang.gate.open()
            thread.join(SOON)
        assert_right(made, result[0], list(range(10)))
        assert running.process.wait(SOON) == 0


def _refuses(running: Running) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", running.port), timeout=5):
            return False
    except OSError:
        return True


def test_two_workers_read_a_cold_item_once(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """The workers of a node read a cold item from the origin once, and each serves it."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(12, 100_000, "workers"))
    with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), home) as running:
        made.register(running)
        with clients_of(running) as clients:
            assert len(clients) == 2
            hang = origin.inject(Hang(path=made.path(0), after=1000))
            path = f"/-/v1/datasets/{made.id}/batch"
            for client in clients.values():
                client.send("POST", path, body=packed([0]))
            hang.gate.arrival.result(SOON)
            hang.gate.open()
            assert all(client.answer().whole for client in clients.values())
            assert origin.count("GET", made.path(0)) == 1
            one, other = clients.values()
            assert one.ask("POST", path, body=packed(range(12))).whole
            reads = origin.count("GET", f"/data/{made.name}")
            assert other.ask("POST", path, body=packed(range(12))).body[:4] == b"LRDI"
            assert origin.count("GET", f"/data/{made.name}") == reads == 12


def test_a_worker_that_is_killed_in_a_fetch_does_not_keep_its_turn(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest
) -> None:
    """The lease of a dead worker goes with it: the other one reads the item itself, at once."""
    made = stock(origin.s3, tmp_path, named(request), bytes_of(3, 100_000, "lease"))
    with gateway(Settings(origin.endpoint, tmp_path / "cache", workers=2), home) as running:
        made.register(running)
        with clients_of(running) as clients:
            (victim, first), (_, second) = clients.items()
            hang = origin.inject(Hang(path=made.path(1), after=1000))
            path = f"/-/v1/datasets/{made.id}/batch"
            first.send("POST", path, body=packed([1]))
            hang.gate.arrival.result(SOON)
            second.send("POST", path, body=packed([1]))
            os.kill(victim, signal.SIGKILL)
            got = second.answer()
            assert got.whole
            assert made.bodies[1] in got.body
            hang.gate.open()
            wait_until(lambda: len(workers_of(running)) == 2, SOON, "a new worker")


@pytest.mark.parametrize("workers", [1, 2])
def test_an_epoch_under_random_faults_delivers_every_item_exactly_once(
    origin: Origin, tmp_path: Path, home: Path, request: pytest.FixtureRequest, workers: int
) -> None:
    """Substitutable batches over a cache of a third of the dataset, with an origin that fails, hangs and cuts now and then."""
    chance = random.Random(7)
    made = stock(origin.s3, tmp_path, named(request), bytes_of(300, 10_000, "epoch"))
    settings = Settings(origin.endpoint, tmp_path / "cache", capacity="1MB", block_size="64KiB", workers=workers)
    with gateway(settings, home) as running:
        made.register(running, "part")
        with reader_of(running, made, PATIENT) as reader:
            left, seen = set(range(300)), Counter[int]()
            while left:
                for index in chance.sample(sorted(left), min(6, len(left))):
                    fault = chance.choice([Refuse(path=made.path(index)), DieAfter(path=made.path(index), size=5000)])
                    origin.inject(fault)
                candidates = np.array(sorted(left), dtype=np.uint32)
                fetched = reader.fetch(candidates, mode="substitute", take=min(16, len(left)))
                assert_right(made, fetched)
                assert len(fetched.indices) == min(16, len(left))
                seen.update(fetched.indices.tolist())
                left -= set(fetched.indices.tolist())
            origin.heal()
            assert seen == Counter(range(300))
