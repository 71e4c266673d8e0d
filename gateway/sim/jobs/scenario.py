"""Scenarios as TOML files: datasets, jobs, an origin, a fleet, and the runs to compare.

A run simulates all of these with one kind of caching. Speedups are relative to the first run of the mode ``none`` with the same
jobs.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from gateway.model.errors import ConfigError
from gateway.model.units import parse_duration, parse_size
from gateway.policies.items.datasets import CachingMode

Size = Annotated[int, BeforeValidator(parse_size)]
Seconds = Annotated[float, BeforeValidator(parse_duration)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9._ -]{1,64}$")]
MOST_ITEMS = 1_000_000
T = TypeVar("T", bound=BaseModel)
_OWN_WAY = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*")


class Mode(StrEnum):
    """Caching of items in a run."""

    LARDER = "larder"
    """The manager's plan; batches are filled with available items."""
    LRU = "lru"
    """One shared LRU cache; each job reads in its own order."""
    NONE = "none"
    """No cache: each job reads everything from the origin."""
    STATIC = "static"
    """The first items stay, and nothing is evicted."""
    BELADY = "belady"
    """Belady's MIN: evicts what will be used last, given the orders of all jobs."""


def check_names(**tables: Sequence[Any]) -> None:
    """Refuse two tables of one kind with the same name.

    Raises:
        ValueError: two tables have the same name.
    """
    for what, entries in tables.items():
        names = [table.name for table in entries]
        if twice := next((name for name in names if names.count(name) > 1), ""):
            raise ValueError(f"{what}: the name {twice!r} comes twice")


def _mode(text: object) -> Mode | str:
    if text in list(Mode):
        return Mode(str(text))
    if isinstance(text, str) and _OWN_WAY.fullmatch(text):
        return text
    raise ValueError(f'must be one of {", ".join(Mode)}, or "module:function" for a way of your own')


class SpecTable(BaseModel):
    """A table of a scenario's file; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class OriginSpec(SpecTable):
    """The store behind the cache."""

    bandwidth: Annotated[Size, Field(gt=0, description="Bytes per second of all reads together")]
    latency: Annotated[Seconds, Field(description="Seconds before the first byte of a read")] = 0.0
    sharing: Annotated[
        Literal["fair", "arrival"],
        Field(description="Whether reads at the same time get equal parts, or the first of them all; of every store"),
    ] = "fair"
    unlimited: Annotated[
        tuple[Seconds, Seconds] | None, Field(description="From when until when no store has a limit")
    ] = None


class FleetSpec(SpecTable):
    """The cache, all nodes together."""

    capacity: Annotated[Size, Field(gt=0, description="Bytes that may be cached")]
    bandwidth: Annotated[Size, Field(ge=0, description="Bytes per second that a job gets hits with; 0: no limit")] = 0


class ManagerSpec(SpecTable):
    """The manager's settings, as in the section [manager] of a gateway's configuration."""

    interval: Annotated[Seconds, Field(gt=0, description="Seconds between two decisions")] = 1.0
    probe_batches: Annotated[
        int, Field(ge=0, description="Mini-batches that a new job is refused hits; 0: no probes")
    ] = 100
    probe_every: Annotated[Seconds, Field(gt=0, description="Seconds from one probe of a job to its next")] = 1800.0


class CostSpec(SpecTable):
    """Prices, as in the section [cost] of a gateway's configuration; with one, the manager saves money instead of GPU seconds."""

    gb_read: Annotated[float, Field(ge=0, description="Price of reading a GB from the origin")] = 0.0
    thousand_requests: Annotated[float, Field(ge=0, description="Price of a thousand reads, one per item")] = 0.0
    gpu_hour: Annotated[float, Field(ge=0, description="Price of a GPU for an hour")] = 0.0


class DatasetSpec(SpecTable):
    """A dataset, all items of one size."""

    name: Name
    size: Annotated[Size, Field(gt=0, description="Bytes")]
    item: Annotated[Size, Field(gt=0, description="Bytes of one item; a large one stands for many, and is fast")] = (
        10_000_000
    )
    caching: Annotated[Literal["auto"] | CachingMode, Field(description="As it is registered")] = "auto"
    bandwidth: Annotated[Size, Field(ge=0, description="Of a store of its own; 0: the one that all share")] = 0

    @property
    def items(self) -> int:
        """Number of items."""
        return max(1, round(self.size / self.item))

    @model_validator(mode="after")
    def _not_too_many(self) -> Self:
        if self.items > MOST_ITEMS:
            raise ValueError(f"{self.items} items are more than {MOST_ITEMS}; make item larger")
        return self


class JobSpec(SpecTable):
    """One job, or several of a kind. Times are of one mini-batch."""

    name: Name
    dataset: Name
    count: Annotated[int, Field(ge=1, le=1000, description="How many of them")] = 1
    gpus: Annotated[int, Field(ge=1, le=65536)] = 1
    batch: Annotated[Size, Field(gt=0, description="Bytes of a mini-batch")]
    compute: Annotated[Seconds, Field(gt=0, description="Seconds with all of it in the cache")]
    miss: Annotated[
        Seconds, Field(ge=0, description="Seconds with nothing in it; 0: as the origin's bandwidth has it")
    ] = 0.0
    prefetch: Annotated[
        int, Field(ge=0, le=1000, description="Mini-batches loaded ahead; 0: loading hides nowhere")
    ] = 0
    substitute: Annotated[int, Field(ge=1, le=1000, description="Candidates per item of a batch")] = 10
    grouped: Annotated[int, Field(ge=1, le=1000, description="Mini-batches simulated as one step")] = 1
    start: Annotated[Seconds, Field(description="When it begins")] = 0.0
    epochs: Annotated[int, Field(ge=0, description="0: until the end")] = 0

    @model_validator(mode="after")
    def _slower_without(self) -> Self:
        if 0 < self.miss <= self.compute:
            raise ValueError("miss must be more than compute, or 0")
        return self


