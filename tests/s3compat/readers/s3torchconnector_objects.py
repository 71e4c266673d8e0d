# /// script
# dependencies = ["s3torchconnector==1.5.0", "torch==2.13.0", "numpy==2.4.6"]
# ///
"""S3 Connector for PyTorch: the objects and a checkpoint of a prefix, as streams and by ranges."""

from io import BytesIO

import torch
from place import ENDPOINT, REGION, URL, content, numbers, run, version_of_content, version_of_numbers
from s3torchconnector import S3Checkpoint, S3ClientConfig, S3IterableDataset, S3MapDataset, S3ReaderConstructor

SIZES = (1000, 3_000_000, 20_000_000)
COUNT = 1_000_000
WHERE = {"region": REGION, "endpoint": ENDPOINT, "s3client_config": S3ClientConfig(force_path_style=True)}


def write(version):
    """Overwrite the objects, whose names are their sizes, and the checkpoint."""
    state = BytesIO()
    torch.save({"x": torch.tensor(numbers(version, COUNT))}, state)
    objects = {str(size): content(version, size) for size in SIZES} | {"state.pt": state.getvalue()}
    for name, data in objects.items():
        with S3Checkpoint(**WHERE).writer(f"{URL}/{name}") as writer:
            writer.write(data)


def version_of(reader):
    """The version of one object."""
    name = reader.key.rpartition("/")[2]
    if name == "state.pt":
        return version_of_numbers(torch.load(reader)["x"].tolist(), COUNT)
    return version_of_content(reader.read(), int(name))


def read():
    """Read them all, twice."""
    streamed = S3IterableDataset.from_prefix(f"{URL}/", transform=version_of, **WHERE)
    constructor = S3ReaderConstructor.range_based()
    ranged = S3MapDataset.from_prefix(f"{URL}/", transform=version_of, reader_constructor=constructor, **WHERE)
    versions = [*streamed, *(ranged[number] for number in range(len(ranged)))]
    assert len(versions) == 2 * (len(SIZES) + 1)
    (version,) = set(versions)
    return version


run(write, read)
