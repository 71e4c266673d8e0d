"""How long actors take to begin: started for a pipeline, and taken over from a warm pool of a Ray cluster."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import larder
from lab.evaluation.input_sides import on_ray
from lab.evaluation.pages import load_and_cores, machine, record
from larder.testing import MemorySource

STARTS = 5
TAKEN = 10
ENVIRONMENT = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def number(item: Any) -> int:
    """The item's number."""
    return int(bytes(item.data))


def with_torch(item: Any) -> int:
    """The item's number, in a process that has imported PyTorch."""
    import torch

    return int(torch.tensor(number(item)))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {"nothing more": number, "PyTorch": with_torch}


def begun(function: Callable[[Any], Any], pool: larder.WorkerPool | None) -> float:
    """Seconds from the start of a pipeline with one worker to its first element."""
    options: dict[str, Any] = {} if pool is None else {"pool": pool}
    pipeline = larder.pipeline("numbers", source=MemorySource(100), workers="ray:1", **options).map(function)
    began = time.perf_counter()
    next(iter(pipeline))
    seconds = time.perf_counter() - began
    pipeline.close()
    return seconds


def run() -> None:
    """Measure it, and write the section."""
    where, load, starts = machine(), load_and_cores(), {}
    os.environ.update(ENVIRONMENT)
    with on_ray(2):
        for imports, function in FUNCTIONS.items():
            own = [begun(function, None) for _ in range(STARTS)]
            pool = larder.WorkerPool(1)
            cold = begun(function, pool)
            warm = [begun(function, pool) for _ in range(TAKEN)]
            starts[imports] = {"own": median(own), "cold": cold, "warm": median(warm), "slowest": max(warm)}
    data = {"starts": STARTS, "taken": TAKEN, "seconds": starts}
    record("evaluation/pipelines/pipelines_pool", {"where": where, **load, **data})
