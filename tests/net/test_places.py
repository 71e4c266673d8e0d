"""Waiting for a share of something limited."""

from __future__ import annotations

import asyncio

import pytest

from gateway.net import places as module
from gateway.net.places import Places


async def waiting(places: Places, holder: str | None, amount: float = 1) -> asyncio.Task[None]:
    """A task that waits for a place."""
    task = asyncio.create_task(places.wait(holder, amount))
    await asyncio.sleep(0)
    return task


async def test_one_holders_queue_delays_nobody_else() -> None:
    """Rule: a holder whose share is used up waits; another one is served at once."""
    places = Places(4)
    for _ in range(3):
        await places.wait("vision")
    queue = [await waiting(places, "vision") for _ in range(5)]
    await places.wait("speech")
    assert not any(task.done() for task in queue)
    places.give_back("vision")
    places.give_back("vision")
    await asyncio.sleep(0)
    assert [task.done() for task in queue] == [True, True, False, False, False]
    for task in queue[2:]:
        task.cancel()


async def test_those_who_wait_are_served_in_order_and_by_turns() -> None:
    """Rule: places that become free go to the holders in turn, and to the first of each."""
    places = Places(1)
    await places.wait("vision")
    served: list[str] = []

    async def use(name: str, holder: str) -> None:
        await places.wait(holder)
        served.append(name)
        places.give_back(holder)

    async with asyncio.TaskGroup() as group:
        for name, holder in [("v1", "vision"), ("v2", "vision"), ("s1", "speech"), ("m1", "maps")]:
            group.create_task(use(name, holder))
        await asyncio.sleep(0)
        places.give_back("vision")
    assert served == ["v1", "s1", "m1", "v2"]


async def test_a_wait_that_is_given_up_leaves_nothing() -> None:
    """Rule: who leaves the queue, even at the moment of its turn, holds nothing, and the next one is served."""
    places = Places(1)
    await places.wait("vision")
    gone, at_its_turn, last = [await waiting(places, "vision") for _ in range(3)]
    gone.cancel()
    await asyncio.sleep(0)
    places.give_back("vision")
    at_its_turn.cancel()
    await asyncio.wait_for(last, 10)
    assert at_its_turn.cancelled()
    assert places.used == 1
    places.give_back("vision")
    assert places.used == 0


async def test_a_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: after ``WITHIN`` seconds the wait fails, and its place in the queue is free."""
    monkeypatch.setattr(module, "WITHIN", 0.01)
    places = Places(1)
    await places.wait("vision")
    with pytest.raises(TimeoutError):
        await places.wait("vision")
    places.give_back("vision")
    assert places.used == 0
