"""Objects that are read into the cache because they were written."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call
from gateway.api.s3.forward import Forwarder, Spooling
from gateway.api.s3.payload import PayloadForm
from gateway.api.s3.spool import SpoolPlace
from gateway.engine.objects import fill, uploads
from gateway.engine.objects.writes import WriteAnswer
from gateway.model.keys import ObjectKey, Principal
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.sigv4 import WireRequest
from gateway.policies.reads.rules import Caching, Rules
from tests.engine.conftest import BLOCK, Bench, Homes

LARGE = os.urandom(5 * BLOCK + 123)


async def put(bench: Bench, spool: Path, body: bytes) -> None:
    """Write ``b/k`` through the gateway."""

    async def pieces() -> AsyncIterator[bytes]:
        yield body

    key = ObjectKey("default", "b", "k")
    headers = [(b"host", b"h"), (b"content-length", b"%d" % len(body))]
    auth = Authenticated(Principal("AK", "t", bench.identity), PayloadForm.UNSIGNED, "")
    request = WireRequest("PUT", b"/b/k", b"", headers)
    call = S3Call(request, auth, "b", b"k", key, "", frozenset())

    forwarder = Forwarder(bench.engine, Spooling(lambda: SpoolPlace(spool), 1024**3), Homes(bench))
    answer = await forwarder.forward(call, pieces(), Outcome.BYPASS, Reason.NOT_A_READ)
    assert answer.status == 200


@pytest.mark.parametrize("warmed", [True, False])
async def test_a_written_object_is_read_whole_where_the_rule_says_so(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, warmed: bool
) -> None:
    """Warming reads an object too large to be kept as it passes to its end, because it counts as a reader of the fill."""
    monkeypatch.setattr(fill, "LINGER", 0)
    monkeypatch.setattr(uploads, "MOST_BLOCKS", 1)
    bench.origin.put("b", "other", b"")
    bench.engine.services.rules = Rules([Caching(match="b/**", warm_on_write=warmed)])
    await put(bench, tmp_path, LARGE)
    await bench.settle()
    await bench.settle()
    assert bench.origin.count("GET") == int(warmed)
    assert await bench.read("k") == LARGE
    assert bench.origin.count("GET") == 1


class Answering:
    """An origin's answer that comes in pieces."""

    async def chunks(self) -> AsyncIterator[bytes]:
        """Two of them."""
        yield b"one"
        yield b"two"


async def test_what_follows_a_write_waits_until_the_caches_have_forgotten_again() -> None:
    """A streamed answer is settled at its last piece; warming starts after that, since an earlier fill would be discarded."""
    order: list[object] = []

    async def settle() -> None:
        order.append("forgotten")

    answer = WriteAnswer(Answering(), settle)  # type: ignore[arg-type]
    answer.then = lambda: order.append("warmed")
    async for chunk in answer.chunks():
        order.append(chunk)  # noqa: PERF401 - when it comes matters
    await answer.settle()
    assert order == [b"one", "forgotten", "warmed", b"two"]
