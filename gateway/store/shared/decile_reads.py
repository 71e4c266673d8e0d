"""Reads and hits of items, by the tenth of all scored items that they belong to.

Each worker counts in a file of its own, in memory beside the tables of scores (``importance.py``), so nothing is locked and
nothing lost when a worker ends; the keeper's worker adds up all of them. The files go with the start of the node.
"""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.store.shared.generations import TWINS

ROWS = 11
"""The tenths, the least important first, and last what no job has scored."""
_NAMES = f"{TWINS}reads-"
_DIGITS = 24
"""Hex digits of the dataset in a file's name."""

Counts = NDArray[np.uint64]
"""(2, ROWS): reads, and those of them that were hits."""


class DecileReads:
    """The counters of one node, as one worker sees them.

    Args:
        table: of generations, beside which the files are.
    """

    def __init__(self, table: Path) -> None:
        self._table = table
        self._own: dict[str, Counts] = {}

    def add(self, dataset: str, counts: Counts) -> None:
        """Count reads of this worker.

        Raises:
            OSError: there is no memory for the counters.
        """
        if dataset not in self._own:
            self._own[dataset] = _mapped(self._table.with_name(f"{self._prefix(dataset)}{os.getpid()}"))
        self._own[dataset] += counts

    def all(self, dataset: str) -> Counts:
        """The counts of all workers since the node's start."""
        found = np.zeros((2, ROWS), dtype=np.uint64)
        for path in self._table.parent.glob(f"{self._prefix(dataset)}*"):
            data = path.read_bytes()
            if len(data) == found.nbytes:
                found += np.frombuffer(data, dtype=np.uint64).reshape(found.shape)
        return found

    def _prefix(self, dataset: str) -> str:
        return f"{self._table.name}{_NAMES}{dataset[:_DIGITS]}-"


def _mapped(path: Path) -> Counts:
    size = 2 * ROWS * 8
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, size)
        return np.frombuffer(mmap.mmap(descriptor, size), dtype=np.uint64).reshape(2, ROWS)
    finally:
        os.close(descriptor)
