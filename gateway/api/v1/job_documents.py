"""The ``/-/v1/jobs`` and ``/-/v1/plan`` documents, as schemas with examples and the bounds of every field."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from gateway.edge.documents import ResponseModel
from gateway.edge.epochs import LastEpoch
from gateway.edge.pipelines import PipelineDocument
from gateway.model.results import MOST_VERSIONS
from gateway.policies.space.orders import Phase

_NAME = r"^[A-Za-z0-9._-]{1,128}$"
_COUNT = Annotated[int, Field(ge=0, le=2**53)]
_TIME = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
_MOST_CHUNKS = 1000
"""The most chunks of a dataset, for clients of earlier versions."""
_CHUNK = Annotated[int, Field(ge=0, lt=_MOST_CHUNKS)]
_STAGE = Annotated[int, Field(ge=1, le=1024)]
MOST_MARKS = 16
"""Marks of a pipeline."""

PhaseName = Literal["probe-miss", "measure", "steady"]
assert set(PhaseName.__args__) == set(Phase)  # type: ignore[attr-defined]
Mode = Literal["full", "part", "none"]


class _StrictModel(BaseModel):
    """A request document: unknown fields and numbers given as text are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class JobRequest(_StrictModel):
    """A job, as each of its ranks registers it."""

    job: str = Field(pattern=_NAME, examples=["resnet50-17"])
    dataset: str = Field(min_length=1, max_length=128, description="name or id", examples=["imagenet-train"])
    gpus: int = Field(ge=1, le=65_536, examples=[8])
    batch_size: int = Field(ge=1, le=1_048_576, description="items in a mini-batch of one rank", examples=[256])
    ranks: int = Field(1, ge=1, le=16_384, description="processes that train together", examples=[8])
    caching: Literal["auto", "on", "off"] = Field(
        "auto", description="off: never use the cache; on: always use it; auto: use it if measurements show a gain"
    )


class PhaseTimes(_StrictModel):
    """One rank's sums over its mini-batches of one phase, since the job's start."""

    steps: _COUNT = Field(examples=[100])
    seconds: _TIME = Field(description="of all steps, including waits", examples=[31.5])
    waited: _TIME = Field(description="of them, for data", examples=[12.25])
    items: _COUNT = Field(examples=[25_600])
    hits: _COUNT = Field(description="of them, from the cache", examples=[25_344])

    @field_validator("hits")
    @classmethod
    def _no_more_than_items(cls, hits: int, info: ValidationInfo) -> int:
        if hits > info.data.get("items", hits):
            raise PydanticCustomError("contradiction", "must not exceed items")
        return hits


class PipelineReport(_StrictModel):
    """A rank's measurements of its pipeline over its last batches (Cachew, ATC 2022, Table 1)."""

    cache: _STAGE | None = Field(None, description="the mark that was stored or read; null: everything was computed")
    batch_time: _TIME = Field(description="seconds per batch, waiting and computation", examples=[0.21])
    queue: _TIME = Field(description="batches that were ready, on average", examples=[3.5])
    workers: int = Field(ge=1, le=65_536, description="input workers at that time", examples=[4])


class StageMetrics(_StrictModel):
    """One point of a rank's pipeline over its latest elements (Cachew, ATC 2022, Table 1)."""

    stage: _STAGE = Field(description="its place in the pipeline, from 1", examples=[4])
    active_time: _TIME = Field(
        description="mean seconds per element in all stages up to this one, reading included", examples=[0.0042]
    )
    bytes_produced: _COUNT = Field(description="size of these elements, as stored", examples=[27_648_000])
    num_elements: _COUNT = Field(description="elements that came out of it", examples=[1000])


class MarkMetrics(StageMetrics):
    """A mark of a rank's pipeline."""

    fingerprint: str = Field(
        "",
        pattern=r"^([0-9a-f]{64})?$",
        description="names the results; empty: they cannot be shared, and are not stored",
        examples=["9f2c" * 16],
    )
    versions: int = Field(1, ge=1, le=MOST_VERSIONS, description="results of an item; an epoch uses one", examples=[1])


class ReadMetrics(_StrictModel):
    """Results that a rank's workers read from the cache, and the time spent on it."""

    num_elements: int = Field(ge=1, le=2**53, description="elements whose reading was timed", examples=[1000])
    bytes: _COUNT = Field(description="size of these elements, as stored", examples=[27_648_000])
    seconds: _TIME = Field(description="from the request to the decoded element, of all together", examples=[0.41])
    busy: _TIME = Field(description="of these, seconds in which a processor worked for it", examples=[0.17])


