"""``PUT /-/v1/jobs/{job}/importance``: a job sends the importance of items, and the list of its next epoch.

The body is binary (gateway/model/importance.py), because heartbeats are too small for a million items. A job belongs to a tenant;
other tenants cannot find out that it exists. A part based on one that this gateway does not have is refused with the last known
sequence, and the client sends everything; so nothing has to survive a restart.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Query, Request
from pydantic import BaseModel, Field

from gateway.api.v1.identity import Caller
from gateway.api.v1.ownership import require_own
from gateway.api.v1.requests import Asking, body_of, v1_router
from gateway.edge.endpoints import of_state
from gateway.edge.importance import taken
from gateway.edge.problems import RETRY, refused_field
from gateway.engine.space.score_exchange import ScoreExchange, ScoreSender
from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.datasets import ApiError, UnknownDataset, is_dataset_id, is_job_name
from gateway.model.importance import MOST_SCORED, longest
from gateway.model.keys import Principal
from gateway.server.received import large_body, room_for
from gateway.store.datasets.content import Content
from gateway.store.datasets.opened import FindRegistration

MEDIA_TYPE = "application/octet-stream"
_BINARY = {"type": "string", "format": "binary"}
_MEANINGS = {
    400: "InvalidRequest, naming the field, or S3's codes for a malformed signature",
    404: "UnknownJob, UnknownDataset: register it again",
    409: "UnknownBase: `sequence` is that of the part which is here, 0 for none; send a whole part",
    413: "TooLarge",
    503: "ServiceUnavailable: Redis cannot be reached, or there is no memory for scores; go on, and try again later",
}


class ImportanceTaken(BaseModel):
    """The part was applied, now or before."""

    sequence: int = Field(description="of the part", examples=[12])
    items: int = Field(description="items of which this node now has a score", examples=[1_281_167])


class ImportanceService:
    """Implements the endpoint.

    Args:
        jobs: of the zone.
        find: returns a tenant's dataset by name or id.
        exchange: applies parts.
    """

    def __init__(self, jobs: Jobs, find: FindRegistration, exchange: ScoreExchange) -> None:
        self._jobs = jobs
        self._find = find
        self._exchange = exchange

    async def take(self, caller: Caller, job: str, dataset: str, request: Request) -> ImportanceTaken:
        """Apply a part.

        Raises:
            ApiError: the request is refused.
        """
        content = await self._content(caller.principal, job, dataset)
        async with room_for(request.scope, longest(content.items)):
            body = await large_body(request.receive, longest(content.items))
            caller.confirm_body(body)
            receipt = await taken(self._exchange, ScoreSender(caller.principal.tenant, job), content, body)
        return ImportanceTaken(sequence=receipt.sequence, items=receipt.scored)

    async def _content(self, principal: Principal, job: str, dataset: str) -> Content:
        if not is_dataset_id(dataset):
            raise refused_field("dataset", "The parameter dataset must be the dataset's id, 64 lower-case hex digits.")
        try:
            record = await self._jobs.record(f"{principal.tenant}/{job}") if is_job_name(job) else None
        except DOWN:
            raise ApiError(
                "ServiceUnavailable", "Redis cannot be reached; go on, and try again.", headers=RETRY
            ) from None
        if record is None:
            raise ApiError(
                "UnknownJob", f"The job {job[:128]!r} is not known: it was never registered, or silent for too long."
            )
        require_own(principal, record)
        if record.dataset != dataset:
            raise refused_field("dataset", f"The job {job!r} is registered with another dataset.")
        registration = await self._find(principal.tenant, dataset)
        if registration is None:
            raise UnknownDataset(dataset)
        if registration.content.items > MOST_SCORED:
            raise ApiError("TooLarge", f"The dataset has more than {MOST_SCORED} items, and is not kept by importance.")
        return registration.content


Service = Annotated[ImportanceService, Depends(of_state("importance"))]
router = v1_router("jobs", _MEANINGS)


@router.put(
    "/jobs/{job}/importance", summary="Send the importance of items", openapi_extra=body_of(MEDIA_TYPE, _BINARY)
)
async def send_importance(
    job: str,
    dataset: Annotated[str, Query(description="the dataset's id", examples=["9f86d081884c7d659a2feaa0c55ad015..."])],
    request: Request,
    caller: Asking,
    service: Service,
) -> ImportanceTaken:
    """Scores that changed since an earlier part, and the items of the next epoch's list. Repeating a part changes nothing."""
    return await service.take(caller, job, dataset, request)
