"""The same comparisons with third-party servers as origins: their answers to odd requests reach the client unchanged."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rig.gateways import Running, gateway
from rig.radosgw import Radosgw
from tests.differential.asks import Ask
from tests.differential.conftest import opened, settings
from tests.differential.corpus import KEYS, Object, by_header, by_size
from tests.differential.deviations import OF_MOTO, OF_RADOSGW
from tests.differential.generator import ranges, raw, reads
from tests.differential.sameness import Deviation
from tests.differential.sides import Sides
from tests.differential.writes import KEYS as WRITTEN
from tests.differential.writes import OPERATIONS, Twins

Fronted = tuple[str, Running, tuple[Deviation, ...]]


@pytest.fixture(scope="module", params=["moto", "radosgw"])
def fronted(request: pytest.FixtureRequest, home: Path) -> Iterator[Fronted]:
    """A real server and a gateway in front of it."""
    server = request.getfixturevalue(request.param)
    endpoint = server.endpoint if isinstance(server, Radosgw) else server
    place = home / request.param
    with gateway(settings(endpoint, place / "cache"), place) as running:
        yield endpoint, running, OF_RADOSGW if isinstance(server, Radosgw) else OF_MOTO


@pytest.fixture
def elsewhere(fronted: Fronted) -> Iterator[Sides]:
    """A new bucket there, for asking directly and through the gateway; differences fail the test at its end."""
    with opened(*fronted) as sides:
        yield sides


def test_random_reads_elsewhere(elsewhere: Sides, rng: random.Random) -> None:
    """A read gets the server's answer in every state of the cache."""
    for known in elsewhere.store(by_size(rng)):
        elsewhere.compare_in_states(known, reads(rng, known, 20), cold=2)
    assert elsewhere.ledger.seen("HIT") > 50


def test_headers_elsewhere(elsewhere: Sides, rng: random.Random) -> None:
    """Headers that the server stored with an object come back from the cache too."""
    for known in elsewhere.store(by_header(rng)):
        for state in ("cold", "warm", "warm again"):
            for ask in (known.ask(), known.ask("HEAD"), replace(known.ask(), headers=(("Range", "bytes=1-9"),))):
                elsewhere.compare(state, ask)


def test_ranges_elsewhere(elsewhere: Sides, rng: random.Random) -> None:
    """Ranges of every form are the server's to interpret, except the plain ones."""
    items = [item for item in by_size(rng) if item.key in ("sizes/empty", "sizes/block+1")]
    for known in elsewhere.store(items):
        asks = [replace(known.ask(), headers=(("Range", value),)) for value in ranges(known.size)]
        elsewhere.compare_in_states(known, rng.sample(asks, 20), cold=2)


def test_keys_elsewhere(elsewhere: Sides, rng: random.Random) -> None:
    """Each key that the server can store leads to its own object."""
    storable = [key for key in KEYS if elsewhere.direct.send(Ask("PUT", elsewhere.bucket, raw(key))).status == 200]
    assert len(storable) > len(KEYS) - 4
    for key in storable:
        (known,) = elsewhere.store([Object(key, rng.randbytes(40))])
        for state in ("cold", "warm"):
            for ask in (known.ask(), known.ask("HEAD"), replace(known.ask(), style="host", form="presigned")):
                elsewhere.compare(state, ask)


def test_writes_elsewhere(elsewhere: Sides, rng: random.Random) -> None:
    """Writes have the same effect as direct ones, and later reads show it."""
    twin = f"{elsewhere.bucket}.twin"
    assert elsewhere.direct.send(Ask("PUT", twin)).status == 200
    twins = Twins(elsewhere, twin)
    for _ in range(30):
        key = rng.choice(WRITTEN)
        rng.choice(OPERATIONS)(rng, twins, key)
        twins.look(rng, key)


def test_an_odd_question_spoils_no_other_answer(elsewhere: Sides) -> None:
    """radosgw sends a body after the header of "HEAD ?acl"; the next answer on that connection must not begin with it."""
    (known,) = elsewhere.store([Object("key", b"body")])
    for _ in range(20):
        elsewhere.compare("odd", replace(known.ask("HEAD"), query="acl"))
        # Not answered from the cache, so that it needs a connection to the origin.
        elsewhere.compare("next", replace(known.ask(), query="versionId=null"))
