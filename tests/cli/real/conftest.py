"""A real gateway whose admin endpoints are open, and both command lines at it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from rig.batches import bytes_of
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from rig.v1 import GWA
from tests.cli.commands import USER, Ran, run, run_here
from tests.cli.real.reads import ADMIN, READER

EXTRA = f"""
[admin]
token = "{ADMIN}"
read_token = "{READER}"
[fleet]
heartbeat = "200ms"
[manager]
job_expire = "10m"
"""
Operator = Callable[..., Ran]


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with some objects."""
    with OriginThread() as started:
        for number in range(12):
            started.put("photos", f"train/{number:02}.jpg", bytes_of(1, 10_000, number)[0])
        yield started


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose admin endpoints are open."""
    home = tmp_path_factory.mktemp("cli")
    settings = Settings(
        origin.endpoint, home / "cache", rules=({"match": "photos/**", "freshness": "immutable"},), extra=EXTRA
    )
    with gateway(settings, home) as started:
        yield started


@pytest.fixture
def variables(running: Running) -> dict[str, str]:
    """An operator's environment variables."""
    return {"LARDER_ENDPOINT": running.endpoint, "LARDER_ADMIN_TOKEN": ADMIN}


@pytest.fixture
def operator(variables: dict[str, str]) -> Operator:
    """Returns a function that runs ``larder-gateway`` and asserts its exit status, by default 0."""

    def typed(*words: str, status: int = 0, **more: str) -> Ran:
        ran = run_here(*words, **{**variables, **more})
        assert ran.status == status, ran
        return ran

    return typed


@pytest.fixture
def user(running: Running) -> Operator:
    """Runs ``larder`` there."""
    keys = {"AWS_ACCESS_KEY_ID": GWA[0], "AWS_SECRET_ACCESS_KEY": GWA[1], "LARDER_ENDPOINT": running.endpoint}
    return lambda *words, given="": run(*words, program=USER, given=given, **keys)
