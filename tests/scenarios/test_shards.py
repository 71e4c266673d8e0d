"""Cold epochs over samples inside TAR shards: what they read from the origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import larder
from gateway.testing.origin import ALICE
from larder import digest
from tests.gateways import Running, Settings, gateway
from tests.loader.making import archive
from tests.scenarios.world import Origin, content

SHARDS, SAMPLES, SIZE = 4, 250, 8000
ALL = SHARDS * SAMPLES
KEY = larder.Credentials("GWA", "gateway-secret-a")
ACCESS = larder.Access(credentials=KEY)


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store with the shards."""
    with Origin() as store:
        for shard in range(SHARDS):
            names = range(shard * SAMPLES, (shard + 1) * SAMPLES)
            store.put(f"/data/{shard}.tar", archive({f"{name:06}.bin": content(SIZE, name) for name in names}))
        yield store


@pytest.fixture(scope="module")
def file(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns their digest file."""
    path = tmp_path_factory.mktemp("shards") / "shards.parquet"
    store = larder.Credentials(ALICE.access_key_id, ALICE.secret_access_key)
    digest.build("s3://data/", path, endpoint=origin.endpoint, credentials=store, items="tar-samples")
    return path


class Shop:
    """A gateway with an empty cache, and what it has read from the origin since."""

    def __init__(self, origin: Origin, running: Running) -> None:
        self.running = running
        self._origin = origin
        self._before = len(origin.s3.seen)

    @property
    def ranges(self) -> list[tuple[str, int, int]]:
        """The reads of shards: object, first byte, and the byte after the last one."""
        reads = []
        for seen in self._origin.s3.seen[self._before :]:
            if seen.method == "GET":
                first, _, last = (seen.header("range") or "").removeprefix("bytes=").partition("-")
                reads.append((seen.raw_path, int(first), int(last) + 1))
        return reads

    @property
    def read(self) -> int:
        """Bytes of them."""
        return sum(stop - start for _, start, stop in self.ranges)


@pytest.fixture
def shop(origin: Origin, tmp_path: Path) -> Iterator[Shop]:
    """Returns a gateway that holds all, and has read nothing."""
    with gateway(Settings(origin.endpoint, tmp_path / "cache"), tmp_path) as running:
        yield Shop(origin, running)


@pytest.mark.parametrize("named", [False, True], ids=["alone", "job"])
def test_a_cold_epoch_over_shards(shop: Shop, file: Path, *, named: bool) -> None:
    """Rule: it costs one read of the origin per 4 MiB, and at most 1.05 of the shards' bytes; every sample comes once."""
    endpoint = shop.running.endpoint
    job = larder.Job(endpoint, "train", str(file), batch_size=32, credentials=KEY) if named else None
    loader = larder.Loader(endpoint, str(file), batch_size=32, seed=1, job=job or "", access=ACCESS)
    came = Counter(index for batch in loader for index in batch.indices.tolist())
    if job is not None:
        job.close()
    assert came == Counter(range(ALL))
    assert len(shop.ranges) <= 0.05 * ALL
    assert shop.read <= 1.05 * ALL * 8704
