"""The samples, the same in each format, and what an epoch over them takes. It needs nothing but the standard library."""

import json
import random
import resource
import time

SAMPLES = 1280
LENGTH = 100_000
SHARD = 8_000_000
"""Approximate bytes of a shard."""
BATCH = 32
WORKERS = 4


def image(number):
    """Bytes that do not compress, as those of a JPEG."""
    return random.Random(number).randbytes(LENGTH)


def label(number):
    """The class of a sample."""
    return number % 10


def collate(samples):
    """A list, without copies."""
    return list(samples)


def epoch(batches):
    """Print the duration of an epoch over batches of (image, label), and the CPU seconds of this process and its workers."""
    began, before = time.perf_counter(), time.process_time()
    labels = [(len(content), int(kind)) for batch in batches for content, kind in batch]
    seconds = time.perf_counter() - began
    own = time.process_time() - before
    del batches
    workers = resource.getrusage(resource.RUSAGE_CHILDREN)
    if len(labels) != SAMPLES or {length for length, _ in labels} != {LENGTH}:
        raise SystemExit(f"{len(labels)} samples came, not {SAMPLES}")
    print("\n" + json.dumps({"seconds": seconds, "cpu": own + workers.ru_utime + workers.ru_stime}), flush=True)
