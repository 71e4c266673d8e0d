"""Versions that readers or passing answers name, and the cache does not know."""

from __future__ import annotations

import pytest

from gateway.engine.objects.found import Ask, Found, Relay
from gateway.model.errors import OriginUnavailable
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.conditions import Conditions
from gateway.model.s3.listings import SeenVersion
from gateway.policies.reads.rules import IMMUTABLE, Caching, Rules
from rig.origin_faults import DieBeforeHeaders
from tests.engine.conftest import Bench


def asking(bench: Bench, **headers: str) -> Ask:
    """A conditional GET of ``k``."""
    return bench.ask("k")._replace(conditions=Conditions(**headers))


async def found(bench: Bench, ask: Ask) -> Found:
    """The object that a read finds."""
    answer = await bench.find(ask)
    assert isinstance(answer, Found)
    return answer


async def test_an_unknown_tag_is_checked(bench: Bench) -> None:
    """Rule: a condition that names another version costs one HEAD, and its reader gets the current one."""
    bench.origin.put("b", "k", b"old")
    await bench.read("k")
    new = bench.origin.put("b", "k", b"newer").etag
    answer = await found(bench, asking(bench, if_match=new))
    assert (answer.entry.record.meta.etag, answer.reason) == (new, Reason.CHANGED)
    assert (bench.origin.count("HEAD"), bench.origin.count("GET")) == (1, 2)


async def test_an_unknown_tag_that_is_older_leaves_a_hit(bench: Bench) -> None:
    """Rule: if the store has what the cache has, the cache answers; a known tag is answered without the store."""
    etag = bench.origin.put("b", "k", b"x").etag
    await bench.read("k")
    answer = await found(bench, asking(bench, if_none_match='"older"'))
    assert (answer.outcome, answer.reason) == (Outcome.HIT, Reason.REVALIDATED)
    assert (await found(bench, asking(bench, if_none_match=etag))).reason is None
    assert bench.origin.count("HEAD") == 1


async def test_a_check_for_a_reader_who_knows_more_goes_past_caches(bench: Bench) -> None:
    """Rule: it asks a store that is a cache itself to ask its own store."""
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.find(asking(bench, if_none_match='"older"'))
    await bench.find(bench.ask("k", forced=True))
    assert [seen.header("cache-control") for seen in bench.origin.seen] == ["", "no-cache", "no-cache"]


async def test_a_listing_makes_an_entry_stale_and_ungrants_nobody(bench: Bench) -> None:
    """Rule: a difference has the next reader check the object; its bytes, and the rights of readers, stay."""
    stored = bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.settle()
    await bench.engine.sightings.note("default", "b", [SeenVersion("k", stored.etag, 1, float(stored.modified))])
    assert (await found(bench, bench.ask("k"))).reason is None
    await bench.engine.sightings.note("default", "b", [SeenVersion("k", '"other"'), SeenVersion("unknown", '"e"')])
    assert (await found(bench, bench.ask("k"))).reason is Reason.REVALIDATED
    record = await bench.store.lookup(bench.ask("k").key)
    assert record is not None
    assert bench.identity.name in await bench.store.grants(record.row_id)
    assert (bench.origin.count("HEAD"), bench.origin.count("GET")) == (1, 1)


async def test_a_listing_reaches_an_entry_without_bytes(bench: Bench) -> None:
    """Rule: what a HEAD has told is no longer true either."""
    bench.origin.put("b", "k", b"old")
    head = bench.ask("k", metadata_first=True)._replace(head=True)
    await bench.find(head)
    bench.origin.put("b", "k", b"newer")
    await bench.engine.sightings.note("default", "b", [SeenVersion("k", size=5)])
    assert (await found(bench, head)).entry.record.meta.size == 5


async def test_what_a_rule_calls_immutable_stays_fresh(bench: Bench) -> None:
    """Rule: the operator's word counts more than a listing."""
    bench.engine.services.rules = Rules([Caching(freshness=IMMUTABLE)])
    bench.origin.put("b", "k", b"x")
    await bench.read("k")
    await bench.engine.sightings.note("default", "b", [SeenVersion("k", '"other"')])
    assert (await found(bench, bench.ask("k"))).reason is None
    assert bench.origin.count("HEAD") == 0


async def test_the_owner_may_forbid_stale_bytes(bench: Bench) -> None:
    """Rule: must-revalidate has a reader fail rather than get bytes that the store did not confirm."""
    bench.origin.put("b", "k", b"x", [("Cache-Control", "max-age=5, must-revalidate")])
    await bench.read("k")
    assert bench.engine.hot(bench.ask("k").key, bench.identity, bench.now[0] + 4) is not None
    assert bench.engine.hot(bench.ask("k").key, bench.identity, bench.now[0] + 5) is None
    bench.now[0] += 6
    bench.origin.inject(DieBeforeHeaders(times=1000))
    with pytest.raises(OriginUnavailable):
        await bench.find(bench.ask("k"))


async def test_a_head_of_an_object_that_nobody_read_is_remembered(bench: Bench) -> None:
    """Rule: within freshness the second HEAD is answered from memory, and later by one HEAD again."""
    bench.origin.put("b", "k", b"x")
    head = bench.ask("k", metadata_first=True)._replace(head=True)
    assert (await found(bench, head)).outcome is Outcome.MISS
    assert (await found(bench, head)).outcome is Outcome.HIT
    assert bench.origin.count() == 1
    bench.now[0] += 601
    assert (await found(bench, head)).reason is Reason.REVALIDATED
    assert bench.origin.count("HEAD") == 2


async def test_who_pays_and_who_does_not_have_rights_of_their_own(bench: Bench) -> None:
    """Rule: a read that the store allowed to a reader who pays is no right of one who does not; the reverse is."""
    paying = bench.ask("k")._replace(identity=type(bench.identity)("default", bench.identity.access_key_id, pays=True))
    bench.origin.put("b", "k", b"x")
    await bench.find(paying)
    await bench.settle()
    assert (await found(bench, paying)).outcome is Outcome.HIT
    bench.origin.deny(bench.identity.access_key_id, "b/k")
    refused = await bench.find(bench.ask("k"))
    assert isinstance(refused, Relay)
    assert refused.reason is Reason.REFUSED
    assert [seen.header("x-amz-request-payer") for seen in bench.origin.seen] == ["requester", ""]
    bench.origin.allow_again()
    bench.origin.put("b", "free", b"y")
    await bench.read("free")
    await bench.settle()
    free = await found(bench, paying._replace(key=bench.ask("free").key))
    assert free.outcome is Outcome.HIT
