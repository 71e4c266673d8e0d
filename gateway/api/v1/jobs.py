"""``/-/v1/jobs``: training jobs register, report their progress, and get directives. ``/-/v1/plan`` explains them.

A job belongs to a tenant; other tenants cannot find out that it exists. Requests are validated by the models of
gateway/api/v1/job_documents.py; an invalid one is refused by the name of its field, counted, and changes nothing. Without Redis
every request is answered 503, and training continues with its last directives.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Path, Query, Request, Response
from pydantic import BaseModel

from gateway.api.v1.job_documents import (
    Directives,
    EpochOrder,
    EpochRequest,
    Heartbeat,
    HeartbeatTaken,
    Job,
    JobJoined,
    JobList,
    JobRequest,
    PipelineList,
    PlanDocument,
)
from gateway.api.v1.ownership import require_own
from gateway.api.v1.pipeline_advice import PipelineTexts, directive_of
from gateway.api.v1.plan_document import plan_document
from gateway.api.v1.requests import WITHOUT_BODY, Asking, body_of, parsed, v1_router
from gateway.base import metrics
from gateway.edge.documents import moment
from gateway.edge.endpoints import of_state
from gateway.edge.epochs import last_epoch
from gateway.edge.mistakes import sentence
from gateway.edge.pipelines import pipeline_documents
from gateway.edge.problems import RETRY
from gateway.engine.base.planned import Planned
from gateway.fleet.jobs.jobs import Beat, JobRecord, Jobs, KnownJob, OtherDataset, TooManyJobs
from gateway.fleet.jobs.pipelines import Pipelines
from gateway.fleet.jobs.plans import Plans
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.datasets import ApiError, UnknownDataset, is_job_name
from gateway.model.errors import LarderError
from gateway.model.keys import Principal
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.epochs import EpochReads
from gateway.policies.space.forecast import Forecast, forecasts
from gateway.policies.space.orders import Phase
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.probing import PhaseTotals, times
from gateway.store.datasets.opened import FindRegistration, Registration

_AT_HAND = 0.5
"""Seconds that an answer waits for a registration, which may have to be copied from another node; the copy continues."""
_MEANINGS = {
    400: "InvalidRequest, naming the field, or S3's codes for a malformed signature",
    404: "UnknownJob: register it again; UnknownDataset",
    409: "JobConflict: the name is taken by a job with another dataset",
    413: "TooLarge",
    503: "ServiceUnavailable: Redis cannot be reached; continue, and try again after Retry-After seconds",
}


@dataclass(frozen=True, slots=True)
class JobParts:
    """The dependencies of the endpoints.

    ``find`` returns a tenant's dataset by name or id; ``heartbeat`` is the interval of a rank's heartbeats, in seconds;
    ``overrides`` are operators'.
    """

    jobs: Jobs
    plans: Plans
    pipelines: Pipelines
    planned: Planned
    find: FindRegistration
    heartbeat: float
    overrides: Callable[[], Overrides]


class JobService:
    """Implements the endpoints."""

    def __init__(self, parts: JobParts) -> None:
        self._jobs = parts.jobs
        self._planned = parts.planned
        self._find = parts.find
        self._heartbeat = parts.heartbeat
        self._plans = parts.plans
        self._pipelines = parts.pipelines
        self._overrides = parts.overrides

    async def register(self, principal: Principal, asked: JobRequest) -> tuple[JobJoined, bool]:
        """Register a job, or join an existing one. Returns its document, and whether the job is new."""
        registration = await self._find(principal.tenant, asked.dataset)
        if registration is None:
            raise UnknownDataset(asked.dataset)
        record = _record_of(principal, asked, registration)
        if principal.read_only:
            require_own(principal, await self._jobs.record(record.key))
        try:
            new = await self._jobs.register(record)
        except OtherDataset:
            raise ApiError(
                "JobConflict",
                f"The job {asked.job!r} is registered with another dataset; choose another name, or DELETE it first.",
            ) from None
        except TooManyJobs as many:
            raise ApiError("TooLarge", sentence(f"{many}; remove some, or wait until they expire")) from None
        directives = self._directives(record, registration)
        return JobJoined(job=asked.job, dataset=record.dataset, directives=directives), new

    async def beat(self, principal: Principal, job: str, said: Heartbeat) -> HeartbeatTaken:
        """Take a heartbeat."""
        totals = {
            Phase(name): PhaseTotals(phase.steps, phase.seconds, phase.waited, phase.items, phase.hits)
            for name, phase in said.phases.items()
        }
        queue = -1 if said.queue is None else said.queue
        finished = None if said.finished is None else EpochReads(**said.finished.model_dump())
        beat = Beat(said.rank, said.epoch, totals, queue, finished)
        owner = principal.access_key_id if principal.read_only else ""
        heard = await self._jobs.beat(_key(principal, job), beat, *PipelineTexts.of(said), owner)
        if heard is None:
            raise _unknown(job)
        record = heard.record
        require_own(principal, record)
        if said.rank >= record.ranks:
            raise ApiError(
                "InvalidRequest",
                f"The field rank must be at most {record.ranks - 1}, as the job has {record.ranks} ranks; it is {said.rank}.",
            )
        registration = await self._at_hand(principal.tenant, record.dataset)
        return HeartbeatTaken(directives=self._directives(record, registration), pipeline=directive_of(heard, said))

    async def order(self, principal: Principal, job: str, proposal: list[int]) -> EpochOrder:
        """The order of an epoch's chunks, of which only clients of earlier versions know: all ranks propose the same one."""
        key = _key(principal, job)
        record = await self._jobs.record(key)
        if record is None:
            raise _unknown(job)
        require_own(principal, record)
        return EpochOrder(order=proposal)

    async def remove(self, principal: Principal, job: str) -> None:
        """Forget a job."""
        key = _key(principal, job)
        if principal.read_only:
            require_own(principal, await self._jobs.record(key))
        if not await self._jobs.remove(key):
            raise _unknown(job)

    async def list(self, principal: Principal, after: str, most: int) -> JobList:
        """A page of the caller's jobs."""
        jobs = await self._jobs.of_tenant(principal.tenant, after, most + 1)
        await self._plans.remember()
        expected = forecasts(self._plans.plan)
        return JobList(jobs=[self._describe(job, expected) for job in jobs[:most]], next=_next(jobs, most))

    async def show(self, principal: Principal, job: str) -> Job:
        """One of the caller's jobs."""
        known = await self._jobs.find(_key(principal, job))
        if known is None:
            raise _unknown(job)
        await self._plans.remember()
        return self._describe(known, forecasts(self._plans.plan))

    async def pipelines(self, principal: Principal, after: str, most: int) -> PipelineList:
        """The pipelines of a page of the caller's jobs."""
        records = await self._mine(principal.tenant)
        left = [record for record in records if record.job > after]
        shown = left[:most]
        known = await self._pipelines.of(shown)
        workers = await self._pipelines.workers_of([record.key for record in shown])
        documents = pipeline_documents(shown, known, workers, self._plans.plan, self._overrides().pipelines)
        return PipelineList(pipelines=documents, next=left[most - 1].job if len(left) > most else None)

    async def _mine(self, tenant: str) -> Sequence[JobRecord]:
        """A tenant's registrations by name."""
        return [record for record in await self._jobs.records() if record.tenant == tenant]

    async def plan(self, principal: Principal) -> PlanDocument:
        """The part of the plan that concerns the caller."""
        history = await self._plans.history()
        await self._plans.remember()
        mine = {record.dataset for record in await self._mine(principal.tenant)}
        plan = self._plans.plan
        named = {str(event["dataset"]) for event in history if "dataset" in event}
        for dataset in {*plan.datasets, *named} - mine:
            if await self._at_hand(principal.tenant, dataset) is not None:
                mine.add(dataset)
        return plan_document(plan, history, principal.tenant, mine, self._planned.capacity)

    async def _at_hand(self, tenant: str, dataset: str) -> Registration | None:
        """A registration if it is available within ``_AT_HAND``; the answer can do without it."""
        try:
            async with asyncio.timeout(_AT_HAND):
                return await self._find(tenant, dataset)
        except (LarderError, TimeoutError):
            return None

    def _directives(self, record: JobRecord, registration: Registration | None) -> Directives:
        plans = self._plans
        order, of_job = plans.dataset(record.dataset), record.order(plans.plan)
        if registration is not None:
            caching = self._planned.of(registration, record.job).caching
        else:
            caching = order.caching if order is not None else CachingMode.NONE
        if not of_job.cache and not of_job.refused:
            caching = CachingMode.NONE
        return Directives(
            caching=caching.value,
            cache=of_job.cache,
            phase=of_job.phase.value,
            plan=plans.plan.version,
            heartbeat=self._heartbeat,
        )

    def _describe(self, known: KnownJob, predicted: Mapping[str, Forecast]) -> Job:
        record = known.record
        order = record.order(self._plans.plan)
        miss, hit = times(self._plans.plan.memory.probe(record.key), known.totals)
        expected = predicted.get(record.key)
        return Job.of(
            record,
            ranks_heard=known.ranks_heard,
            joined_at=moment(known.joined_at),
            silent=round(max(0.0, known.silent), 3),
            epoch=known.epoch,
            phase=order.phase.value,
            cache=order.cache,
            benefit=order.benefit,
            t_miss=miss,
            t_hit=hit,
            hit_share=None if expected is None else round(expected.hits, 4),
            t_predicted=None if expected is None else expected.predicted,
            t_with_more=None if expected is None else expected.more,
            last_epoch=last_epoch(known.finished),
        )


