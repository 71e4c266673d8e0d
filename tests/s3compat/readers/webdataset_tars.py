# /// script
# dependencies = ["webdataset==1.0.2", "awscli==1.46.3"]
# ///
"""WebDataset: shards, each streamed by a process of the AWS CLI."""

import os
import subprocess
import sys

import webdataset
from place import SCRATCH, URL, numbers, run, version_of_numbers

COUNT = 1200
os.environ["PATH"] = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"


def write(version):
    """Write two shards."""
    values = numbers(version, COUNT)
    for shard, part in enumerate((values[: COUNT // 2], values[COUNT // 2 :])):
        path = SCRATCH / f"{shard}.tar"
        with webdataset.TarWriter(str(path)) as sink:
            for value in part:
                sink.write({"__key__": f"{value:09}", "cls": value, "bin": bytes(9000)})
        subprocess.run(["aws", "s3", "cp", "--quiet", str(path), f"{URL}/{shard}.tar"], check=True)


def read():
    """Read the samples in order."""
    urls = [f"pipe:aws s3 cp {URL}/{shard}.tar -" for shard in range(2)]
    return version_of_numbers((int(sample["cls"]) for sample in webdataset.WebDataset(urls, shardshuffle=False)), COUNT)


run(write, read)
