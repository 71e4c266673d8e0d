"""Compiled repeated hits (``_repeated.c``) without a gateway: one connection, one signer, objects of this test."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from hashlib import sha256
from hmac import digest as hmac
from itertools import count
from types import SimpleNamespace
from typing import Any

from gateway.api.s3.compiled import CompiledReads, numbered
from gateway.model.guards import Guard
from gateway.model.s3 import sigv4
from gateway.server.template import Template

SECRET, DAY, SECOND = "secret-of-the-tests", b"20261130", 1_796_000_000
HOST, NO_BODY = b"gateway.test", sha256(b"").hexdigest().encode()
SCOPE = DAY + b"/us-east-1/s3/aws4_request"
HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nx-amz-request-id: "
RANGES = b"HTTP/1.1 206 Partial Content\r\netag: x\r\n"
FAR = 1e12
"""Seconds that lie after every test."""
_KEY = sigv4.signing_key(SECRET, DAY.decode(), "us-east-1")


def head(
    path: bytes,
    date: bytes = DAY + b"T120000Z",
    invocation: bytes = b"",
    secret: str = SECRET,
    ranged: bytes = b"",
    signs: bool = True,
) -> bytes:
    """A signed GET; ``invocation`` is the id that an SDK adds, signed, ``ranged`` the value of Range, signed if ``signs``."""
    signed = b"host;x-amz-content-sha256;x-amz-date"
    lines = b"host:%b\nx-amz-content-sha256:%b\nx-amz-date:%b\n" % (HOST, NO_BODY, date)
    more = b""
    if invocation:
        signed, lines = b"amz-sdk-invocation-id;" + signed, b"amz-sdk-invocation-id:%b\n%b" % (invocation, lines)
        more = b"amz-sdk-invocation-id: %b\r\n" % invocation
    if ranged:
        more += b"Range: %b\r\n" % ranged
    if ranged and signs:
        signed = signed.replace(b"x-amz-content", b"range;x-amz-content")
        lines = lines.replace(b"x-amz-content", b"range:%b\nx-amz-content" % ranged, 1)
    canonical = b"GET\n%b\n\n%b\n%b\n%b" % (path, lines, signed, NO_BODY)
    text = first_lines(date) + sha256(canonical).hexdigest().encode()
    key = _KEY if secret == SECRET else sigv4.signing_key(secret, DAY.decode(), "us-east-1")
    authorization = b"AWS4-HMAC-SHA256 Credential=A/%b, SignedHeaders=%b, Signature=%b" % (
        SCOPE, signed, hmac(key, text, "sha256").hex().encode(),
    )  # fmt: skip
    return (
        b"GET %b HTTP/1.1\r\nHost: %b\r\nx-amz-content-sha256: %b\r\n%bX-Amz-Date: %b\r\nAuthorization: %b\r\n\r\n"
        % (path, HOST, NO_BODY, more, date, authorization)
    )


def first_lines(date: bytes) -> bytes:
    """The string to sign, up to the digest."""
    return b"AWS4-HMAC-SHA256\n%b\n%b\n" % (date, SCOPE)


class Wire:
    """One connection whose repeated heads are answered by compiled code, or else noted in ``general``, as not answered.

    ``answered`` has the answers to count, ``drains`` how often they were, ``kept`` the calls of ``Channel.keep``, ``unfinished``
    those of ``RepeatedReads.go_on``, each with its head and the bytes taken.
    """

    def __init__(self, accepted: bytes = b"", guards: Sequence[Guard] = (), until: float = FAR) -> None:
        self.near, self.far = socket.socketpair()
        self.near.setblocking(False)
        self.general: list[bytes] = []
        self.kept: list[tuple[bytes, int]] = []
        self.unfinished: list[tuple[bytes, int]] = []
        self.begun: list[bytes] = []
        self.drains = 0
        self.until = until
        channel: Any = SimpleNamespace(descriptor=self.near.fileno(), keep=self._keep)
        self._accepted = accepted or head(b"/b/accepted")
        template = Template.of(self._accepted)
        assert template is not None
        reads: Any = SimpleNamespace(go_on=lambda head, taken, *_: self.unfinished.append((head, taken)))
        self.reads = CompiledReads({}, [], self._drain, channel, count(0xA0), self._begin, self._decide, reads)
        self.reads.guards = numbered(guards)
        signed = self._accepted.partition(b"SignedHeaders=")[2].partition(b",")[0].split(b";")
        self._signed = dict.fromkeys(signed, b"\0") | {b"host": HOST, b"x-amz-content-sha256": NO_BODY}
        order = tuple(template.names.index(name) for name in signed if name in (b"amz-sdk-invocation-id", b"range"))
        answer = self.reads.answer_of(template, order)
        assert answer is not None
        self.answer: Callable[[bytes], bool] = answer

    def put(
        self, path: bytes, body: bytes, guards: Sequence[Guard] = (), since: float = 0.0, until: float = FAR
    ) -> Any:
        """Have an object sent again under these guards; returns the copy of its bytes."""
        copy = SimpleNamespace(body=body)
        made = path, HEAD % len(body), copy, len(body), len(body), since, until, numbered(guards)
        self.reads.objects[path] = made  # type: ignore[assignment]
        return copy

    def put_ranges(self, path: bytes, size: int, block_size: int, files: Mapping[int, int], *guards: Guard) -> None:
        """Have ranges of an object sent whose blocks are open files, by number, which these guards belong to."""
        self._put_blocks(path, RANGES, size, block_size, files, guards)

    def put_file(self, path: bytes, size: int, file: int) -> None:
        """Have an object of one block sent from an open file."""
        self._put_blocks(path, HEAD % size, size, size, {0: file}, ())

    def _put_blocks(
        self, path: bytes, head: bytes, size: int, block_size: int, files: Mapping[int, int], guards: Sequence[Guard]
    ) -> None:
        blocks = {}
        for number, file in files.items():
            status = os.fstat(file)
            opened = {b"digest": SimpleNamespace(fd=file)}
            blocks[number] = opened, b"digest", status.st_size, status.st_mtime_ns, numbered(guards)
        self.reads.objects[path] = path, head, blocks, size, block_size, 0.0, FAR, ()  # type: ignore[assignment]

    def received(self) -> bytes:
        """What the client has received, after the connection has ended."""
        self.near.close()
        with closing(self.far):
            return b"".join(iter(lambda: self.far.recv(1 << 20), b""))

    def close(self) -> None:
        """End both sides of the connection."""
        self.near.close()
        self.far.close()

    def _begin(self, date: bytes) -> tuple[bytes, bytes, tuple[bytes, ...], float, float] | None:
        self.begun.append(date)
        if date.startswith(b"9"):
            return None
        lines = b"".join(b"%b:%b\n" % pair for pair in {**self._signed, b"x-amz-date": date}.items())
        text = b"GET\n\0\n\n%b\n%b\n%b" % (lines, b";".join(self._signed), NO_BODY)
        inner, outer = sigv4.padded(_KEY)
        return inner + first_lines(date), outer, tuple(text.split(b"\0")), 0.0, self.until

    def _decide(self, data: bytes) -> bool:
        self.general.append(data)
        return False

    def _drain(self) -> None:
        self.drains += 1
        self.reads.answered.clear()

    def _keep(self, pieces: Sequence[bytes], sent: int) -> None:
        self.kept.append((b"".join(pieces), sent))


class Watched:
    """An object with attributes to guard."""

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)


def holds(guards: Sequence[Guard]) -> bool:
    """Whether the compiled code sends an object under these guards."""
    wire = Wire()
    wire.put(b"/b/k", b"x", guards)
    sent = wire.answer(head(b"/b/k"))
    assert bool(wire.received()) is sent
    return sent
