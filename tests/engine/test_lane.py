"""The background lane loads every unit once, within limits, and reports the end to the producer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from gateway.engine.items.lane import Lane
from gateway.policies.lane import LoadClass, LoadLimits
from tests.fleet.conftest import until

LIMITS = {LoadClass.PREFETCH: LoadLimits(2), LoadClass.IMPORTANT: LoadLimits(2, beside=0)}


class Origin:
    """Units that end on request."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.gate = asyncio.Event()

    async def load(self, unit: int) -> int:
        """Load a unit of 10 bytes."""
        self.begun.append(unit)
        await self.gate.wait()
        return 10


def lane(readers: int = 0) -> Lane:
    """A lane beside so many readers."""
    return Lane(LIMITS, {LoadClass.IMPORTANT: lambda _units: readers})


async def test_every_unit_is_loaded_once_within_the_limit() -> None:
    """Rule: units begin in their order, a few at a time; progress counts them and their bytes."""
    made, origin = lane(), Origin()
    load = made.add(LoadClass.PREFETCH, range(5), origin.load)
    await until(lambda: len(origin.begun) == 2)
    assert (load.done, made.running(LoadClass.PREFETCH)) == (0, 2)
    origin.gate.set()
    await load.ended()
    assert (origin.begun, load.done, load.size) == ([0, 1, 2, 3, 4], 5, 50)
    await made.close()


async def test_units_are_taken_when_their_turn_comes() -> None:
    """Rule: units may be an endless iterator; the lane takes a unit only when its load can begin."""
    taken: list[int] = []

    def units() -> Iterator[int]:
        while True:
            taken.append(len(taken))
            yield taken[-1]

    made, origin = lane(), Origin()
    made.add(LoadClass.PREFETCH, units(), origin.load)
    await until(lambda: len(origin.begun) == 2)
    assert taken == [0, 1]
    await made.close()


async def test_a_load_waits_for_readers_and_goes_on_after_them() -> None:
    """Rule: the lane polls for the readers' departure, because it gets no event for it."""
    readers, origin = [1], Origin()
    made = Lane(LIMITS, {LoadClass.IMPORTANT: lambda _units: len(readers)})
    origin.gate.set()
    load = made.add(LoadClass.IMPORTANT, range(3), origin.load)
    await asyncio.sleep(0)
    assert origin.begun == []
    readers.clear()
    await asyncio.wait_for(load.ended(), 30)
    assert len(origin.begun) == 3
    await made.close()


async def test_a_cancelled_caller_cancels_its_load() -> None:
    """Rule: a cancelled caller ends its units in progress and starts no more; other loads continue."""
    made, origin, other = lane(), Origin(), Origin()
    waiting = asyncio.create_task(made.add(LoadClass.PREFETCH, range(100), origin.load).ended())
    await until(lambda: len(origin.begun) == 2)
    following = made.add(LoadClass.PREFETCH, range(2), other.load)
    waiting.cancel()
    other.gate.set()
    await asyncio.wait_for(following.ended(), 30)
    assert (len(origin.begun), other.begun) == (2, [0, 1])
    await made.close()


async def test_an_error_of_a_unit_is_its_producers() -> None:
    """Rule: a failed unit does not stop the others; the producer then gets the first error."""
    loaded: list[int] = []

    async def load(unit: int) -> int:
        if unit in (1, 3):
            raise ValueError(unit)
        loaded.append(unit)
        return 0

    made = lane()
    with pytest.raises(ValueError, match="1"):
        await made.add(LoadClass.PREFETCH, range(5), load).ended()
    assert loaded == [0, 2, 4]
    await made.close()


async def test_an_error_of_the_producer_ends_its_load() -> None:
    """Rule: an iterator that raises has no further units, and does not disturb other loads."""

    def units() -> Iterator[int]:
        yield 1
        raise ValueError("no more")

    made, origin = lane(), Origin()
    origin.gate.set()
    with pytest.raises(ValueError, match="no more"):
        await made.add(LoadClass.PREFETCH, units(), origin.load).ended()
    await made.add(LoadClass.PREFETCH, range(2), origin.load).ended()
    assert origin.begun == [1, 0, 1]
    await made.close()


async def test_one_unit_gives_its_result() -> None:
    """Rule: ``one`` returns or raises as its unit does."""
    made = lane()

    async def double(unit: int) -> int:
        if unit < 0:
            raise ValueError(unit)
        return 2 * unit

    assert await made.one(LoadClass.IMPORTANT, 21, double) == 42
    with pytest.raises(ValueError, match="-1"):
        await made.one(LoadClass.IMPORTANT, -1, double)
    await made.close()


async def test_a_closed_lane_keeps_nobody_waiting() -> None:
    """Rule: at the end, loads that have begun and loads that have not are cancelled."""
    made, origin = lane(readers=1), Origin()
    begun = asyncio.create_task(made.one(LoadClass.PREFETCH, 1, origin.load))
    blocked = asyncio.create_task(made.one(LoadClass.IMPORTANT, 2, origin.load))
    await until(lambda: origin.begun == [1])
    await made.close()
    await asyncio.wait([begun, blocked], timeout=30)
    assert begun.cancelled()
    assert blocked.cancelled()
