"""The stage for the guides and the example: the demo's images at an origin behind a real gateway."""

import io
import os
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from gateway.demo import data
from gateway.demo.clients import VISION
from rig.gateways import Settings, gateway
from rig.origin import FakeOrigin, OriginThread

IMAGES = 507
SHARDS = Path(__file__).parent / "shards"
"""Shards of ten samples that MDSWriter of mosaicml-streaming 0.13.0 wrote, with the columns image (bytes) and label (int)."""


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


def put_formats(origin: FakeOrigin) -> None:
    """Store what other loaders read: two TARs of ten samples, a Parquet file of a hundred rows, and the shards."""
    images = list(data.digits().values())
    for shard in range(2):
        file = io.BytesIO()
        with tarfile.open(fileobj=file, mode="w") as tar:
            for number in range(10 * shard, 10 * shard + 10):
                for name, body in (("png", images[number]), ("cls", b"%d" % (number % 10))):
                    member = tarfile.TarInfo(f"{number:04}.{name}")
                    member.size = len(body)
                    tar.addfile(member, io.BytesIO(body))
        origin.put(data.BUCKET, f"tars/{shard}.tar", file.getvalue())
    rows, table = io.BytesIO(), pyarrow.table({"text": [str(n) for n in range(100)], "label": [0, 1] * 50})
    pyarrow.parquet.write_table(table, rows, row_group_size=20)
    origin.put(data.BUCKET, "tables/0.parquet", rows.getvalue())
    for path in SHARDS.glob("*.mds"):
        origin.put(data.BUCKET, f"mds/{path.name}", path.read_bytes())


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A gateway in front of ``s3://demo/digits/``, with the demo's keys."""
    folder = tmp_path_factory.mktemp("stage")
    keys = {"access_key_id": VISION.access_key_id, "secret_access_key": VISION.secret_access_key, "tenant": "vision"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "LARDER_"))}
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(folder)}
    with OriginThread() as origin:
        put_images(origin, IMAGES)
        put_formats(origin)
        with gateway(Settings(origin.endpoint, folder / "cache", credentials=(keys,)), folder) as running:
            yield Stage(running.endpoint, folder, environment)
