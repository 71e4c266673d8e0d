"""Division of a dataset into chunks, partitions and stripe units (Quiver, FAST 2020, section 5.1)."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.planner.permutation import ItemPermutation

KINDS = ("striped", "shuffled", "contiguous", "sequential", "mixed")
MOST_ITEMS = 2**32 - 1
"""Items of a dataset: indices have 32 bits."""
MOST_UNITS = 2000
"""Stripe units of a partition."""
MOST_CELLS = 1_000_000
"""Partitions times units."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The chunks of a dataset, equal for every job with the same layout.

    ``striped``: the items are permuted (`larder.planner.permutation`). Partition ``p`` is the slots ``[p * items // partitions,
    (p + 1) * items // partitions)`` of the permuted order, cut into stripe units of equal size (within one item), and chunk ``c``
    is unit ``c`` of every partition. The composition never changes, so a cache that holds two chunks can rotate them, and each
    chunk is a uniform sample of the dataset, however that is sorted.

    ``shuffled``: each epoch is one permutation of everything, and a chunk is a slice of it. For caches that are not rotated.

    ``contiguous``: as striped, but without the permutation. States saved by versions before 0.2 finish their epoch in it; no new
    epoch begins with it.

    ``sequential``: each epoch has the dataset's own order, and a chunk is a slice of it. For evaluation.

    ``mixed``: an epoch of several datasets (`larder.planner.mixing`), which have layouts of their own.

    Args:
        items: number of items, at most 2**32 - 1.
        partitions: contiguous parts of the dataset; partitions times units is at most 1,000,000.
        units: stripe units per partition, which is the number of chunks; at most 2000.
        kind: ``"striped"``, ``"shuffled"`` or ``"sequential"``.
        order_seed: seed of the permutation and of the order of striped chunks: the first eight bytes of the dataset's id, so
            that all jobs on a dataset, whatever their own seeds, use the same chunk in the same epoch.

    Raises:
        ValueError: a number is out of its range, or the kind is unknown.
    """

    items: int
    partitions: int = 10
    units: int = 10
    kind: str = "striped"
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

    def cell(self, partition: int, unit: int) -> tuple[int, int]:
        """The slots ``[start, stop)`` of one stripe unit."""
        begin = partition * self.items // self.partitions
        size = (partition + 1) * self.items // self.partitions - begin
        # Different units are larger by one in each partition, so that chunks are as equal as units.
        shift = partition * self.units // self.partitions
        return begin + (unit * size + shift) // self.units, begin + ((unit + 1) * size + shift) // self.units

    def chunk_size(self, number: int) -> int:
        """Number of items of chunk ``number``."""
        if not self.rotates:
            return (number + 1) * self.items // self.units - number * self.items // self.units
        cells = (self.cell(partition, number) for partition in range(self.partitions))
        return sum(stop - start for start, stop in cells)

    @property
    def rotates(self) -> bool:
        """Whether chunks have the same items in every epoch, so that a cache may rotate them."""
        return self.kind in ("striped", "contiguous")

    def stripe(self, number: int) -> NDArray[np.uint32]:
        """The items of striped chunk ``number``, in the order of their slots."""
        cells = (self.cell(partition, number) for partition in range(self.partitions))
        slots = np.concatenate([np.arange(start, stop, dtype=np.uint32) for start, stop in cells])
        return slots if self.kind == "contiguous" else ItemPermutation(self.items, self.order_seed).items_at(slots)

    def following(self) -> "Layout":
        """The layout of the next epoch."""
        return replace(self, kind="striped") if self.kind == "contiguous" else self

    def stretch_of(self, items: NDArray[np.uint32]) -> NDArray[np.int64]:
        """The stretch of the dataset of each item, by its index: there are as many equal stretches as partitions."""
        starts = np.array([self.cell(partition, 0)[0] for partition in range(1, self.partitions)], np.int64)
        return np.searchsorted(starts, items, side="right").astype(np.int64)


class Chunk(NamedTuple):
    """One chunk's place in an epoch's order: its items are at the positions ``[start, stop)``."""

    number: int
    start: int
    stop: int


class Shard(NamedTuple):
    """One worker process of one rank: ``rank`` of ``world`` training processes, ``worker`` of ``workers`` that load for it."""

    rank: int
    world: int
    worker: int
    workers: int
