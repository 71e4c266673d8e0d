"""Text forms of public objects."""

import numpy as np
import pytest

import larder
from larder.testing import MemorySource
from larder.training.loader import Loader

ENDPOINT = "http://127.0.0.1:9"
INFO = larder.DatasetInfo("train", "d" * 64, 3)
ACCESS = larder.Access(credentials=larder.Credentials("key", "hush"))


def loader_of(source):
    """A loader of items in memory."""
    return Loader(ENDPOINT, "train", batch_size=16, source=source)


@pytest.mark.parametrize(
    ("thing", "said"),
    [
        (Loader(ENDPOINT, "train", batch_size=16, access=ACCESS), "Loader('train', batch_size=16)"),
        (Loader(ENDPOINT, "train", batch_size=16, credentials=ACCESS.credentials), "Loader('train', batch_size=16)"),
        (Loader(ENDPOINT, INFO, batch_size=16, seed=3, job="a"), "Loader('train', batch_size=16, seed=3, job='a')"),
        (larder.Client(ENDPOINT, credentials=ACCESS.credentials), f"Client('{ENDPOINT}')"),
        (larder.S3(ENDPOINT, credentials=ACCESS.credentials), f"S3('{ENDPOINT}')"),
        (larder.BatchReader(ENDPOINT, INFO, credentials=ACCESS.credentials), f"BatchReader('{ENDPOINT}', 'train')"),
        (
            larder.AsyncBatchReader(larder.BatchReader(ENDPOINT, INFO)),
            f"AsyncBatchReader(BatchReader('{ENDPOINT}', 'train'))",
        ),
        (larder.Job(ENDPOINT, "job", "train", batch_size=16), "Job('job', batch_size=16, rank 0 of 1)"),
        (larder.Item(3, memoryview(b"abc")), "Item(3, 3 bytes)"),
        (larder.Item(3, memoryview(b"abc"), ("b", "a key")), "Item(3, 3 bytes, 's3://b/a key')"),
        (
            MemorySource(3).reader(INFO, larder.Stats()).fetch(np.arange(3, dtype=np.uint32)),
            "Fetched(3 items, 0 failed)",
        ),
        (next(loader_of(MemorySource(9, 1.0)).epoch(2)), "Batch(9 items, 9 from the cache, epoch 2)"),
        (loader_of(MemorySource(9)).epoch(2), "EpochRun(epoch 2)"),
        (
            larder.pipeline("train", endpoint=ENDPOINT).map(len).filter(bool).shuffle(9).batch(3),
            "pipeline('train').map(len).filter(bool).shuffle(9).batch(3)",
        ),
    ],
    ids=lambda value: value.split("(")[0] if isinstance(value, str) else "",
)
def test_public_objects_say_what_they_are(thing, said):
    """A notebook shows what an object is in a line, and no secret."""
    assert repr(thing) == said


def test_counts_of_the_order_are_counts_like_others():
    """Each name of ``as_dict`` is an attribute; what is no number has documents of its own."""
    loader = loader_of(MemorySource(103))
    list(loader), list(loader)
    counts = loader.stats.as_dict()
    nested = {name: counts.pop(name) for name in ("last_epoch", "by_dataset")}
    assert {name: getattr(loader.stats, name) for name in counts} == counts
    assert (nested["last_epoch"]["epoch"], nested["by_dataset"]) == (1, {})
    assert counts["hit_position"] is not None
    assert counts["rank_correlation"] is not None
