"""Readers of file formats by ranges: what they ask for, and what the gateway asks of the store for that.

Usage: python -m lab.benchmarks.formats [--environment FOLDER] [READER ...]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from lab.benchmarks.report import Ratio, machine, write
from lab.benchmarks.servers import ACCESS_KEY, BUCKET, SECRET_KEY, counted, gateway, origin
from lab.pages.rendering import RESULTS

PACKAGES = (
    "duckdb==2.0.0", "h5py==3.16.0", "numpy==2.4.6", "polars==2.1.0", "pyarrow==26.0.1", "rasterio==1.4.4",
    "s3fs==2026.9.0", "safetensors==0.8.0", "zarr==3.1.6",
)  # fmt: skip
PROGRAM = Path(__file__).with_name("format_readers.py")
KIB, MIB = 1024, 1024**2
BUDGET = 1.1
"""The most bytes read from the store per requested byte of an uncached object."""
QUIET = 1.0
"""Seconds without a byte from the store after which loading counts as finished."""


@dataclass(frozen=True)
class Reading:
    """A reader of ``format_readers.py`` and the file it reads. ``pattern``: how its library reads, by the store's log."""

    what: str
    file: str
    reader: str
    pattern: str

    @property
    def name(self) -> str:
        """The reading, for the command line and the results."""
        return f"{self.reader}:{self.file}"


READINGS = (
    Reading(
        "pyarrow, groups of 1 MB: 2 of 16 columns",
        "groups-of-1mb.parquet",
        "pyarrow_two_columns",
        "footer, then column chunks",
    ),
    Reading(
        "pyarrow, groups of 3 MB: 2 of 16 columns",
        "groups-of-3mb.parquet",
        "pyarrow_two_columns",
        "footer, then column chunks",
    ),
    Reading(
        "pyarrow: all batches",
        "groups-of-1mb.parquet",
        "pyarrow_batches",
        "footer, then runs of chunks, up to 32 MB, in order",
    ),
    Reading(
        "pyarrow: one row group", "groups-of-1mb.parquet", "pyarrow_one_group", "footer, then the group as one range"
    ),
    Reading(
        "pyarrow dataset: filter, groups of 3 MB",
        "groups-of-3mb.parquet",
        "pyarrow_filter",
        "footer twice, then column chunks",
    ),
    Reading(
        "polars: filter, groups of 1 MB",
        "groups-of-1mb.parquet",
        "polars_filter",
        "footer of 256 KiB, then column chunks",
    ),
    Reading(
        "polars: filter, groups of 3 MB",
        "groups-of-3mb.parquet",
        "polars_filter",
        "footer of 256 KiB, then column chunks",
    ),
    Reading("polars: all", "groups-of-1mb.parquet", "polars_all", "footer, then runs of chunks of 8 MB"),
    Reading(
        "DuckDB over fsspec: filter, groups of 1 MB",
        "groups-of-1mb.parquet",
        "duckdb_filter",
        "HEAD ten times, footer, then column chunks",
    ),
    Reading(
        "DuckDB over fsspec: filter, groups of 3 MB",
        "groups-of-3mb.parquet",
        "duckdb_filter",
        "HEAD ten times, footer, then column chunks in pieces",
    ),
    Reading("Arrow IPC, pyarrow: count_rows", "table.arrow", "arrow_count", "footer, then every batch whole"),
    Reading(
        "Arrow IPC, pyarrow: 1 of 16 columns",
        "table.arrow",
        "arrow_column",
        "footer, then each batch: its header, its column",
    ),
    Reading(
        "Arrow IPC, pyarrow: 10 of 30 batches at random", "table.arrow", "arrow_random_batches", "footer, then batches"
    ),
    Reading(
        "zarr, chunks of 64 KiB: 24 at random",
        "chunks-of-64k.zarr",
        "zarr_random_chunks",
        "before each chunk the shard's index, from the end",
    ),
    Reading(
        "zarr, chunks of 1 MiB: 24 at random",
        "chunks-of-1m.zarr",
        "zarr_random_chunks",
        "before each chunk the shard's index, from the end",
    ),
    Reading(
        "zarr, chunks of 64 KiB: all rows of chunks",
        "chunks-of-64k.zarr",
        "zarr_rows",
        "for each row the indices, then its chunks at once",
    ),
    Reading(
        "zarr, chunks of 1 MiB: all rows of chunks",
        "chunks-of-1m.zarr",
        "zarr_rows",
        "for each row the indices, then its chunks at once",
    ),
    Reading(
        "HDF5, h5py over s3fs: one number",
        "arrays.h5",
        "hdf5_number",
        "s3fs reads ahead: the beginning and the place, 30 MB each",
    ),
    Reading(
        "HDF5, h5py over s3fs without its cache: one number",
        "arrays.h5",
        "hdf5_number_without_cache",
        "headers of some hundred bytes, then 8 bytes",
    ),
    Reading(
        "HDF5, h5py over s3fs without its cache: 12 of 48 chunks",
        "arrays.h5",
        "hdf5_chunks",
        "headers, the chunks' tree, then chunks",
    ),
    Reading(
        "safetensors: all tensors in file order",
        "model.safetensors",
        "safetensors_in_order",
        "length, header, then tensors without gaps",
    ),
    Reading(
        "safetensors: 8 of 24 weights of 4 MiB", "model.safetensors", "safetensors_some", "length, header, then tensors"
    ),
    Reading(
        "safetensors: a quarter of every weight",
        "model.safetensors",
        "safetensors_slices",
        "length, header, then rows of tensors",
    ),
    Reading("GeoTIFF, rasterio: overview", "image.tif", "cog_overview", "header of 16 KiB, then the overview"),
    Reading("GeoTIFF, rasterio: 16 of 64 tiles at random", "image.tif", "cog_windows", "header of 16 KiB, then tiles"),
    Reading(
        "GeoTIFF, rasterio: all tiles",
        "image.tif",
        "cog_all",
        "header of 16 KiB, then rows of tiles, some in one range",
    ),
)


