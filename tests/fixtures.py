"""Origins as fixtures; a test module uses them by importing this one's names into its conftest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.moto import moto_server
from rig.origin import FakeOrigin, OriginThread
from rig.radosgw import Radosgw, shared_radosgw, stop_radosgw


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """An origin of the module's tests, in a thread."""
    with OriginThread() as started:
        yield started


@pytest.fixture(scope="session")
def moto() -> Iterator[str]:
    """The address of a moto server, one per worker."""
    with moto_server() as endpoint:
        yield endpoint


@pytest.fixture(scope="session")
def radosgw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Radosgw]:
    """The radosgw of this run, one for all workers of pytest-xdist."""
    base: Path = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        # Each worker has a directory below the run's; their common parent is the process that outlives them all.
        yield shared_radosgw(base.parent, os.getppid())
        return
    gateway = shared_radosgw(base, os.getpid())
    yield gateway
    stop_radosgw(gateway)
