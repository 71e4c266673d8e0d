"""An origin that hangs, or refuses connections: what may be stale is served soon, then at once, and its return is noticed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.engine.objects.found import Found
from gateway.model.errors import OriginUnavailable
from gateway.model.outcomes import Outcome, Reason
from rig.origin_faults import Hang
from tests.engine.conftest import Bench, benched
from tests.engine.datasets import until

STALE = (Outcome.STALE, Reason.ORIGIN_DOWN)
SERVED = (Outcome.HIT, Reason.REVALIDATED)


@pytest.fixture
async def old(tmp_path: Path) -> AsyncIterator[Bench]:
    """An engine with two cached objects that are not fresh any more; its origin has a tenth of a second for a check."""
    async with benched(tmp_path / "cache", check_timeout=0.1) as bench:
        for key in ("one", "two"):
            bench.origin.put("b", key, key.encode())
            await bench.read(key)
        await bench.settle()
        bench.now[0] += 700
        yield bench


async def how(bench: Bench, key: str) -> tuple[Outcome, Reason | None]:
    """Find an object; return outcome and reason."""
    found = await bench.find(bench.ask(key))
    assert isinstance(found, Found)
    return found.outcome, found.reason


async def until_found(bench: Bench, key: str, *wanted: tuple[Outcome, Reason | None]) -> None:
    """Read until an object is found in one of these ways."""
    async with asyncio.timeout(30):
        while await how(bench, key) not in wanted:  # noqa: ASYNC110 - reading it is what may change it
            await asyncio.sleep(0.01)


async def test_a_silent_origin_is_waited_for_once(old: Bench) -> None:
    """Rule: the first check waits for check_timeout; later reads, of any object, are stale without a question."""
    hang = old.origin.inject(Hang(times=1000))
    assert await how(old, "one") == STALE
    reach = old.engine.services.origin.reach(old.identity)
    await until(lambda: reach.silent)
    asked = old.origin.count("HEAD", "/b/two")
    assert [await how(old, "two") for _ in range(50)] == [STALE] * 50
    assert old.origin.count("HEAD", "/b/two") == asked
    hang.gate.open()
    old.origin.heal()
    await until_found(old, "two", SERVED)


async def test_one_probe_at_a_time_finds_out(old: Bench) -> None:
    """Rule: while the origin is silent at most one probe is under way, however many readers there are."""
    hang = old.origin.inject(Hang(times=1000))
    reach = old.engine.services.origin.reach(old.identity)
    probe, under_way, most = reach._probe, 0, 0

    async def counted() -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            await probe()
        finally:
            under_way -= 1

    reach._probe = counted
    await asyncio.gather(*(how(old, "one") for _ in range(20)))
    await asyncio.gather(*(how(old, "two") for _ in range(200)))
    assert most == 1
    hang.gate.open()


async def test_a_slow_check_of_an_origin_that_answers(old: Bench) -> None:
    """Rule: a check that takes longer than check_timeout is not waited for, and renews the object when its answer comes."""
    hang = old.origin.inject(Hang(path="/b/one", times=1000))
    assert await how(old, "one") == STALE
    assert not old.engine.services.origin.lost(old.identity)
    hang.gate.open()
    await until_found(old, "one", (Outcome.HIT, None))
    assert await how(old, "two") == SERVED


async def test_a_reader_without_a_choice_waits(old: Bench) -> None:
    """Rule: where stale bytes are not allowed the check has all the time that the origin has."""
    hang = old.origin.inject(Hang(path="/b/one", times=1))
    forced = asyncio.create_task(old.find(old.ask("one", forced=True)))
    await hang.gate.reached()
    assert await how(old, "one") == STALE  # this one has waited for check_timeout
    assert not forced.done()
    hang.gate.open()
    found = await forced
    assert isinstance(found, Found)
    assert (found.outcome, found.reason) == SERVED


async def test_an_origin_that_refuses_connections_is_asked_each_time(tmp_path: Path) -> None:
    """Rule: a stale object is checked although the origin is known to refuse connections, so the first read after its return is
    right."""
    async with benched(tmp_path / "cache") as bench:
        bench.origin.put("b", "one", b"one")
        await bench.read("one")
        await bench.settle()
        bench.now[0] += 700
        await bench.origin.stop()
        reach = bench.engine.services.origin.reach(bench.identity)
        assert await how(bench, "one") == STALE
        await until(lambda: reach.lost)
        assert not reach.silent
        assert await how(bench, "one") == STALE  # its check has ended: the next read begins another
        await bench.origin.start()
        assert await how(bench, "one") == SERVED


async def test_a_hasty_reader_waits_for_no_lost_origin(old: Bench) -> None:
    """Rule: a reader with another way to a cold object fails at once while the origin is known to be lost."""
    old.origin.put("b", "cold", b"cold")
    hang = old.origin.inject(Hang(times=1000))
    ask = old.ask("cold")._replace(hasty=True)
    for _ in range(3):
        with pytest.raises(OriginUnavailable):
            await old.find(ask)
    assert old.origin.count("GET", "/b/cold") == 1
    hang.gate.open()
