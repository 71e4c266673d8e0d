"""Uploads to the origin, and the cache entries forgotten before and after them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
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
from tests.engine.conftest import Bench

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
    forwarder = Forwarder(bench.engine, Spooling(lambda: SpoolPlace(spool), 1024**3), lambda _: None)
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
