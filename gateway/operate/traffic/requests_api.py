"""``/-/admin/requests``: follow requests live, of all gateways of the zone."""

from __future__ import annotations

import uuid
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field

from gateway.admin.catalog.fields import Text
from gateway.admin.http.requests import Reader
from gateway.admin.state.operations import through_redis
from gateway.admin.state.parameters import Ops
from gateway.edge.documents import ResponseModel, moment
from gateway.edge.problems import refusals
from gateway.engine.operations.live import FOLLOWERS
from gateway.model.datasets import ApiError
from gateway.model.live import LiveFilter, LiveRequest
from gateway.model.outcomes import Outcome

router = APIRouter(tags=["overview"])

_FOLLOWER = "5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f"


class RequestSeen(ResponseModel):
    """An S3 request or a batch of a dataset that was answered."""

    at: str = Field(description="when it ended, ISO 8601, by its node's clock", examples=["2026-03-02T14:30:00.125Z"])
    node: str = Field(description="that answered", examples=["gw-1"])
    request_id: str = Field(description="as in its answer and in logs", examples=["00005C1F2A9B3D41"])
    trace_id: str = Field(description="of OpenTelemetry; empty without tracing", examples=[""])
    tenant: str = Field(description="empty: refused before the caller was known", examples=["vision"])
    access_key_id: str = Field(examples=["GWVISION"])
    address: str = Field(description="of the caller's connection", examples=["10.0.0.31"])
    method: str = Field(examples=["GET"])
    bucket: str = Field(description="of a batch: dataset:NAME", examples=["datasets"])
    key: str = Field(description="of a batch: how many items were hits", examples=["imagenet/train/n01440764/18.jpg"])
    status: int = Field(examples=[200])
    outcome: Outcome = Field(examples=["MISS"])
    reason: str = Field(description="why it was not a plain hit; empty for one", examples=["cold"])
    bytes: int = Field(description="of the body", examples=[110_213])
    seconds: float = Field(description="from its header to the end of its answer", examples=[0.0312])


class RequestsSeen(ResponseModel):
    """Requests since the last question."""

    follower: str = Field(description="give it with the next question", examples=[_FOLLOWER])
    requests: list[RequestSeen] = Field(description="by the time of their end")
    dropped: int = Field(description="further ones, which were too many to be handed over", examples=[0])


@router.get("/requests", summary="Follow requests", responses=refusals({409: "Conflict: too many follow them already"}))
async def follow_requests(
    _caller: Reader,
    operations: Ops,
    follower: Annotated[
        str, Query(pattern="^([0-9a-f]{32})?$", description="of the previous answer; empty: begin")
    ] = "",
    tenant: Annotated[Text, Query(description="only of this tenant")] = "",
    bucket: Annotated[Text, Query(description="only of this bucket, or of dataset:NAME")] = "",
    prefix: Annotated[Text, Query(description="only of keys that begin so")] = "",
    status: Annotated[str, Query(pattern="^([1-5](xx|[0-9]{2}))?$", description="such as 404 or 5xx")] = "",
    outcome: Annotated[Outcome | None, Query(description="only with this cache outcome")] = None,
    slower: Annotated[float, Query(ge=0, le=3600, description="only those that took so many seconds")] = 0.0,
) -> RequestsSeen:
    """S3 requests and batches that all gateways answered since the previous question, from the first question on; ask every
    second or two. A follower that asks nothing for ten seconds is forgotten. At most eight follow at once."""
    exchange = operations.fleet.sources.coordination.live
    others = [name for name in await through_redis(exchange.followers()) if name != follower]
    if len(others) >= FOLLOWERS:
        raise ApiError(
            "Conflict", f"As many as {FOLLOWERS} others follow requests now; try again when one of them has ended."
        )
    name = follower or uuid.uuid4().hex
    wanted = LiveFilter(tenant, bucket, prefix, status, "" if outcome is None else outcome.value, slower)
    await through_redis(exchange.follow(name, wanted))
    requests, dropped = await through_redis(exchange.take_requests(name))
    return RequestsSeen(
        follower=name,
        requests=[_seen(request) for request in sorted(requests, key=lambda request: request.at)],
        dropped=dropped,
    )


def _seen(request: LiveRequest) -> RequestSeen:
    return RequestSeen(**{**request._asdict(), "at": moment(request.at)})
