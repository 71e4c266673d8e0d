"""Reads and hits of items, by tenths of all scored items.

Each worker writes its counts to its own file, in memory beside the tables of scores (``importance.py``). So nothing is locked,
and nothing is lost when a worker ends; the keeper adds them up. The node's next start removes the files. If another program
removes one, the next reads write it again.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.store.shared.own_files import open_own, read_own
from gateway.store.shared.table_file import TWINS

ROWS = 11
"""The tenths, the least important first, then the unscored items."""
_NAMES = f"{TWINS}reads-"
_DIGITS = 24
"""Hex digits of the dataset in a file's name."""

Counts = NDArray[np.uint64]
"""(2, ROWS): all reads, and the hits among them."""


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
        own = self._own.setdefault(dataset, np.zeros((2, ROWS), dtype=np.uint64))
        own += counts
        descriptor = open_own(self._table.with_name(f"{self._prefix(dataset)}{os.getpid()}"), os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(descriptor, own.tobytes(), 0)
        finally:
            os.close(descriptor)

    def all(self, dataset: str) -> Counts:
        """The counts of all workers since the node's start."""
        counts = np.zeros((2, ROWS), dtype=np.uint64)
        for path in self._table.parent.glob(f"{self._prefix(dataset)}*"):
            data = read_own(path)
            if len(data) == counts.nbytes:
                counts += np.frombuffer(data, dtype=np.uint64).reshape(counts.shape)
        return counts

    def _prefix(self, dataset: str) -> str:
        return f"{self._table.name}{_NAMES}{dataset[:_DIGITS]}-"
