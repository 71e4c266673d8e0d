"""From the bytes of items to what the training loop gets: transform each, then collate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, NamedTuple

from torch.utils.data import default_collate

from larder.errors import ItemUntransformable, LarderError
from larder.keys import Keys
from larder.stats import Stats


@dataclass(slots=True)
class Item:
    """One item as a transform gets it.

    Args:
        index: its place in the dataset.
        data: its bytes; valid as long as something refers to it, shared with the rest of the batch.
        name: bucket and key, if the dataset was made with ``keys=True``.
    """

    index: int
    data: memoryview
    name: tuple[str, str] | None = None

    @property
    def bucket(self) -> str:
        """The bucket of the object that it is, or is part of.

        Raises:
            LarderError: the dataset was made without ``keys=True``.
        """
        return self._named()[0]

    @property
    def key(self) -> str:
        """The key of the object that it is, or is part of.

        Raises:
            LarderError: the dataset was made without ``keys=True``.
        """
        return self._named()[1]

    def _named(self) -> tuple[str, str]:
        # Not an empty text: a label that is taken from it would be wrong, silently.
        if self.name is None:
            raise LarderError("items have bucket and key only if the dataset is made with keys=True")
        return self.name


class Naming(NamedTuple):
    """How the items of a dataset are called: all of them in ``keys``, if they were wanted; one of them by ``locate``."""

    keys: Keys | None
    locate: Callable[[int], tuple[str, str]]


Transform = Callable[[Item], Any]
Collate = Callable[[list[Any]], Any]


class Preparation(NamedTuple):
    """How items become samples, and samples a batch.

    Without a transform a sample is the item's ``bytes``, and a batch a list of them. With one, batches are made by
    ``torch.utils.data.default_collate`` unless another function is given.
    """

    transform: Transform | None = None
    collate: Collate | None = None
    on_error: str = "raise"

    @classmethod
    def of(cls, transform: Transform | None, collate: Collate | None, on_error: str) -> Preparation:
        """Checked.

        Raises:
            ValueError: ``on_error`` is unknown.
        """
        if on_error not in ("raise", "skip"):
            raise ValueError(f"on_error must be one of 'raise', 'skip', not {on_error!r}")
        return cls(transform, collate, on_error)

    def samples(self, indices: Sequence[int], data: Sequence[memoryview], naming: Naming, stats: Stats) -> list[Any]:
        """The samples of these items, in their order; fewer if some fail and ``on_error`` is ``"skip"``.

        Raises:
            ItemUntransformable: the transform raised, and ``on_error`` is ``"raise"``.
        """
        if self.transform is None:
            return [bytes(each) for each in data]
        began = perf_counter()
        samples = []
        for index, each in zip(indices, data, strict=True):
            item = Item(index, each, None if naming.keys is None else naming.keys[index])
            try:
                samples.append(self.transform(item))
            except Exception as error:
                if self.on_error == "raise":
                    detail = f"{type(error).__name__}: {error}"
                    raise ItemUntransformable(index, *naming.locate(index), detail) from error
                stats.add("untransformable", 1)
        stats.add("transforming", perf_counter() - began)
        return samples

    def batch(self, samples: list[Any]) -> Any:
        """The samples as one batch."""
        if self.collate is not None:
            return self.collate(samples)
        return samples if self.transform is None else default_collate(samples)
