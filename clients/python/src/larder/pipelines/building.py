"""Pipelines: turn the items of a dataset into batches.

::

    pipeline = (
        larder.pipeline("train", endpoint="http://gateway:9000", seed=1)
        .map(decode)
        .autocache()
        .map(augment)
        .batch(256)
    )
    for epoch in range(90):
        for batch in pipeline:
            step(batch)

A pipeline is a value until it is iterated: it can be copied, pickled and extended, and two pipelines may share a beginning.
Stages on single elements run in input workers, processes of this machine or actors of a Ray cluster; shuffling and batching,
and maps after ``batch``, run in the training process.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypedDict

from larder.base.errors import LarderWarning
from larder.base.later import Unpack
from larder.base.options import refuse_unknown, whole_number
from larder.base.ranks import Ranks, environment_ranks, given_ranks
from larder.http.credentials import Credentials, CredentialSource, endpoint_of
from larder.pipelines.fingerprint import fingerprints
from larder.pipelines.options import RunOptions, filtered, refuse_uneven_elements
from larder.pipelines.ray_pool import WorkerPool
from larder.pipelines.running import EpochElements, EpochStart, PipelineRuntime
from larder.pipelines.stages import AUTOCACHE, FILTER, MAP, MOST_VERSIONS, Stage
from larder.pipelines.stream import PipelineStages, stack
from larder.planner.steps import TAILS
from larder.reading.mixing import refuse_mix
from larder.reading.source import Access, DatasetName, Source, access_of, name_of
from larder.training.job import Job
from larder.training.loader import Loader, Shard

_RUN_OPTIONS = frozenset(field.name for field in fields(RunOptions))
_UNBATCHED = 32
"""Items that a pipeline without ``batch`` takes at a time from the plan of an epoch."""


class PipelineOptions(TypedDict, total=False):
    """The options of a pipeline that have a default.

    Args:
        endpoint: address of the gateway; by default ``LARDER_ENDPOINT``, or that of AWS's tools.
        seed: seed of the order and of all random numbers (0).
        workers: number of input workers; 0: compute in the training process. ``"ray"``, or ``"ray:4"`` for four: actors of a
            Ray cluster. ``"local+ray"``, ``"local+ray:4"``: processes on this machine's cores, and actors beyond them. By default
            one per usable core, or with ``"ray"`` this rank's part of the cluster's free CPUs; with a `larder.Job`, the fleet
            finds the number, starting from one.
        ray_options: of the actors, as ``ray.remote`` takes them, such as ``resources`` (``{"num_cpus": 1}``).
        pool: shares the actors with other pipelines that have the same functions and credentials, and keeps them warm.
        keys: whether the items of the first stage have bucket and key (``False``).
        on_error: for an element whose function raises or hangs: ``"raise"`` `StageFailed` (default), or ``"skip"`` it.
        on_missing: for an item that cannot be read: ``"raise"`` (default), or ``"skip"`` it.
        timeout: seconds after which a function that has not returned counts as hanging (300).
        queue: batches that are computed ahead (8).
        queue_bytes: size of the elements that may wait for the training loop (256 MiB).
        cache: the mode at marks. ``"compute"``: every epoch computes. The number of a mark's stage: its results are read from the
            gateway's cache, and missing ones are computed and stored. ``"auto"`` (default): as the job's fleet decides.
        rank: rank of this training process, if the environment does not have it.
        world: number of training processes.
        job: the training run, a `larder.Job` or only its name.
        access: credentials, timeouts and fallback.
        credentials: an access key of the gateway, instead of ``access``.
        source: source of the items instead of ``endpoint`` and ``dataset``, such as `larder.testing.MemorySource`.
    """

    endpoint: str
    seed: int
    workers: int | str
    ray_options: Mapping[str, Any]
    pool: WorkerPool
    keys: bool
    on_error: str
    on_missing: str
    timeout: float
    queue: int
    queue_bytes: int
    cache: str | int
    rank: int | None
    world: int | None
    job: str | Job
    access: Access
    credentials: Credentials | Callable[[], Credentials] | CredentialSource | None
    source: Source


def pipeline(dataset: DatasetName, **options: Unpack[PipelineOptions]) -> Pipeline:
    """A pipeline over the items of a dataset. Sends no request until it is iterated.

    Args:
        dataset: its name, its digest file (a path or ``s3://bucket/key``), or the result of `Client.register`.
        options: see `PipelineOptions`.

    Raises:
        ValueError: invalid value of an option, or there is no endpoint.
        TypeError: unknown option.
    """
    refuse_unknown(options, *PipelineOptions.__annotations__)
    refuse_mix(dataset, "a pipeline")
    return Pipeline(dataset, options)


@dataclass
class _Place:
    """The iterations of a pipeline."""

    epoch: int = 0
    state: Mapping[str, Any] | None = None


class Pipeline:
    """A chain of stages over a dataset; made by `larder.pipeline`.

    Each complete iteration advances the epoch; one is complete with its last batch, whether or not the loop asks for another.
    After a ``break`` or an error the next iteration repeats the same epoch from its beginning, unless a state is loaded:
    ``pipeline.load_state_dict(pipeline.state_dict())`` continues where the loop was. There is one iteration at a time: a loop
    that continues after another one has begun gets `StateError`.

    Args:
        dataset: see `larder.pipeline`.
        options: see `PipelineOptions`.
        stages: the stages, by the methods below.
    """

    def __init__(self, dataset: DatasetName, options: PipelineOptions, stages: PipelineStages | None = None) -> None:
        self._dataset = dataset
        self._options = options
        self._stages = stages or PipelineStages()
        self.ranks: Ranks | None = given_ranks(options.get("rank"), options.get("world"))
        passed: dict[str, Any] = {name: value for name, value in options.items() if name in _RUN_OPTIONS}
        self._runtime = PipelineRuntime(RunOptions(**passed))
        self._access = access_of(options.get("access"), options.get("credentials"))
        if options.get("source") is None:
            endpoint_of(options.get("endpoint"))
        self._loader: Loader | None = None
        self._place = _Place()
        self._iteration: EpochElements | None = None

    def __repr__(self) -> str:
        stages = self._stages
        named = [str(stage).partition(", ")[2] for stage in stages.elements]
        named += [f"shuffle({stages.shuffle})"] if stages.shuffle else []
        named += [f"batch({stages.batch})"] if stages.batch else []
        named += [str(stage).partition(", ")[2] for stage in stages.batches]
        return ".".join([f"pipeline({name_of(self._dataset)!r})", *named])

    def __len__(self) -> int:
        """Number of batches in a whole epoch of this rank, or of elements without ``batch``; the same after a resume.

        Raises:
            TypeError: it is known only at the end of an epoch, because a single rank filters or skips elements.
            UnevenRanks: ranks cannot have equally many batches.
        """
        ranks, stages = self.current_ranks(), self._stages
        if filtered(stages, self._runtime.options) and not (stages.batch and ranks.world > 1):
            raise TypeError("a pipeline that filters or skips elements has no length")
        loader = self._open()
        if stages.batch:
            return loader.batches(*ranks)
        start = loader.start(0, *ranks)
        refuse_uneven_elements(start, filtered=False)
        return start.share().size

    def map(self, function: Callable[[Any], Any]) -> Pipeline:
        """Replace each element by ``function(element)``; after ``batch``, each batch.

        The first function gets an item: ``index``, ``data`` and, with ``keys``, ``bucket`` and ``key``. The results of the last
        stage, and elements before a mark, consist of numbers, strings, ``bytes``, numpy arrays, torch tensors, ``None``, and
        dicts, lists and tuples of these.
        """
        stage = Stage(MAP, self._stages.count + 1, _callable(function), _caller())
        if self._stages.batch:
            return self._with(batches=(*self._stages.batches, stage))
        return self._with(elements=(*self._stages.elements, stage))

    def filter(self, function: Callable[[Any], Any]) -> Pipeline:
        """Keep the elements for which ``function(element)`` is true.

        With several ranks, the filter is applied to each batch's items, so that all ranks have equally many batches: batches
        become smaller. An empty batch, or one that must be full, is filled with repetitions.

        Raises:
            ValueError: after ``batch``.
        """
        self._before_batch(FILTER)
        stage = Stage(FILTER, self._stages.count + 1, _callable(function), _caller())
        return self._with(elements=(*self._stages.elements, stage))

    def autocache(self, versions: int = 1) -> Pipeline:
        """Mark a point up to which results may be stored and used again: put it before random operations.

        With several ``versions``, it may come after them: each item has so many elements at the mark, which differ in their
        random numbers. Each epoch uses one, and any ``versions`` successive epochs use each once, whether or not they are stored
        (Cachew, ATC 2022, section 7).

        Warns (`LarderWarning`) of functions before a mark of one version that use random numbers, with their lines: stored
        results would be the same in every epoch. Warns of functions without a fingerprint: their results are not stored.

        Args:
            versions: elements of an item at the mark, from 1 to 1000; a multiple of those of earlier marks.

        Raises:
            ValueError: before the first ``map``, where the gateway caches the items themselves; after ``shuffle`` or ``batch``;
                or ``versions`` is out of range.
        """
        self._before_batch(AUTOCACHE)
        if self._stages.shuffle:
            raise ValueError("autocache() is for single elements; put it before shuffle()")
        if not self._stages.elements:
            raise ValueError("autocache() has nothing to store yet: the gateway caches the items; put it after a map()")
        versions = self._checked_versions(versions)
        stages = (*self._stages.elements, Stage(AUTOCACHE, self._stages.count + 1, None, _caller(), versions))
        mark = fingerprints(stages)[stages[-1].number]
        if mark.random and versions == 1:
            where = "; ".join(mark.random)
            warnings.warn(f"results of {stages[-1]} would freeze random numbers: {where}", LarderWarning, stacklevel=2)
        if mark.reason:
            warnings.warn(f"results of {stages[-1]} are not stored: {mark.reason}", LarderWarning, stacklevel=2)
        return self._with(elements=stages)

    def shuffle(self, size: int) -> Pipeline:
        """Deliver elements in a random order, each chosen among the first ``size`` remaining ones.

        The items of an epoch are already in random order.

        Raises:
            ValueError: after ``batch``, twice, or ``size`` is below 1.
        """
        self._before_batch("shuffle")
        if self._stages.shuffle:
            raise ValueError("a pipeline has one shuffle()")
        return self._with(shuffle=whole_number("size", size, 1))

    def batch(self, size: int, *, tail: str = "short", collate: Callable[[list[Any]], Any] | None = None) -> Pipeline:
        """Deliver batches.

        Args:
            size: elements of a batch.
            tail: end of an epoch. ``"short"``: the last batch has the rest; ``"drop"``: full batches only; ``"pad"``: the last
                batch is filled with repetitions. All ranks get equally many batches; where that is impossible with
                ``"short"``, an iteration begins with `UnevenRanks`.
            collate: makes a batch of a list of elements. By default arrays and tensors are stacked, numbers become an array, and
                dicts and tuples are batched by member.

        Raises:
            ValueError: twice, or an argument is out of range.
        """
        self._before_batch("batch")
        if tail not in TAILS:
            raise ValueError(f"tail must be one of {', '.join(map(repr, TAILS))}, not {tail!r}")
        batch = whole_number("size", size, 1)
        return self._with(batch=batch, tail=tail, collate=collate or stack)

    def current_ranks(self) -> Ranks:
        """Rank and number of training processes: as given, else those of the environment."""
        return self.ranks or environment_ranks()

    @property
    def epoch(self) -> int:
        """Number of the current epoch; between two epochs, of the next one."""
        return int(self.state_dict()["epoch"])

    def set_epoch(self, epoch: int) -> None:
        """Begin this epoch with the next iteration.

        Raises:
            ValueError: the epoch is not a whole number of at least 0.
        """
        place = _Place(whole_number("epoch", epoch, 0))
        self._forget("another epoch was set while this iteration was under way; begin a new one")
        self._place = place

    def with_ranks(self, rank: int, world: int) -> Pipeline:
        """The same pipeline, for one of several training processes."""
        return self._derived(self._stages, given_ranks(rank, world))

    def __iter__(self) -> Iterator[Any]:
        self._forget("another iteration over this pipeline has begun; copy the pipeline (copy.copy) for two at a time")
        loader = self._open()
        ranks = self.current_ranks()
        start = EpochStart(ranks, self._place.epoch, self._place.state)
        elements = EpochElements(loader, self._stages, self._runtime, start)
        self._iteration = elements
        return self._through(elements)

    def _through(self, elements: EpochElements) -> Iterator[Any]:
        yield from elements
        if self._iteration is elements:  # with a filter, the last batch is known only now
            self._place, self._iteration = _Place(elements.epoch + 1), None

    def state_dict(self) -> dict[str, Any]:
        """The state to save, of JSON types: exactly the batches that the training loop has received.

        States of several ranks are merged by `larder.merge_states`.
        """
        if self._iteration is not None:
            return self._iteration.state_dict()
        ranks = self.current_ranks()
        if self._place.state is not None:
            return dict(self._place.state)
        loader = self._open()
        return self._runtime.owned(loader.start(self._place.epoch, *ranks), loader.settings.job_name).to_json()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a saved state with the next iteration.

        Raises:
            StateError: the state is damaged or of another dataset.
        """
        self._forget("a state was loaded while this iteration was under way; begin a new one")
        ranks = self.current_ranks()
        epoch = self._open().restored(state, Shard(*ranks, 0, 1)).epoch
        self._place = _Place(epoch, dict(state))

    def stats(self) -> dict[str, Any]:
        """Counts of all iterations: ``elements``, ``dropped`` and ``skipped`` ones, ``repeated`` in their place, batches, the
        present workers and those of them on a cluster, workers that died, and by stage the number of elements, seconds per
        element including all earlier stages, and bytes per element; ``results`` by mark: elements ``read``, ``computed``,
        ``stored``, ``refused``, and ``damaged`` ones, which were computed again."""
        return self._runtime.stats(self._stages.elements)

    def scale(self, workers: int) -> None:
        """Change the number of input workers, also in the middle of an epoch; its elements and their order stay the same.

        Raises:
            ValueError: the pipeline was made with ``workers=0``, or the number is below 1.
        """
        self._runtime.scale(workers)

    def set_cache(self, mark: int | None) -> None:
        """Read and store the results of the mark at this stage, from the next epoch on; ``None``: compute everything. With a job,
        the fleet no longer decides.

        Raises:
            ValueError: there is no such mark, or its results cannot be stored.
        """
        self._runtime.set_cache(mark, self._stages.elements)

    def close(self) -> None:
        """End the input workers. They also end with the training process, and with the last reference to the pipeline."""
        self._forget("the pipeline was closed while this iteration was under way")
        self._runtime.close()

    def __getstate__(self) -> dict[str, Any]:
        return {
            "dataset": self._dataset,
            "options": self._options,
            "stages": self._stages,
            "ranks": self.ranks,
            "place": self._saved_place(),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        Pipeline.__init__(self, state["dataset"], state["options"], state["stages"])
        self.ranks, self._place = state["ranks"], state["place"]

    def _saved_place(self) -> _Place:
        if self._iteration is None:
            return self._place
        state = self._iteration.state_dict()
        return _Place(int(state["epoch"]), state)

    def _upcoming(self) -> _Place:
        """Where the next iteration begins, unless something else is set before."""
        return self._place if self._iteration is None else _Place(self._iteration.progress.epoch)

    def _forget(self, why: str) -> None:
        """End the iteration that is under way, if any; its loop gets `StateError`, not an epoch that is silently short."""
        self._place = self._upcoming()
        if self._iteration is not None:
            self._iteration.cancel(why)
            self._iteration = None

    def _open(self) -> Loader:
        if self._loader is None:
            options = self._options
            passed: dict[str, Any] = {
                name: options[name] for name in ("seed", "on_missing", "job", "source") if name in options
            }
            self._loader = Loader(
                options.get("endpoint"),
                self._dataset,
                batch_size=self._stages.batch or _UNBATCHED,
                substitute=1,
                tail=self._stages.tail,
                access=self._access,
                **passed,
            )
        return self._loader

    def _with(self, **changes: Any) -> Pipeline:
        return self._derived(replace(self._stages, count=self._stages.count + 1, **changes), self.ranks)

    def _derived(self, stages: PipelineStages, ranks: Ranks | None) -> Pipeline:
        """A new pipeline that begins where this one would begin next."""
        derived = Pipeline(self._dataset, self._options, stages)
        derived.ranks, derived._place = ranks, self._upcoming()
        return derived

    def _checked_versions(self, versions: int) -> int:
        versions = whole_number("versions", versions, 1, MOST_VERSIONS)
        for mark in self._stages.elements:
            if versions % mark.versions:
                raise ValueError(
                    f"versions must be a multiple of {mark.versions}, as {mark} comes before, not {versions}"
                )
        return versions

    def _before_batch(self, kind: str) -> None:
        if self._stages.batch:
            raise ValueError(f"{kind}() is for single elements; put it before batch()")


def _callable(function: Any) -> Callable[[Any], Any]:
    if not callable(function):
        raise TypeError(f"a stage needs a function, not {function!r}")
    result: Callable[[Any], Any] = function
    return result


def _caller() -> str:
    """File and line of the call outside of this module, for messages."""
    frame = sys._getframe(2)
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