@dataclass(frozen=True)
class Asked:
    """The requests that a store received.

    Attributes:
        gets, heads: requests.
        bytes: bytes that it sent.
        again: those of them that it had sent before.
        median: bytes of a GET.
    """

    gets: int
    heads: int
    bytes: int
    again: int
    median: float


def asked(lines: Sequence[str]) -> Asked:
    """The requests of a log of ``lab.benchmarks.servers.origin``."""
    spans, heads, seen = [], 0, set()
    again = 0
    for line in lines:
        method, path, status, sent, *span = line.split(" ", 4)
        if method == "HEAD":
            heads += 1
            continue
        if status not in ("200", "206"):
            continue
        place = re.match(r"bytes (\d+)-", span[0]) if span else None
        start = int(place[1]) if place else 0
        spans.append(int(sent))
        pages = {(path, page) for page in range(start // KIB, (start + int(sent)) // KIB)}
        again += KIB * len(pages & seen)
        seen |= pages
    return Asked(len(spans), heads, sum(spans), again, median(spans) if spans else 0)


@dataclass(frozen=True)
class Passed:
    """One reading through a gateway: bytes sent to the client, bytes and requests of the store."""

    sent: float
    received: float
    requests: float

    @property
    def amplification(self) -> float:
        """Bytes from the store per byte sent to the client."""
        return self.received / self.sent


class Environment:
    """A virtual environment with the libraries of the formats."""

    def __init__(self, folder: Path) -> None:
        self._python = folder / "bin/python"
        if not self._python.exists():
            subprocess.run([sys.executable, "-m", "venv", folder], check=True)
            subprocess.run(
                [self._python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PACKAGES], check=True
            )

    def make(self, folder: Path) -> None:
        """Write the files."""
        subprocess.run([self._python, "-W", "ignore", PROGRAM, "make", folder], check=True)

    def read(self, reading: Reading, port: int, key: str) -> None:
        """Read a file in a new process."""
        keys = {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_EC2_METADATA_DISABLED": "true",
        }
        command = [
            self._python,
            "-W",
            "ignore",
            PROGRAM,
            "read",
            reading.reader,
            f"http://127.0.0.1:{port}",
            f"{BUCKET}/{key}",
        ]
        subprocess.run(command, check=True, env={**os.environ, **keys})


def _settled(port: int) -> dict[str, float]:
    """The gateway's counters, once it has stopped loading."""
    since, before = time.monotonic(), counted(port)
    while time.monotonic() < since + QUIET:
        time.sleep(QUIET / 10)
        if (now := counted(port)) != before:
            since, before = time.monotonic(), now
    return before


def _passed(environment: Environment, reading: Reading, port: int, key: str) -> Passed:
    before = _settled(port)
    environment.read(reading, port, key)
    return Passed(*(value - before[name] for name, value in _settled(port).items()))


def measure(environment: Environment, readings: Sequence[Reading]) -> Iterator[tuple[Reading, Asked, Passed, Passed]]:
    """Measure each reading: from the store, through the gateway, and once more."""
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, ExitStack() as stack:
        directory, root, log = Path(temporary), Path(temporary) / "objects", Path(temporary) / "asked"
        files = directory / "files"
        files.mkdir()
        environment.make(files)
        (root / BUCKET).mkdir(parents=True)
        source = stack.enter_context(origin(directory, root, log=log))
        server = stack.enter_context(gateway(directory, source.port))
        for number, reading in enumerate(readings):
            key = f"{number}/{reading.file}"
            copy = shutil.copytree if (files / reading.file).is_dir() else shutil.copy
            (root / BUCKET / key).parent.mkdir()
            copy(files / reading.file, root / BUCKET / key)
            seen = len(log.read_text().splitlines())
            environment.read(reading, source.port, key)
            lines = log.read_text().splitlines()[seen:]
            yield reading, asked(lines), *(_passed(environment, reading, server.port, key) for _ in range(2))


def run(environment: Path | None = None, names: Sequence[str] = ()) -> None:
    """Measure all readings, or those with these names beside earlier results, and write results/formats.md."""
    where = machine()
    known = json.loads(RESULTS.joinpath("formats.json").read_text())["readings"] if names else {}
    with tempfile.TemporaryDirectory(prefix="larder-formats-") as temporary:
        chosen = [reading for reading in READINGS if not names or reading.name in names]
        for reading, bare, cold, warm in measure(Environment(environment or Path(temporary) / "venv"), chosen):
            print(reading.name, f"{cold.amplification:.2f}", f"{warm.amplification:.2f}", flush=True)
            figures = {"bare": asdict(bare), "cold": asdict(cold), "warm": asdict(warm)}
            known[reading.name] = {"what": reading.what, "pattern": reading.pattern, **figures}
    readings = {reading.name: known[reading.name] for reading in READINGS if reading.name in known}
    ratios = [
        Ratio(
            f"store bytes / bytes asked for, cold: {of['what']}",
            Passed(**of["cold"]).amplification,
            BUDGET,
            deviation=0,
        )
        for of in readings.values()
    ]
    write("formats", {"readings": readings}, where, ratios)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="What readers of file formats cost at the store.")
    parser.add_argument(
        "--environment", type=Path, help="an environment with the libraries; it is made if it is missing"
    )
    parser.add_argument("readers", nargs="*", help="some readings by their names, beside earlier results")
    arguments = parser.parse_args()
    run(arguments.environment, arguments.readers)
