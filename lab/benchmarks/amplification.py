"""Read amplification: what ranges of large objects cost at the origin, and how long they take beside the bare store.

Usage: python -m lab.benchmarks.amplification [--against PATH_OF_ANOTHER_CHECKOUT]
"""

from __future__ import annotations

import argparse
import json
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet
import s3fs
import zarr
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from safetensors.numpy import save_file
from zarr.storage import FsspecStore

from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, counted, gateway, origin
from rig.launched import PROGRAM

KIB, MIB = 1024, 1024**2
LARGE = 256 * MIB
RANGE = 64 * KIB
COLUMNS, ROWS, GROUP = 40, 1_000_000, 125_000


class Store:
    """One S3 address, as the client libraries see it."""

    def __init__(self, port: int) -> None:
        self.endpoint = f"http://127.0.0.1:{port}"
        self._keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}

    def boto(self) -> Any:
        """boto3."""
        config = Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1})
        return boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", config=config, **self._keys)

    def arrow(self) -> pyarrow.fs.S3FileSystem:
        """pyarrow's own client."""
        return pyarrow.fs.S3FileSystem(
            access_key=ACCESS_KEY, secret_key=SECRET_KEY, endpoint_override=self.endpoint, region="us-east-1"
        )

    def fsspec(self, **options: Any) -> s3fs.S3FileSystem:
        """s3fs, without its own caches."""
        return s3fs.S3FileSystem(
            key=ACCESS_KEY, secret=SECRET_KEY, endpoint_url=self.endpoint, skip_instance_cache=True,
            default_fill_cache=False, default_cache_type="none", **options,
        )  # fmt: skip

    def ranges(self, key: str, spans: list[tuple[int, int]]) -> None:
        """GETs of these ranges by boto3, one by one."""
        client = self.boto()
        for start, stop in spans:
            body = client.get_object(Bucket=BUCKET, Key=key, Range=f"bytes={start}-{stop - 1}")["Body"]
            if len(body.read()) != stop - start:
                raise RuntimeError("a range came short")


