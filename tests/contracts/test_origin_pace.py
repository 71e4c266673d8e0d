"""The fake origin's bandwidth limit: readers share the limit, and each gets all bytes."""

import asyncio
import time

import pytest

from rig.origin import FakeOrigin
from rig.origin_pace import PIECE, SendingPace
from tests.contracts.test_origin_fake import ask

BODY = bytes(range(256)) * 512


async def seconds(origin: FakeOrigin, readers: int) -> float:
    """Read the same body with several concurrent readers; each gets it whole. Return the seconds."""
    began = time.monotonic()
    answers = await asyncio.gather(*(ask(origin) for _ in range(readers)))
    assert all(body == BODY for _, body in answers)
    return time.monotonic() - began


async def test_readers_share_the_bandwidth():
    """Rule: together they take as long as all their bytes need, at least."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", BODY)
        origin.paces["/b/"] = SendingPace(2_000_000)
        assert await seconds(origin, 3) >= 0.99 * 3 * len(BODY) / 2_000_000


async def test_an_answer_begins_after_the_latency():
    """Rule: the latency comes on top, once per answer."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", BODY)
        origin.paces["/b/"] = SendingPace(1e9, latency=0.2)
        assert await seconds(origin, 2) >= 0.2


async def test_only_what_lies_below_the_prefix_is_limited(monkeypatch: pytest.MonkeyPatch):
    """Rule: the limit does not apply to other paths."""
    waits: list[float] = []

    async def note(self: SendingPace, size: int) -> None:
        waits.append(size)

    monkeypatch.setattr(SendingPace, "send", note)
    async with FakeOrigin() as origin:
        origin.put("b", "k", BODY)
        origin.paces["/other/"] = SendingPace(1)
        await seconds(origin, 1)
        assert waits == []
        origin.paces["/b/"] = SendingPace(1)
        await seconds(origin, 1)
        assert waits == [PIECE] * (len(BODY) // PIECE)
