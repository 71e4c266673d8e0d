"""The kinds of order that an epoch can have, and the shares of its readers."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

KINDS = ("shuffled", "sequential", "mixed")
MOST_ITEMS = 2**32 - 1
"""The most items of a dataset: indices have 32 bits."""
MOST_UNITS = 2000
"""The most slices of an epoch."""
MOST_CELLS = 1_000_000
"""The most partitions times slices."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The order of an epoch, in slices that are computed one by one.

    ``shuffled``: each epoch is one permutation of everything.

    ``sequential``: each epoch has the dataset's own order. For evaluation.

    ``mixed``: an epoch of several datasets (`larder.planner.mixing`), which have layouts of their own.

    Args:
        items: number of items, at most 2**32 - 1.
        partitions: equal stretches of the dataset, for batches of one stretch; partitions times units is at most 1,000,000.
        units: slices of an epoch; at most 2000.
        kind: ``"shuffled"``, ``"sequential"`` or ``"mixed"``.
        order_seed: the first eight bytes of the dataset's id. No order depends on it, but states contain it.

    Raises:
        ValueError: a number is out of its range, or the kind is unknown.
    """

    items: int
    partitions: int = 10
    units: int = 10
    kind: str = "shuffled"
    order_seed: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.items <= MOST_ITEMS:
            raise ValueError(f"items must be from 0 to {MOST_ITEMS}, not {self.items}")
        if not 1 <= self.units <= MOST_UNITS:
            raise ValueError(f"units must be from 1 to {MOST_UNITS}, not {self.units}")
        if not 1 <= self.partitions <= MOST_CELLS // self.units:
            raise ValueError(f"partitions must be from 1 to {MOST_CELLS // self.units}, not {self.partitions}")
        if self.kind not in KINDS:
            raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {self.kind!r}")
        if not 0 <= self.order_seed < 2**64:
            raise ValueError(f"order_seed must be from 0 to 2**64 - 1, not {self.order_seed}")

    def slice(self, number: int) -> tuple[int, int]:
        """The positions ``[start, stop)`` of a slice."""
        return number * self.items // self.units, (number + 1) * self.items // self.units

    def stretch_of(self, items: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The stretch of the dataset of each item, by its index."""
        starts = [number * self.items // self.partitions for number in range(1, self.partitions)]
        return np.searchsorted(np.array(starts, np.int64), items, side="right").astype(np.int64)


class Slice(NamedTuple):
    """A slice of an epoch: its items are at the positions ``[start, stop)``."""

    number: int
    start: int
    stop: int


class Shard(NamedTuple):
    """One worker process of one rank: ``rank`` of ``world`` training processes, ``worker`` of ``workers`` that load for it."""

    rank: int
    world: int
    worker: int
    workers: int