class ProfileReport(_StrictModel):
    """The costs of a rank's pipeline, over its latest elements."""

    items: int = Field(ge=1, le=2**53, description="items that were read, or looked up", examples=[1000])
    workers: int = Field(ge=1, le=65_536, description="input workers at that time", examples=[1])
    cache: _STAGE | None = Field(None, description="the mark that was stored or read; null: everything was computed")
    end: StageMetrics = Field(description="the last stage before shuffle and batch")
    marks: list[MarkMetrics] = Field(default_factory=list, max_length=MOST_MARKS, description="in their order")
    read: ReadMetrics | None = Field(None, description="the results that were read; null: none was timed")

    @field_validator("marks")
    @classmethod
    def _in_order(cls, marks: list[MarkMetrics], info: ValidationInfo) -> list[MarkMetrics]:
        end, cache = info.data.get("end"), info.data.get("cache")
        stages = [mark.stage for mark in marks]
        if sorted(set(stages)) != stages or (end is not None and stages and stages[-1] > end.stage):
            raise PydanticCustomError("contradiction", "must ascend, and none may come after the end")
        if cache is not None and cache not in stages:
            raise PydanticCustomError(
                "contradiction", "must have the stage {cache}, which cache names", {"cache": cache}
            )
        return marks


class FinishedEpoch(_StrictModel):
    """The last epoch that a rank delivered from its beginning to its end."""

    epoch: int = Field(ge=0, lt=2**31, examples=[2])
    items: _COUNT = Field(description="that it delivered", examples=[160_146])
    origin_reads: _COUNT = Field(description="of them, read from the origin", examples=[41_375])
    least: float | None = Field(
        None, ge=0, le=1, description="share of the dataset that was not cached when it began; null: not known"
    )

    @field_validator("origin_reads")
    @classmethod
    def _no_more_than_items(cls, reads: int, info: ValidationInfo) -> int:
        if reads > info.data.get("items", reads):
            raise PydanticCustomError("contradiction", "must not exceed items")
        return reads


class Heartbeat(_StrictModel):
    """The state of one rank."""

    rank: int = Field(ge=0, lt=16_384, examples=[0])
    epoch: int = Field(ge=0, lt=2**31, examples=[3])
    upcoming: list[_CHUNK] = Field(
        default_factory=list, max_length=_MOST_CHUNKS + 2, description="of earlier versions; ignored", examples=[[]]
    )
    epoch_left: int = Field(0, ge=0, le=_MOST_CHUNKS, description="of earlier versions; ignored", examples=[0])
    phases: dict[PhaseName, PhaseTimes] = Field(
        default_factory=dict, description="by the phase named in the directives"
    )
    queue: _COUNT | None = Field(None, description="mini-batches that are ready", examples=[2])
    pipeline: PipelineReport | None = Field(None, description="a new report, if the fleet is to find the workers")
    profile: ProfileReport | None = Field(None, description="a new profile, if the fleet is to find what to cache")
    finished: FinishedEpoch | None = Field(None, description="the last whole epoch; null: none yet")


class EpochRequest(_StrictModel):
    """A proposal for the order of chunks in an epoch, of a client of an earlier version."""

    order: list[_CHUNK] = Field(min_length=1, max_length=_MOST_CHUNKS, examples=[[2, 0, 1]])

    @field_validator("order")
    @classmethod
    def _each_once(cls, order: list[int]) -> list[int]:
        if sorted(order) != list(range(len(order))):
            raise PydanticCustomError("contradiction", "must have each chunk from 0 on once")
        return order


class EpochOrder(BaseModel):
    """The order that all ranks follow."""

    order: list[int] = Field(examples=[[2, 0, 1]])


class Directives(BaseModel):
    """Instructions to a job."""

    caching: Mode = Field(description="the caching mode for this job", examples=["part"])
    cache: bool = Field(description="whether to use the cache; false if it is refused to the job, or does not pay")
    phase: PhaseName = Field(description="the phase being measured; count times of mini-batches under it")
    chunk: int = Field(-1, description="for clients of earlier versions: -1", examples=[-1])
    plan: int = Field(description="version of the plan", examples=[17])
    preload: bool = Field(True, description="for clients of earlier versions: do not announce items")
    heartbeat: float = Field(description="seconds between two heartbeats of a rank", examples=[1.0])


