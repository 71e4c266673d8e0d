"""Several datasets as one: the mixture, and a reader that requests each dataset's part of a batch.

The planner only orders numbers (`larder.planner.mixing`), so ranks, workers, saved states and "exactly once" work as for a single
dataset. A dataset's candidates only replace each other, so substitution does not change the proportions of a batch.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import PurePosixPath
from typing import TypeVar

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
from larder.reading.source import (
    DatasetName,
    ItemReader,
    ResidentSource,
    SharingReader,
    Source,
    is_file,
    lengths_of,
    name_of,
)

T = TypeVar("T")
_NO_NAME = re.compile(r"[^A-Za-z0-9._-]")
"""Characters that job names cannot have."""
_PartAnswer = tuple[NDArray[np.intp], Fetched]
"""The places of a request that one dataset delivered, and its answer, in the same order."""
_Call = Callable[[], _PartAnswer]


class Mix:
    """Several datasets to be read as one, in place of the name of a dataset.

    With names only, an epoch has every item of every dataset exactly once, in random order. With weights, batches mix the
    datasets in these proportions: small datasets come more than once in an epoch, large ones continue in the next, and every item
    of a dataset comes once before any comes again.

    Args:
        datasets: names, digest files or results of `Client.register`; or a mapping of these to weights.
        items: items of an epoch, only with weights; by default as many as all datasets have.

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

    def jobs(self, name: str) -> tuple[str, ...]:
        """The names by which the fleet knows a training run on the mixture: ``name.DATASET``, one for each dataset.

        Gateways decide by how much of a dataset jobs have consumed in their epochs, so a run is one job per dataset.
        """
        stems = [
            _NO_NAME.sub("-", PurePosixPath(dataset).stem if is_file(dataset) else dataset) for dataset in self.names
        ]
        different = len(set(stems)) == len(stems)
        return tuple(f"{name}.{stem}" if different else f"{name}.{part}.{stem}" for part, stem in enumerate(stems))

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
        return MixedReader(_Mixing(info, self._mix), readers, counted, stats)

    def resident(self, info: DatasetInfo) -> dict[str, float]:
        """The cached share of each dataset, see `larder.reading.source.ResidentSource`."""
        assert isinstance(info, MixtureInfo)
        shares = {}
        for name, source, part in zip(info.names, self._sources, info.parts, strict=True):
            cached = source.resident(part) if isinstance(source, ResidentSource) else {}
            if "" in cached:
                shares[name] = cached[""]
        return shares

    def lengths(self, info: DatasetInfo) -> NDArray[np.int64]:
        """The lengths of all items, dataset after dataset.

        Raises:
            ValueError: a length is unknown.
        """
        assert isinstance(info, MixtureInfo)
        parts = zip(self._sources, info.parts, strict=True)
        return np.concatenate([lengths_of(source, part) for source, part in parts])

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


class _Mixing:
    """Translates the numbers of a mixture's items for its datasets, each of which gateways know as a separate job."""

    def __init__(self, info: MixtureInfo, mix: Mix) -> None:
        self._sizes = tuple(part.samples for part in info.parts)
        self._counts = info.counts
        self._mix = mix
        self.numbering = numbering_of(info)

    def job(self, name: str, part: int) -> str:
        """The job of a dataset; empty without a name."""
        return self._mix.jobs(name)[part] if name else ""

    def first_pass(self, epoch: int, part: int) -> int:
        """The pass over a dataset in which an epoch of the mixture begins."""
        return epoch * self._counts[part] // max(1, self._sizes[part])

    def passed(self, numbers: NDArray[np.uint32]) -> int:
        """The pass of most of these numbers, counted from the epoch's first pass, because a request can name only one epoch."""
        return int(np.median(numbers)) // max(1, self.numbering.total) if len(numbers) else 0


