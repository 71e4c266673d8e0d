"""Several datasets as one: what a mixture is, and a reader that asks each of its datasets for its part of a batch.

The planner does not know of it: it orders numbers (`larder.planner.mixing`), and so ranks, workers, saved states and "exactly
once" are those of a single dataset. Each dataset's candidates replace only one another, so that substitution does not change the
proportions of a batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from larder.base.background import BackgroundThread
from larder.base.dataset import DatasetInfo, Directives, ItemLocation, MixtureInfo
from larder.base.options import whole_number
from larder.base.stats import Stats
from larder.planner.layout import MOST_ITEMS, Layout
from larder.planner.mixing import MixturePart, Numbering, check_numbers, shares
from larder.reading.frames import ItemFailure
from larder.reading.merging import Fetched
from larder.reading.source import DatasetName, ItemReader, Source, name_of

_PartAnswer = tuple[NDArray[np.intp], Fetched]
"""The places of a request that one dataset delivered, and its answer, aligned."""
_Call = Callable[[], _PartAnswer]


class Mix:
    """Several datasets to be read as one, in place of the name of a dataset.

    Given as names, an epoch has every item of every dataset exactly once, in random order. Given with weights, batches have the
    datasets in these proportions: small datasets come more than once in an epoch, large ones continue in the next; every item of
    a dataset comes once before any comes again.

    Args:
        datasets: names, digest files or results of `Client.register`; or a mapping of these to weights.
        items: items of an epoch, with weights; by default as many as the datasets have together.

    Raises:
        ValueError: there are no datasets, one is named twice, ``items`` is given without weights, or a number is out of range.
    """

    def __init__(
        self, datasets: Sequence[DatasetName] | Mapping[DatasetName, float], *, items: int | None = None
    ) -> None:
        self.datasets: tuple[DatasetName, ...] = tuple(datasets)
        self.weights = tuple(datasets.values()) if isinstance(datasets, Mapping) else None
        names = self.names
        if isinstance(datasets, str) or not names or len(set(names)) < len(names):
            raise ValueError(f"a mixture needs datasets, each named once, not {datasets!r}")
        if items is not None and self.weights is None:
            raise ValueError(
                f"items={items!r} is the number of an epoch's items in a mixture with weights: give the datasets as a mapping "
                "to weights, or leave items out"
            )
        self.items = None if items is None else whole_number("items", items, 1, MOST_ITEMS)
        if self.weights is not None:
            shares(self.weights, MOST_ITEMS)

    @property
    def names(self) -> tuple[str, ...]:
        """The datasets' names, as given."""
        return tuple(map(name_of, self.datasets))

    def __repr__(self) -> str:
        weighted = None if self.weights is None else dict(zip(self.names, self.weights, strict=True))
        return f"Mix({weighted or list(self.names)})" if self.items is None else f"Mix({weighted}, items={self.items})"

    def info(self, parts: tuple[DatasetInfo, ...]) -> MixtureInfo:
        """The mixture, once its datasets are known.

        Raises:
            ValueError: a dataset has no items, or comes too often.
        """
        sizes = tuple(part.samples for part in parts)
        counts = sizes if self.weights is None else shares(self.weights, self.items or sum(sizes))
        made = tuple(MixturePart(layout_of(part), count) for part, count in zip(parts, counts, strict=True))
        if self.weights is not None:
            check_numbers(made)
        identity = hashlib.sha256(b"larder/mixture")
        for part, count in zip(parts, counts, strict=True):
            identity.update(f"/{part.id}/{part.samples}/{part.partitions}/{part.units}/{count}".encode())
        modes = {part.caching for part in parts}
        return MixtureInfo(
            name=" + ".join(self.names),
            id=identity.hexdigest(),
            items=sum(counts),
            bytes=sum(part.bytes for part in parts),
            caching="none" if modes == {"none"} else "full",
            partitions=1,
            units=1,
            resident=sum(part.resident for part in parts),
            parts=parts,
            counts=counts,
            names=self.names,
        )


