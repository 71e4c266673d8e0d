"""The stage for the guides and the example: the demo's images at an origin behind a real gateway."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.demo import data
from gateway.demo.clients import VISION
from gateway.testing.origin import FakeOrigin, OriginThread
from tests.gateways import Settings, gateway

IMAGES = 507


@dataclass(frozen=True)
class Stage:
    """A running gateway, a folder, and the environment of a newcomer's terminal."""

    endpoint: str
    folder: Path
    environment: dict[str, str]


def put_images(origin: FakeOrigin, count: int) -> None:
    """Store the demo's first images."""
    for key, body in list(data.digits().items())[:count]:
        origin.put(data.BUCKET, key, body)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway in front of ``s3://demo/digits/``, with the demo's keys."""
    folder = tmp_path_factory.mktemp("stage")
    keys = {"access_key_id": VISION.access_key_id, "secret_access_key": VISION.secret_access_key, "tenant": "vision"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LARDER_"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    with OriginThread() as origin:
        put_images(origin, IMAGES)
        with gateway(Settings(origin.endpoint, folder / "cache", credentials=(keys,)), folder) as running:
            yield Stage(running.endpoint, folder, environment)
