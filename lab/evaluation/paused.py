"""Functions for input workers, which import this module and little else. Sleep stands for CPU."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

WORK = 0.04
"""Seconds for each element."""


def paused(item: Any) -> tuple[int, int]:
    """Sleep instead of working; returns the item's place, and the process."""
    time.sleep(WORK)
    return item.index, os.getpid()


@dataclass(frozen=True)
class Working:
    """A stage that takes some seconds and makes elements of some bytes; a different ``name`` makes it a different function."""

    seconds: float
    size: int
    name: str = ""

    def __call__(self, before: Any) -> dict[str, Any]:
        """The item's place, and bytes."""
        time.sleep(self.seconds)
        index = before["index"] if isinstance(before, dict) else before.index
        return {"index": index, "data": np.full(self.size, index % 251, np.uint8)}
