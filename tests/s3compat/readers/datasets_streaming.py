# /// script
# dependencies = ["datasets==5.2.0", "s3fs==2026.9.0"]
# ///
"""Hugging Face datasets: Parquet files, streamed over s3fs."""

from datasets import Dataset, load_dataset
from place import ENDPOINT, KEY, SECRET, URL, numbers, run, version_of_numbers

COUNT = 200_000
OPTIONS = {"key": KEY, "secret": SECRET, "endpoint_url": ENDPOINT}


def write(version):
    """Write two files."""
    values = numbers(version, COUNT)
    for number, part in enumerate((values[: COUNT // 2], values[COUNT // 2 :])):
        Dataset.from_dict({"x": part}).to_parquet(f"{URL}/{number}.parquet", storage_options=OPTIONS)


def read():
    """Stream the rows."""
    rows = load_dataset(
        "parquet", data_files=f"{URL}/*.parquet", streaming=True, split="train", storage_options=OPTIONS
    )
    return version_of_numbers((row["x"] for row in rows), COUNT)


run(write, read)
