"""A training run that the fleet knows: it is timed, follows what the fleet decides, and takes its chunks in the fleet's order.

::

    with larder.Job("http://gateway:9000", "resnet-17", "imagenet-train", batch_size=256, gpus=8) as job:
        dataset = CachedDataset("http://gateway:9000", "imagenet-train", batch_size=256, job=job)
        loader = job.watch(DataLoader(dataset, batch_size=None, num_workers=8))
        for epoch in range(90):
            for batch in loader:
                step(batch)

What the fleet does for a job, and for a dataset that several jobs read, is decided by one of the gateways from what jobs say of
themselves (Quiver, FAST 2020, sections 4.5 and 5). Two rules keep that harmless. Heartbeats are advice: when they fail, training
does not notice. The order of an epoch's chunks is no advice, since ranks that guessed could deliver an item twice or never: it
is asked for until somebody answers, for as long as a batch would be.
"""

from __future__ import annotations

import re
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any, NamedTuple, TypeVar

from larder.api import Api, Busy
from larder.connection import TRANSIENT
from larder.credentials import Credentials, CredentialSource, source_of
from larder.dataset import DatasetInfo
from larder.errors import GatewayUnavailable, RequestRefused
from larder.heart import Heart, JobDirectives, Registration
from larder.loop import Loop
from larder.retry import Patience, Retry
from larder.run import Batch
from larder.source import OUTAGE, Access, DatasetName, GatewaySource, is_file

T = TypeVar("T")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,128}")
_CACHING = ("auto", "on", "off")
_MOST = {"batch_size": 1 << 20, "gpus": 1 << 16, "ranks": 1 << 16}
_PATIENCE = 5.0
"""Seconds that a gateway may be silent towards the thread, which nobody waits for."""
_LEAVING = 1.0
"""Seconds that a job may take to say good-bye."""


