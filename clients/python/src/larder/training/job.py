"""A training run that the fleet knows: timed, and cached by the fleet's directives.

::

    with larder.Job("http://gateway:9000", "resnet-17", "imagenet-train", batch_size=256, gpus=8) as job:
        dataset = CachedDataset("http://gateway:9000", "imagenet-train", batch_size=256, job=job)
        loader = job.watch(DataLoader(dataset, batch_size=None, num_workers=8))
        for epoch in range(90):
            for batch in loader:
                step(batch)

One of the gateways decides for all jobs, from what the jobs report (Quiver, FAST 2020, sections 4.5 and 5). Heartbeats are
advisory: training does not notice when they fail. Only the registration, before the first epoch, is retried as long as a batch,
so that no mini-batch is read before the fleet knows the job.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from types import TracebackType
from typing import Any, TypedDict

from larder.base.dataset import DatasetInfo, MixtureInfo
from larder.base.errors import GatewayUnavailable, RequestRefused
from larder.base.later import Unpack
from larder.base.options import refuse_unknown
from larder.base.retry import Patience, Retry
from larder.base.stats import Stats
from larder.http.api import Api, Busy
from larder.http.connection import TRANSIENT
from larder.http.credentials import Credentials, CredentialSource, endpoint_of, source_of
from larder.reading.mixing import Mix
from larder.reading.source import OUTAGE, Access, DatasetName, GatewaySource, access_of, is_file
from larder.training.heartbeat import HeartbeatThread, JobDirectives, PipelineDirective, Registration
from larder.training.importance import ImportanceReport, ImportanceSender
from larder.training.run import Batch
from larder.training.timing import Counts, TimedLoader, divided

_TIMEOUT = 5.0
"""Seconds of silence after which a request about a job fails."""
_OF_ACCESS = ("access", "credentials", "retry")
_SIGN_OFF = 1.0
"""Seconds that closing a job waits for the fleet."""


class JobOptions(TypedDict, total=False):
    """The options of a `Job` that have a default.

    Args:
        gpus: number of GPUs of all ranks together (1).
        ranks: number of training processes (1).
        rank: number of this training process (0).
        caching: ``"auto"``: the fleet measures whether the job gains from the cache. ``"on"``, ``"off"``: fixed.
        access: like a loader's: credentials, repetition of the registration (by default for two minutes), and how a digest file
            is registered.
        credentials: an access key of the gateway, instead of ``access``.
        retry: repetition of the registration, instead of ``access``.
    """

    gpus: int
    ranks: int
    rank: int
    caching: str
    access: Access
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    retry: Retry | None


class Step:
    """One mini-batch of an unwatched training loop, see `Job.timing`."""

    def __init__(self) -> None:
        self.began = time.perf_counter()
        self.waited = 0.0
        self.items = self.hits = 0

    def loaded(self, batch: Batch | None = None) -> None:
        """The data has arrived: the time until now was spent waiting. A `Batch` also gives its items and cache hits."""
        self.waited = time.perf_counter() - self.began
        if batch is not None:
            self.items, self.hits = len(batch), batch.hits


class Job:
    """One rank of a training run. Sends no request until a loader, a watched loop, ``step`` or ``timing`` uses it.

    A refusal by the fleet does not stop training unless it concerns the registration: it is logged (``larder``), each kind once,
    and ``stats()["last_error"]`` has the latest.

    Copies in other processes (forked or unpickled), such as `DataLoader` workers, register if needed, but send no heartbeats.

    A run on a `larder.Mix` is one job per dataset, called ``name.DATASET``; mini-batches must be watched.

    Args:
        endpoint: address of a gateway; ``None``: ``LARDER_ENDPOINT``, or that of AWS's tools.
        name: of the training run, 1 to 128 of ``A-Z a-z 0-9 . _ -``; the same in all ranks, and unique within the tenant.
        dataset: its name, its digest file, the result of `Client.register`, or the loader's `Mix`.
        batch_size: items of a mini-batch of one rank.
        options: see `JobOptions`.

    Raises:
        ValueError: an argument is out of range; the message names it. Or there is no endpoint.
        TypeError: unknown option.
    """

    def __init__(
        self,
        endpoint: str | None,
        name: str,
        dataset: DatasetName | Mix,
        *,
        batch_size: int,
        **options: Unpack[JobOptions],
    ) -> None:
        refuse_unknown(options, "batch_size", *JobOptions.__annotations__)
        self.name = name
        access = access_of(options.get("access"), options.get("credentials"), options.get("retry"))
        self._retry, credentials = access.retry, source_of(access.credentials)
        endpoint = endpoint_of(endpoint)
        described: dict[str, Any] = {key: value for key, value in options.items() if key not in _OF_ACCESS}
        self.datasets: tuple[str, ...] = dataset.names if isinstance(dataset, Mix) else ()
        """The datasets of a mixture, by the names that the loader gives them; empty for a single dataset."""
        named: list[tuple[str, DatasetName]]
        if isinstance(dataset, Mix):
            named = list(zip(dataset.jobs(name), dataset.datasets, strict=True))
        else:
            named = [(name, dataset)]
        self._parts = tuple(
            HeartbeatThread(
                Api(endpoint, credentials=credentials, timeout=_TIMEOUT),
                Registration(
                    part,
                    _DatasetReference(endpoint, of_part, replace(access, credentials=credentials)),
                    batch_size,
                    **described,
                ),
            )
            for part, of_part in named
        )
        self._heartbeat = self._parts[0]
        self._stop = _stop_with(self, self._parts)
        self._step_at = 0.0
        self._sender: ImportanceSender | None = None

    def __getstate__(self) -> dict[str, Any]:
        names = ("name", "datasets", "_retry", "_parts", "_heartbeat")
        return {**{name: self.__dict__[name] for name in names}, "_step_at": 0.0, "_sender": None}

    def __repr__(self) -> str:
        registration = self._heartbeat.registration
        return f"Job({self.name!r}, batch_size={self.batch_size}, rank {registration.rank} of {self.ranks})"

    @property
    def directives(self) -> JobDirectives | None:
        """The fleet's latest directives, for a mixture those of its first dataset; ``None`` before the first answer."""
        return self._heartbeat.directives

    @property
    def ranks(self) -> int:
        """Number of training processes."""
        return self._heartbeat.registration.ranks

    @property
    def batch_size(self) -> int:
        """Items of a mini-batch of one rank."""
        return self._heartbeat.registration.batch_size

    @property
    def workers(self) -> int | None:
        """Input workers that this rank's pipeline should have; ``None`` before the fleet has decided."""
        return self._heartbeat.pipeline_directive.workers

    @property
    def pipeline_directive(self) -> PipelineDirective:
        """The fleet's instructions for this rank's pipeline: its workers, and the mark to store and read."""
        return self._heartbeat.pipeline_directive

    def report_epoch(self, epoch: int) -> None:
        """Report the epoch that a `larder.pipeline` reads."""
        self._heartbeat.epoch = epoch

    def report_step(self, seconds: float, waited: float, items: int, hits: int, in_flight: int) -> None:
        """Report a mini-batch of a `larder.pipeline`, so that the fleet can measure whether the job gains from the cache.

        Args:
            seconds: from the request for its data to the next request.
            waited: the part of these spent waiting for data.
            items: read in that time.
            hits: how many of them were in the cache.
            in_flight: mini-batches whose items were read, or are being read.
        """
        self._heartbeat.timing.in_flight = in_flight
        self._heartbeat.timing.add(seconds, waited, items, hits)
        self._heartbeat.begin()

    def report_reads(self, stats: Stats) -> None:
        """Report the origin reads of a loader's last whole epoch."""
        if not self.datasets:
            self._heartbeat.finished = stats.epochs.last
        for name, part in zip(self.datasets, self._parts, strict=False):
            if name in stats.by_dataset:
                part.finished = stats.by_dataset[name].epochs.last

    def report_pipeline(self, batch_time: float, queue: float, workers: int, cache: int | None = None) -> None:
        """Report the measurements of a `larder.pipeline`, so that the fleet can find the number of its workers.

        Args:
            batch_time: seconds per batch, waiting and computation.
            queue: batches that were ready, on average.
            workers: number of input workers at that time.
            cache: the mark that was stored or read; ``None`` if everything was computed.
        """
        self._heartbeat.pipeline = {"batch_time": batch_time, "queue": queue, "workers": workers, "cache": cache}
        self._heartbeat.begin()

    def report_profile(self, profile: dict[str, object]) -> None:
        """Report the costs of the stages of a `larder.pipeline`, so that the fleet can decide what to store.

        Args:
            profile: as `larder.pipelines.metering.ProfileMeter` makes it.
        """
        self._heartbeat.profile = profile
        self._heartbeat.begin()

    def begin_pipeline(self, profile: dict[str, object]) -> PipelineDirective:
        """Report the start of a `larder.pipeline`; returns the fleet's instructions once it has decided, or the last ones after
        five seconds, or if it does not answer.

        Args:
            profile: without elements, as `larder.pipelines.metering.ProfileMeter` makes it.
        """
        if self._heartbeat.own:
            self._heartbeat.ask(profile)
        return self.pipeline_directive

    def watch(self, loader: Iterable[Any]) -> TimedLoader:
        """The same batches, timed. Loaders of `larder.torch` datasets are also watched, as by `larder.torch.watch`."""
        return TimedLoader(_MixtureObserver(self.datasets, self._parts) if self.datasets else self._heartbeat, loader)

    def step(self, items: int = 0, hits: int = 0) -> None:
        """End one mini-batch and begin the next, in a loop that is not watched.

        Args:
            items: of the mini-batch that ends.
            hits: how many of them were in the cache.
        """
        self._refuse_mixture("step()")
        now = time.perf_counter()
        if self._step_at:
            self._heartbeat.timing.add(now - self._step_at, 0.0, items, hits)
        self._step_at = now
        self._heartbeat.begin()

    @contextmanager
    def timing(self) -> Iterator[Step]:
        """Time one mini-batch of a loop that is not watched: from the request for its data to the end of the computation."""
        self._refuse_mixture("timing()")
        self._heartbeat.begin()
        step = Step()
        yield step
        seconds = time.perf_counter() - step.began
        self._heartbeat.timing.add(seconds, step.waited, step.items, step.hits)

    def join(self, dataset: DatasetInfo | None = None) -> str:
        """Register the job if needed, and return the caching mode of its dataset; for a mixture ``full`` if anything is stored.

        Args:
            dataset: that the loader reads, if known.

        Raises:
            ValueError: the job is registered for another dataset.
            GatewayUnavailable: no gateway answered within the time that a batch would be retried.
            RequestRefused: the gateway refuses the job.
            UnexpectedAnswer: the endpoint is not a gateway that supports jobs.
        """
        modes = []
        for part in self._parts:
            part.begin()
            modes.append(self._retrying(part).caching)
        if dataset is not None:
            self._require_same(dataset)
        return modes[0] if len(modes) == 1 else "none" if set(modes) == {"none"} else "full"

    def stats(self) -> dict[str, Any]:
        """Counts of this process: heartbeats, failures, the last failure's message, registrations (more than one if the fleet
        forgot the job), nodes that can replace the gateway, timing by phase, and reports of importance, if any. For a mixture the
        sums, and ``datasets`` with the counts of each."""
        if self.datasets:
            parts = {name: _stats_of(part) for name, part in zip(self.datasets, self._parts, strict=True)}
            sums = {name: sum(stats[name] for stats in parts.values()) for name in self._heartbeat.counts}
            errors = [stats["last_error"] for stats in parts.values() if stats["last_error"]]
            nodes = max(stats["nodes"] for stats in parts.values())
            return {**sums, "last_error": errors[0] if errors else "", "nodes": nodes, "datasets": parts}
        stats = _stats_of(self._heartbeat)
        return stats if self._sender is None else {**stats, "importance": dict(self._sender.counts)}

    def report_importance(self, report: ImportanceReport, dataset: DatasetInfo) -> None:
        """Report to the gateways how important items are and which will be read. Returns at once; ``stats()`` counts failures.

        Args:
            report: the scores at the beginning of an epoch; those of samples, if the dataset has samples.
            dataset: of the items.
        """
        self._refuse_mixture("importance")
        if not self._heartbeat.own:
            return
        report = report.of_members(dataset.members)
        if self._sender is None or self._sender.dataset.id != dataset.id:
            self._sender = ImportanceSender(self._heartbeat, dataset)
            self._heartbeat.chores = (self._sender.send,)
        self._sender.offer(report)
        self._heartbeat.begin()

    def close(self) -> None:
        """End the job, so that the fleet forgets it at once. Takes a second at most; failures are ignored.

        With several ranks, each only sends its last report, because the others may still train.
        """
        if not self._heartbeat.own or self._heartbeat.stopped.is_set():
            return
        for part in self._parts:
            part.leave(_SIGN_OFF / len(self._parts))
        self._stop()

    def __enter__(self) -> Job:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.close()
        else:
            self._stop()  # the registration expires unless the job resumes

    def _require_same(self, dataset: DatasetInfo) -> None:
        read = dataset.parts if isinstance(dataset, MixtureInfo) else (dataset,)
        if len(read) != len(self._parts):
            raise ValueError(
                f"the job {self.name!r} is for {len(self._parts)} datasets, but the loader reads {len(read)}"
            )
        for part, info in zip(self._parts, read, strict=True):
            if part.dataset and part.dataset != info.id:
                raise ValueError(
                    f"the job {self.name!r} is for the dataset {str(part.registration.dataset)!r} (id {part.dataset[:12]}...), "
                    f"but the loader reads {info.name!r} (id {info.id[:12]}...): give both the same"
                )

    def _refuse_mixture(self, what: str) -> None:
        if self.datasets:
            raise ValueError(
                f"the job {self.name!r} is for a mixture, whose datasets {what} cannot tell apart: use watch()"
            )

    def _retrying(self, part: HeartbeatThread) -> JobDirectives:
        """The directives of a dataset, with retries as for a batch; registers the job again if the fleet forgot it."""
        patience = Patience(self._retry or Retry(outage=OUTAGE))
        while True:
            pause = 0.0
            failure: Exception
            try:
                return part.join()
            except RequestRefused as error:
                if error.code != "UnknownJob":
                    raise
                cause, failure = "unknown", error
                with suppress(Busy, GatewayUnavailable, *TRANSIENT):
                    part.register()
            except Busy as error:
                cause, pause, failure = "busy", error.retry_after, error
            except GatewayUnavailable as error:  # registering the dataset, which comes first
                cause, failure = "dataset", error.__cause__ if isinstance(error.__cause__, Exception) else error
            except TRANSIENT as error:
                cause, failure = "connection", error
            drawn = patience.pause(cause)
            if drawn is None:
                raise GatewayUnavailable(part.api.endpoint, patience.failures, failure) from failure
            time.sleep(max(drawn, pause))


