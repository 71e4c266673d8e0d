"""Reads through the gateway are indistinguishable from direct ones, in every state of the cache."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from rig.gateways import gateway
from rig.origin import FakeOrigin
from tests.differential.asks import Ask
from tests.differential.conftest import opened, settings
from tests.differential.corpus import BLOCK, Object, by_header, by_size
from tests.differential.deviations import OF_FAKE
from tests.differential.generator import HEADERS, QUERIES, Known, conditions, if_ranges, ranges, reads
from tests.differential.sides import Sides


def test_random_reads_of_every_size(sides: Sides, rng: random.Random) -> None:
    """A read gives the origin's answer, cold, with one block of the object in the cache, and warm."""
    for known in sides.store(by_size(rng)):
        sides.compare_in_states(known, reads(rng, known, 70), cold=16)
    assert sides.ledger.compared > 1000
    assert sides.ledger.seen("HIT") > 400
    assert sides.ledger.seen("MISS") > 50


def test_every_form_of_range_at_every_size(sides: Sides, rng: random.Random) -> None:
    """Ranges of all forms give the origin's bytes and its refusals: those that the cache reads and those it must not."""
    for known in sides.store(by_size(rng)):
        asks = [replace(known.ask(), headers=(("Range", value),)) for value in ranges(known.size)]
        sides.compare_in_states(known, asks, cold=0)
        some = rng.sample(asks, 12)
        sides.compare_in_states(known, [replace(ask, method="HEAD") for ask in some], cold=0)
    assert sides.ledger.seen("BYPASS; reason=range-form") > 100
    assert sides.ledger.seen("HIT") > 300


def test_every_condition(sides: Sides, rng: random.Random) -> None:
    """Conditional reads are answered as the origin answers them, of the whole object, its header and a range."""
    wanted = {"sizes/empty", "sizes/block+1"}
    for known in sides.store(item for item in by_size(rng) if item.key in wanted):
        plain = [replace(known.ask(method), headers=head) for method in ("GET", "HEAD") for head in conditions(known)]
        ranged = [replace(ask, headers=(*ask.headers, ("Range", "bytes=1-20"))) for ask in plain]
        sides.compare_in_states(known, [*plain, *ranged], cold=0)
        some = [ask for ask in rng.sample(plain, 20) if ask.method == "GET"]
        sides.compare_in_states(known, some, cold=len(some))
    assert sides.ledger.seen("HIT") > 200


def test_every_if_range(sides: Sides, rng: random.Random) -> None:
    """A range applies only to the version that If-Range names; else the whole object comes."""
    item = next(item for item in by_size(rng) if item.key == "sizes/five-blocks")
    (known,) = sides.store([item])
    asks = [
        replace(known.ask(method), headers=(("Range", span), ("If-Range", value)))
        for method in ("GET", "HEAD")
        for span in ("bytes=0-0", f"bytes={BLOCK - 1}-{BLOCK}", "bytes=-7", f"bytes={known.size}-")
        for value in if_ranges(known)
    ]
    sides.compare_in_states(known, asks, cold=0)
    sides.compare_in_states(known, rng.sample(asks, 10), cold=10)


def test_every_query_and_header(sides: Sides, rng: random.Random) -> None:
    """Requests for anything but the plain object are answered by the origin, even if the plain object is cached."""
    items = [item for item in by_size(rng) if item.key in ("sizes/five-blocks", "sizes/one-byte")]
    items.append(Object("summed", b"x", (("x-amz-checksum-crc32", "jNwqBA=="),)))
    for known in sides.store(items):
        asks = [replace(known.ask(method), query=query) for method in ("GET", "HEAD") for query in QUERIES]
        asks += [replace(known.ask(method), headers=head) for method in ("GET", "HEAD") for head in HEADERS]
        asks += [replace(ask, headers=(*ask.headers, ("Range", "bytes=0-0"))) for ask in asks]
        sides.compare_in_states(known, asks, cold=0)
        some = rng.sample(asks, 15)
        sides.compare_in_states(known, some, cold=len(some))
    assert sides.ledger.seen("BYPASS; reason=sub-resource") > 100
    assert sides.ledger.seen("BYPASS; reason=header") > 20


def test_every_header_an_object_can_have(sides: Sides, rng: random.Random) -> None:
    """Headers stored with an object come back from the cache too, and a stored encoding is not decoded."""
    for known in sides.store(by_header(rng)):
        enabled = (("x-amz-checksum-mode", "ENABLED"),)
        gzip = (("Accept-Encoding", "identity"),)
        shapes = [known.ask(), known.ask("HEAD"), replace(known.ask(), headers=(("Range", "bytes=2-90"),))]
        asks = [replace(ask, headers=(*ask.headers, *more)) for ask in shapes for more in ((), enabled, gzip)]
        asks.append(replace(known.ask(), headers=(("If-None-Match", known.etag),)))
        if known.raw_key == "headers/no-cache":
            for ask in asks:
                sides.compare("checked", ask)
        elif known.raw_key in ("headers/no-store", "headers/private"):
            for ask in asks:
                for state in ("uncached", "uncached again"):
                    assert not sides.compare(state, ask).cache.startswith("HIT")
        else:
            sides.compare_in_states(known, asks, cold=4)


def test_reads_while_everything_is_being_evicted(origin: FakeOrigin, home: Path, rng: random.Random) -> None:
    """A cache smaller than the objects read gives the same answers: whole, in part, after eviction, and uncached."""
    small = settings(origin.endpoint, home / "small", capacity="300kB")
    with gateway(small, home / "small-home") as running, opened(origin.endpoint, running, OF_FAKE) as sides:
        items = [Object(f"{n}/{item.key}", rng.randbytes(len(item.body))) for n in range(4) for item in by_size(rng)]
        items.append(Object("more-than-half-the-cache", rng.randbytes(170_000)))
        objects = sides.store(items)
        for _ in range(500):
            known = rng.choice(objects)
            sides.compare("churn", rng.choice([known.ask(), _some_range(rng, known), *reads(rng, known, 2)]))
        assert running.metric("larder_evicted_blobs_total") > 50
        for status in ("HIT", "MISS; reason=cold", "MISS; reason=partial", "MISS; reason=too-large"):
            assert sides.ledger.seen(status), sides.ledger.caches


def _some_range(rng: random.Random, known: Known) -> Ask:
    first = rng.randrange(max(1, known.size))
    return replace(known.ask(), headers=(("Range", f"bytes={first}-{first + rng.randrange(3 * BLOCK)}"),))
