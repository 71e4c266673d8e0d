# /// script
# dependencies = ["litdata==0.2.76", "torch==2.13.0", "boto3==1.44.8"]
# ///
"""LitData: chunks and their index, downloaded whole with obstore and boto3."""

from litdata import StreamingDataset, optimize
from litdata.streaming import downloader
from place import ENDPOINT, SCRATCH, URL, numbers, run, version_of_numbers

COUNT = 1200
OPTIONS = {"endpoint_url": ENDPOINT}
downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True


def sample(number):
    """One sample."""
    return {"x": number, "pad": bytes(9000)}


def write(version):
    """Write the chunks."""
    optimize(
        sample, numbers(version, COUNT), URL, chunk_bytes="4MB", num_workers=1, mode="overwrite", storage_options=OPTIONS
    )  # fmt: skip


def read():
    """Read the samples."""
    dataset = StreamingDataset(URL, cache_dir=str(SCRATCH / "in"), storage_options=OPTIONS)
    return version_of_numbers((item["x"] for item in dataset), COUNT)


if __name__ == "__main__":
    run(write, read)
