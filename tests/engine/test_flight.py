"""One call in flight per key, which belongs to no caller."""

from __future__ import annotations

import asyncio

import pytest

from gateway.base.tasks import SingleFlight


class Work:
    """Calls that end on request."""

    def __init__(self) -> None:
        self.begun = 0
        self.gate = asyncio.Event()

    async def __call__(self) -> int:
        """Count the call, and wait."""
        self.begun += 1
        number = self.begun
        await self.gate.wait()
        return number


async def test_callers_of_a_key_share_one_call() -> None:
    """Rule: callers during a call share its result; a later caller starts another one."""
    flight: SingleFlight[str, int] = SingleFlight()
    work = Work()
    both = asyncio.gather(flight.result("a", work), flight.result("a", work))
    other = asyncio.create_task(flight.result("b", work))
    await asyncio.sleep(0)
    work.gate.set()
    assert (await both, await other) == ([1, 1], 2)
    assert await flight.result("a", work) == 3


async def test_a_call_outlives_its_callers() -> None:
    """Rule: a caller that is cancelled leaves the call to those that come after it."""
    flight: SingleFlight[str, int] = SingleFlight()
    work = Work()
    caller = asyncio.create_task(flight.result("a", work))
    await asyncio.sleep(0)
    caller.cancel()
    await asyncio.wait([caller])
    work.gate.set()
    assert await flight.result("a", work) == 1


async def test_a_forgotten_call_is_joined_by_nobody_else() -> None:
    """Rule: after ``forget`` or ``begin`` later callers get another call; the end of the former one does not hide it."""
    flight: SingleFlight[str, int] = SingleFlight()
    first, second = Work(), Work()
    one = flight.join("a", first)
    flight.forget("a")
    two = flight.join("a", second)
    first.gate.set()
    assert await one == 1
    await asyncio.sleep(0)
    assert "a" in flight
    flight.begin("a", first())
    assert await flight.result("a", second) == 2  # of ``first``
    second.gate.set()
    assert (await two, second.begun) == (1, 1)


async def test_a_call_may_answer_before_it_ends() -> None:
    """Rule: a call may give its callers the result before its end; later callers begin another call."""
    flight: SingleFlight[str, int] = SingleFlight()
    work = Work()
    callers = [flight.join("a", work), flight.join("a", work)]
    assert flight.hand_over("a") == callers
    callers[1].set_result(7)
    assert (await callers[1], "a" in flight, len(flight)) == (7, False, 1)
    later = flight.join("a", work)
    work.gate.set()
    assert await later == 2


async def test_a_result_whose_first_caller_left_is_released() -> None:
    """Rule: a result that only the first caller could use is handed to its owner when that caller has left."""
    unclaimed: list[int] = []
    flight: SingleFlight[str, int] = SingleFlight(unclaimed=unclaimed.append)
    works = [Work(), Work()]
    callers = [flight.join(name, work) for name, work in zip("ab", works, strict=True)]
    callers[0].cancel()
    for work in works:
        work.gate.set()
    await flight.drain()
    await asyncio.sleep(0)
    assert (unclaimed, callers[1].result()) == ([1], 1)


async def test_a_call_that_never_began_is_waited_for_by_nobody() -> None:
    """Rule: a call that is cancelled before its first step ends the waits for it."""
    flight: SingleFlight[str, int] = SingleFlight()
    caller = asyncio.create_task(flight.result("a", Work()))
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await flight.stop()
        with pytest.raises(asyncio.CancelledError):
            await caller


async def test_an_error_that_no_caller_takes_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    """Rule: an error is raised to every caller, and not logged by asyncio when all have left."""

    async def fail() -> int:
        raise ValueError

    flight: SingleFlight[str, int] = SingleFlight()
    with pytest.raises(ValueError):
        await flight.result("a", fail)
    flight.join("a", fail)
    await flight.drain()
    assert "a" not in flight
    assert caplog.records == []


async def test_stopping_cancels_what_is_in_flight() -> None:
    """Rule: at the end every call is cancelled, forgotten ones too."""
    flight: SingleFlight[str, int] = SingleFlight()
    work = Work()
    tasks = [flight.join("a", work)]
    flight.forget("a")
    tasks.append(flight.join("a", work))
    await asyncio.sleep(0)
    await flight.stop()
    assert [task.cancelled() for task in tasks] == [True, True]


async def test_a_key_that_is_held_has_no_call_of_its_own() -> None:
    """Rule: callers of keys that one piece of work serves get the results that it settles; a later caller starts a call."""
    flight: SingleFlight[str, int] = SingleFlight()
    held = {key: flight.hold(key, "work") for key in "ab"}
    assert flight.owner("a") == "work"
    waiters = [flight.waiter("a"), flight.waiter("a"), flight.waiter("b")]
    for number, key in enumerate("ab"):
        flight.settle(key, held[key], number)
    assert [await waiter for waiter in waiters] == [0, 0, 1]
    assert "a" not in flight


async def test_a_call_replaces_a_key_that_is_held() -> None:
    """Rule: callers from before still get what is settled, and those from after the result of the call."""
    flight: SingleFlight[str, int] = SingleFlight()
    work = Work()
    held = flight.hold("a")
    before, after = flight.waiter("a"), flight.begin("a", work())
    flight.settle("a", held, 7)
    assert await before == 7
    assert "a" in flight
    work.gate.set()
    assert await after == 1
