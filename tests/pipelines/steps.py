"""Functions that worker processes import: this module needs little else."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import larder
from larder.base.errors import PipelineError
from larder.testing import MemorySource


def placed(item: Any) -> tuple[int, int]:
    """The item's number and the process that computed it; slow enough for events to meet computing workers."""
    time.sleep(0.004)
    return int(bytes(item.data)), os.getpid()


def prepared(item: Any) -> dict[str, Any]:
    """The item's number, and an array made of it; slow enough for events to meet computing workers."""
    time.sleep(0.004)
    number = int(bytes(item.data))
    return {"number": number, "array": content(number)}


def content(number: int) -> Any:
    """The array of an item."""
    return np.arange(number, number + 50, dtype=np.int64) ** 2


def delivered(element: dict[str, Any]) -> dict[str, Any]:
    """The element, with the process that delivered it; slow enough for events to meet workers that read."""
    time.sleep(0.004)
    return {**element, "process": os.getpid()}


def refusal(queue: Any) -> None:
    """Put into the queue why a pipeline with a worker does not begin in this process."""
    try:
        next(iter(larder.pipeline("numbers", workers=1, source=MemorySource(1)).map(placed)))
    except PipelineError as error:
        queue.put(str(error))
