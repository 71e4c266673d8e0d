# /// script
# dependencies = ["mosaicml-streaming==0.13.0", "torch==2.13.0"]
# ///
"""MosaicML Streaming: shards in MDS and their index, downloaded whole with boto3."""

import os
import sys

from place import ENDPOINT, SCRATCH, URL, numbers, run, version_of_numbers

COUNT = 1200
COLUMNS = {"x": "int", "pad": "bytes"}
os.environ["S3_ENDPOINT_URL"] = ENDPOINT


def without_images():
    """It imports torchvision for its datasets of images alone, and a real one must have been built for the same torch."""
    stub = SCRATCH / "stub/torchvision"
    for module in ("datasets", "transforms"):
        (stub / module).mkdir(parents=True)
        (stub / module / "__init__.py").touch()
    (stub / "__init__.py").touch()
    (stub / "datasets/__init__.py").write_text("class VisionDataset: pass")
    (stub / "transforms/functional.py").write_text("to_tensor = None")
    sys.path.insert(0, str(stub.parent))


def write(version):
    """Write the shards."""
    without_images()
    from streaming import MDSWriter

    with MDSWriter(out=URL, columns=COLUMNS, size_limit="4mb", exist_ok=True) as sink:
        for value in numbers(version, COUNT):
            sink.write({"x": value, "pad": bytes(9000)})


def read():
    """Read the samples in order."""
    without_images()
    from streaming import StreamingDataset

    dataset = StreamingDataset(remote=URL, local=str(SCRATCH / "in"), batch_size=1, shuffle=False)
    return version_of_numbers((sample["x"] for sample in dataset), COUNT)


if __name__ == "__main__":
    run(write, read)
