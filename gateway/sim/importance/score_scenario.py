"""Scenarios of training by importance: a recorded trace of losses, with samplers and caches to compare on it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Annotated, Literal, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from gateway.model.errors import ConfigError
from gateway.sim.jobs.scenario import Name, SpecTable, check_names
from larder.planner.draw import MAX_UNSEEN

Losses = NDArray[np.float32]
"""By epoch and item: the item's loss when it was trained in that epoch."""

CacheName = Literal["lru", "lfu", "random", "never-evict", "min", "pq", "pq-lfu", "app", "importance"]
Share = Annotated[float, Field(ge=0, lt=1)]
Unseen = Annotated[float, Field(ge=0, le=MAX_UNSEEN)]


class ScoreRunSpec(SpecTable):
    """One kind of sampling with one kind of caching."""

    name: Name
    sampler: Annotated[
        Literal["uniform", "coarse", "shade"],
        Field(
            description="Each item once per epoch; by the losses of mini-batches; by ranks of single samples within them (SHADE)"
        ),
    ]
    cache: Annotated[CacheName, Field(description="Which items are kept")]
    unseen: Annotated[
        Unseen | None,
        Field(description="Share of items left out of an epoch; without it, plain draws with replacement"),
    ] = None
    prefetch: Annotated[bool, Field(description="Whether the list's most needed items are loaded ahead")] = False
    jobs: Annotated[
        int, Field(ge=1, le=8, description="Jobs that read in step; to each, other items of the trace are hard")
    ] = 1


class ScoreScenario(SpecTable):
    """The content of a scenario's file."""

    title: str
    text: str = ""
    seed: Annotated[int, Field(ge=0)] = 0
    trace: Annotated[str, Field(description="NPZ with `losses`: one row per epoch, one column per item")]
    batch: Annotated[int, Field(ge=2, le=100_000, description="Samples of a mini-batch")] = 32
    warm_up: Annotated[int, Field(ge=0, description="Epochs before the first that counts")] = 5
    shares: Annotated[tuple[Share, ...], Field(min_length=1, description="Of the items that the cache holds")]
    runs: Annotated[tuple[ScoreRunSpec, ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _sound(self) -> Self:
        check_names(runs=self.runs)
        for run in self.runs:
            if run.unseen is not None and run.sampler != "shade":
                raise ValueError(f"runs: {run.name}: only lists of the sampler shade can have unseen")
            if run.cache == "min" and run.sampler != "uniform":
                raise ValueError(
                    f"runs: {run.name}: the future of lists that follow scores is unknown; min needs uniform"
                )
            if run.jobs > 1 and run.cache in ("min", "pq", "pq-lfu", "app"):
                raise ValueError(f"runs: {run.name}: the cache {run.cache} is of one job")
            if run.sampler == "uniform" and run.cache in ("pq", "pq-lfu", "app", "importance"):
                raise ValueError(f"runs: {run.name}: the sampler uniform has no scores")
        return self


def losses_of(scenario: ScoreScenario) -> Losses:
    """A scenario's trace: a file, or a built-in trace by its name.

    Raises:
        ConfigError: it does not exist, or is too short or malformed.
    """
    built_in = resources.files("gateway.sim") / "scenarios" / scenario.trace
    try:
        with (built_in if built_in.is_file() else Path(scenario.trace)).open("rb") as file:
            losses: Losses = np.load(file, allow_pickle=False)["losses"].astype(np.float32)
    except (OSError, EOFError, BadZipFile, ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"trace: {scenario.trace} is not an NPZ file with losses: {error}") from error
    if losses.ndim != 2 or not np.isfinite(losses).all() or losses.shape[1] < scenario.batch:
        raise ConfigError(
            f"trace: {scenario.trace} needs finite losses of a mini-batch of items at least, by epoch and item"
        )
    if len(losses) <= scenario.warm_up:
        raise ConfigError(f"warm_up: the trace has {len(losses)} epochs; leave some to be measured")
    return losses