def _record_of(principal: Principal, asked: JobRequest, registration: Registration) -> JobRecord:
    content, identity = registration.content, principal.identity
    return JobRecord(
        tenant=principal.tenant,
        job=asked.job,
        dataset=content.id,
        name=registration.name,
        gpus=asked.gpus,
        batch_size=asked.batch_size,
        ranks=asked.ranks,
        caching=asked.caching,
        origin=identity.origin,
        access_key_id=identity.access_key_id,
        size=content.size,
        items=content.items,
        requested=registration.caching,
        owner=principal.access_key_id,
    )


def _key(principal: Principal, job: str) -> str:
    if not is_job_name(job):
        raise _unknown(job)
    return f"{principal.tenant}/{job}"


def _unknown(job: str) -> ApiError:
    return ApiError(
        "UnknownJob",
        f"Unknown job {job[:128]!r}: never registered, or silent for too long; register it again.",
    )


@asynccontextmanager
async def _counted(kind: str) -> AsyncIterator[None]:
    """Count the result of a request, and answer 503 when Redis cannot be reached."""
    try:
        yield
    except DOWN:
        metrics.JOB_REQUESTS.labels(kind, "unavailable").inc()
        raise ApiError(
            "ServiceUnavailable", "Redis cannot be reached; continue, and try again.", headers=RETRY
        ) from None
    except ApiError as error:
        metrics.JOB_REQUESTS.labels(kind, "unknown" if error.status == 404 else "refused").inc()
        raise
    except LarderError:
        metrics.JOB_REQUESTS.labels(kind, "refused").inc()
        raise
    metrics.JOB_REQUESTS.labels(kind, "done").inc()


