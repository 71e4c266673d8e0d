"""A dataset at a gateway that is indexed, for those who have a sampler of their own."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex, TypedDict, Unpack, cast

import numpy as np
from torch.utils.data import Dataset

from larder.job import Job
from larder.loader import Loader, LoaderOptions
from larder.run import delivered, item_error
from larder.source import Access, DatasetName, Source
from larder.stats import Stats
from larder.torch.iteration import Tag
from larder.torch.samples import Naming, Preparation, Transform


class MapOptions(TypedDict, total=False):
    """Everything about a `CachedMapDataset` that has a default.

    Args:
        transform: makes a sample of an `Item`. Without one, a sample is the item's ``bytes``.
        on_missing: an item that cannot be had (``"raise"``): raise, or ``"skip"`` it, so that the batch gets smaller.
        on_error: the same for a transform that raises.
        keys: whether items come with bucket and key (``False``).
        job: the training run, a `larder.Job` or only its name, for the gateway's decisions ("").
        access: credentials, timeouts and what to do without the gateway.
        source: as in `larder.loader.LoaderOptions`.
    """

    transform: Transform | None
    on_missing: str
    on_error: str
    keys: bool
    job: str | Job
    access: Access
    source: Source


class CachedMapDataset(Dataset[Any]):
    """Items by index, with one request for all items of a batch.

    ::

        dataset = CachedMapDataset("http://gateway:9000", "train", transform=decode)
        loader = DataLoader(dataset, batch_size=256, sampler=DistributedSampler(dataset), num_workers=4)

    Works with any sampler; which items come, and how often, is the sampler's business. The gateway cannot put cached items first
    here: `CachedDataset` is for that.

    Args:
        endpoint: address of the gateway.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), or what `larder.Client.register` returned.
        options: see `MapOptions`.

    Raises:
        ValueError: an option has a value that it cannot have.
        TypeError: there is no such option.
    """

    def __init__(self, endpoint: str, dataset: DatasetName, **options: Unpack[MapOptions]) -> None:
        self._preparation = Preparation.of(options.get("transform"), None, options.get("on_error", "raise"))
        self._with_keys = options.get("keys", False)
        own = ("transform", "on_error", "keys")
        rest = cast(LoaderOptions, {name: value for name, value in options.items() if name not in own})
        self._loader = Loader(endpoint, dataset, batch_size=1, **rest)
        self._counted: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of items."""
        return self._loader.info.items

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One sample; negative indices count from the end.

        Raises:
            IndexError: there is no such item.
            ItemError: it cannot be had, or not be transformed, whatever ``on_missing`` and ``on_error`` say.
        """
        return self._samples([index], skip=False)[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """The samples of these items, in this order, with one request; an index may come more than once.

        Raises:
            IndexError: there is no such item.
            ItemError: one cannot be had or not be transformed, and is not to be skipped.
        """
        return self._samples(indices, skip=True)

    def stats(self) -> Stats:
        """What was counted in this process."""
        return self._loader.stats

    def told(self) -> Tag:
        """What is to be told of the batch that was made last in this process."""
        counts = self._loader.stats.counts()
        more = {name: count - self._counted.get(name, 0) for name, count in counts.items()}
        self._counted = counts
        return Tag(0, 0, counts={name: count for name, count in more.items() if count})

    def _samples(self, indices: Sequence[SupportsIndex], *, skip: bool) -> list[Any]:
        loader = self._loader
        wanted = np.array([self._checked(index) for index in indices], np.uint32)
        if not len(wanted):
            return []
        fetched = loader.reader.fetch(wanted, mode="exact", ordered=True, job=loader.settings.job_name)
        if fetched.failed and not (skip and loader.settings.on_missing == "skip"):
            raise item_error(next(iter(fetched.failed.values())))
        for name, value in delivered(fetched.flags, fetched.data).items():
            loader.stats.add(name, value)
        loader.stats.add("skipped", len(wanted) - len(fetched.data))
        naming = Naming(loader.keys if self._with_keys else None, loader.locate)
        preparation = self._preparation if skip else self._preparation._replace(on_error="raise")
        return preparation.samples(fetched.indices.tolist(), fetched.data, naming, loader.stats)

    def _checked(self, index: SupportsIndex) -> int:
        number, items = operator.index(index), len(self)
        if not -items <= number < items:
            raise IndexError(f"item {number} of a dataset of {items} items")
        return number % items