class RunSpec(SpecTable):
    """One kind of caching."""

    name: Name
    mode: Annotated[Mode | str, BeforeValidator(_mode)]
    capacity: Annotated[Size, Field(ge=0, description="Instead of the fleet's; 0: as it says")] = 0
    jobs: Annotated[tuple[Name, ...], Field(description="The kinds that take part; none: all")] = ()
    warm: Annotated[bool, Field(description="Whether the cache begins with as many items as it holds")] = False
    caching: Annotated[Literal["", "auto"] | CachingMode, Field(description="Instead of what the datasets say")] = ""
    probe_batches: Annotated[int | None, Field(ge=0, description="Instead of the manager's")] = None
    orders: Annotated[bool, Field(description="Whether homes know the orders that jobs with substitute = 1 follow")] = (
        True
    )
    prefetch: Annotated[int | None, Field(ge=0, le=1000, description="Instead of what the jobs say")] = None


class Scenario(SpecTable):
    """The content of a scenario's file."""

    title: str
    text: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    duration: Annotated[Seconds, Field(gt=0, description="Virtual seconds")]
    measure_from: Annotated[Seconds, Field(description="What comes before is not measured")] = 0.0
    steps: Annotated[int, Field(ge=1, description="Mini-batches per job that the table gives a time for")] = 1000
    origin: OriginSpec
    fleet: FleetSpec
    manager: ManagerSpec = ManagerSpec()
    cost: CostSpec = CostSpec()
    datasets: Annotated[tuple[DatasetSpec, ...], Field(min_length=1)]
    jobs: Annotated[tuple[JobSpec, ...], Field(min_length=1)]
    runs: Annotated[tuple[RunSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_names(datasets=self.datasets, jobs=self.jobs, runs=self.runs)
        sizes = {dataset.name: dataset for dataset in self.datasets}
        for job in self.jobs:
            if job.dataset not in sizes:
                raise ValueError(f"jobs: {job.name}: there is no dataset {job.dataset!r}")
            if job.batch * job.grouped > sizes[job.dataset].size:
                raise ValueError(f"jobs: {job.name}: batch is larger than the dataset")
        kinds = {job.name for job in self.jobs}
        for run in self.runs:
            if strange := [name for name in run.jobs if name not in kinds]:
                raise ValueError(f"runs: {run.name}: there is no job {strange[0]!r}")
        if self.measure_from >= self.duration:
            raise ValueError("measure_from must be less than duration")
        return self

    def jobs_of(self, run: RunSpec) -> tuple[JobSpec, ...]:
        """The kinds of jobs that take part in a run."""
        other = {} if run.prefetch is None else {"prefetch": run.prefetch}
        return tuple(job.model_copy(update=other) for job in self.jobs if not run.jobs or job.name in run.jobs)

    def baseline(self, run: RunSpec) -> RunSpec | None:
        """The run without a cache that includes all jobs of this run."""
        names = {job.name for job in self.jobs_of(run)}
        without = (other for other in self.runs if other.mode is Mode.NONE)
        return next((other for other in without if names <= {job.name for job in self.jobs_of(other)}), None)


def built_in() -> tuple[str, ...]:
    """The names of the scenarios that come with Larder."""
    folder = resources.files("gateway.sim") / "scenarios"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def scenario_text(name: str) -> str:
    """A scenario's text: from a file, or a built-in scenario by its name.

    Raises:
        ConfigError: the scenario does not exist, or cannot be read.
    """
    path = Path(name)
    if name in built_in():
        return (resources.files("gateway.sim") / "scenarios" / f"{name}.toml").read_text(encoding="utf-8")
    if path.is_file():
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise ConfigError(f"{name} cannot be read: {error}") from error
    raise ConfigError(f"there is no scenario {name!r}: give a TOML file, or one of {', '.join(built_in())}")


def kind_of(text: str) -> Literal["jobs", "reads", "scores"]:
    """The kind of a scenario's text: jobs, plain clients' reads, or training by importance."""
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return "jobs"
    return "reads" if "clients" in tables else "scores" if "trace" in tables else "jobs"


def parse_as(model: type[T], text: str, name: str = "scenario") -> T:
    """Parse a scenario's text as a scenario of the given kind.

    Raises:
        ConfigError: it is invalid; the message names the field.
    """
    try:
        return model.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name} is not TOML: {error}") from error
    except ValidationError as error:
        raise ConfigError(
            "\n".join(f"{name}: {_problem(dict(problem))}" for problem in _telling(error.errors()))
        ) from error


def _telling(errors: Sequence[Any]) -> list[Any]:
    """Drop the error that a list is too short if that follows from its invalid entries, which are reported too."""
    places = [error["loc"] for error in errors]

    def follows(error: Any) -> bool:
        place = error["loc"]
        return error["type"] == "too_short" and any(
            len(other) > len(place) and other[: len(place)] == place for other in places
        )

    return [error for error in errors if not follows(error)]


def _problem(error: dict[str, Any]) -> str:
    place = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    message = str(error["msg"]).removeprefix("Value error, ")
    return f"{place}: {message}" if place else message
