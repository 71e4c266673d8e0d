"""Loading a dataset in batches, each item exactly once per epoch, from whatever the gateway has at hand.

This joins the pure planner (`larder.planner`), which says what may come next, and a reader (`larder.BatchReader`), which asks
the gateway for it. Quiver's Algorithm 1 (FAST 2020, section 4.7) is the shape of it: ask for more items than a batch needs, use
those that are in the cache, keep the others for later.

Without a framework::

    loader = larder.Loader("http://gateway:9000", "imagenet-train", batch_size=256, seed=1)
    for epoch in range(90):
        for batch in loader.epoch(epoch):
            step(batch.data)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, TypedDict, Unpack

from larder.ahead import Work
from larder.background import Background
from larder.dataset import DatasetInfo
from larder.errors import StateError
from larder.job import Agreement, Job
from larder.keys import Keys
from larder.planner import EpochOrder, EpochPlan, Layout, Progress, Shard
from larder.run import Batch, EpochRun
from larder.source import Access, DatasetName, GatewaySource, Reader, Source
from larder.stats import Stats

__all__ = ["Batch", "EpochRun", "Loader", "LoaderOptions", "Shard"]

Once = Callable[[str, Callable[[], list[Any]]], list[Any]]
"""Gives a value of JSON types by its name, made by the first who asks."""

ALONE = Shard(0, 1, 0, 1)
"""A process that loads everything itself."""

_CHOICES = {
    "tail": ("short", "drop", "pad"),
    "on_missing": ("raise", "skip"),
    "group": ("mixed", "unit"),
    "layout": ("auto", "striped", "shuffled"),
    "ahead": (0, 1),
}


class LoaderOptions(TypedDict, total=False):
    """Everything about a `Loader` that has a default.

    Args:
        substitute: candidates per item of a batch (10). More of them find more items in the cache at any moment; 1 keeps
            to the order of the epoch exactly.
        seed: of the order (0). Epoch ``e`` of a seed always has the same order.
        tail: the end of an epoch (``"short"``): ``"short"``: the last batch has what is left; ``"drop"``: full batches only;
            ``"pad"``: the last batch is filled up with repetitions. Every rank gets equally many batches.
        group: ``"mixed"``: batches from all over a chunk; ``"unit"``: from one stretch of the dataset, as far as possible.
        layout: how items form chunks (``"auto"``): ``"striped"`` for caches that rotate chunks, ``"shuffled"`` for all others,
            ``"auto"`` by what the gateway says of the dataset when it is first asked, and striped with a `Job`, whose dataset
            may be rotated at any time. It must be the same on all ranks.
        on_missing: an item that cannot be had (``"raise"``): raise, or ``"skip"`` it and count it.
        ahead: 1: the next batch is fetched while the last is used. 0: it is not.
        job: the training run, a `larder.Job` or only its name, for the gateway's decisions (""). With a `Job` all ranks take the
            chunks of an epoch in the order that the fleet gives.
        access: credentials, timeouts and what to do without the gateway.
        source: where items come from instead of ``endpoint`` and ``dataset``, such as `larder.testing.MemorySource`.
    """

    substitute: int
    seed: int
    tail: str
    group: str
    layout: str
    on_missing: str
    ahead: int
    job: str | Job
    access: Access
    source: Source


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A loader's options, checked."""

    batch_size: int
    substitute: int = 10
    seed: int = 0
    tail: str = "short"
    group: str = "mixed"
    layout: str = "auto"
    on_missing: str = "raise"
    ahead: int = 1
    job: str | Job = ""
    access: Access | None = None
    source: Source | None = None

    def __post_init__(self) -> None:
        for name in ("batch_size", "substitute"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {value!r}")
        if not isinstance(self.seed, int) or isinstance(self.seed, bool):
            raise ValueError(f"seed must be a whole number, not {self.seed!r}")
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {getattr(self, name)!r}")

    @property
    def job_name(self) -> str:
        """Name of the training run."""
        return self.job if isinstance(self.job, str) else self.job.name

    @classmethod
    def of(cls, batch_size: int, options: Mapping[str, Any]) -> Settings:
        """Options as settings.

        Raises:
            TypeError: there is no such option.
            ValueError: an option has a value that it cannot have.
        """
        known = [each.name for each in fields(cls) if each.name != "batch_size"]
        if strange := sorted(options.keys() - known):
            raise TypeError(f"unknown option {', '.join(strange)}; there are {', '.join(known)}")
        return cls(batch_size=batch_size, **options)


class Loader:
    """Loads a dataset in batches. Makes no request until it is used; can be forked, pickled and copied.

    Args:
        endpoint: address of the gateway.
        dataset: its name, its digest file (a path or ``s3://bucket/key``), or what `Client.register` returned.
        batch_size: items of a batch.
        options: see `LoaderOptions`.

    Raises:
        ValueError: an option has a value that it cannot have.
        TypeError: there is no such option.
    """

    def __init__(
        self, endpoint: str, dataset: DatasetName, *, batch_size: int, **options: Unpack[LoaderOptions]
    ) -> None:
        self.settings = Settings.of(batch_size, options)
        self.source = self.settings.source or GatewaySource(endpoint, dataset, self.settings.access)
        self.stats = Stats()
        self._background = Background()
        self._info: DatasetInfo | None = None
        self._reader: Reader | None = None
        self._keys: Keys | None = None
        self._agreed: Agreement | None = None

    @property
    def known(self) -> DatasetInfo | None:
        """The dataset, if it was asked for already."""
        return self._info

    @property
    def info(self) -> DatasetInfo:
        """The dataset. The gateway is asked once; this is where requests begin, and their errors."""
        if self._info is None:
            self.info = self.source.describe()
        assert self._info is not None
        return self._info

    @info.setter
    def info(self, info: DatasetInfo) -> None:
        self._info = info
        self.stats.order.items = info.items

    @property
    def reader(self) -> Reader:
        """What reads the items."""
        if self._reader is None:
            self._reader = self.source.reader(self.info, self.stats)
        return self._reader

    @property
    def keys(self) -> Keys:
        """Bucket and key of every item; asked of the gateway once, 10,000 at a time."""
        if self._keys is None:
            self._keys = Keys(self.source.locations(self.info))
        return self._keys

    def locate(self, index: int) -> tuple[str, str]:
        """Bucket and key of one item."""
        if self._keys is not None:
            return self._keys[index]
        (location,) = self.source.locations(self.info, index, 1)
        return location.bucket, location.key

    def epoch(self, epoch: int, *, shard: Shard = ALONE, state: Mapping[str, Any] | None = None) -> EpochRun:
        """The batches of one epoch, for one worker of one rank.

        A loader knows nothing of ranks but what ``shard`` says: ``RANK`` and ``WORLD_SIZE`` are read by
        `larder.torch.CachedDataset` only. One of several ranks gives ``Shard(rank, world, 0, 1)``.

        Args:
            epoch: its number, from 0.
            shard: whose batches; left out, all of them.
            state: what ``EpochRun.state_dict`` said when it was saved; the epoch goes on from there, in the order it had.

        Raises:
            StateError: the state is of another dataset or epoch, or does not fit the shard.
            ValueError: the loader's `Job` is for another dataset, or has several ranks, and not as many as the shard says.
            GatewayUnavailable: the loader has a `Job`, and nobody says which order the epoch has.
        """
        start = self.start(epoch, shard.rank, shard.world) if state is None else self.restored(state, shard)
        if start.epoch != epoch:
            raise StateError(f"the state is of epoch {start.epoch}, but epoch {epoch} was asked for")
        return self.run(self.begin(start), shard)

    def batches(self, rank: int = 0, world: int = 1) -> int:
        """How many batches a rank gets in a whole epoch."""
        settings = self.settings
        return self.start(0, rank, world).batches(settings.batch_size, settings.tail)

    def start(self, epoch: int, rank: int, world: int) -> Progress:
        """Nothing delivered of an epoch."""
        order = EpochOrder(self._layout(), seed=self.settings.seed, epoch=epoch, group=self.settings.group)
        return Progress.start(self.info.id, order, rank, world)

    def restored(self, state: Mapping[str, Any], shard: Shard) -> Progress:
        """A saved state, as this rank goes on from it.

        Raises:
            StateError: it is damaged, of another dataset, or of another rank or world size and not merged.
        """
        progress = Progress.from_json(state, dataset=self.info.id)
        if progress.layout.items != self.info.items:
            raise StateError(f"the state is of {progress.layout.items} items, the dataset has {self.info.items}")
        mine = progress.of_rank(shard.rank, shard.world)
        return mine.settled(self.settings.batch_size, self.settings.tail).renewed()

    def begin(self, start: Progress, once: Once | None = None) -> Progress:
        """A state as its epoch begins: with the order of chunks that the fleet gives to the job, if there is a `Job`.

        The order of an epoch of which something was delivered stays what it was.

        Args:
            start: of a rank.
            once: asks once for all processes that load for this rank.

        Raises:
            ValueError: the job has several ranks, but not as many as ``start`` says, or is for another dataset.
            GatewayUnavailable: nobody says which order the epoch has; a rank that guessed could deliver items twice.
        """
        job = self.settings.job
        if isinstance(job, str):
            return start
        _refuse_other_ranks(job, start)
        free = start.layout.kind == "striped" and not start.begun
        proposal = replace(start, chunks=None).order().numbers if free else None
        asked = f"{'order' if free else 'advice'}/{start.epoch}"
        agreed = (once or _directly)(asked, lambda: list(job.agree(start.epoch, proposal, self.info)))
        self._agreed = Agreement(*agreed)
        return replace(start, chunks=tuple(agreed[0])) if free else start

    def run(self, start: Progress, shard: Shard, own: Progress | None = None) -> EpochRun:
        """The batches that are left after ``start``, and after ``own`` of this very worker."""
        settings = self.settings
        agreed = self._agreed or Agreement(None, self.info.caching, preload=False)
        chunked = agreed.caching == "chunked" and not agreed.preload
        in_order = start.layout.kind != "shuffled" and isinstance(settings.job, Job)
        plan = EpochPlan(
            start.order(),
            shard,
            batch_size=settings.batch_size,
            substitute=settings.substitute,
            # A fleet that rotates chunks waits for one to be used up before it lets go of it and loads the next but one.
            reach=0 if in_order else 1,
            tail=settings.tail,
            progress=start,
            own=own,
            dataset=self.info.id,
            following=start.next_epoch().order() if chunked else None,
            prefetch_first=chunked,
        )
        work = Work(self.reader, self.stats, self._background if settings.ahead else None, chunked, self._preloaded)
        if own is None:
            # What was skipped and padded before is told by one worker only, so that the sum over all of them is right.
            own = start if shard.worker == 0 else replace(start, skipped=0, padded=0)
        return EpochRun(plan, own, settings, work)

    def _preloaded(self) -> bool:
        """Whether the fleet loads chunks by itself, as far as is known now: a plan may be made in the middle of an epoch."""
        job = self.settings.job
        directives = None if isinstance(job, str) else job.directives
        return directives is not None and directives.preload

    def _layout(self) -> Layout:
        info, kind = self.info, self.settings.layout
        if kind == "auto":
            rotated = info.caching == "chunked" or not isinstance(self.settings.job, str)
            kind = "striped" if rotated else "shuffled"
        return Layout(info.items, info.partitions, info.units, kind, int(info.id[:16], 16))

    def __getstate__(self) -> dict[str, Any]:
        # Two copies that counted into the same object would count things twice, and a reader counts into the one it has.
        return {**self.__dict__, "stats": Stats(), "_reader": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._info is not None:
            self.stats.order.items = self._info.items


def _directly(name: str, make: Callable[[], list[Any]]) -> list[Any]:
    return make()


def _refuse_other_ranks(job: Job, start: Progress) -> None:
    """Ranks that each read everything deliver every item several times, and no error would say so."""
    if job.ranks > 1 and start.world != job.ranks:
        raise ValueError(
            f"the job {job.name!r} has {job.ranks} ranks, but this is rank {start.rank} of {start.world}: give the loader's "
            f"epoch() shard=larder.Shard(rank, {job.ranks}, 0, 1), or a CachedDataset rank= and world={job.ranks}"
        )
