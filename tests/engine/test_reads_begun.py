"""Reads that are begun without a task of their reader: whom the engine answers so, and what it leaves to ``open``."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from gateway.engine.objects.found import Ask, Found, Relay
from gateway.model.errors import OriginUnavailable
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from rig.origin_faults import DieBeforeHeaders, Gate, Hang
from tests.engine.conftest import BLOCK, Bench, take

Begun = asyncio.Future[Any]


async def begun(bench: Bench, ask: Ask) -> Begun | None:
    """What a read that has begun gives its reader."""
    answered: asyncio.Future[Begun | None] = asyncio.get_running_loop().create_future()
    assert bench.engine.begin(ask, answered.set_result)
    return await answered


async def test_a_cold_object_of_one_block_comes_with_its_bytes_and_its_file(bench: Bench) -> None:
    """Rule: the reader of an unknown small object gets its bytes, and the file that has them, once that file has its name."""
    bench.origin.put("b", "k", b"x" * 500)
    answer = await begun(bench, bench.ask("k"))
    assert answer is not None
    found = answer.result()
    assert isinstance(found, Found)
    assert (found.outcome, found.reason, found.whole) == (Outcome.MISS, Reason.COLD, b"x" * 500)
    assert found.blob is not None
    assert await bench.read("k") == b"x" * 500
    assert bench.origin.count("GET") == 1


async def test_a_long_object_is_left_to_the_long_path_with_its_fill(bench: Bench) -> None:
    """Rule: an object of several blocks is asked for once, and read through the fill that the answer began."""
    bench.origin.put("b", "k", b"x" * (3 * BLOCK))
    answer = await begun(bench, bench.ask("k"))
    assert answer is not None
    assert answer.result().blob is None
    found = await bench.engine.open(bench.ask("k"), answer)
    assert isinstance(found, Found)
    assert found.body is not None
    assert await take(found.body) == b"x" * (3 * BLOCK)
    assert bench.origin.count("GET") == 1


async def test_an_object_that_is_cached_is_left_to_the_long_path(bench: Bench) -> None:
    """Rule: the origin is asked neither about an object in memory, nor about one that only the index knows."""
    bench.origin.put("b", "k", b"x" * 500)
    await bench.read("k")
    await bench.settle()
    assert not bench.engine.begin(bench.ask("k"), pytest.fail)
    bench.engine._entries.clear()
    assert await begun(bench, bench.ask("k")) is None
    assert await bench.read("k") == b"x" * 500
    assert bench.origin.count("GET") == 1


async def test_of_two_readers_one_asks_and_the_other_joins(bench: Bench) -> None:
    """Rule: a read that another one overtakes is left to the long path, which joins it."""
    bench.origin.put("b", "k", b"x" * 500)
    gate = Gate()
    bench.origin.inject(Hang(gate=gate))
    first: list[Begun | None] = []
    assert bench.engine.begin(bench.ask("k"), first.append)
    assert await begun(bench, bench.ask("k")) is None
    joining = asyncio.create_task(bench.read("k"))
    await gate.reached()
    assert not bench.engine.begin(bench.ask("k"), pytest.fail)
    gate.open()
    assert await joining == b"x" * 500
    assert first[0] is not None
    assert bench.origin.count("GET") == 1


async def test_a_refusal_answers_the_reader_who_began(bench: Bench) -> None:
    """Rule: the origin's refusal of a begun read is the answer of the long path, without a second request."""
    answer = await begun(bench, bench.ask("none"))
    assert answer is not None
    refused = await bench.engine.open(bench.ask("none"), answer)
    assert isinstance(refused, Relay)
    assert (refused.response.status, refused.reason) == (404, Reason.NOT_FOUND)
    refused.response.abort()
    assert bench.origin.count("GET") == 1


async def test_a_failure_fails_the_reader_who_began(bench: Bench) -> None:
    """Rule: what a begun read raises, the long path raises."""
    bench.origin.put("b", "k", b"x" * 500)
    bench.origin.inject(DieBeforeHeaders(times=100))
    answer = await begun(bench, bench.ask("k"))
    with pytest.raises(OriginUnavailable):
        await bench.engine.open(bench.ask("k"), answer)


async def test_a_key_whose_write_is_not_announced_is_left_to_the_long_path(bench: Bench) -> None:
    """Rule: a read that must be checked with the origin, or whose row is not to be trusted, is not begun."""
    generations = bench.store.generations
    generations.owe([ObjectKey("default", "b", "owed")])
    generations.distrust(ObjectKey("default", "b", "doubted"))
    assert not bench.engine.begin(bench.ask("owed"), pytest.fail)
    assert not bench.engine.begin(bench.ask("doubted"), pytest.fail)
