"""``larder://`` of fsspec through a real gateway: bytes, ranges, listings, open files, and what pyarrow and zarr read."""

from __future__ import annotations

import io
import json
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
import pytest
import zarr
from numpy.typing import NDArray
from zarr.storage import MemoryStore

from larder.filesystem import LarderFileSystem
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin, OriginThread
from rig.origin_faults import Refuse
from tests.docs.blocks import ROOT

BODIES = {f"folder/{number}": bytes([number]) * 1000 for number in range(5)} | {
    "folder/below/x": b"x" * 10,
    "top": bytes(range(256)) * 8000,
    "empty": b"",
}
ROWS: NDArray[np.int32] = np.arange(8 * 100, dtype="<i4").reshape(8, 100)
"""Stored as one chunk for each row."""
HEADER = b"what stands before the rows"


@pytest.fixture(scope="module")
def origin() -> Iterator[FakeOrigin]:
    """A store with all files."""
    with OriginThread() as store:
        for key, body in BODIES.items():
            store.put("data", key, body)
        yield store


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway before that store."""
    home = tmp_path_factory.mktemp("filesystem")
    with gateway(Settings(origin.endpoint, home / "cache"), home) as started:
        yield started


@pytest.fixture
def options(running: Running) -> dict[str, Any]:
    """The options of the file system; every test makes its own."""
    # The environment's client may be installed without its entry points.
    fsspec.register_implementation("larder", LarderFileSystem, clobber=True)
    return {"endpoint": running.endpoint, "key": "GWA", "secret": "gateway-secret-a", "skip_instance_cache": True}


@pytest.fixture
def files(options: dict[str, Any]) -> LarderFileSystem:
    """The file system."""
    return LarderFileSystem(**options)


def batches(running: Running) -> float:
    """Batches of keys that the gateway has answered."""
    return running.metric("larder_batches_total", mode="keys")


def test_fsspec_finds_it_by_its_scheme() -> None:
    """Rule: the entry point of the package is this class, under the scheme ``larder``."""
    project = tomllib.loads((ROOT / "clients/python/pyproject.toml").read_text(encoding="utf-8"))["project"]
    module, _, name = project["entry-points"]["fsspec.specs"]["larder"].partition(":")
    assert getattr(import_module(module), name) is LarderFileSystem
    assert LarderFileSystem.protocol == "larder"


def test_files_are_read_whole(files: LarderFileSystem) -> None:
    """Rule: ``cat`` gives the object's bytes, with the scheme in front or without."""
    assert files.cat_file("larder://data/top") == BODIES["top"]
    assert files.cat_file("data/empty") == b""
    assert files.cat(["data/folder/1", "data/folder/2"]) == {
        "data/folder/1": BODIES["folder/1"], "data/folder/2": BODIES["folder/2"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("start", "end"), [(0, 5), (None, 5), (5, None), (-3, None), (-5, -2), (0, -1), (7, 7), (9, 3), (100, 10**9)]
)
def test_ranges_are_slices(files: LarderFileSystem, start: int | None, end: int | None) -> None:
    """Rule: start and end mean what they mean for a slice."""
    assert files.cat_file("data/top", start, end) == BODIES["top"][start:end]


def test_ranges_of_many_files_are_one_request(running: Running, files: LarderFileSystem) -> None:
    """Rule: ``cat_ranges`` is one batch, and a file that cannot be read is an error in its place."""
    before = batches(running)
    got = files.cat_ranges(["data/top", "data/none", "data/folder/3", "data/top"], [0, 0, 5, 9], [4, 4, 7, 9])
    assert (got[0], got[2], got[3]) == (BODIES["top"][:4], BODIES["folder/3"][5:7], b"")
    assert isinstance(got[1], FileNotFoundError)
    assert batches(running) == before + 1
    with pytest.raises(FileNotFoundError):
        files.cat_ranges(["data/top", "data/none"], 0, 4, on_error="raise")


def test_concurrent_reads_are_one_request(running: Running, files: LarderFileSystem) -> None:
    """Rule: files that are read concurrently come with one batch."""
    before = batches(running)
    assert len(files.cat([f"data/folder/{number}" for number in range(5)])) == 5
    assert batches(running) == before + 1


def test_listings(files: LarderFileSystem) -> None:
    """Rule: ``ls``, ``info``, ``find``, ``exists`` and ``isdir`` show objects as files and prefixes as folders."""
    assert files.ls("data", detail=False) == ["data/empty", "data/folder", "data/top"]
    assert files.ls("larder://data/folder/", detail=False) == [
        "data/folder/0", "data/folder/1", "data/folder/2", "data/folder/3", "data/folder/4", "data/folder/below",
    ]  # fmt: skip
    assert files.info("data/top")["size"] == len(BODIES["top"])
    assert files.info("data/folder")["type"] == "directory"
    assert files.find("data/folder") == [f"data/{key}" for key in sorted(BODIES) if key.startswith("folder/")]
    assert files.exists("data/top")
    assert not files.exists("data/none")
    assert files.isdir("data")
    assert "data" in files.ls("", detail=False)
    with pytest.raises(FileNotFoundError):
        files.ls("data/none")


def test_an_open_file_is_read_in_blocks(files: LarderFileSystem) -> None:
    """Rule: an open file can be read, sought and read again."""
    with files.open("data/top", block_size=4096) as file:
        file.seek(10_000)
        assert file.read(300) == BODIES["top"][10_000:10_300]
        file.seek(-5, io.SEEK_END)
        assert file.read() == BODIES["top"][-5:]


def test_it_is_downloaded(files: LarderFileSystem, tmp_path: Path) -> None:
    """Rule: ``get`` copies files and folders to this machine."""
    files.get("data/folder", str(tmp_path / "copy"), recursive=True)
    assert (tmp_path / "copy" / "3").read_bytes() == BODIES["folder/3"]
    assert (tmp_path / "copy" / "below" / "x").read_bytes() == BODIES["folder/below/x"]


def test_it_cannot_be_written(files: LarderFileSystem) -> None:
    """Rule: every write is refused, with the way that works."""
    for write in (
        lambda: files.pipe_file("data/new", b"x"),
        lambda: files.rm_file("data/top"),
        lambda: files.open("data/new", "wb"),
    ):
        with pytest.raises(OSError, match="read-only: write with an S3 client"):
            write()


def test_errors_are_those_of_files(origin: FakeOrigin, files: LarderFileSystem) -> None:
    """Rule: missing is FileNotFoundError, refused is PermissionError, a range behind the end is "not satisfiable"."""
    with pytest.raises(FileNotFoundError):
        files.cat_file("data/none")
    with pytest.raises(OSError, match="not satisfiable"):
        files.cat_file("data/folder/1", 5000, 6000)
    origin.put("data", "refused", b"1")
    origin.inject(Refuse(times=9, path="/data/refused", status=403, code="AccessDenied"))
    try:
        with pytest.raises(PermissionError):
            files.cat_file("data/refused")
    finally:
        origin.heal()


def test_pyarrow_reads_parquet(origin: FakeOrigin, files: LarderFileSystem) -> None:
    """Rule: pyarrow reads a data set of Parquet files by the file system, whole and by column."""
    for part in range(3):
        table = pa.table({"x": list(range(part * 1000, part * 1000 + 1000)), "y": ["text"] * 1000})
        written = io.BytesIO()
        pq.write_table(table, written)
        origin.put("data", f"table/{part}.parquet", written.getvalue())
    read = pq.read_table(
        "data/table", columns=["x"], filesystem=pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(files))
    )
    assert sorted(read["x"].to_pylist()) == list(range(3000))


