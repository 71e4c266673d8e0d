"""Readers of file formats by ranges, and the files they read; runs in an environment of its own: see ``formats.py``.

Usage: python format_readers.py make FOLDER
       python format_readers.py read READER ENDPOINT BUCKET/KEY

A reader does what users of its library do, with the library's own S3 client if it has one, and the settings its documentation
names for S3. The address has credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import h5py
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.dataset
import pyarrow.feather
import pyarrow.fs
import pyarrow.parquet
import rasterio
import rasterio.shutil
import s3fs
import zarr
from rasterio.windows import Window
from safetensors.numpy import save_file
from zarr.storage import FsspecStore

MIB = 1024**2
COLUMNS, ROWS = 16, 750_000
TENSORS, ROW = 24, 512
SIDE = 4096


# --- files


def _table() -> pa.Table:
    """96 MB: 16 columns of random numbers."""
    values = np.random.default_rng(1).random((COLUMNS, ROWS))
    return pa.table({f"c{number}": values[number] for number in range(COLUMNS)})


def _parquet(path: Path, group: int) -> None:
    pa.parquet.write_table(_table(), path, row_group_size=group, compression="none", use_dictionary=False)


def _arrow(path: Path) -> None:
    """An Arrow IPC file of 30 batches, 3.2 MB each."""
    pa.feather.write_feather(_table(), path, compression="uncompressed", chunksize=25_000)


def _hdf5(path: Path) -> None:
    """One dataset in chunks of 1 MiB, and one without chunks."""
    values = np.random.default_rng(1).random((48, 1024, 128))
    with h5py.File(path, "w") as file:
        file.create_dataset("chunked", data=values, chunks=(1, 1024, 128))
        file.create_dataset("plain", data=values)


def _safetensors(path: Path) -> None:
    """24 tensors of 4 MiB, none of them aligned to blocks of 4 MiB, and 24 of 10 KiB."""
    draw = np.random.default_rng(1)
    tensors = {f"layer.{number}.weight": draw.random((2 * ROW, 4 * ROW // 2), np.float32) for number in range(TENSORS)}
    save_file({**tensors, **{f"layer.{number}.bias": draw.random(2560, np.float32) for number in range(TENSORS)}}, path)


def _zarr(path: Path, chunk: int) -> None:
    """64 MiB in shards of 16 MiB."""
    array = zarr.create_array(
        str(path), shape=(SIDE, SIDE), shards=(2048, 2048), chunks=(chunk, chunk), dtype="float32", compressors=None
    )
    array[:] = np.random.default_rng(1).random((SIDE, SIDE), np.float32)


def _cog(path: Path) -> None:
    """An image of 3 x 4096 x 4096 bytes in tiles of 512, with overviews."""
    pixels = np.random.default_rng(1).integers(0, 255, (3, SIDE, SIDE), np.uint8)
    shape = {"width": SIDE, "height": SIDE, "count": 3, "dtype": "uint8"}
    with rasterio.MemoryFile() as memory:
        with memory.open(driver="GTiff", **shape) as image:
            image.write(pixels)
        with memory.open() as image:
            rasterio.shutil.copy(image, path, driver="COG", blocksize=512, compress="deflate")


FILES: dict[str, Callable[[Path], None]] = {
    "groups-of-1mb.parquet": lambda path: _parquet(path, 125_000),
    "groups-of-3mb.parquet": lambda path: _parquet(path, 375_000),
    "table.arrow": _arrow,
    "chunks-of-64k.zarr": lambda path: _zarr(path, 128),
    "chunks-of-1m.zarr": lambda path: _zarr(path, 512),
    "arrays.h5": _hdf5,
    "model.safetensors": _safetensors,
    "image.tif": _cog,
}


# --- readers


class Address:
    """An object at an S3 endpoint, in the forms that the libraries need."""

    def __init__(self, endpoint: str, path: str) -> None:
        self.endpoint = endpoint
        self.path = path
        self.url = f"s3://{path}"
        self.keys = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]

    def arrow(self) -> pa.fs.S3FileSystem:
        """pyarrow's client."""
        key, secret = self.keys
        return pa.fs.S3FileSystem(
            access_key=key, secret_key=secret, endpoint_override=self.endpoint, region="us-east-1"
        )

    def fsspec(self, **options: Any) -> s3fs.S3FileSystem:
        """s3fs."""
        key, secret = self.keys
        return s3fs.S3FileSystem(
            key=key, secret=secret, endpoint_url=self.endpoint, skip_instance_cache=True, **options
        )

    def polars(self) -> dict[str, str]:
        """Options of polars's client."""
        key, secret = self.keys
        return {
            "aws_access_key_id": key, "aws_secret_access_key": secret, "aws_endpoint_url": self.endpoint,
            "aws_region": "us-east-1", "aws_allow_http": "true",
        }  # fmt: skip

    def gdal(self) -> rasterio.Env:
        """GDAL's settings for S3, as its documentation and rio-cogeo recommend them."""
        return rasterio.Env(
            AWS_S3_ENDPOINT=self.endpoint.removeprefix("http://"), AWS_HTTPS="NO", AWS_VIRTUAL_HOSTING="FALSE",
            GDAL_DISABLE_READDIR_ON_OPEN="EMPTY_DIR", AWS_REGION="us-east-1",
        )  # fmt: skip