def shown(dataset: DatasetName | Mix) -> str:
    """The name of a loader's dataset or mixture, for messages."""
    return repr(dataset if isinstance(dataset, Mix) else name_of(dataset))


def refuse_mix(dataset: DatasetName | Mix, reader: str) -> DatasetName:
    """The dataset, for readers of a single one.

    Raises:
        TypeError: it is a mixture.
    """
    if isinstance(dataset, Mix):
        raise TypeError(f"{reader} reads a single dataset, not {dataset}; mixtures are for Loader and CachedDataset")
    return dataset


def layout_of(part: DatasetInfo) -> Layout:
    """The order of a dataset of a mixture."""
    return Layout(part.samples, part.partitions, part.units, "shuffled", int(part.id[:16], 16))


def parts_of(info: MixtureInfo) -> tuple[MixturePart, ...]:
    """The datasets' facts from which the order of a mixture is made."""
    return tuple(MixturePart(layout_of(part), count) for part, count in zip(info.parts, info.counts, strict=True))


def numbering_of(info: MixtureInfo) -> Numbering:
    """The numbers of a mixture's items."""
    return Numbering(tuple(part.samples for part in info.parts))


class MixedSource:
    """The datasets of a mixture as the source of a loader.

    Args:
        mix: the mixture.
        sources: of its datasets, in order.
    """

    def __init__(self, mix: Mix, sources: Sequence[Source]) -> None:
        if len(sources) != len(mix.datasets):
            raise ValueError(f"{mix} needs {len(mix.datasets)} sources, not {len(sources)}")
        self._mix = mix
        self._sources = tuple(sources)

    def describe(self) -> MixtureInfo:
        """The mixture; its datasets are registered if they are given by digest files."""
        return self._mix.info(tuple(source.describe() for source in self._sources))

    def reader(self, info: DatasetInfo, stats: Stats) -> MixedReader:
        """A reader of all datasets."""
        assert isinstance(info, MixtureInfo)
        counted = [Stats() for _ in self._sources]
        readers = [
            source.reader(part, counts) for source, part, counts in zip(self._sources, info.parts, counted, strict=True)
        ]
        return MixedReader(numbering_of(info), readers, counted, stats)

    def locations(self, info: DatasetInfo, start: int = 0, count: int | None = None) -> Iterable[ItemLocation]:
        """Locations of the items by number, from ``start`` to at most the end of the concatenated datasets."""
        assert isinstance(info, MixtureInfo)
        passed = start % max(1, numbering_of(info).total)
        for source, part in zip(self._sources, info.parts, strict=True):
            skipped = min(passed, part.samples)
            passed -= skipped
            wanted = part.samples - skipped if count is None else min(count, part.samples - skipped)
            if wanted:
                yield from source.locations(part, skipped, wanted)
            count = None if count is None else count - wanted