Service = Annotated[JobService, Depends(of_state("jobs"))]
Limit = Annotated[int, Query(ge=1, le=200, description="most jobs in the answer, or jobs that it is about")]
Cursor = Annotated[str, Query(max_length=128, description="`next` of the previous page; empty for the first")]


def _next(jobs: Sequence[KnownJob], most: int) -> str | None:
    return jobs[most - 1].record.job if len(jobs) > most else None


def _takes(model: type[BaseModel]) -> dict[str, Any]:
    """The OpenAPI description of a body that is validated here, because its bytes are signed; schema references are inlined."""
    schema = model.model_json_schema()
    parts = schema.pop("$defs", {})

    def inlined(node: Any) -> Any:
        if isinstance(node, dict):
            name = str(node.get("$ref", "")).removeprefix("#/$defs/")
            return inlined(parts[name]) if name else {key: inlined(value) for key, value in node.items()}
        return [inlined(element) for element in node] if isinstance(node, list) else node

    return body_of("application/json", inlined(schema))


router = v1_router("jobs", _MEANINGS)


@router.post(
    "/jobs",
    summary="Register a job",
    responses={201: {"model": JobJoined, "description": "The job is new"}},
    openapi_extra=_takes(JobRequest),
)
async def register_job(request: Request, response: Response, caller: Asking, service: Service) -> JobJoined:
    """Every rank registers the same name: the first is answered 201, the others 200."""
    async with _counted("register"):
        joined, new = await service.register(caller.principal, await parsed(request, caller, JobRequest))
    response.status_code = 201 if new else 200
    return joined