class JobJoined(BaseModel):
    """A registration."""

    job: str = Field(examples=["resnet50-17"])
    dataset: str = Field(description="its id")
    directives: Directives


class PipelineDirective(BaseModel):
    """Instructions to a rank's pipeline."""

    workers: int | None = Field(None, description="input workers that it should have; null: no change", examples=[4])
    cache: int | None = Field(None, description="the mark to store and read, from the next epoch on; null: none")
    reason: str = Field("", description="of the decision on cache; empty: none yet", examples=["fastest"])


class HeartbeatTaken(BaseModel):
    """The answer to a heartbeat."""

    directives: Directives
    pipeline: PipelineDirective | None = Field(None, description="null: the job has reported on no pipeline")


class Job(ResponseModel):
    """The state of a job."""

    job: str = Field(examples=["resnet50-17"])
    dataset: str = Field(description="its id")
    name: str = Field(description="a name of the dataset", examples=["imagenet-train"])
    gpus: int
    batch_size: int
    ranks: int
    ranks_heard: int = Field(description="ranks with recent heartbeats")
    caching: Literal["auto", "on", "off"]
    joined_at: str = Field(description="ISO 8601, by Redis's clock")
    silent: float = Field(description="seconds since its last heartbeat")
    epoch: int = Field(description="of the slowest rank; -1: no heartbeat yet")
    phase: PhaseName
    cache: bool
    benefit: float = Field(
        description="seconds of a step without hits, by those with hits only; 0: not known", examples=[2.3]
    )
    t_miss: float = Field(description="seconds of a step without hits; 0: not measured", examples=[0.62])
    t_hit: float = Field(
        description="seconds of a step with the hits that the job has now; 0: not measured", examples=[0.35]
    )
    hit_share: float | None = Field(None, description="share of these hits; null: not measured", examples=[0.8])
    t_predicted: float | None = Field(
        None, description="t_hit as predicted from the space that the dataset has; null: not known", examples=[0.34]
    )
    t_with_more: float | None = Field(
        None, description="the same with room for another tenth of the dataset; null: not known", examples=[0.31]
    )
    last_epoch: LastEpoch | None = Field(None, description="the last whole epoch; null: none yet")


_NEXT = Field(None, description="`cursor` of the next page; null on the last page", examples=[None])


class JobList(BaseModel):
    """A tenant's jobs by name."""

    jobs: list[Job]
    next: str | None = _NEXT


class PipelineList(BaseModel):
    """The pipelines of a tenant's jobs, by the job's name."""

    pipelines: list[PipelineDocument]
    next: str | None = _NEXT


class ImportanceInForce(BaseModel):
    """Cache state of a dataset that is kept by importance."""

    threshold: float | None = Field(description="the score from which on items fit; null while all that is scored fits")
    partial: bool = Field(description="whether only a part of the dataset fits")
    jobs: dict[str, float] = Field(
        description="the caller's jobs whose scores count, each with its share of their reads"
    )
    others: float = Field(description="the share of other tenants' jobs")


class PlannedDataset(BaseModel):
    """The plan for one dataset."""

    caching: Mode
    why: str = Field(examples=["benefit"])
    granted: int = Field(description="bytes")
    order: str = Field(description="in which its items leave", examples=["uniform", "importance"])
    importance: ImportanceInForce | None
    inputs: dict[str, Any] = Field(description="what the manager saw")


class PlannedJob(BaseModel):
    """The plan for one job."""

    cache: bool
    phase: PhaseName
    benefit: float = Field(description="seconds of a step without hits, by those with hits only; 0: not known")
    t_hit: float | None = Field(None, description="seconds of a step as measured last; null: not known")
    t_predicted: float | None = Field(None, description="as predicted from the space that its dataset has")
    t_with_more: float | None = Field(None, description="with room for another tenth of the dataset")


class PlanDocument(BaseModel):
    """The part of the plan that concerns the caller's tenant."""

    version: int
    capacity: int = Field(description="bytes of the caches of the fleet")
    granted: int = Field(description="bytes, to all tenants' datasets")
    datasets: dict[str, PlannedDataset] = Field(description="by id")
    jobs: dict[str, PlannedJob] = Field(description="by name")
    history: list[dict[str, Any]] = Field(description="recent changes, newest first")
