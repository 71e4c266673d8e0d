"""A map-style dataset at a gateway, for any sampler."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from multiprocessing.context import get_spawning_popen
from typing import Any, SupportsIndex, TypedDict, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from larder.base.dataset import DatasetInfo
from larder.base.later import Unpack
from larder.base.options import refuse_unknown, whole_number
from larder.base.stats import Stats
from larder.http.credentials import Credentials, CredentialSource
from larder.reading.mixing import refuse_mix
from larder.reading.source import Access, DatasetName, KnowingSource, Source, name_of
from larder.torch.iteration import Tag
from larder.torch.samples import ItemNames, SamplePipeline, Seed, Transform
from larder.training.job import Job
from larder.training.loader import Loader, LoaderOptions
from larder.training.run import counts_of, item_error

_NOT_SET = -1
"""Epoch before ``set_epoch``."""


class MapOptions(TypedDict, total=False):
    """The options of a `CachedMapDataset` that have a default.

    Args:
        transform: turns an `Item` into a sample. If left out, a sample is the item's ``bytes``.
        on_missing: for an unavailable item: ``"raise"`` (default), or ``"skip"`` it, which makes the batch smaller.
        on_error: the same for a transform that raises.
        keys: whether items have bucket and key (``False``).
        ids: whether samples are pairs ``(id, sample)``, so that batches are ``(ids, samples)`` after collation (``False``).
        seed: seeds the generators of ``random``, numpy and PyTorch for each transform, together with the epoch of
            ``set_epoch`` and the item, as `CachedDataset` does; an item that repeats within an epoch gets the same numbers.
            If left out (``None``), transforms use the generators of their process.
        job: the training run, a `larder.Job` or only its name, for the gateway's decisions ("").
        access: credentials, timeouts and fallback.
        credentials: an access key of the gateway, instead of ``access``.
        source: as in `larder.training.loader.LoaderOptions`.
    """

    transform: Transform | None
    on_missing: str
    on_error: str
    keys: bool
    ids: bool
    seed: int | None
    job: str | Job
    access: Access
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    source: Source


class CachedMapDataset(Dataset[Any]):
    """Items by index, with one request for all items of a batch.

    ::

        dataset = CachedMapDataset("http://gateway:9000", "train", transform=decode)
        loader = DataLoader(dataset, batch_size=256, sampler=DistributedSampler(dataset), num_workers=4)

    The sampler decides which items come, and how often, so the gateway cannot prefer cached items; `CachedDataset` lets it.

    Args:
        endpoint: address of the gateway; ``None``: ``LARDER_ENDPOINT``, or that of AWS's tools.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), or the result of `larder.Client.register`.
        options: see `MapOptions`.

    Raises:
        ValueError: invalid value of an option.
        TypeError: unknown option.
    """

    def __init__(self, endpoint: str | None, dataset: DatasetName, **options: Unpack[MapOptions]) -> None:
        refuse_unknown(options, *MapOptions.__annotations__)
        self._name = name_of(refuse_mix(dataset, type(self).__name__))
        self._pipeline = SamplePipeline.of(options)
        self._with_keys = options.get("keys", False)
        self._with_ids = options.get("ids", False)
        self._seed = _checked_seed(options.get("seed"))
        self._epoch = _shared_epoch(_NOT_SET)
        own = ("transform", "on_error", "keys", "ids", "seed")
        rest = cast(LoaderOptions, {name: value for name, value in options.items() if name not in own})
        self._loader = Loader(endpoint, dataset, batch_size=1, **rest)
        self._counted: dict[str, float] = {}

    def __repr__(self) -> str:
        return f"CachedMapDataset({self._name!r})"

    def __len__(self) -> int:
        """Number of items."""
        return self._loader.info.samples

    def __getitem__(self, index: SupportsIndex) -> Any:
        """One sample; negative indices count from the end.

        Raises:
            IndexError: no such item.
            ItemError: the item is unavailable or its transform raised, regardless of ``on_missing`` and ``on_error``.
        """
        return self._samples([index], skip=False)[0]

    def __getitems__(self, indices: Sequence[SupportsIndex]) -> list[Any]:
        """The samples of these items, in this order, by one request; an index may come more than once.

        If all of them are skipped, the next item of the dataset that yields a sample takes their place: an empty batch would end
        the loop, or leave other ranks waiting.

        Raises:
            IndexError: no such item.
            ItemError: an item is unavailable or its transform raised, and ``on_missing`` or ``on_error`` says ``"raise"``.
        """
        samples = self._samples(indices, skip=True)
        return samples if samples or not len(indices) else self._another(self._checked(indices[0]))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that seeds transforms, before its iteration begins; persistent workers get it too.

        Raises:
            ValueError: the epoch is not a whole number of at least 0.
        """
        self._epoch.fill_(whole_number("epoch", epoch, 0))

    @property
    def info(self) -> DatasetInfo:
        """The dataset's description, requested from the gateway at first use."""
        return self._loader.info

    @property
    def job(self) -> str | Job:
        """The training run; "" without one."""
        return self._loader.settings.job

    def cached_items(self) -> NDArray[np.bool_] | None:
        """By item, whether the gateways hold it now; ``None`` if they do not answer. Requested at each call."""
        source = self._loader.source
        return source.cached_items(self.info) if isinstance(source, KnowingSource) else None

    def stats(self) -> Stats:
        """Counts of this process."""
        return self._loader.stats

    def take_tag(self) -> Tag:
        """The tag of this process's latest batch, with the counts since the previous one."""
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
        for name, value in counts_of(fetched.flags, fetched.data).items():
            loader.stats.add(name, value)
        loader.stats.add("skipped", len(wanted) - len(fetched.data))
        names = ItemNames(loader.keys if self._with_keys else None, loader.locate)
        pipeline = self._pipeline if skip else self._pipeline._replace(on_error="raise")
        ids, seed = fetched.indices.tolist(), self._seed_now()
        if not self._with_ids:
            return pipeline.samples(ids, fetched.data, names, loader.stats, seed)
        return [
            (number, sample)
            for number, data in zip(ids, fetched.data, strict=True)
            for sample in pipeline.samples([number], [data], names, loader.stats, seed)
        ]

    def _another(self, index: int) -> list[Any]:
        """The sample of the first item after ``index`` that has one.

        Raises:
            ItemError: no item of the dataset has one; the error is that of ``index``.
        """
        for step in range(1, len(self)):
            if samples := self._samples([(index + step) % len(self)], skip=True):
                self._loader.stats.add("padded", 1)
                return samples
        return self._samples([index], skip=False)

    def _seed_now(self) -> Seed | None:
        if self._seed is None:
            return None
        epoch = int(self._epoch)
        if epoch == _NOT_SET:
            # With a default, every epoch would have the same augmentations.
            raise ValueError("with a seed, call dataset.set_epoch(epoch) before each epoch")
        return self._seed, epoch

    def _checked(self, index: SupportsIndex) -> int:
        number, items = operator.index(index), len(self)
        if not -items <= number < items:
            raise IndexError(f"index out of range: item {number} of a dataset of {items} items")
        return number % items

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ if get_spawning_popen() is not None else {**self.__dict__, "_epoch": int(self._epoch)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if isinstance(state["_epoch"], int):
            self._epoch = _shared_epoch(state["_epoch"])


def _shared_epoch(epoch: int) -> torch.Tensor:
    """The number of an epoch in memory that worker processes share."""
    shared: torch.Tensor = torch.tensor(epoch).share_memory_()  # type: ignore[no-untyped-call]
    return shared


def _checked_seed(seed: int | None) -> int | None:
    return None if seed is None else whole_number("seed", seed)
