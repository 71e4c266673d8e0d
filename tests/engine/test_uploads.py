"""Uploads to the origin, and the cache entries forgotten before and after them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from hashlib import sha256
from pathlib import Path

import pytest

from gateway.api.s3.answer import Answer
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call
from gateway.api.s3.forward import Forwarder, Spooling
from gateway.api.s3.payload import SMALL, PayloadForm
from gateway.api.s3.spool import SpoolPlace
from gateway.engine.objects.writes import WriteAnswer
from gateway.model.errors import S3Error
from gateway.model.keys import ObjectKey, Principal
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.exchange import StreamedResponse
from gateway.policies.health.breaker import FailureKind
from gateway.store.files.failures import DiskFault
from tests.engine.conftest import Bench, Homes, benched

KEY = ObjectKey("default", "b", "k")


async def put(bench: Bench, spool: Path, pieces: Sequence[bytes], digest: str) -> Answer:
    """Upload ``b/k`` in pieces, with the claim that its SHA-256 is ``digest``."""

    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            await asyncio.sleep(0)
            yield piece

    headers = [(b"host", b"h"), (b"content-length", b"%d" % sum(map(len, pieces)))]
    auth = Authenticated(Principal("AK", "t", bench.identity), PayloadForm.HASHED, digest)
    call = S3Call(WireRequest("PUT", b"/b/k", b"", headers), auth, "b", b"k", KEY, "", frozenset())
    forwarder = Forwarder(bench.engine, Spooling(lambda: SpoolPlace(spool), 1024**3), Homes(bench))
    return await forwarder.forward(call, arriving(), Outcome.BYPASS, Reason.NOT_A_READ)


@pytest.mark.parametrize("size", [1, SMALL, SMALL + 1])
async def test_a_body_arrives_as_it_was_sent(bench: Bench, tmp_path: Path, size: int) -> None:
    """Rule: gathered or streamed, the origin gets the bytes and their length."""
    body = os.urandom(size)
    bench.origin.put("b", "other", b"")
    answer = await put(bench, tmp_path, [body[: size // 2], body[size // 2 :]], sha256(body).hexdigest())
    assert answer.status == 200
    assert await bench.read("k") == body


async def test_a_small_body_that_is_wrong_reaches_nobody(bench: Bench, tmp_path: Path) -> None:
    """Rule: it is verified before the origin is asked and before anything is forgotten."""
    bench.origin.put("b", "k", b"before")
    await bench.read("k")
    await bench.settle()
    seen, generation = len(bench.origin.seen), bench.store.generations.of(KEY)
    with pytest.raises(S3Error) as refused:
        await put(bench, tmp_path, [b"wro", b"ng"], sha256(b"right").hexdigest())
    assert refused.value.code == "XAmzContentSHA256Mismatch"
    assert (len(bench.origin.seen), bench.store.generations.of(KEY)) == (seen, generation)


async def test_a_large_body_that_is_wrong_is_never_complete(bench: Bench, tmp_path: Path) -> None:
    """Rule: a streamed body that is wrong lacks its last piece at the origin, which keeps the former object."""
    bench.origin.put("b", "k", b"before")
    with pytest.raises(S3Error) as refused:
        await put(bench, tmp_path, [bytes(SMALL), b"wrong"], sha256(b"right").hexdigest())
    assert refused.value.code == "XAmzContentSHA256Mismatch"
    assert await bench.read("k") == b"before"


async def test_a_write_whose_caller_is_cancelled_is_forgotten_all_the_same() -> None:
    """Rule: the second forgetting is begun again without its caller, and completed."""
    began: list[asyncio.Event] = []
    forgotten = asyncio.Event()

    async def forget() -> None:
        began.append(asyncio.Event())
        await began[-1].wait()
        forgotten.set()

    writing = asyncio.create_task(WriteAnswer(None, forget).settle())  # type: ignore[arg-type]
    await asyncio.sleep(0)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    await asyncio.sleep(0)
    first, second = began
    first.set()
    assert not forgotten.is_set()
    second.set()
    async with asyncio.timeout(60):
        await forgotten.wait()


class Written:
    """An origin that accepts a write of ``b/k``, after what the test does meanwhile."""

    def __init__(self, bench: Bench, meanwhile: Callable[[], Awaitable[object]]) -> None:
        self._bench = bench
        self._meanwhile = meanwhile

    async def send(self) -> StreamedResponse:
        """Take the new object."""
        await self._meanwhile()
        self._bench.origin.put("b", "k", b"new")
        return await self._bench.engine.services.origin.send(self._bench.identity, "HEAD", "/b/k", "", [])


async def nothing() -> None:
    """Nobody reads."""


def counted(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> list[Sequence[ObjectKey]]:
    """The keys that the index is asked to forget from now on, by transaction."""
    asked: list[Sequence[ObjectKey]] = []
    forget = bench.store.forget
    monkeypatch.setattr(bench.store, "forget", lambda keys: asked.append(keys) or forget(keys))
    return asked


async def test_a_write_that_nobody_reads_asks_the_index_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: what was forgotten before a write is not forgotten again unless somebody may have read it meanwhile."""
    bench.origin.put("b", "k", b"old")
    await bench.read("k")
    asked = counted(bench, monkeypatch)
    written = await bench.engine.write([KEY], Written(bench, nothing).send)
    await written.settle()
    assert asked == [[KEY]]
    assert await bench.read("k") == b"new"


async def test_what_is_read_during_a_write_is_forgotten_after_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: an object that was read and recorded while its write was under way is deleted before the write ends."""
    bench.origin.put("b", "k", b"old")

    async def read() -> None:
        assert await bench.read("k") == b"old"
        await bench.settle()

    asked = counted(bench, monkeypatch)
    written = await bench.engine.write([KEY], Written(bench, read).send)
    assert await bench.store.lookup(KEY) is not None
    await written.settle()
    assert asked == [[KEY], [KEY]]
    assert await bench.store.lookup(KEY) is None
    assert await bench.read("k") == b"new"


async def test_what_another_worker_reads_during_a_write_is_forgotten_after_it(bench: Bench, tmp_path: Path) -> None:
    """Rule: that holds for whichever worker of the node reads it."""
    bench.origin.put("b", "k", b"old")
    async with benched(tmp_path / "cache") as other:
        other.origin.put("b", "k", b"old")

        async def read() -> None:
            assert await other.read("k") == b"old"
            await other.settle()

        written = await bench.engine.write([KEY], Written(bench, read).send)
        await written.settle()
        other.origin.put("b", "k", b"new")
        assert [await each.read("k") for each in (other, bench)] == [b"new", b"new"]


async def test_a_write_that_could_not_be_forgotten_before_is_forgotten_after(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: while the index cannot be written, nothing is known to be unread, and the second forgetting is as the first."""

    def failing(*_: object) -> None:
        raise DiskFault(FailureKind.IO, "the disk fails")

    asked = counted(bench, monkeypatch)
    with monkeypatch.context() as failed:
        failed.setattr(bench.store._disk, "write", failing)
        written = await bench.engine.write([KEY], Written(bench, nothing).send)
    await written.settle()
    assert asked == [[KEY], [KEY]]
