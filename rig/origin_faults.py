"""Faults of an origin, as values for ``FakeOrigin.inject``."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass, field


class Gate:
    """A point where the origin waits until the test releases it; usable from any thread and any event loop.

    ``await gate.reached()`` (or ``gate.arrival.result(timeout)`` without a loop) returns when a request waits at the gate;
    ``gate.open()`` lets this and all later requests pass.
    """

    def __init__(self) -> None:
        self.arrival: Future[None] = Future()
        self._opened: Future[None] = Future()

    async def reached(self) -> None:
        """Wait until a request waits at the gate. Raises TimeoutError after ten seconds."""
        await asyncio.wait_for(asyncio.shield(asyncio.wrap_future(self.arrival)), 10)

    def open(self) -> None:
        """Let every request pass from now on."""
        if not self._opened.done():
            self._opened.set_result(None)

    async def pass_through(self) -> None:
        """Called by the origin: note the arrival and wait for the gate to open."""
        if not self.arrival.done():
            self.arrival.set_result(None)
        await asyncio.shield(asyncio.wrap_future(self._opened))


@dataclass(kw_only=True)
class Fault:
    """Something that happens to the next ``times`` requests of ``method`` (empty for any) below ``path``.

    ``path`` is a prefix of the raw ``/bucket/key``; ``left`` counts down from ``times``.
    """

    times: int = 1
    method: str = ""
    path: str = "/"
    left: int = field(init=False)

    def __post_init__(self) -> None:
        self.left = self.times

    def take(self, method: str, raw_path: str) -> bool:
        """Whether the fault applies to this request; counts it if so."""
        if self.left <= 0 or self.method not in ("", method) or not raw_path.startswith(self.path):
            return False
        self.left -= 1
        return True


@dataclass(kw_only=True)
class DieAfter(Fault):
    """The connection is reset after ``size`` bytes of the body."""

    size: int = 0


@dataclass(kw_only=True)
class DieBeforeHeaders(Fault):
    """The connection is closed instead of an answer; clients repeat a GET once, so ``times`` must be 2 to have an effect."""


@dataclass(kw_only=True)
class Hang(Fault):
    """The origin waits at ``gate`` before the head of its answer, or after ``after`` bytes of the body.

    ``after`` of -1 means before the head.
    """

    gate: Gate = field(default_factory=Gate)
    after: int = -1


@dataclass(kw_only=True)
class Refuse(Fault):
    """The answer is an error document."""

    status: int = 503
    code: str = "SlowDown"


@dataclass(kw_only=True)
class Trickle(Fault):
    """The body comes in pieces of ``piece`` bytes, ``pause`` seconds apart."""

    piece: int = 1024
    pause: float = 0.01


@dataclass(kw_only=True)
class WrongContentRange(Fault):
    """A 206 claims a range that was not requested."""

    value: str = "bytes 0-0/1"


@dataclass(kw_only=True)
class ChangedEtag(Fault):
    """The answer carries another ETag than the object's, as if it had been overwritten, and ignores conditionals."""

    etag: str = '"00000000000000000000000000000000"'


@dataclass(kw_only=True)
class ErrorIn200(Fault):
    """A copy or CompleteMultipartUpload answers 200 with an ``<Error>`` body and does nothing (documented S3 behaviour)."""

    code: str = "InternalError"
