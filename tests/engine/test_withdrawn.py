"""Withdrawals by the origin: rights in a bucket, permission to store an object, an object changed in mid-body."""

from __future__ import annotations

import asyncio
import os

import pytest

from gateway.engine.objects.found import Forward, Found, Relay
from gateway.engine.objects.ranged import ObjectChanged, ReaderRefused
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from gateway.policies.reads.rules import ALWAYS, IMMUTABLE, Caching, Rules
from rig.origin import BOB
from rig.origin_faults import Gate, Hang
from tests.engine.conftest import BLOCK, Bench, benched, take
from tests.fleet.conftest import until

LARGE = os.urandom(4 * BLOCK)
BUCKET = ObjectKey("default", "b", "")


def outcome(found: object) -> tuple[Outcome, Reason | None]:
    """Outcome and reason of a read."""
    assert isinstance(found, Found), found
    return found.outcome, found.reason


async def is_refused(bench: Bench, key: str) -> bool:
    """Whether a read gets the origin's refusal, with its document, for one request."""
    before = bench.origin.count()
    found = await bench.find(bench.ask(key))
    assert isinstance(found, Relay), found
    assert bench.origin.count() == before + 1
    return found.reason is Reason.REFUSED and b"<Code>AccessDenied<" in (found.document or b"")


async def withdraw(bench: Bench, status: int = 204) -> None:
    """Change the rights in the bucket, as the origin answers with a status."""
    path = "/b" if status == 204 else "/missing"

    async def send():
        return await bench.engine.services.origin.send(bench.identity, "PUT", path, "policy", [])

    written = await bench.engine.change_rights(BUCKET, send)
    assert written.response.status == status
    await written.close()