class MixedReader:
    """Reads items of several datasets by number; a batch reads from its datasets in parallel.

    Args:
        numbering: of the items.
        readers: of the datasets.
        counted: the counts of each reader. They are moved to ``stats`` after each request, since readers work in threads.
        stats: of the loader.
    """

    def __init__(
        self, numbering: Numbering, readers: Sequence[ItemReader], counted: Sequence[Stats], stats: Stats
    ) -> None:
        self._numbering = numbering
        self._readers = readers
        self._counted = counted
        self._stats = stats
        self._seen: list[dict[str, float]] = [{} for _ in readers]
        self._threads = [BackgroundThread() for _ in readers]
        self._caching = [""] * len(readers)

    def fetch(
        self,
        indices: NDArray[np.uint32],
        *,
        mode: str = "exact",
        take: int | None = None,
        ordered: bool = False,
        epoch: int = 0,
        job: str = "",
    ) -> Fetched:
        """As `BatchReader.fetch`, for numbers. In mode ``substitute`` each dataset has as many of the ``take`` items as it has
        among the first ``take`` candidates. The result has the order of ``indices``."""
        parts, items = self._numbering.parts(indices)
        wanted = np.bincount(parts[:take], minlength=len(self._readers))
        calls: dict[int, _Call] = {}
        for part in np.flatnonzero(wanted).tolist():
            places = np.flatnonzero(parts == part)
            fetch = partial(self._readers[part].fetch, epoch=epoch, job=job)
            calls[part] = partial(_of_part, fetch, places, items[places], int(wanted[part]), mode)
        answers = self._together(calls)
        failed = {}
        for part, (_, fetched) in answers.items():
            self._caching[part] = fetched.directives.caching
            for place in np.flatnonzero(parts == part).tolist() if fetched.failed else ():
                if int(items[place]) in fetched.failed:
                    failed[int(indices[place])] = fetched.failed[int(items[place])]
        return _merged(indices, list(answers.values()), failed)

    def prefetch(self, indices: NDArray[np.uint32], *, epoch: int | None = None) -> dict[str, int]:
        """As `BatchReader.prefetch`; datasets that store nothing get no announcement."""
        parts, items = self._numbering.parts(indices)
        sums: dict[str, int] = {}
        for part in np.unique(parts).tolist():
            if self._caching[part] != "none":
                for name, count in self._readers[part].prefetch(np.unique(items[parts == part]), epoch=epoch).items():
                    sums[name] = sums.get(name, 0) + count
        return sums

    def _together(self, calls: dict[int, _Call]) -> dict[int, _PartAnswer]:
        """The results of all calls by dataset, each in a thread of its own, the last one in this thread."""
        *others, mine = calls
        futures = {part: self._threads[part].submit(calls[part]) for part in others}
        try:
            answer = calls[mine]()
        finally:
            for future in futures.values():
                future.exception()  # waits: no reader may be busy when the next request comes
            self._count()
        return {**{part: future.result() for part, future in futures.items()}, mine: answer}

    def _count(self) -> None:
        for number, counted in enumerate(self._counted):
            counts = counted.counts()
            for name, count in counts.items():
                if more := count - self._seen[number].get(name, 0):
                    self._stats.add(name, more)
            self._seen[number] = counts


def _of_part(
    fetch: Callable[..., Fetched], places: NDArray[np.intp], items: NDArray[np.uint32], wanted: int, mode: str
) -> _PartAnswer:
    """The items of one dataset in a request."""
    different = len(np.unique(items)) == len(items)
    if mode == "substitute" and different:
        fetched = fetch(items, mode=mode, take=wanted)
    else:
        # A small dataset comes again within one request: each of its items is read once.
        places, items = places[:wanted], items[:wanted]
        fetched = fetch(np.unique(items))
    order = np.argsort(fetched.indices, kind="stable")
    slots = np.searchsorted(fetched.indices, items, sorter=order)
    slots = order[np.minimum(slots, len(order) - 1)] if len(order) else np.zeros(len(items), np.intp)
    came = fetched.indices[slots] == items if len(order) else np.zeros(len(items), np.bool_)
    slots = slots[came]
    return places[came], replace(
        fetched, indices=items[came], data=[fetched.data[slot] for slot in slots.tolist()], flags=fetched.flags[slots]
    )


def _merged(indices: NDArray[np.uint32], answers: list[_PartAnswer], failed: dict[int, ItemFailure]) -> Fetched:
    """All parts as one answer, in the order of the request."""
    places = np.concatenate([places for places, _ in answers])
    order = np.argsort(places, kind="stable")
    data = [item for _, fetched in answers for item in fetched.data]
    flags = np.concatenate([fetched.flags for _, fetched in answers])[order]
    stored = any(fetched.directives.caching not in ("", "none") for _, fetched in answers)
    numbers = np.asarray(indices[places[order]], np.uint32)
    return Fetched(
        numbers, [data[at] for at in order.tolist()], flags, failed, Directives("full" if stored else "none")
    )