@router.get("/jobs", summary="List jobs", dependencies=WITHOUT_BODY)
async def list_jobs(caller: Asking, service: Service, limit: Limit = 100, cursor: Cursor = "") -> JobList:
    """List the jobs of the caller's tenant by name, page by page."""
    async with _counted("show"):
        return await service.list(caller.principal, cursor, limit)


@router.get("/jobs/{job}", summary="Show a job", dependencies=WITHOUT_BODY)
async def show_job(job: str, caller: Asking, service: Service) -> Job:
    """Show the state of a job."""
    async with _counted("show"):
        return await service.show(caller.principal, job)


@router.delete("/jobs/{job}", summary="Remove a job", status_code=204, dependencies=WITHOUT_BODY)
async def remove_job(job: str, caller: Asking, service: Service) -> None:
    """Report that a job has ended. Jobs that send no heartbeats expire."""
    async with _counted("remove"):
        await service.remove(caller.principal, job)


@router.post("/jobs/{job}/heartbeat", summary="Report a rank's progress", openapi_extra=_takes(Heartbeat))
async def report_progress(job: str, request: Request, caller: Asking, service: Service) -> HeartbeatTaken:
    """Report one rank's position and times; the answer has its directives."""
    async with _counted("heartbeat"):
        return await service.beat(caller.principal, job, await parsed(request, caller, Heartbeat))


@router.post("/jobs/{job}/epochs/{epoch}", summary="Agree on the order of an epoch", openapi_extra=_takes(EpochRequest))
async def agree_on_order(
    job: str,
    epoch: Annotated[int, Path(ge=0, lt=2**31)],
    request: Request,
    caller: Asking,
    service: Service,
) -> EpochOrder:
    """Return the proposal. Clients of earlier versions agree on an order of chunks in this way."""
    async with _counted("order"):
        said = await parsed(request, caller, EpochRequest)
        return await service.order(caller.principal, job, said.order)


@router.get("/pipelines", summary="List pipelines", dependencies=WITHOUT_BODY)
async def list_pipelines(caller: Asking, service: Service, limit: Limit = 100, cursor: Cursor = "") -> PipelineList:
    """The pipelines of the caller's jobs, by pages of jobs: what stages cost, where they cache and why, and workers over time."""
    async with _counted("show"):
        return await service.pipelines(caller.principal, cursor, limit)


@router.get("/plan", summary="Show the plan", dependencies=WITHOUT_BODY)
async def show_plan(caller: Asking, service: Service) -> PlanDocument:
    """The plan for the caller's datasets and jobs, the inputs of its decisions, and recent changes."""
    async with _counted("plan"):
        return await service.plan(caller.principal)