def pyarrow_two_columns(address: Address) -> None:
    """Two of 16 columns."""
    pa.parquet.read_table(address.path, columns=["c3", "c11"], filesystem=address.arrow())


def pyarrow_batches(address: Address) -> None:
    """All batches, one row group after the other."""
    for _ in pa.parquet.ParquetFile(address.path, filesystem=address.arrow(), pre_buffer=True).iter_batches():
        pass


def pyarrow_one_group(address: Address) -> None:
    """One row group."""
    pa.parquet.ParquetFile(address.path, filesystem=address.arrow()).read_row_group(1)


def pyarrow_filter(address: Address) -> None:
    """A dataset's filter on one column, for the rows of another."""
    data = pa.dataset.dataset(address.path, filesystem=address.arrow())
    data.to_table(columns=["c5"], filter=pa.dataset.field("c9") > 0.9)


def polars_filter(address: Address) -> None:
    """scan_parquet with a filter on one column and a sum of another."""
    pl.scan_parquet(address.url, storage_options=address.polars()).filter(pl.col("c9") > 0.9).select(
        pl.col("c5").sum()
    ).collect()


def polars_all(address: Address) -> None:
    """The whole table."""
    pl.read_parquet(address.url, storage_options=address.polars())


def duckdb_filter(address: Address) -> None:
    """A filter on one column and a sum of another, over fsspec."""
    with duckdb.connect() as connection:
        connection.register_filesystem(address.fsspec(default_cache_type="none", default_fill_cache=False))
        connection.execute(f"SELECT sum(c5) FROM read_parquet('{address.url}') WHERE c9 > 0.9").fetchall()


def arrow_count(address: Address) -> None:
    """count_rows of a dataset."""
    pa.dataset.dataset(address.path, filesystem=address.arrow(), format="arrow").count_rows()


def arrow_column(address: Address) -> None:
    """One column of 16."""
    pa.dataset.dataset(address.path, filesystem=address.arrow(), format="arrow").to_table(columns=["c5"])


def arrow_random_batches(address: Address) -> None:
    """Ten batches in random order."""
    with address.arrow().open_input_file(address.path) as file:
        batches = pa.ipc.open_file(file)
        for number in random.Random(3).sample(range(batches.num_record_batches), 10):
            batches.get_batch(number)


