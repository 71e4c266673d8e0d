"""``/-/admin/streams``: the access patterns recognised from plain S3 reads, what the cache holds of each stream, and overrides.

Overrides are stored like those of datasets, with the name of a stream's pool (``overrides.py``). A prefix may have one before its
first read.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter, Response
from fastapi import Path as PathParameter
from pydantic import Field
from starlette.convertors import PathConvertor, register_url_convertor

from gateway.admin.catalog.fields import RequestModel
from gateway.admin.fleet.overrides import Decision, decision_of, replace_override
from gateway.admin.http.parts import etag_of
from gateway.admin.http.requests import Changer, Cursor, IfMatch, Limit, Page, Parts, Reader, paged
from gateway.admin.state.documents import EvidenceDocument, StreamAhead, StreamDocument, StreamPool
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.edge.problems import refused_field
from gateway.model.datasets import ApiError
from gateway.policies.pools import STREAM
from gateway.policies.streams.zone import AheadReport, ZoneStream, zone_streams


class _StreamName(PathConvertor):
    """The rest of the path, including line breaks: keys may contain any character."""

    regex = "(?s:.*)"


register_url_convertor("stream", _StreamName())
router = APIRouter(tags=["streams"])
StreamName = Annotated[str, PathParameter(description="of the stream, with its slashes")]
"""Without a maximum length: a request for ``NAME/override`` that is not a PUT asks for a stream of that name, which is
unknown."""
DecidedName = Annotated[str, PathParameter(max_length=2048, description="of the stream, with its slashes")]
_MOST = 64
"""The most overrides of a zone. Each is a pool on every node."""


class StreamOverride(RequestModel):
    """An operator's override of the plan for one prefix."""

    mode: Literal["pin", "never"] | None = Field(
        description="pin: so many bytes stay, whatever others gain; never: no space; null: the plan decides",
        examples=["pin"],
    )
    bytes: Annotated[int, Field(ge=1, le=2**60)] | None = Field(
        None, description="of all nodes together; with pin", examples=[40_000_000_000]
    )


def streams_of(reading: FleetReading) -> list[StreamDocument]:
    """All streams and prefixes with an override, by name."""
    return [stream_document(reading, stream) for _, stream in sorted(_known(reading).items())]


def _known(reading: FleetReading) -> dict[str, ZoneStream]:
    """Names of streams, and of prefixes with an override, which may never have been read."""
    return {name: ZoneStream(name) for name in reading.overrides.pins} | zone_streams(reading.streams)


def stream_document(reading: FleetReading, stream: ZoneStream) -> StreamDocument:
    """The document of one stream."""
    seen, order = stream.seen, reading.plan.pools.get(f"{STREAM}{stream.name}")
    pool = None
    if order is not None:
        held = {name: value for name, value in asdict(stream.pool).items() if name != "target"}
        pool = StreamPool(name=f"{STREAM}{stream.name}", order=order.eviction, target=order.target, **held)
    return StreamDocument(
        name=stream.name,
        pattern=None if seen.pattern is None else seen.pattern.value,
        evidence=None if seen.evidence is None else EvidenceDocument(**asdict(seen.evidence)),
        accesses=seen.accesses,
        hits=seen.hits,
        misses=seen.accesses - seen.hits,
        bytes=seen.bytes,
        idle_seconds=round(seen.idle, 3),
        nodes=list(stream.seen_by),
        ahead=StreamAhead(**asdict(seen.ahead), accuracy=_accuracy(seen.ahead)),
        override=Decision(reading.overrides.modes.get(f"{STREAM}{stream.name}")).known_mode,
        pinned=reading.overrides.pins.get(stream.name) or None,
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
    streams = streams_of(await operations.fleet.look())
    return paged(streams, lambda stream: stream.name, limit, cursor)


@router.get("/streams/{name:stream}", summary="Show an access stream")
async def show_stream(
    name: StreamName, _caller: Reader, operations: Ops, parts: Parts, response: Response
) -> StreamDocument:
    """One stream: its pattern, the evidence, and its share of the cache."""
    reading = await operations.fleet.look()
    stream = _known(reading).get(name)
    if stream is None:
        raise ApiError("NotFound", f"Unknown stream {name[:140]!r}; larder-gateway streams lists them.")
    response.headers["ETag"] = etag_of((await decision_of(parts.catalog, f"{STREAM}{name}")).revision)
    return stream_document(reading, stream)


@router.put("/streams/{name:stream}/override", summary="Override the plan for a prefix")
async def override_stream(
    name: DecidedName, caller: Changer, operations: Ops, parts: Parts, asked: StreamOverride, if_match: IfMatch = None
) -> StreamDocument:
    """Reserve bytes for a prefix, `bucket/prefix/`, or for one object, `bucket/key`, whatever others would gain by them; or give
    it no space, so that its blobs are evicted first. It takes effect with the next plan, a heartbeat later. Nothing is loaded: a
    warm-up does that. All pins together get at most nine tenths of the cache."""
    if name.find("/") < 1:
        raise refused_field("name", f"The parameter name must be bucket/prefix/ or bucket/key, not {name[:140]!r}.")
    if (asked.mode == "pin") != (asked.bytes is not None):
        raise refused_field("bytes", "The field bytes is required to pin, and goes with no other mode.")
    fleet = operations.fleet
    fleet.stale()
    decided = (await fleet.look()).overrides.pins
    if asked.mode is not None and name not in decided and len(decided) >= _MOST:
        raise ApiError(
            "Conflict", f"As many as {_MOST} prefixes have an override; larder-gateway streams auto ends one."
        )
    decision = Decision(asked.mode, asked.bytes)
    await replace_override(caller, operations, parts, "streams.override", f"{STREAM}{name}", decision, if_match)
    reading = await fleet.look()
    return stream_document(reading, _known(reading).get(name) or ZoneStream(name))
