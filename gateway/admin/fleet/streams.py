"""``/-/admin/streams``: the access patterns recognised from plain S3 reads, and what the cache holds of each stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as PathParameter
from starlette.convertors import PathConvertor, register_url_convertor

from gateway.admin.fleet.documents import EvidenceDocument, StreamAhead, StreamDocument, StreamPool
from gateway.admin.fleet.reading import FleetReading
from gateway.admin.http.requests import Cursor, Limit, Page, paged
from gateway.admin.http.tokens import Reader
from gateway.admin.operations.parts import Ops
from gateway.model.datasets import ApiError
from gateway.policies.pools import STREAM
from gateway.policies.streams.zone import AheadReport, ZoneStream, zone_streams


class _StreamName(PathConvertor):
    """The rest of the path, including line breaks: keys may contain any character."""

    regex = "(?s:.*)"


register_url_convertor("stream", _StreamName())
router = APIRouter(tags=["streams"])


def streams_of(reading: FleetReading) -> list[StreamDocument]:
    """All streams, by name."""
    return [stream_document(reading, one) for one in zone_streams(reading.streams).values()]


def stream_document(reading: FleetReading, one: ZoneStream) -> StreamDocument:
    """The document of one stream."""
    seen, order = one.seen, reading.plan.pools.get(f"{STREAM}{one.name}")
    pool = None
    if order is not None:
        held = {name: value for name, value in asdict(one.pool).items() if name != "target"}
        pool = StreamPool(name=f"{STREAM}{one.name}", order=order.eviction, target=order.target, **held)
    return StreamDocument(
        name=one.name,
        pattern=None if seen.pattern is None else seen.pattern.value,
        evidence=None if seen.evidence is None else EvidenceDocument(**asdict(seen.evidence)),
        accesses=seen.accesses,
        hits=seen.hits,
        misses=seen.accesses - seen.hits,
        bytes=seen.bytes,
        idle_seconds=round(seen.idle, 3),
        nodes=list(one.seen_by),
        ahead=StreamAhead(**asdict(seen.ahead), accuracy=_accuracy(seen.ahead)),
        pool=pool,
    )


def _accuracy(ahead: AheadReport) -> float | None:
    judged = ahead.used + ahead.wasted
    return round(ahead.used / judged, 4) if judged else None


@router.get("/streams", summary="List access streams")
async def list_streams(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[StreamDocument]:
    """The streams of all nodes, by name."""
    found = streams_of(await operations.fleet.look())
    return paged(found, lambda stream: stream.name, limit, cursor)


@router.get("/streams/{name:stream}", summary="Show an access stream")
async def show_stream(
    name: Annotated[str, PathParameter(max_length=2048, description="of the stream, with its slashes")],
    _caller: Reader,
    operations: Ops,
) -> StreamDocument:
    """One stream: its pattern, the evidence, and its share of the cache."""
    reading = await operations.fleet.look()
    found = zone_streams(reading.streams).get(name)
    if found is None:
        raise ApiError("NotFound", f"Unknown stream {name[:140]!r}; larder-gateway streams lists them.")
    return stream_document(reading, found)
