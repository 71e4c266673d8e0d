"""A gateway, its origin, and invariants under all client input.

The gateway is a real process. Its home is several directories below the watched one, so that a path that climbs out of the
cache directory is detected; a listener that must never be contacted stands for every other host.
"""

from __future__ import annotations

import hashlib
import re
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from rig.signed_requests import ClientSigner

KEY, SECRET = "GWA", "gateway-secret-a"
BUCKET = "bucket"
BODIES = (b"", b"x", b"the whole of it, and nothing but it\r\n" * 40, bytes(range(256)) * 300)
"""Bodies of signed uploads; the origin may hold nothing else under ``signed/``."""
READ = {
    "plain.bin": b"0123456789" * 500,
    "large.bin": b"0123456789abcde" * 20_000,
    "empty": b"",
    "sub/ä b+c.txt": b"spelled",
    "../../etc/passwd": b"not a file",
}
DEADLINE = 30.0
"""Seconds for a connection to end after its client stopped sending; only there to end a broken run."""
_GLANCE = 0.15
"""Seconds to wait for an answer before the client half-closes; affects the observations, never the verdict."""
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})[ \r]")
_CACHE_ENTRIES = {
    "blobs", "boot", "datasets", "index.db", "index.db-shm", "index.db-wal", "index.lock", "keeper.lock", "node",
    "run", "tmp",
}  # fmt: skip


class Broken(AssertionError):
    """Something that must hold did not."""


@dataclass
class World:
    """One gateway under attack."""

    origin: FakeOrigin
    gateway: Running
    top: Path
    elsewhere: socket.socket
    signer: ClientSigner = field(default_factory=lambda: ClientSigner(KEY, SECRET))

    @property
    def host(self) -> str:
        """The clients' Host header."""
        return f"127.0.0.1:{self.gateway.port}"

    @property
    def stranger(self) -> str:
        """An address that must never be contacted."""
        return f"127.0.0.1:{self.elsewhere.getsockname()[1]}"

    def send(
        self,
        pieces: Sequence[bytes],
        *,
        reset: bool = False,
        patient: bool = True,
        complete: bool = False,
        before: Sequence[bytes] = (),
    ) -> bytes:
        """Send the pieces on one connection, end it (at once, unless ``patient``), and return all that came back.

        ``complete`` says that the pieces are a whole request: the connection is not ended before an answer has begun. Requests
        in ``before`` are sent first, and their answers left out.

        Raises:
            Broken: the connection did not end.
        """
        with socket.create_connection(("127.0.0.1", self.gateway.port), timeout=DEADLINE) as sock:
            answer = bytearray()
            try:
                for request in before:
                    sock.sendall(request)
                    _read_answer(sock)
                for piece in pieces:
                    sock.sendall(piece)
                if reset:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                    return b""
                if complete:
                    answer += sock.recv(1 << 16)
                if patient:
                    _glance(sock, answer)
                sock.shutdown(socket.SHUT_WR)
                while piece := sock.recv(1 << 16):
                    answer += piece
            except TimeoutError:
                raise Broken(f"the connection hangs; it answered {bytes(answer[:400])!r}") from None
            except OSError:  # reset: as ended as can be
                pass
            return bytes(answer)

    def judge(self, answer: bytes) -> list[int]:
        """The statuses of an answer.

        Raises:
            Broken: one of them is a fault of the server.
        """
        statuses = [int(found) for found in _STATUS.findall(answer)]
        # A fault of the fake origin itself comes through unchanged, as it should.
        if any(status >= 500 and status != 501 for status in statuses) and b"Server: Python/" not in answer:
            raise Broken(f"a fault of the server: {answer[:600]!r}")
        for secret in (SECRET.encode(), b"origin-secret-a", b"Traceback"):
            if secret in answer:
                raise Broken(f"{secret!r} in an answer: {answer[:600]!r}")
        return statuses

    def inspect(self) -> None:
        """Look at everything that a request may not do.

        Raises:
            Broken: it did.
        """
        if self.gateway.process.poll() is not None:
            raise Broken("the gateway has ended")
        log = self.gateway.log.read_text()
        for word in ("Traceback", '"level": "error"', "was never awaited", "never retrieved"):
            if word in log:
                raise Broken(f"{word} in the log: {log[max(0, log.index(word) - 300) : log.index(word) + 3000]}")
        self._inspect_files()
        self._inspect_origin()
        with selectors.DefaultSelector() as selector:
            selector.register(self.elsewhere, selectors.EVENT_READ)
            if selector.select(0):
                raise Broken("another host was contacted")

    def _inspect_files(self) -> None:
        home = self.gateway.config.parent
        cache = home / "cache"
        outside = {path for path in self.top.rglob("*") if cache not in path.parents}
        expected = {cache, home, self.gateway.config, self.gateway.log, *home.parents}
        if outside - expected:
            raise Broken(f"files outside the cache: {outside - expected}")
        if unknown := {path.name for path in cache.iterdir()} - _CACHE_ENTRIES:
            raise Broken(f"unknown files in the cache: {unknown}")

    def _inspect_origin(self) -> None:
        for bucket, objects in self.origin.buckets.objects.items():
            for key, stored in objects.items():
                if key.startswith("signed/") and stored.body not in BODIES:
                    raise Broken(f"an upload that no client completed: {bucket}/{key}, {len(stored.body)} bytes")
        address = f"127.0.0.1:{self.origin.port}"
        for seen in self.origin.seen:
            if seen.header("host") != address:
                raise Broken(f"the origin was asked as {seen.header('host')!r}")
        self.origin.seen.clear()

    def descriptors(self) -> int:
        """The number of open files and sockets of the gateway."""
        return len(list(Path(f"/proc/{self.gateway.process.pid}/fd").iterdir()))

    def memory(self) -> int:
        """The gateway's resident bytes."""
        status = Path(f"/proc/{self.gateway.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None
        return int(found[1]) * 1024


def _read_answer(sock: socket.socket) -> None:
    answer = bytearray()
    while not _whole(answer):
        piece = sock.recv(1 << 16)
        if not piece:
            raise Broken(f"the connection ended after {bytes(answer[:400])!r}")
        answer += piece


def _glance(sock: socket.socket, answer: bytearray) -> None:
    until = time.monotonic() + _GLANCE
    while (left := until - time.monotonic()) > 0 and not _whole(answer):
        sock.settimeout(left)
        try:
            piece = sock.recv(1 << 16)
        except TimeoutError:
            break
        if not piece:
            break
        answer += piece
    sock.settimeout(DEADLINE)


def _whole(answer: bytearray) -> bool:
    head, end, body = bytes(answer).partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
    return bool(end) and length is not None and len(body) >= int(length[1]) and b" 100 " not in head[:16]


@contextmanager
def world(top: Path, **settings: object) -> Iterator[World]:
    """A gateway in front of a fake origin with a few objects to read."""
    home = top / "a" / "b" / "c"
    with OriginThread() as origin, socket.create_server(("127.0.0.1", 0)) as elsewhere:
        for key, body in READ.items():
            origin.put(BUCKET, key, body)
        chosen = Settings(endpoint=origin.endpoint, cache=home / "cache", **settings)  # type: ignore[arg-type]
        with gateway(chosen, home) as running:
            yield World(origin, running, top, elsewhere)


def digest(body: bytes) -> str:
    """The hex SHA-256 of a body."""
    return hashlib.sha256(body).hexdigest()