@pytest.mark.parametrize("by_prefix", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
async def test_rights_withdrawn_in_a_bucket_end_its_grants(tmp_path, by_prefix, restarted) -> None:
    """Rule: after a change of a bucket's rights every reader is checked again, for entries in memory and in the index, for grants
    by object and by prefix; the bytes stay."""
    rules = Rules([Caching(by_prefix=by_prefix, freshness=IMMUTABLE)])
    async with benched(tmp_path) as bench:
        bench.engine.services.rules = rules
        for key in ("k", "other"):
            bench.origin.put("b", key, b"x")
            await bench.read(key)
        await bench.settle()
        await withdraw(bench)
        bench.origin.deny(bench.identity.access_key_id, "b/*")
        assert bench.engine.hot(bench.ask("k").key, bench.identity, bench.now[0]) is None
        if not restarted:
            assert await is_refused(bench, "k")
            assert await is_refused(bench, "other")
        bench.origin.allow_again()
        assert outcome(await bench.find(bench.ask("k"))) == (Outcome.HIT, Reason.REVALIDATED)
        record = await bench.store.lookup(bench.ask("other").key)
        assert record is not None
        assert await bench.store.grants(record.row_id) == {}


async def test_rights_in_one_bucket_are_not_those_in_another(bench: Bench) -> None:
    """Rule: grants of other buckets stay."""
    bench.origin.put("c", "k", b"x")
    bench.origin.put("b", "k", b"x")
    ask = bench.ask("k")._replace(key=ObjectKey("default", "c", "k"))
    for each in (ask, bench.ask("k")):
        found = await bench.find(each)
        assert isinstance(found, Found)
        await take(await bench.body(each, found, 0, 1))
    await bench.settle()
    await withdraw(bench)
    assert outcome(await bench.find(ask)) == (Outcome.HIT, None)


async def test_a_refused_change_of_rights_forgets_nothing(bench: Bench) -> None:
    """Rule: a caller that may not change rights cannot empty the cache of grants."""
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.settle()
    await withdraw(bench, 404)
    assert outcome(await bench.find(bench.ask("k"))) == (Outcome.HIT, None)


async def test_a_grant_from_before_a_change_of_rights_is_not_noted_after_it(bench: Bench) -> None:
    """Rule: a check in progress while the rights change proves nothing, and is made again."""
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.settle()
    bench.now[0] += 601
    gate = Gate()
    bench.origin.inject(Hang(gate=gate, method="HEAD"))
    checking = asyncio.create_task(bench.find(bench.ask("k")))
    await gate.reached()
    await withdraw(bench)
    bench.origin.deny(bench.identity.access_key_id, "b/*")
    gate.open()
    refused = await checking
    assert isinstance(refused, Relay)
    assert refused.reason is Reason.REFUSED
    record = await bench.store.lookup(bench.ask("k").key)
    assert record is not None
    assert await bench.store.grants(record.row_id) == {}


@pytest.mark.parametrize("freshness", [600.0, ALWAYS, IMMUTABLE])
@pytest.mark.parametrize("directive", ["no-store", "private"])
async def test_an_object_that_may_no_longer_be_kept_is_dropped(bench: Bench, freshness: float, directive: str) -> None:
    """Rule: a check applies the rules of the first read; an object with the same ETag that may no longer be kept is dropped."""
    bench.engine.services.rules = Rules([Caching(freshness=freshness, grant=600)])
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.settle()
    bench.origin.put("b", "k", b"x", [("Cache-Control", directive)])
    bench.now[0] += 601
    assert await bench.find(bench.ask("k")) == Forward(Reason.CACHE_CONTROL)
    assert bench.engine.hot(bench.ask("k").key, bench.identity, bench.now[0]) is None
    assert await bench.store.lookup(bench.ask("k").key) is None


async def test_what_was_learned_before_the_clock_was_set_back_is_checked(bench: Bench) -> None:
    """Rule: confirmations and grants of a future are not believed: not at once, nor when that future has come."""
    bench.origin.put("b", "soon", b"x")
    bench.origin.put("b", "late", b"x")
    bench.now[0] += 3600
    for key in ("soon", "late"):
        await bench.read(key)
    await bench.settle()
    bench.now[0] -= 3600
    assert outcome(await bench.find(bench.ask("soon"))) == (Outcome.HIT, Reason.REVALIDATED)
    assert outcome(await bench.find(bench.ask("soon"))) == (Outcome.HIT, None)
    await bench.store.sweep()
    bench.now[0] += 3601
    assert outcome(await bench.find(bench.ask("late"))) == (Outcome.HIT, Reason.REVALIDATED)


async def partly(bench: Bench, key: str = "k") -> None:
    """Have the first block of a large object in the cache, and no other."""
    bench.origin.put("b", key, LARGE)
    assert await bench.read(key, 0, BLOCK) == LARGE[:BLOCK]
    await bench.settle()


@pytest.mark.parametrize("freshness", [600.0, IMMUTABLE])
async def test_an_object_that_changed_in_the_middle_of_a_body_is_forgotten(bench: Bench, freshness: float) -> None:
    """Rule: the read that detects the change breaks off, and the next one gets the new object."""
    bench.engine.services.rules = Rules([Caching(freshness=freshness)])
    await partly(bench)
    newer = os.urandom(len(LARGE))
    bench.origin.put("b", "k", newer)
    with pytest.raises(ObjectChanged):
        await bench.read("k")
    assert await bench.read("k") == newer


async def test_a_change_is_not_held_against_the_newer_object(bench: Bench) -> None:
    """Rule: a slow reader of an overwritten object does not make the gateway forget the newer one."""
    await partly(bench)
    slow = await bench.open("k")
    newer = os.urandom(len(LARGE))
    bench.origin.put("b", "k", newer)
    await bench.engine.changed([bench.ask("k").key])
    assert await bench.read("k") == newer
    await bench.settle()
    with pytest.raises(ObjectChanged):
        await take(slow)
    assert outcome(await bench.find(bench.ask("k"))) == (Outcome.HIT, None)


async def test_a_reader_refused_in_the_middle_of_a_body_loses_its_grant(bench: Bench) -> None:
    """Rule: a read that the origin refuses in mid-body breaks off and ends the reader's grant; the next is refused at once."""
    await partly(bench)
    bench.origin.deny(bench.identity.access_key_id, "b/k")
    with pytest.raises(ReaderRefused):
        await bench.read("k")
    assert await is_refused(bench, "k")


async def test_a_reader_is_not_refused_for_another(bench: Bench) -> None:
    """Rule: a fill that the origin refuses to one identity is started again by the others that followed it."""
    await partly(bench)
    other = bench.ask("k", metadata_first=True)._replace(identity=OriginIdentity("default", BOB.access_key_id))
    found = await bench.find(other)
    assert isinstance(found, Found)
    gate = Gate()
    bench.origin.deny(bench.identity.access_key_id, "b/k")
    bench.origin.inject(Hang(gate=gate))
    refused = asyncio.create_task(bench.read("k"))
    await gate.reached()
    following = asyncio.create_task(take(await bench.body(other, found, 0, len(LARGE))))
    (fill,) = bench.engine.blocks._fills
    await until(lambda: fill.readers == 2)
    gate.open()
    with pytest.raises(ReaderRefused):
        await refused
    assert await following == LARGE