class Step:
    """One mini-batch of a loop of one's own, see `Job.timing`."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.waited = 0.0
        self.items = self.hits = 0

    def loaded(self, batch: Batch | None = None) -> None:
        """The data is there: what was spent until now was spent waiting. A `Batch` also says how many items were in the cache."""
        self.waited = time.perf_counter() - self.began
        if batch is not None:
            self.items, self.hits = len(batch), batch.hits


class Job:
    """One rank of a training run. Makes no request until a loader, a watched loop, ``step`` or ``timing`` uses it.

    What the fleet then refuses does not stop training, except where an order is asked for: it is logged (``larder``), each
    kind of refusal once, and ``stats()["last_error"]`` has the last.

    In a process that inherits it by fork, or receives it pickled, as worker processes of a `DataLoader` do, it still asks for
    the order of an epoch, and sends no heartbeats.

    Args:
        endpoint: address of a gateway.
        name: of the training run, 1 to 128 of ``A-Z a-z 0-9 . _ -``; all its ranks give the same, and no other run of the tenant.
        dataset: that it reads: a name, a digest file, or what `Client.register` returned.
        batch_size: items of a mini-batch of one rank.
        gpus: of all ranks together.
        ranks: how many training processes there are.
        rank: which of them this is.
        caching: ``auto``: the fleet finds out whether the job gains from the cache; ``on``, ``off``: it is told.
        credentials: one of the gateway's access keys; ``None`` looks where AWS's tools look.
        retry: how often a request for an epoch's order is repeated; if left out, for two minutes, as batches are.

    Raises:
        ValueError: an argument is out of its range; the message names it.
    """

    def __init__(
        self,
        endpoint: str,
        name: str,
        dataset: DatasetName,
        *,
        batch_size: int,
        gpus: int = 1,
        ranks: int = 1,
        rank: int = 0,
        caching: str = "auto",
        credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None,
        retry: Retry | None = None,
    ) -> None:
        _check(name, caching, batch_size=batch_size, gpus=gpus, ranks=ranks, rank=rank)
        self.name = name
        self._retry = retry
        keys = source_of(credentials)
        named = _Named(endpoint, dataset, Access(credentials=keys, retry=retry))
        said = Registration(name, named, batch_size, gpus, ranks, rank, caching)
        self._heart = Heart(Api(endpoint, credentials=keys, timeout=_PATIENCE), said)
        self._finished = _at_the_end(self, self._heart)
        self._step_at = 0.0

    def __getstate__(self) -> dict[str, Any]:
        return {"name": self.name, "_retry": self._retry, "_heart": self._heart, "_step_at": 0.0}

    @property
    def directives(self) -> JobDirectives | None:
        """What the fleet asked for last; ``None`` before it was asked."""
        return self._heart.directives

    @property
    def ranks(self) -> int:
        """How many training processes there are."""
        return self._heart.registration.ranks

    def watch(self, loader: Iterable[Any]) -> Loop:
        """The same batches, timed. A `DataLoader` of ours is watched as well, as by `larder.torch.watch`."""
        return Loop(self._heart, loader)

    def step(self, items: int = 0, hits: int = 0) -> None:
        """A mini-batch is over, and the next one begins; for loops that are not watched.

        Args:
            items: that it had.
            hits: how many of them were in the cache.
        """
        now = time.perf_counter()
        if self._step_at:
            self._heart.timing.add(now - self._step_at, 0.0, items, hits)
        self._step_at = now
        self._heart.begin()

    @contextmanager
    def timing(self) -> Iterator[Step]:
        """Around one mini-batch, from asking for its data to the end of computing with it; for loops that are not watched."""
        self._heart.begin()
        step = Step()
        yield step
        seconds = time.perf_counter() - step.began
        self._heart.timing.add(seconds, step.waited, step.items, step.hits)

    def agree(self, epoch: int, proposal: tuple[int, ...] | None, dataset: DatasetInfo | None = None) -> Agreement:
        """What is agreed on for an epoch: the same for all ranks and workers of the job, except where it is only advice.

        Args:
            epoch: its number.
            proposal: its chunks in the order that the job would take; ``None`` if the epoch has an order already.
            dataset: that the epoch is of, as far as is known.

        Raises:
            ValueError: the job is registered for another dataset.
            GatewayUnavailable: nobody answered for as long as a batch would be asked for.
            RequestRefused: the gateway refuses the job.
            UnexpectedAnswer: what answers is no gateway that knows of jobs.
        """
        self._heart.begin()
        directives = self._patiently(self._heart.join)
        if dataset is not None:
            self._refuse_another(dataset)
        order = None
        if proposal is not None:
            order = self._patiently(lambda: self._heart.order(epoch, proposal))
        return Agreement(order, directives.caching, directives.preload)

    def stats(self) -> dict[str, Any]:
        """Heartbeats, failed ones, why the last failed, registrations (one, unless the fleet has forgotten the job), nodes that
        can be asked, and what was timed, by phase; of this process."""
        heart = self._heart
        phases = heart.timing.as_json()
        return {**heart.counts, "last_error": heart.last_error, "nodes": heart.nodes, "phases": phases}

    def close(self) -> None:
        """End the job: the fleet forgets it now rather than after a while. Takes a second at most; failing is no error.

        Of several ranks each says only that it has nothing more to do, because an epoch's order must stay until all have it.
        """
        if not self._heart.own or self._heart.stopped.is_set():
            return
        self._heart.leave(_LEAVING)
        self._finished()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._finished()  # it expires by itself, unless it is resumed before that

    def _refuse_another(self, dataset: DatasetInfo) -> None:
        known = self._heart.dataset
        if known and known != dataset.id:
            raise ValueError(
                f"the job {self.name!r} is for the dataset {str(self._heart.registration.dataset)!r} (id {known[:12]}...), but "
                f"the loader reads {dataset.name!r} (id {dataset.id[:12]}...): give both the same"
            )

    def _patiently(self, call: Callable[[], T]) -> T:
        """As long as a batch would be asked for; a job that the fleet has forgotten is registered again."""
        patience = Patience(self._retry or Retry(outage=OUTAGE))
        while True:
            pause = 0.0
            failure: Exception
            try:
                return call()
            except RequestRefused as error:
                if error.code != "UnknownJob":
                    raise
                cause, failure = "unknown", error
                with suppress(Busy, GatewayUnavailable, *TRANSIENT):
                    self._heart.register()
            except Busy as error:
                cause, pause, failure = "busy", error.retry_after, error
            except GatewayUnavailable as error:  # of the dataset, which is registered first
                cause, failure = "dataset", error.__cause__ if isinstance(error.__cause__, Exception) else error
            except TRANSIENT as error:
                cause, failure = "connection", error
            drawn = patience.pause(cause)
            if drawn is None:
                raise GatewayUnavailable(self._heart.api.endpoint, patience.failures, failure) from failure
            time.sleep(max(drawn, pause))


class Agreement(NamedTuple):
    """``chunks``: of an epoch, in their order; ``caching``: of the dataset; ``preload``: whether the fleet loads chunks."""

    chunks: tuple[int, ...] | None
    caching: str
    preload: bool


class _Named:
    """What a job calls its dataset: its name or id; a digest file is registered before."""

    def __init__(self, endpoint: str, dataset: DatasetName, access: Access) -> None:
        self._source = GatewaySource(endpoint, dataset, access)
        self._dataset = dataset
        self._id = ""

    def __call__(self) -> str:
        dataset = self._dataset
        if isinstance(dataset, DatasetInfo):
            return dataset.id
        if isinstance(dataset, str) and not is_file(dataset):
            return dataset
        self._id = self._id or self._source.describe().id
        return self._id

    def __str__(self) -> str:
        dataset = self._dataset
        return dataset.name if isinstance(dataset, DatasetInfo) else str(dataset)

    def forget(self) -> bool:
        """See `larder.heart.Named`."""
        if isinstance(self._dataset, DatasetInfo) or not is_file(self._dataset):
            return False
        self._id = ""
        return True


def _at_the_end(job: Job, heart: Heart) -> Any:
    """Ends the thread of a job that nobody has any more, and at the end of the interpreter."""
    return weakref.finalize(job, heart.stopped.set)


def _check(name: str, caching: str, **numbers: int) -> None:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ValueError(f"a job's name is 1 to 128 of A-Z a-z 0-9 . _ -, not {name!r}")
    if caching not in _CACHING:
        raise ValueError(f"caching must be one of {', '.join(_CACHING)}, not {caching!r}")
    for argument, most in _MOST.items():
        value = numbers[argument]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ValueError(f"{argument} must be a whole number from 1 to {most}, not {value!r}")
    if not isinstance(numbers["rank"], int) or not 0 <= numbers["rank"] < numbers["ranks"]:
        raise ValueError(f"rank must be from 0 to {numbers['ranks'] - 1}, not {numbers['rank']!r}")
