"""Origins and gateways for the differential tests; one gateway per module, because starting them takes most of the time."""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from tests.differential.asks import Ask
from tests.differential.corpus import BLOCK
from tests.differential.deviations import OF_FAKE
from tests.differential.sameness import Deviation, Ledger
from tests.differential.sides import CREDENTIALS, DOMAIN, Sides, digest, gateway_door, origin_door

SEED = os.environ.get("LARDER_DIFFERENTIAL_SEED", "larder")
"""Seed of all randomness: the same in every run unless the variable is set."""


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Randomness of this test, the same in every run."""
    return random.Random(digest(f"{SEED}/{request.node.name}"))


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A fake origin."""
    with OriginThread() as running:
        yield running


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the gateways of a module."""
    return tmp_path_factory.mktemp("differential")


def settings(endpoint: str, cache: Path, capacity: str = "200MB") -> Settings:
    """A gateway with small blocks, so that small objects have several."""
    return Settings(
        endpoint, cache, capacity=capacity, block_size=str(BLOCK), credentials=CREDENTIALS, server={"domain": DOMAIN}
    )


@contextmanager
def opened(endpoint: str, running: Running, allowed: Sequence[Deviation]) -> Iterator[Sides]:
    """An origin, asked directly and through a gateway, and a new bucket; differences raise at the end."""
    ledger = Ledger(allowed)
    with closing(origin_door(endpoint)) as direct, closing(gateway_door(running.endpoint)) as through:
        sides = Sides(direct, through, f"bucket.{uuid.uuid4().hex[:8]}", ledger)
        assert direct.send(Ask("PUT", sides.bucket)).status == 200
        yield sides
    ledger.verdict()


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, home: Path) -> Iterator[Running]:
    """A gateway in front of the fake origin, with room for everything."""
    with gateway(settings(origin.endpoint, home / "cache"), home) as started:
        yield started


@pytest.fixture
def sides(origin: FakeOrigin, running: Running) -> Iterator[Sides]:
    """The fake origin, asked directly and through the gateway, and a new bucket; differences fail the test at its end."""
    with opened(origin.endpoint, running, OF_FAKE) as made:
        yield made