def zarr_random_chunks(address: Address) -> None:
    """24 chunks at random."""
    store = FsspecStore(address.fsspec(asynchronous=True), path=address.path)
    array = zarr.open_array(store, mode="r", zarr_format=3)
    rows, columns = (side // chunk for side, chunk in zip(array.shape, array.chunks, strict=True))
    for place in random.Random(4).sample(range(rows * columns), 24):
        row, column = (number * chunk for number, chunk in zip(divmod(place, columns), array.chunks, strict=True))
        array[row : row + array.chunks[0], column : column + array.chunks[1]]


def zarr_rows(address: Address) -> None:
    """Rows of chunks from top to bottom, as training reads samples."""
    store = FsspecStore(address.fsspec(asynchronous=True), path=address.path)
    array = zarr.open_array(store, mode="r", zarr_format=3)
    for row in range(0, array.shape[0], array.chunks[0]):
        array[row : row + array.chunks[0]]


def hdf5_number(address: Address) -> None:
    """One number of the dataset without chunks, with the cache that s3fs has by default."""
    with address.fsspec().open(address.path) as file, h5py.File(file) as arrays:
        arrays["plain"][40, 5, 5]


def hdf5_number_without_cache(address: Address) -> None:
    """The same without s3fs's cache."""
    with address.fsspec().open(address.path, cache_type="none") as file, h5py.File(file) as arrays:
        arrays["plain"][40, 5, 5]


def hdf5_chunks(address: Address) -> None:
    """Twelve chunks of 1 MiB in random order, without s3fs's cache."""
    with address.fsspec().open(address.path, cache_type="none") as file, h5py.File(file) as arrays:
        for number in random.Random(5).sample(range(48), 12):
            arrays["chunked"][number]


def _tensors(address: Address, store: s3fs.S3FileSystem) -> dict[str, tuple[int, int]]:
    """Names and places of tensors, from the file's header; its length is read first."""
    length = int.from_bytes(store.cat_file(address.path, start=0, end=8), "little")
    header = json.loads(store.cat_file(address.path, start=8, end=8 + length))
    places = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
    return {
        name: (8 + length + start, 8 + length + stop)
        for name, (start, stop) in sorted(places.items(), key=lambda entry: entry[1])
    }


def safetensors_in_order(address: Address) -> None:
    """The header, then every tensor in the order of the file."""
    store = address.fsspec()
    for start, stop in _tensors(address, store).values():
        store.cat_file(address.path, start=start, end=stop)


def safetensors_some(address: Address) -> None:
    """The header, then eight weights in random order, as ranks of a parallel model load theirs."""
    store = address.fsspec()
    places = [place for name, place in _tensors(address, store).items() if name.endswith("weight")]
    for start, stop in random.Random(6).sample(places, 8):
        store.cat_file(address.path, start=start, end=stop)


def safetensors_slices(address: Address) -> None:
    """The header, then a quarter of every weight, as a rank of four loads its rows."""
    store = address.fsspec()
    for name, (start, stop) in _tensors(address, store).items():
        if name.endswith("weight"):
            part = (stop - start) // 4
            store.cat_file(address.path, start=start + part, end=start + 2 * part)


def cog_overview(address: Address) -> None:
    """The image at an eighth of its size."""
    with address.gdal(), rasterio.open(address.url) as image:
        image.read(out_shape=(3, SIDE // 8, SIDE // 8))


def cog_windows(address: Address) -> None:
    """Sixteen tiles in random order."""
    with address.gdal(), rasterio.open(address.url) as image:
        for place in random.Random(7).sample(range((SIDE // 512) ** 2), 16):
            row, column = divmod(place, SIDE // 512)
            image.read(window=Window(512 * column, 512 * row, 512, 512))


def cog_all(address: Address) -> None:
    """All tiles, in their order."""
    with address.gdal(), rasterio.open(address.url) as image:
        for _, window in image.block_windows(1):
            image.read(window=window)


READERS = {
    reader.__name__: reader
    for reader in (
        pyarrow_two_columns, pyarrow_batches, pyarrow_one_group, pyarrow_filter, polars_filter, polars_all, duckdb_filter,
        arrow_count, arrow_column, arrow_random_batches, zarr_random_chunks, zarr_rows, hdf5_number,
        hdf5_number_without_cache, hdf5_chunks, safetensors_in_order, safetensors_some, safetensors_slices, cog_overview,
        cog_windows, cog_all,
    )
}  # fmt: skip


def main(arguments: list[str]) -> None:
    """Write the files, or read one."""
    if arguments[0] == "make":
        for name, make in FILES.items():
            make(Path(arguments[1]) / name)
        return
    _, reader, endpoint, path = arguments
    READERS[reader](Address(endpoint, path))


if __name__ == "__main__":
    main(sys.argv[1:])
