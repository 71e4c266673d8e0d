"""From items to batches: transform each item, then collate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from larder.errors import ItemUntransformable
from larder.source import Item, Keys
from larder.stats import Stats
from larder.torch.collation import collate


class ItemNames(NamedTuple):
    """Bucket and key of items: of all in ``keys``, if the dataset loads them; of a single one by ``locate``."""

    keys: Keys | None
    locate: Callable[[int], tuple[str, str]]


Transform = Callable[[Item], Any]
Collate = Callable[[list[Any]], Any]


class SamplePipeline(NamedTuple):
    """Turns items into samples, and samples into a batch.

    Without a transform, a sample is the item's ``bytes`` and a batch is a list of them. With one, batches come from
    `larder.torch.collate` unless ``collate`` is given.
    """

    transform: Transform | None = None
    collate: Collate | None = None
    on_error: str = "raise"

    @classmethod
    def of(cls, transform: Transform | None, collate: Collate | None, on_error: str) -> SamplePipeline:
        """A checked pipeline.

        Raises:
            ValueError: ``on_error`` is unknown.
        """
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be one of 'raise', 'skip', not {on_error!r}")
        return cls(transform, collate, on_error)

    def samples(self, indices: Sequence[int], data: Sequence[memoryview], names: ItemNames, stats: Stats) -> list[Any]:
        """The samples of these items in order; fewer if some fail and ``on_error`` is ``"skip"``.

        Raises:
            ItemUntransformable: the transform raised, and ``on_error`` is ``"raise"``.
        """
        if self.transform is None:
            return [bytes(each) for each in data]
        began = perf_counter()
        samples = []
        for index, each in zip(indices, data, strict=True):
            item = Item(index, each, None if names.keys is None else names.keys[index])
            try:
                samples.append(self.transform(item))
            except Exception as error:
                if self.on_error == "raise":
                    detail = f"{type(error).__name__}: {error}"
                    raise ItemUntransformable(index, *names.locate(index), detail) from error
                stats.add("untransformable", 1)
        stats.add("transforming", perf_counter() - began)
        return samples

    def batch(self, samples: list[Any]) -> Any:
        """The samples as one batch."""
        if self.collate is not None:
            return self.collate(samples)
        return samples if self.transform is None else collate(samples)
