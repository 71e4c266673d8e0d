"""From items to batches: transform each item, then collate."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from larder.base.dataset import MixtureInfo
from larder.base.errors import ItemUntransformable
from larder.base.seeds import own_generators, seed_generators
from larder.base.stats import Stats
from larder.reading.mixing import numbering_of
from larder.reading.source import Item, Keys, item_at
from larder.torch.collation import collate


class ItemNames(NamedTuple):
    """Bucket and key of items: all of them in ``keys`` if the dataset loads them, a single one by ``locate``. For a mixture, also
    their datasets."""

    keys: Keys | None
    locate: Callable[[int], tuple[str, str]]
    mixture: MixtureInfo | None = None

    def items(self, numbers: Sequence[int], data: Sequence[memoryview]) -> Iterator[tuple[int, Item]]:
        """Items with their numbers, which are their indices unless datasets are mixed."""
        keys = self.keys
        if self.mixture is None:
            for number, item_bytes in zip(numbers, data, strict=True):
                yield number, item_at(number, item_bytes, None if keys is None else keys.place(number))
            return
        numbering, names = numbering_of(self.mixture), self.mixture.names
        parts, indices = numbering.parts(np.asarray(numbers, np.uint32))
        for number, part, index, item_bytes in zip(numbers, parts.tolist(), indices.tolist(), data, strict=True):
            place = None if keys is None else keys.place(number % numbering.total)
            yield number, item_at(index, item_bytes, place, names[part])


Transform = Callable[[Item], Any]
Collate = Callable[[list[Any]], Any]
Seed = tuple[int, int]
"""Seed of the order, and number of the epoch."""


class SamplePipeline(NamedTuple):
    """Turns items into samples, and samples into a batch.

    Without a transform, a sample is the item's ``bytes`` and a batch is a list of them. With one, batches come from
    `larder.torch.collate` unless ``collate`` is given.
    """

    transform: Transform | None = None
    collate: Collate | None = None
    on_error: str = "raise"
    seeded: bool = True

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> SamplePipeline:
        """A checked pipeline from a dataset's options.

        Args:
            options: ``transform``, ``collate``, ``on_error`` and ``seeded``, each optional; others are ignored.

        Raises:
            ValueError: an option has an invalid value.
        """
        on_error, seeds = options.get("on_error", "raise"), options.get("seeded", True)
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be one of 'raise', 'skip', not {on_error!r}")
        if not isinstance(seeds, bool):
            raise ValueError(f"seeded must be True or False, not {seeds!r}")
        return cls(options.get("transform"), options.get("collate"), on_error, seeds)

    def samples(
        self,
        numbers: Sequence[int],
        data: Sequence[memoryview],
        names: ItemNames,
        stats: Stats,
        seed: Seed | None = None,
    ) -> list[Any]:
        """The samples of these items in order; fewer if some fail and ``on_error`` is ``"skip"``.

        Args:
            numbers: of the items.
            data: their bytes, aligned.
            names: bucket and key of the items.
            stats: counts time and failures.
            seed: seeds each transform together with the item's number, if the pipeline is ``seeded``.

        Raises:
            ItemUntransformable: the transform raised, and ``on_error`` is ``"raise"``.
        """
        if self.transform is None:
            return [bytes(item_bytes) for item_bytes in data]
        began = perf_counter()
        samples = []
        seeds = seed if self.seeded else None
        with nullcontext() if seeds is None else own_generators():
            for number, item in names.items(numbers, data):
                if seeds is not None:
                    seed_generators(*seeds, number)
                try:
                    samples.append(self.transform(item))
                except Exception as error:
                    if self.on_error == "raise":
                        detail = f"{type(error).__name__}: {error}"
                        raise ItemUntransformable(item.index, *names.locate(number), detail) from error
                    stats.add("untransformable", 1)
        stats.add("transforming", perf_counter() - began)
        return samples

    def batch(self, samples: list[Any]) -> Any:
        """The samples as one batch."""
        if self.collate is not None:
            return self.collate(samples)
        return samples if self.transform is None else collate(samples)
