"""The gateways that clients are tried on: one on https before moto, one on http before radosgw, which checks signatures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3compat.certificates import Certificates, make_certificates
from tests.s3compat.clients.base import Client
from tests.s3compat.world import World, world


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """A certificate for 127.0.0.1, and the authority behind it."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module", params=["https-moto", "http-radosgw"])
def place_to_try(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, certificates: Certificates
) -> Iterator[World]:
    """A gateway with its origin, for one module."""
    scheme, origin = request.param.split("-")
    served = request.getfixturevalue(origin)
    endpoint = served if origin == "moto" else served.endpoint
    with world(endpoint, tmp_path_factory.mktemp(request.param), certificates if scheme == "https" else None) as made:
        yield made


class Clients:
    """The clients of one gateway, made when they are first wanted."""

    def __init__(self, made: World, scratch: Path) -> None:
        self._world = made
        self._scratch = scratch
        self._clients: dict[type[Client], Client] = {}

    def __getitem__(self, kind: type[Client]) -> Client:
        if kind not in self._clients:
            self._clients[kind] = kind(self._world.access, self._scratch)
        return self._clients[kind]

    def close(self) -> None:
        """End them all."""
        for client in self._clients.values():
            client.close()


@pytest.fixture(scope="module")
def clients(place_to_try: World, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clients]:
    """The clients of the gateway that is tried."""
    made = Clients(place_to_try, tmp_path_factory.mktemp("scratch"))
    yield made
    made.close()