def aligned(count: int) -> list[tuple[int, int]]:
    """Random ranges of an object of ``LARGE`` bytes, no two of them the same."""
    places = random.Random(count).sample(range(LARGE // RANGE), count)
    return [(RANGE * place, RANGE * (place + 1)) for place in places]


def download(store: Store, key: str) -> None:
    """boto3's download_file, with parts of 8 MiB."""
    with tempfile.NamedTemporaryFile() as file:
        store.boto().download_file(BUCKET, key, file.name, Config=TransferConfig(multipart_chunksize=8 * MIB))


def parquet_columns(store: Store, key: str) -> None:
    """Two of 40 columns by pyarrow."""
    pa.parquet.read_table(f"{BUCKET}/{key}", columns=["c7", "c31"], filesystem=store.arrow())


def duckdb_query(store: Store, key: str) -> None:
    """A filter on one column and a sum of another by DuckDB, over fsspec."""
    with duckdb.connect() as connection:
        connection.register_filesystem(store.fsspec())
        connection.execute(f"SELECT sum(c3) FROM read_parquet('s3://{BUCKET}/{key}') WHERE c12 > 0.9").fetchall()


def safetensors_slices(store: Store, key: str) -> None:
    """The header of a file of 64 tensors of 4 MiB, then 32 rows (64 KiB) of each of 12, as safetensors lays them out."""
    with store.fsspec().open(f"{BUCKET}/{key}") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        for number in range(0, 60, 5):
            tensor = header[f"layer.{number}"]["data_offsets"][0]
            file.seek(8 + length + tensor + MIB)
            file.read(RANGE)


def zarr_slices(store: Store, key: str) -> None:
    """40 chunks of 64 KiB out of shards of 32 MiB by zarr."""
    array = zarr.open_array(
        FsspecStore(store.fsspec(asynchronous=True), path=f"{BUCKET}/{key}"), mode="r", zarr_format=3
    )
    draw = random.Random(4)
    for _ in range(40):
        row, column = draw.randrange(array.shape[0] // 128), draw.randrange(array.shape[1] // 128)
        array[128 * row : 128 * (row + 1), 128 * column : 128 * (column + 1)]


@dataclass(frozen=True)
class Workload:
    """One case: ``make`` writes the object, ``read`` reads it."""

    name: str
    make: Callable[[Path], None]
    read: Callable[[Store, str], None]
    budget: float | None = None


def large(path: Path) -> None:
    """Random bytes."""
    path.write_bytes(np.random.default_rng(1).bytes(LARGE))


def parquet(path: Path) -> None:
    """A table of 320 MB."""
    values = np.random.default_rng(1).random((COLUMNS, ROWS))
    columns = pa.table({f"c{number}": values[number] for number in range(COLUMNS)})
    pa.parquet.write_table(columns, path, row_group_size=GROUP, compression="none", use_dictionary=False)


def safetensors(path: Path) -> None:
    """64 tensors of 4 MiB."""
    draw = np.random.default_rng(1)
    save_file({f"layer.{number}": draw.random((2048, 512), np.float32) for number in range(64)}, path)


def zarr_array(path: Path) -> None:
    """An array of 256 MiB in shards."""
    array = zarr.create_array(
        str(path), shape=(8192, 8192), shards=(2048, 4096), chunks=(128, 128), dtype="float32", compressors=None
    )
    array[:] = np.random.default_rng(1).random((8192, 8192), np.float32)


def spans(ranges: list[tuple[int, int]]) -> Callable[[Store, str], None]:
    """Reads these ranges."""
    return lambda store, key: store.ranges(key, ranges)


WORKLOADS = (
    Workload("60 random ranges of 64 KiB, seen once", large, spans(aligned(60)), 1.5),
    Workload("600 random ranges of 64 KiB, seen once", large, spans(aligned(600)), 1.5),
    Workload("all ranges of 64 KiB, in random order", large, spans(aligned(LARGE // RANGE))),
    Workload("a scan by ranges of 64 KiB", large, spans([(at, at + RANGE) for at in range(0, LARGE, RANGE)]), 1.05),
    Workload("boto3 download_file", large, download, 1.05),
    Workload("pyarrow: 2 of 40 Parquet columns", parquet, parquet_columns),
    Workload("DuckDB: filter and sum over Parquet", parquet, duckdb_query),
    Workload("safetensors: rows of 12 of 64 tensors", safetensors, safetensors_slices),
    Workload("zarr: 40 chunks out of shards", zarr_array, zarr_slices),
)


def measure(workload: Workload, port: int, key: str) -> dict[str, float]:
    """One workload through one gateway."""
    before, began = counted(port), time.monotonic()
    workload.read(Store(port), key)
    seconds = time.monotonic() - began
    asked, received, requests = (value - before[name] for name, value in counted(port).items())
    return {"seconds": seconds, "asked": asked, "amplification": received / asked, "requests": requests}


def run(against: Path | None = None) -> None:
    """Measure, and write results/amplification.md."""
    where = machine()
    programs = {"this": PROGRAM}
    if against is not None:
        programs["before"] = against / ".venv/bin/larder-gateway"
    found: dict[str, dict[str, dict[str, float]]] = {workload.name: {} for workload in WORKLOADS}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root = Path(temporary), Path(temporary) / "objects"
        (root / BUCKET).mkdir(parents=True)
        source = stack.enter_context(origin(directory, root))
        for name, program in programs.items():
            with ExitStack() as inner:
                home = directory / name
                home.mkdir()
                server = inner.enter_context(gateway(home, source.port, program=program))
                for number, workload in enumerate(WORKLOADS):
                    key = f"object-{number}"
                    if not (root / BUCKET / key).exists():
                        workload.make(root / BUCKET / key)
                        began = time.monotonic()
                        workload.read(Store(source.port), key)
                        found[workload.name]["bare"] = {"seconds": time.monotonic() - began}
                    found[workload.name][name] = measure(workload, server.port, key)
    budgets = {workload.name: workload.budget for workload in WORKLOADS if workload.budget}
    ratios = [
        Ratio(f"origin bytes / bytes asked for: {name}", found[name]["this"]["amplification"], budget)
        for name, budget in budgets.items()
    ]
    write("amplification", {"budgets": budgets, "workloads": found}, where, ratios)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What ranges of large objects cost at the origin.")
    parser.add_argument("--against", type=Path, help="another checkout, with its environment in .venv")
    run(parser.parse_args().against)
