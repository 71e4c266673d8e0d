"""Loading a dataset in batches: each item exactly once per epoch, cached items first.

Combines the pure planner (`larder.planner`), which selects candidates, with a reader (`larder.BatchReader`), which requests them
from the gateway. This is Quiver's Algorithm 1 (FAST 2020, section 4.7): request more candidates than a batch needs, use those
that are in the cache, and keep the rest for later.

Without a framework::

    loader = larder.Loader("http://gateway:9000", "imagenet-train", batch_size=256, seed=1)
    for epoch in range(90):
        for batch in loader:
            step(batch.data)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from larder.base.background import BackgroundThread
from larder.base.dataset import DatasetInfo, MixtureInfo
from larder.base.errors import StateError
from larder.base.later import Unpack
from larder.base.options import refuse_unknown, whole_number
from larder.base.stats import Stats
from larder.planner import EpochOrder, EpochPlan, Layout, Progress, Shard
from larder.planner.lengths import ItemLengths
from larder.planner.mixing import MixedOrder
from larder.reading.mixing import Mix, MixedSource, numbering_of, parts_of, shown
from larder.reading.source import Access, DatasetName, GatewaySource, ItemReader, Keys, Source, least_reads, lengths_of
from larder.training.ahead import RunContext
from larder.training.job import Job
from larder.training.run import Batch, EpochRun
from larder.training.settings import LoaderOptions, Settings
from larder.training.sharing import SharedReads, Sharing

__all__ = ["Batch", "EpochRun", "Loader", "LoaderOptions", "Shard"]

Once = Callable[[str, Callable[[], list[Any]]], list[Any]]
"""Returns the value, of JSON types, for a name; the first caller computes it for all processes."""

ALONE = Shard(0, 1, 0, 1)
"""A single process: one rank, one worker."""


class Loader:
    """Loads a dataset in batches. Sends no request until it is used; can be forked, pickled and copied.

    An iteration is an epoch of all items, for a single process; several ranks or workers call ``epoch`` instead. Each complete
    iteration advances the epoch. After a ``break`` the next one repeats the same epoch, or the rest that a loaded state had left
    of it.

    Args:
        endpoint: address of the gateway; ``None``: ``LARDER_ENDPOINT``, or that of AWS's tools.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), the result of `Client.register`, or a `Mix`.
        batch_size: items of a batch.
        options: see `LoaderOptions`.

    Raises:
        ValueError: invalid value of an option, or there is no endpoint.
        TypeError: unknown option.
    """

    def __init__(
        self, endpoint: str | None, dataset: DatasetName | Mix, *, batch_size: int, **options: Unpack[LoaderOptions]
    ) -> None:
        refuse_unknown(options, "batch_size", *LoaderOptions.__annotations__)
        self.settings = Settings(batch_size=batch_size, **options)
        self._name = shown(dataset)
        self.settings.check_mix(dataset)
        self.source = self.settings.source or _source(endpoint, dataset, self.settings.access)
        self.stats = Stats()
        self._background = BackgroundThread()
        self._info: DatasetInfo | None = None
        self._reader: ItemReader | None = None
        self._keys: Keys | None = None
        self._lengths: ItemLengths | None = None
        self._caching = ""
        self._least: dict[str, float | None] = {"": None}
        self._sharing = Sharing()
        self._start: tuple[int, dict[str, Any] | None] = (0, None)
        self._latest: EpochRun | None = None

    def __iter__(self) -> EpochRun:
        epoch, state = self._upcoming()
        self._latest, self._start = self.epoch(epoch, state=state), (epoch, state)
        return self._latest

    def __len__(self) -> int:
        """Number of batches of a whole epoch, also after a resume."""
        return self.batches()

    def __repr__(self) -> str:
        return f"Loader({self._name}, {self.settings})"

    @property
    def known(self) -> DatasetInfo | None:
        """The dataset's description, if it was requested already."""
        return self._info

    @property
    def info(self) -> DatasetInfo:
        """The dataset's description, requested from the gateway at first use."""
        if self._info is None:
            self.info = self.source.describe()
        assert self._info is not None
        return self._info

    @info.setter
    def info(self, info: DatasetInfo) -> None:
        self._info = info
        self.stats.order.items = info.samples

    @property
    def reader(self) -> ItemReader:
        """Reads the items."""
        if self._reader is None:
            self._reader = self.source.reader(self.info, self.stats)
        return self._reader

    @property
    def keys(self) -> Keys:
        """Bucket and key of every item; requested from the gateway once, in pages of 10,000."""
        if self._keys is None:
            self._keys = Keys(self.source.locations(self.info))
        return self._keys

    @property
    def lengths(self) -> ItemLengths | None:
        """The lengths by which batches are made; those of the digest file are requested once, in pages of 10,000.

        Raises:
            ValueError: an item has no length; the message has the remedy.
        """
        if self.settings.lengths is None:
            return None
        if self._lengths is None:
            given = self.settings.lengths
            known = given if isinstance(given, ItemLengths) else ItemLengths(lengths_of(self.source, self.info))
            items = self.info.samples if self.mixture is None else numbering_of(self.mixture).total
            if len(known) != items:
                raise ValueError(
                    f"lengths has {len(known)} numbers, but the dataset has {items} items: give one for each"
                )
            self._lengths = known
        return self._lengths

    @property
    def mixture(self) -> MixtureInfo | None:
        """The description of a mixture; ``None`` for a single dataset."""
        return self.info if isinstance(self.info, MixtureInfo) else None

    def locate(self, index: int) -> tuple[str, str]:
        """Bucket and key of one item; in a mixture, by its number."""
        if self._keys is not None:
            return self._keys[index % len(self._keys)]
        (location,) = self.source.locations(self.info, index, 1)
        return location.bucket, location.key

    def epoch(self, epoch: int, *, shard: Shard = ALONE, state: Mapping[str, Any] | None = None) -> EpochRun:
        """The batches of one epoch, for one worker of one rank.

        Ranks come from ``shard`` only: `larder.torch.CachedDataset` reads ``RANK`` and ``WORLD_SIZE``, a loader does not. One of
        several ranks passes ``Shard(rank, world, 0, 1)``.

        Args:
            epoch: its number, from 0.
            shard: the rank and worker; by default a single process that gets all batches.
            state: a saved result of ``EpochRun.state_dict``; the epoch resumes from it, in its order.

        Raises:
            StateError: the state is of another dataset or epoch, or does not fit the shard.
            ValueError: the loader's `Job` is for another dataset, or for another number of ranks than the shard.
            UnevenRanks: ranks cannot have equally many batches; the message has the remedy.
            GatewayUnavailable: the loader has a `Job`, and no gateway could register it.
        """
        epoch, shard = whole_number("epoch", epoch, 0), checked_shard(shard)
        start = self.start(epoch, shard.rank, shard.world) if state is None else self.restored(state, shard)
        if start.epoch != epoch:
            raise StateError(f"the state is of epoch {start.epoch}, but epoch {epoch} was requested")
        self.join(start)
        return self.run(start, shard)

    def state_dict(self) -> dict[str, Any]:
        """The state of the iteration, to save: exactly the batches that it has delivered. Small, of JSON types."""
        if self._latest is not None:
            return self._latest.state_dict()
        epoch, state = self._start
        return self.start(epoch, ALONE.rank, ALONE.world).to_json() if state is None else dict(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state with the next iteration, which delivers the rest of its epoch.

        Raises:
            StateError: the state is damaged, of another dataset, or of one of several ranks and not merged.
        """
        start = self.restored(state, ALONE)
        self._latest, self._start = None, (start.epoch, start.to_json())

    def skip_batches(self, batches: int) -> None:
        """Skip the next batches without reading them: the next iteration begins after them.

        Raises:
            ValueError: ``batches`` is not a whole number of at least 0.
        """
        self.load_state_dict(self.skipped(self.state_dict(), batches))

    def batches_left(self) -> int:
        """Number of batches that the epoch still has."""
        return self.batches_after(self.state_dict())

    @property
    def reading(self) -> int | None:
        """The epoch of the current iteration; ``None`` before the first one."""
        return None if self._latest is None else self._latest.epoch

    def batches(self, rank: int = 0, world: int = 1) -> int:
        """Number of batches of a whole epoch on each rank.

        Raises:
            UnevenRanks: ranks cannot have equally many batches.
        """
        settings, start = self.settings, self.start(0, rank, world)
        start.refuse_uneven(settings.batch_size, settings.tail)
        return start.batches(settings.batch_size, settings.tail)

    def start(self, epoch: int, rank: int, world: int) -> Progress:
        """The state at the start of an epoch."""
        order = EpochOrder(self._layout(), seed=self.settings.seed, epoch=epoch, group=self.settings.group)
        return Progress.start(self.info.id, order, rank, world)

    def restored(self, state: Mapping[str, Any], shard: Shard) -> Progress:
        """A saved state, converted for this rank.

        Raises:
            StateError: the state is damaged, of another dataset, or of another rank or world size and not merged.
        """
        progress = Progress.from_json(state, dataset=self.info.id)
        if progress.layout.items != self.info.samples:
            raise StateError(f"the state is of {progress.layout.items} items, the dataset has {self.info.samples}")
        if (progress.layout.kind == "sequential") != self.settings.sequential:
            raise StateError(f"the state is of an epoch in another order, the loader's order is {self.settings.order}")
        mine = progress.of_rank(shard.rank, shard.world)
        return mine.settled(self.settings.batch_size, self.settings.tail)

    def skipped(self, state: Mapping[str, Any], batches: int) -> dict[str, Any]:
        """A rank's saved state, advanced by ``batches``."""
        settings = self.settings
        return Progress.from_json(state).skip_batches(batches, settings.batch_size, settings.tail).to_json()

    def batches_after(self, state: Mapping[str, Any]) -> int:
        """Number of batches that a rank's epoch has after a saved state."""
        return Progress.from_json(state).batches(self.settings.batch_size, self.settings.tail)

    def join(self, start: Progress, once: Once | None = None) -> None:
        """Register the loader's `Job`, if it has one, and ask how much is cached, before an epoch begins.

        Args:
            start: state of a rank.
            once: makes one request for all processes that load for this rank.

        Raises:
            ValueError: the job is for another dataset, or for another number of ranks than ``start``.
            GatewayUnavailable: no gateway could register it.
        """
        job = self.settings.job
        if not isinstance(job, str):
            _refuse_other_ranks(job, start)
        self._caching, self._least = (once or _directly)(f"joined/{start.epoch}", self._joined)

    def _joined(self) -> list[Any]:
        job = self.settings.job
        caching = "" if isinstance(job, str) else job.join(self.info)
        return [caching, least_reads(self.source, self.info)]

    def begin_epoch(self, start: Progress, stats: Stats) -> None:
        """Count an epoch, if it is whole, in ``stats``, which are the loader's own or those of a training loop."""
        if not start.begun:
            stats.begin_epoch(start.epoch, self._least)

    def end_epoch(self, epoch: int, stats: Stats) -> None:
        """Report to the `Job` the reads of the ended epoch that these counts describe."""
        _end_epoch(stats, self.settings.job, epoch)

    def run(self, start: Progress, shard: Shard, own: Progress | None = None) -> EpochRun:
        """The batches left after ``start``, the rank's state, and after ``own``, this worker's state. Raises `UnevenRanks`."""
        settings = self.settings
        start.refuse_uneven(settings.batch_size, settings.tail)
        order = self._order(start)
        plan = EpochPlan(
            order,
            shard,
            batch_size=settings.batch_size,
            substitute=settings.candidates,
            tail=settings.tail,
            progress=start,
            own=own,
            dataset=self.info.id,
            lengths=self.lengths,
        )
        background = self._background if settings.ahead else None
        cold = not self.info.resident and not self.stats.batches
        caching = (self._caching or self.info.caching) if cold else ""
        numbering = None if self.mixture is None else numbering_of(self.mixture)
        shared = None
        if settings.candidates > 1:
            shared = SharedReads(self.reader, self._sharing, shard, settings.job_name, offers=settings.reuse)
        names = () if self.mixture is None else self.mixture.names
        context = RunContext(
            self.reader,
            self.stats,
            background,
            caching,
            numbering,
            shared,
            shard.workers,
            order.name if settings.candidates == 1 and settings.job_name else "",
            names,
            partial(_end_epoch, self.stats, settings.job),
        )
        self.begin_epoch(start if own is None else own, self.stats)
        if own is None:
            # One worker inherits the earlier counts of skipped and padded items, so that the sum over all workers is right.
            own = start if shard.worker == 0 else replace(start, skipped=0, padded=0)
        return EpochRun(plan, own, settings, context)

    def _upcoming(self) -> tuple[int, dict[str, Any] | None]:
        """The epoch of the next iteration, and the state that it begins with."""
        complete = self._latest is not None and self._latest.over
        return (self._start[0] + 1, None) if complete else self._start

    def _order(self, start: Progress) -> EpochOrder:
        if self.mixture is None or self.settings.sequential:
            return start.order()
        return MixedOrder(start.layout, parts_of(self.mixture), seed=start.seed, epoch=start.epoch)

    def _layout(self) -> Layout:
        info = self.info
        kind = "sequential" if self.settings.sequential else "shuffled" if self.mixture is None else "mixed"
        return Layout(info.samples, info.partitions, info.units, kind, int(info.id[:16], 16))

    def __getstate__(self) -> dict[str, Any]:
        # Copies with shared counters would count twice, and a reader counts into its own counters.
        return {**self.__dict__, "stats": Stats(), "_reader": None, "_start": self._upcoming(), "_latest": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._info is not None:
            self.stats.order.items = self._info.samples


def _source(endpoint: str | None, dataset: DatasetName | Mix, access: Access | None) -> Source:
    if not isinstance(dataset, Mix):
        return GatewaySource(endpoint, dataset, access)
    return MixedSource(dataset, [GatewaySource(endpoint, name, access) for name in dataset.datasets])


def checked_shard(shard: Shard) -> Shard:
    """The shard, if it is valid.

    Raises:
        ValueError: it is not a valid rank and worker.
    """
    if not isinstance(shard, tuple) or len(shard) != len(Shard._fields):
        raise ValueError(f"shard must be a larder.Shard(rank, world, worker, workers), not {shard!r}")
    world, workers = whole_number("world", shard[1], 1), whole_number("workers", shard[3], 1)
    rank, worker = whole_number("rank", shard[0], 0, world - 1), whole_number("worker", shard[2], 0, workers - 1)
    return Shard(rank, world, worker, workers)


def _end_epoch(stats: Stats, job: str | Job, epoch: int) -> None:
    stats.end_epoch(epoch)
    if not isinstance(job, str):
        job.report_reads(stats)


def _directly(name: str, make: Callable[[], list[Any]]) -> list[Any]:
    return make()


def _refuse_other_ranks(job: Job, start: Progress) -> None:
    """Refuse ranks that would each read everything: every item would silently come several times."""
    if job.ranks > 1 and start.world != job.ranks:
        raise ValueError(
            f"the job {job.name!r} has {job.ranks} ranks, but this is rank {start.rank} of {start.world}: give the loader's "
            f"epoch() shard=larder.Shard(rank, {job.ranks}, 0, 1), or a CachedDataset rank= and world={job.ranks}"
        )
