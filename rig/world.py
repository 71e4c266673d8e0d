"""Parts of the scenarios: an origin that can be stopped and restarted, and inspection of the cache directory."""

from __future__ import annotations

import hashlib
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from rig.consistency import assert_index_equals_disk
from rig.forked import Forked
from rig.gateways import Running, Settings, start
from rig.origin import FakeOrigin, OriginThread
from rig.origin_faults import Fault, Hang
from rig.processes import wait_until

KIB = 1024
MIB = 1024**2
SOON = 60.0

_F = TypeVar("_F", bound=Fault)


class Origin:
    """A FakeOrigin in a thread, which can be stopped and restarted on the same port."""

    def __init__(self) -> None:
        self._thread = OriginThread()
        self.s3: FakeOrigin

    def __enter__(self) -> Self:
        self.s3 = self._thread.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.s3.heal()
        self._thread.__exit__()

    @property
    def endpoint(self) -> str:
        """Its address."""
        return self.s3.endpoint

    def go_away(self) -> None:
        """Refuse new connections and drop open ones."""
        self._thread.run(self.s3.stop)

    def come_back(self) -> None:
        """Listen again."""
        self._thread.run(self.s3.start)

    @contextmanager
    def away(self) -> Iterator[None]:
        """Stop the origin until the block ends."""
        self.go_away()
        try:
            yield
        finally:
            self.come_back()

    def put(self, path: str, body: bytes) -> bytes:
        """Store ``/bucket/key`` behind the gateways; return the body."""
        bucket, _, key = path[1:].partition("/")
        self.s3.put(bucket, key, body)
        return body

    def inject(self, fault: _F) -> _F:
        """See ``FakeOrigin.inject``."""
        return self.s3.inject(fault)

    def hang(self, path: str, after: int = -1, times: int = 1, method: str = "GET") -> Hang:
        """Make reads of an object wait at a gate, before the head of the answer or after some bytes."""
        return self.inject(Hang(path=path, after=after, times=times, method=method))

    def heal(self) -> None:
        """Remove all faults."""
        self.s3.heal()

    def count(self, method: str, path: str = "/") -> int:
        """Requests so far."""
        return self.s3.count(method, path)

    def reads(self, path: str) -> int:
        """Reads of objects so far, without the requests for one byte that explain a refused HEAD."""
        asked = [seen for seen in self.s3.seen if seen.method == "GET" and seen.raw_path.startswith(path)]
        return sum(seen.header("range") != "bytes=0-0" for seen in asked)


def content(size: int, seed: object = 0) -> bytes:
    """Bytes that are unique to the seed."""
    return hashlib.shake_128(f"{seed}/{size}".encode()).digest(size)


def md5(body: bytes) -> str:
    """The MD5 of a body, as in a plain ETag."""
    return hashlib.md5(body).hexdigest()


def blob_path(cache: Path, body: bytes) -> Path:
    """The path of the blob with these bytes; it need not exist."""
    digest = hashlib.sha256(body).hexdigest()
    return cache / "blobs" / digest[:2] / digest[2:]


def blobs_of(cache: Path) -> list[Path]:
    """Every blob file."""
    return sorted((cache / "blobs").glob("*/*"))


def files_of(cache: Path) -> dict[str, int]:
    """Sizes of all blob files, and of those being written."""
    sizes = {}
    for path in [*blobs_of(cache), *(cache / "tmp").iterdir()]:
        try:
            sizes[path.name] = path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes


def used_by(cache: Path) -> int:
    """Bytes of all blob files, and of those being written."""
    return sum(files_of(cache).values())


def await_index_equals_disk(cache: Path) -> None:
    """Wait until index and disk agree; otherwise raise the last difference."""
    differences: list[AssertionError | sqlite3.Error] = []

    def equal() -> bool:
        try:
            assert_index_equals_disk(cache)
        except (AssertionError, sqlite3.Error) as difference:
            differences.append(difference)
            return False
        return True

    try:
        wait_until(equal, SOON, "the agreement of index and disk")
    except TimeoutError:
        raise differences[-1] from None


def verify(running: Running) -> str:
    """Run ``larder-gateway verify``, assert that it succeeds, and return its output."""
    errors = running.config.with_name("verify.log")
    process = Forked(["verify", "--config", str(running.config)], os.environ, errors)
    with process.stdout:
        said = process.stdout.read()
    assert process.wait(SOON) == 0, said + errors.read_text()
    return said


@contextmanager
def doomed(settings: Settings, home: Path) -> Iterator[Running]:
    """A gateway that the test kills; if the test fails before that, it is killed here."""
    running = start(settings, home)
    try:
        yield running
    finally:
        if running.process.poll() is None:
            running.kill()
        running.process.stdout.close()


def eventually(probe: Callable[[], Any], wanted: Callable[[Any], bool], what: str) -> Any:
    """Ask again until the answer is the wanted one; returns it."""
    answers: list[Any] = []

    def satisfied() -> bool:
        answers.append(probe())
        return wanted(answers[-1])

    wait_until(satisfied, SOON, what)
    return answers[-1]


def credentials(*names: str) -> tuple[dict[str, Any], ...]:
    """Gateway credentials ``GWA`` and ``GWB``, each with the origin key of the same letter."""
    return tuple(
        {
            "access_key_id": f"GW{name.upper()}",
            "secret_access_key": f"gateway-secret-{name}",
            "tenant": name,
            "origin_access_key_id": f"origin-key-{name}",
            "origin_secret_access_key": f"origin-secret-{name}",
        }
        for name in names
    )