class MixedReader:
    """Reads items of several datasets by number; a batch reads from its datasets in parallel.

    A dataset's requests name its pass as their epoch, since each pass needs its items again.

    Args:
        mixing: the datasets.
        readers: of the datasets.
        counted: the counts of each reader. They are moved to ``stats`` after each request, since readers work in threads.
        stats: of the loader.
    """

    def __init__(self, mixing: _Mixing, readers: Sequence[ItemReader], counted: Sequence[Stats], stats: Stats) -> None:
        self._mixing = mixing
        self._numbering = mixing.numbering
        self._readers = readers
        self._counted = counted
        self._stats = stats
        self._seen: list[dict[str, float]] = [{} for _ in readers]
        self._threads = [BackgroundThread() for _ in readers]
        self._directives = [Directives()] * len(readers)
        self._passed = [0] * len(readers)

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
        """As `BatchReader.fetch`, for numbers. In mode ``substitute`` each dataset gets as many of the ``take`` items as it has
        among the first ``take`` candidates. The result has the order of ``indices``."""
        return self._fetched(indices, len(indices) if take is None else take, epoch, job, shared=mode == "substitute")

    def fetch_shared(self, indices: NDArray[np.uint32], *, take: int, offers: int, epoch: int, job: str) -> Fetched:
        """As `BatchReader.fetch_shared`, for numbers; proportions of datasets as in ``fetch``."""
        return self._fetched(indices, take, epoch, job, shared=True, offers=offers)

    def offers(self, most: int, *, epoch: int, job: str) -> NDArray[np.uint32]:
        """As `BatchReader.offers`: numbers, in the current pass, of items that other jobs on their datasets have read."""

        def ask(reader: SharingReader, part: int) -> NDArray[np.uint32]:
            turn = self._mixing.first_pass(epoch, part) + self._passed[part]
            items = reader.offers(most, epoch=turn, job=self._mixing.job(job, part))
            return self._numbering.number(part, self._passed[part], items)

        calls = {
            part: partial(ask, reader, part)
            for part, (reader, known) in enumerate(zip(self._readers, self._directives, strict=True))
            if isinstance(reader, SharingReader) and known.partly and known.sharing > 0
        }
        return np.concatenate([np.zeros(0, np.uint32), *(self._together(calls).values() if calls else ())])

    def _fetched(
        self, indices: NDArray[np.uint32], take: int, epoch: int, job: str, *, shared: bool, offers: int | None = None
    ) -> Fetched:
        parts, items = self._numbering.parts(indices)
        wanted = np.bincount(parts[:take], minlength=len(self._readers))
        calls: dict[int, _Call] = {}
        for part in np.flatnonzero(wanted).tolist():
            places = np.flatnonzero(parts == part)
            self._passed[part] = self._mixing.passed(indices[places[: wanted[part]]])
            turn = self._mixing.first_pass(epoch, part) + self._passed[part]
            name = self._mixing.job(job, part)
            reader = self._readers[part]
            exact = partial(reader.fetch, epoch=turn, job=name)
            choose: Callable[..., Fetched] | None = None
            if offers is not None and isinstance(reader, SharingReader):
                offered = int(np.count_nonzero((places >= take) & (places < take + offers)))
                choose = partial(reader.fetch_shared, offers=offered, epoch=turn, job=name)
            elif shared:
                choose = partial(reader.fetch, mode="substitute", epoch=turn, job=name)
            calls[part] = partial(_of_part, exact, choose, places, items[places], int(wanted[part]))
        answers = self._together(calls)
        failed = {}
        for part, (_, fetched) in answers.items():
            self._directives[part] = fetched.directives
            for place in np.flatnonzero(parts == part).tolist() if fetched.failed else ():
                if int(items[place]) in fetched.failed:
                    failed[int(indices[place])] = fetched.failed[int(items[place])]
        return _merged(indices, list(answers.values()), failed)

    def prefetch(self, indices: NDArray[np.uint32], *, epoch: int | None = None) -> dict[str, int]:
        """As `BatchReader.prefetch`, also with counts per dataset (``fetching/0``); datasets that store nothing get no
        announcement."""
        parts, items = self._numbering.parts(indices)
        sums: dict[str, int] = {}
        for part in np.unique(parts).tolist():
            if self._directives[part].caching != "none":
                for name, count in self._readers[part].prefetch(np.unique(items[parts == part]), epoch=epoch).items():
                    sums[name], sums[f"{name}/{part}"] = sums.get(name, 0) + count, count
        return sums

    def _together(self, calls: Mapping[int, Callable[[], T]]) -> dict[int, T]:
        """The results of all calls, by dataset; each runs in its own thread, the last one in this thread."""
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
    exact: Callable[..., Fetched],
    choose: Callable[..., Fetched] | None,
    places: NDArray[np.intp],
    items: NDArray[np.uint32],
    wanted: int,
) -> _PartAnswer:
    """One dataset's items in a request: ``wanted`` of them, chosen by the gateway with ``choose``, or the first ones with
    ``exact``."""
    if choose is not None and len(np.unique(items)) == len(items):
        fetched = choose(items, take=wanted)
    else:
        # A small dataset may come twice within one request; each of its items is read once.
        places, items = places[:wanted], items[:wanted]
        fetched = exact(np.unique(items))
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
    directives = [fetched.directives for _, fetched in answers]
    stored = any(known.caching not in ("", "none") for known in directives)
    mode = "part" if any(known.partly for known in directives) else "full" if stored else "none"
    sharing = max((known.sharing for known in directives), default=-1)
    numbers = np.asarray(indices[places[order]], np.uint32)
    return Fetched(numbers, [data[at] for at in order.tolist()], flags, failed, Directives(mode, sharing=sharing))
