"""Turns of background loads: urgent ones first, readers before all, and no more bytes than allowed."""

from __future__ import annotations

from collections.abc import Callable

from gateway.policies.lane import BURST, LoadClass, LoadLimits, LoadScheduler

LIMITS = {
    LoadClass.PREFETCH: LoadLimits(3),
    LoadClass.IMPORTANT: LoadLimits(4, beside=1, places=6),
    LoadClass.WARMUP: LoadLimits(2, beside=1),
}


def reading(count: int) -> Callable[[LoadClass], int]:
    """A function that reports ``count`` reads ahead of every class."""
    return lambda _kind: count


def turns(scheduler: LoadScheduler[str], others: int = 0) -> list[str]:
    """Every turn that may be taken now."""
    taken = []
    while (load := scheduler.next(0.0, reading(others))) is not None:
        taken.append(load)
    return taken


def scheduler(*loads: tuple[LoadClass, str]) -> LoadScheduler[str]:
    """A scheduler with loads."""
    made: LoadScheduler[str] = LoadScheduler(LIMITS)
    for kind, load in loads:
        made.add(kind, load)
    return made


def test_the_most_urgent_class_goes_first() -> None:
    """Rule: a class goes before less urgent ones, whichever load was added first; each keeps its own limit."""
    lane = scheduler((LoadClass.WARMUP, "w"), (LoadClass.IMPORTANT, "c"), (LoadClass.PREFETCH, "p"))
    assert turns(lane) == [*"ppp", *"cccc", *"ww"]
    lane.ended(LoadClass.IMPORTANT, 1, 0.0)
    assert turns(lane) == ["c"]


def test_loads_of_a_class_take_turns() -> None:
    """Rule: loads of a class alternate; none waits for another to end."""
    lane = scheduler((LoadClass.IMPORTANT, "a"), (LoadClass.IMPORTANT, "b"))
    assert turns(lane) == ["a", "b", "a", "b"]
    lane.ended(LoadClass.IMPORTANT, 1, 0.0)
    assert lane.next(0.0, reading(0)) == "a"
    lane.exhausted(LoadClass.IMPORTANT)
    lane.ended(LoadClass.IMPORTANT, 1, 0.0)
    assert turns(lane) == ["b", "b"]


def test_readers_go_first() -> None:
    """Rule: beside readers, a class that yields runs at most ``beside`` units, and none when readers take all places."""
    loads = (LoadClass.IMPORTANT, "c"), (LoadClass.PREFETCH, "p")
    assert turns(scheduler(*loads), others=1) == ["p", "p", "p", "c"]
    assert turns(scheduler(*loads), others=6) == ["p", "p", "p"]


def test_what_waits_for_readers_is_blocked() -> None:
    """Rule: a load at its own limit is woken by an end; one that waits for readers must be polled."""
    lane = scheduler((LoadClass.IMPORTANT, "c"))
    turns(lane)
    assert not lane.blocked
    behind = scheduler((LoadClass.IMPORTANT, "c"))
    turns(behind, others=1)
    assert behind.blocked


def test_a_bandwidth_is_kept() -> None:
    """Rule: over any time a class reads its bandwidth, a burst and its loads in progress at most; and it gets all of that."""
    limits = {LoadClass.IMPORTANT: LoadLimits(2, bandwidth=1000.0)}
    lane: LoadScheduler[str] = LoadScheduler(limits)
    lane.add(LoadClass.IMPORTANT, "c")
    now, read = 0.0, 0
    while now < 10.0:
        # Every 20 ms, as the executor looks; each unit ends at once.
        while lane.next(now, reading(0)) is not None:
            lane.ended(LoadClass.IMPORTANT, 10, now)
            read += 10
        now += 0.02
    assert 10_000 - 20 <= read <= 10_000 + 1000 * BURST + 20


def test_without_a_bandwidth_nothing_is_paid() -> None:
    """Rule: 0 bytes per second means no limit."""
    lane = scheduler((LoadClass.IMPORTANT, "c"))
    turns(lane)
    lane.ended(LoadClass.IMPORTANT, 10**15, 0.0)
    assert turns(lane) == ["c"]