def test_zarr_reads_an_array(origin: FakeOrigin, running: Running, options: dict[str, Any]) -> None:
    """Rule: zarr opens an array by its address; the chunks that it reads concurrently are one request."""
    chunks: dict[str, Any] = {}
    zarr.create_array(MemoryStore(chunks), shape=ROWS.shape, chunks=(1, 100), dtype=ROWS.dtype)[:] = ROWS
    for key, body in chunks.items():
        origin.put("data", f"rows.zarr/{key}", body.to_bytes())
    array = zarr.open_array("larder://data/rows.zarr", mode="r", storage_options=options)
    before = batches(running)
    assert np.array_equal(np.asarray(array[:]), ROWS)
    assert batches(running) == before + 1
    assert np.array_equal(np.asarray(array[3:5, 7]), ROWS[3:5, 7])


@pytest.fixture
def references(origin: FakeOrigin) -> dict[str, Any]:
    """The rows in one object, and what the reference file system takes: a document as kerchunk writes it, in the bucket, too."""
    layout = {"shape": ROWS.shape, "chunks": (1, 100), "dtype": "<i4", "compressor": None, "filters": None}
    places = {f"{row}.0": ["{{rows}}", len(HEADER) + row * ROWS[row].nbytes, ROWS[row].nbytes] for row in range(8)}
    described = json.dumps({**layout, "zarr_format": 2, "fill_value": 0, "order": "C"})
    templates = {"rows": "larder://data/rows.bin"}
    document = {"version": 1, "templates": templates, "refs": {".zarray": described, **places}}
    origin.put("data", "rows.bin", HEADER + ROWS.tobytes())
    origin.put("data", "rows.json", json.dumps(document).encode())
    return {"fo": "larder://data/rows.json", "remote_protocol": "larder", "skip_instance_cache": True}


def test_references_into_an_object_are_read(
    running: Running, options: dict[str, Any], references: dict[str, Any]
) -> None:
    """Rule: the reference file system reads its document and all ranges of an object, these with one request."""
    files = fsspec.filesystem("reference", target_options=options, remote_options=options, **references)
    before = batches(running)
    rows = files.cat([f"{row}.0" for row in range(8)])
    assert [rows[f"{row}.0"] for row in range(8)] == [row.tobytes() for row in ROWS]
    assert batches(running) == before + 1


def test_zarr_reads_references(running: Running, options: dict[str, Any], references: dict[str, Any]) -> None:
    """Rule: zarr reads an array of references, and the chunks that it reads concurrently are one request."""
    remote = {**options, "asynchronous": True}
    stored = {"target_options": options, "remote_options": remote, **references}
    array = zarr.open_array("reference://", mode="r", zarr_format=2, storage_options=stored)
    before = batches(running)
    assert np.array_equal(np.asarray(array[:]), ROWS)
    assert batches(running) == before + 1
    assert np.array_equal(np.asarray(array[3:5, 7]), ROWS[3:5, 7])
