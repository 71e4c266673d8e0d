"""PUT /-/v1/jobs/{job}/importance of a real gateway of two workers, and what the cache makes of it (SHADE, Algorithm 1)."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gateway.testing.origin import FakeOrigin, OriginThread
from tests.batches import Stock, bytes_of, stock
from tests.gateways import Running, Settings, gateway
from tests.origins.processes import wait_until
from tests.scored import Part, by_importance, join, planned, put
from tests.v1 import GWA, Key

GWB: Key = ("GWB", "gateway-secret-b")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b"},
)
PACE = """
[fleet]
heartbeat = "100ms"
"""
SOON = 30.0
ITEMS = 100
FIT = 54
"""Items of 10,000 bytes below the low watermark of 600 kB."""


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """An origin."""
    with OriginThread() as started:
        yield started


@pytest.fixture
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway of two workers with room for a little more than half of the items below."""
    home = tmp_path_factory.mktemp("importance")
    settings = Settings(
        origin.endpoint, home / "cache", capacity="600KB", workers=2, credentials=CREDENTIALS, extra=PACE
    )
    with gateway(settings, home) as started:
        yield started


@pytest.fixture
def data(origin: FakeOrigin, running: Running, tmp_path_factory: pytest.TempPathFactory, request) -> Stock:
    """A dataset of 100 items that is registered, with a job ``train``."""
    name = re.sub("[^A-Za-z0-9._-]", "-", request.node.name)[-100:]
    made = stock(origin, tmp_path_factory.mktemp("stock"), name, bytes_of(ITEMS, 10_000, name))
    made.register(running, "auto")
    join(running, "train", made)
    return made


def held(running: Running, data: Stock) -> set[int]:
    """The items in the cache."""
    return set(range(ITEMS)) - set(data.missing(running))


def rank(running: Running, data: Stock, part: Part) -> None:
    """Have a part taken, and the dataset kept by importance."""
    assert put(running, "train", data.id, part).status == 200
    wait_until(lambda: by_importance(running, data, "train"), SOON, "the order importance")


def test_a_full_pool_keeps_what_is_important(running: Running, data: Stock, origin: FakeOrigin) -> None:
    """Rule: while there is room all enters; then only what is at least as important as the least, which leaves; what nobody
    scored does not displace anything."""
    rank(running, data, Part(scores={index: (index + 1) / 16 for index in range(80)}))
    assert planned(running, data)["granted"] == FIT * 10_000
    data.read(running, range(FIT))
    assert held(running, data) == set(range(FIT))
    data.read(running, range(80, ITEMS))
    assert held(running, data) == set(range(FIT))
    reads = origin.count("GET", "/data/")
    data.read(running, range(80, 90))
    assert origin.count("GET", "/data/") == reads + 10
    data.read(running, range(60, 80))
    now = held(running, data)
    assert set(range(60, 80)) <= now
    gone = set(range(FIT)) - now
    assert gone == set(range(len(gone)))
    data.read(running, [0, 1])
    assert not held(running, data) & {0, 1}


def test_what_jobs_say_later_ranks_what_is_here(running: Running, data: Stock) -> None:
    """Rule: when scores change, what is cached is ranked anew: what became unimportant leaves first."""
    rank(running, data, Part(scores=dict.fromkeys(range(ITEMS), 1.0)))
    data.read(running, range(FIT))
    least = dict.fromkeys(range(40, 50), 0.5)
    part = Part(2, 1, {**least, **dict.fromkeys(range(FIT, ITEMS), 4.0)})
    assert put(running, "train", data.id, part).json == {"sequence": 2, "items": ITEMS}

    def left() -> bool:
        data.read(running, range(FIT, 75))
        return not held(running, data) & set(least)

    wait_until(left, SOON, "the ten items to leave")
    assert len(held(running, data)) >= 50