class _DatasetReference:
    """A `larder.training.heartbeat.DatasetReference` that registers a digest file when it is first resolved."""

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

    def invalidate(self) -> bool:
        """See `larder.training.heartbeat.DatasetReference`."""
        if isinstance(self._dataset, DatasetInfo) or not is_file(self._dataset):
            return False
        self._id = ""
        return True


class _MixtureObserver:
    """Divides the measurements of a mixture among the jobs of its datasets."""

    def __init__(self, names: tuple[str, ...], parts: tuple[HeartbeatThread, ...]) -> None:
        self._parts = dict(zip(names, parts, strict=True))

    @property
    def epoch(self) -> int:
        """The epoch that the loop reads."""
        return min(part.epoch for part in self._parts.values())

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        for part in self._parts.values():
            part.epoch = epoch

    def begin(self, in_flight: int | None = None) -> None:
        """See `larder.training.timing.Observer`."""
        for part in self._parts.values():
            part.begin(in_flight)

    def step(self, seconds: float, waited: float, counts: Counts, in_flight: int) -> None:
        """See `larder.training.timing.Observer`."""
        read = {name: counts.get(name, (0, 0)) for name in self._parts}
        for name, times in divided(seconds, waited, read).items():
            self._parts[name].step(*times, {"": read[name]}, in_flight)


def _stats_of(part: HeartbeatThread) -> dict[str, Any]:
    return {**part.counts, "last_error": part.last_error, "nodes": part.nodes, "phases": part.timing.as_json()}


def _stop_with(job: Job, parts: tuple[HeartbeatThread, ...]) -> Any:
    """Stops the threads when the job is garbage-collected, and when the interpreter exits."""
    return weakref.finalize(job, _stop, parts)


def _stop(parts: tuple[HeartbeatThread, ...]) -> None:
    for part in parts:
        part.stop()
