"""No differences either when the asked gateway is the home of about half of the objects."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rig.gateways import Running, fleet
from rig.origin import FakeOrigin
from rig.redis_server import RedisServer
from tests.differential.asks import Ask
from tests.differential.conftest import opened
from tests.differential.corpus import BLOCK, by_header, by_size
from tests.differential.deviations import OF_FAKE
from tests.differential.generator import HEADERS, QUERIES, conditions, if_ranges, ranges, reads
from tests.differential.sides import CREDENTIALS, DOMAIN, Sides, gateway_door
from tests.differential.writes import KEYS, OPERATIONS, Twins


@pytest.fixture(scope="module")
def nodes(origin: FakeOrigin, home: Path) -> Iterator[list[Running]]:
    """Two nodes in front of the fake origin; at the end, assert that the first has both relayed reads and filled by itself."""
    with (
        RedisServer() as redis,
        fleet(
            origin.endpoint,
            redis.url,
            2,
            home,
            block_size=str(BLOCK),
            credentials=CREDENTIALS,
            server={"domain": DOMAIN},
        ) as running,
    ):
        yield running
        # Where an object is at home is random, as its bucket is: of some sixty, about half are at home at either.
        relayed = running[0].metric("larder_relayed_reads_total", event="answered")
        assert relayed > 50, "the first node asked the second"
        assert running[0].metric("larder_fills_total", event="completed") > 5, "the first node read by itself"


@pytest.fixture
def sides(origin: FakeOrigin, nodes: list[Running]) -> Iterator[Sides]:
    """The origin, asked directly and through the first node."""
    with opened(origin.endpoint, nodes[0], OF_FAKE) as made:
        yield made


def test_random_reads(sides: Sides, rng: random.Random) -> None:
    """Rule: a read returns the origin's answer, cold, in part and warm, whichever node is the object's home."""
    for serial in range(2):
        items = (replace(item, key=f"{serial}/{item.key}") for item in by_size(rng))
        for known in sides.store(items):
            sides.compare_in_states(known, reads(rng, known, 12), cold=3)
    assert sides.ledger.seen("HIT") > 100
    assert sides.ledger.seen("MISS") > 20


def test_ranges_and_conditions(sides: Sides, rng: random.Random) -> None:
    """Rule: the home evaluates ranges and conditions as the origin does, and leaves the others to the origin."""
    wanted = {"sizes/empty", "sizes/block+1", "sizes/five-blocks"}
    items = [item for item in by_size(rng) if item.key in wanted]
    for known in sides.store(replace(item, key=f"{serial}/{item.key}") for serial in range(2) for item in items):
        heads = [*conditions(known), *((("Range", span),) for span in ranges(known.size))]
        heads += [(("Range", "bytes=0-9"), ("If-Range", value)) for value in if_ranges(known)]
        asks = [replace(known.ask(method), headers=head) for method in ("GET", "HEAD") for head in heads]
        sides.compare_in_states(known, rng.sample(asks, 40), cold=4)
    assert sides.ledger.seen("BYPASS; reason=range-form") > 5


def test_headers_and_queries(sides: Sides, rng: random.Random) -> None:
    """Rule: stored headers come from the home too, and requests with other queries are forwarded."""
    for known in sides.store(by_header(rng)):
        asks = [replace(known.ask(method), headers=head) for method in ("GET", "HEAD") for head in ((), *HEADERS)]
        asks += [replace(known.ask(), query=query) for query in QUERIES]
        for ask in rng.sample(asks, 10):
            for state in ("once", "again"):
                sides.compare(state, ask)


def test_writes_and_the_reads_after_them(sides: Sides, nodes: list[Running], rng: random.Random) -> None:
    """Rule: after a write through one node, no read through the other returns the former object."""
    twin = f"{sides.bucket}.twin"
    assert sides.direct.send(Ask("PUT", twin)).status == 200
    first = sides.through
    with closing(gateway_door(nodes[1].endpoint)) as second:
        twins = Twins(sides, twin)
        for turn in range(60):
            key = rng.choice(KEYS)
            sides.through = (first, second)[turn % 2]
            rng.choice(OPERATIONS)(rng, twins, key)
            for door in (first, second):
                sides.through = door
                twins.look(rng, key)
        sides.through = first
    assert sides.ledger.seen("HIT") > 50
