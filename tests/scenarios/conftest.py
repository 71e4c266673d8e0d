"""The origin and the gateway of the stories."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.gateways import Running, Settings, gateway
from rig.redis_server import RedisServer
from rig.world import Origin


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """An origin for all scenarios of a module; each uses its own keys."""
    with Origin() as origin:
        yield origin


@pytest.fixture(scope="module")
def running(settings: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """The gateway of a module whose stories share one; the module has its ``settings``."""
    with gateway(settings, tmp_path_factory.mktemp("home")) as started:
        yield started


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    """The Redis that a module's gateways share."""
    with RedisServer() as server:
        yield server
