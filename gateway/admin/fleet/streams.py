"""``/-/admin/streams``: how clients read, as recognised from plain S3 reads, and what the cache holds of each stream."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Literal

from fastapi import APIRouter
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.fleet.board import FleetReading
from gateway.admin.http.documents import ResponseModel
from gateway.admin.http.requests import Cursor, Limit, Page, paged
from gateway.admin.http.tokens import Reader
from gateway.admin.operations.parts import Ops
from gateway.model.datasets import ApiError
from gateway.policies.pools import STREAM
from gateway.policies.streams.zone import ZoneStream, zone_streams

router = APIRouter(tags=["streams"])
PatternName = Literal["sequential", "random", "skewed"]


class EvidenceDocument(ResponseModel):
    """What a pattern was recognised from."""

    window: int = Field(description="reads that were tested", examples=[100])
    listed: bool = Field(description="whether positions come from a listing, else from the names seen", examples=[True])
    count: int = Field(description="objects, folders or blocks side by side", examples=[1_281_167])
    rho: float = Field(description="agreement of position and time; above 0.9: sequential", examples=[0.03])
    statistic: float = Field(description="distance of the gaps from those of uniform reads", examples=[0.081])
    threshold: float = Field(description="above it, `statistic` says skewed", examples=[0.161])
    repeats: int = Field(description="reads of something that the window has already", examples=[0])
    most_repeats: int = Field(description="above it, `repeats` say skewed", examples=[2])
    population: int = Field(description="how many there seem to be side by side", examples=[1_281_167])


class StreamPool(ResponseModel):
    """What all nodes together hold of a stream."""

    name: str = Field(examples=["stream:datasets/imagenet/train/"])
    order: str = Field(description="eviction order", examples=["uniform"])
    target: int = Field(description="bytes; 0: the stream has ended, and is released", examples=[50_000_000_000])
    bytes: int = Field(examples=[48_211_000_000])
    blobs: int = Field(examples=[418_220])
    hits: int = Field(examples=[1_204_221])
    misses: int = Field(examples=[88_214])
    evicted_bytes: int = Field(examples=[0])
    ghost_hits: int = Field(description="misses of what had been evicted last", examples=[0])


class StreamDocument(ResponseModel):
    """The reads below one prefix, or of the blocks of one large object."""

    name: str = Field(
        description="bucket and prefix; ORIGIN: stands before it unless the origin is called default",
        examples=["datasets/imagenet/train/"],
    )
    pattern: PatternName | None = Field(
        description="null: not recognised yet, or no node's clients read it now", examples=["random"]
    )
    evidence: EvidenceDocument | None = Field(description="of the last window; null before the first")
    accesses: int = Field(description="reads since it was noticed, by block", examples=[1_292_435])
    hits: int = Field(description="of them", examples=[1_204_221])
    misses: int = Field(description="of them", examples=[88_214])
    bytes: int = Field(description="that clients read", examples=[147_000_000_000])
    idle_seconds: float = Field(description="since the last read", examples=[0.4])
    nodes: list[str] = Field(description="whose clients read it", examples=[["gw-1", "gw-2"]])
    pool: StreamPool | None = Field(description="null: its objects are in the pool `default`")


def stream_document(reading: FleetReading, one: ZoneStream) -> StreamDocument:
    """What is known of a stream."""
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
        pool=pool,
    )


@router.get("/streams", summary="List access streams")
async def list_streams(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[StreamDocument]:
    """The streams of all nodes, by name."""
    reading = await operations.board.look()
    found = [stream_document(reading, one) for one in zone_streams(reading.streams).values()]
    return paged(found, lambda stream: stream.name, limit, cursor)


@router.get("/streams/{name:path}", summary="Show an access stream")
async def show_stream(
    name: Annotated[str, PathParameter(max_length=2048, description="of the stream, with its slashes")],
    _caller: Reader,
    operations: Ops,
) -> StreamDocument:
    """One stream: its pattern and why, and what is held of it."""
    reading = await operations.board.look()
    found = zone_streams(reading.streams).get(name)
    if found is None:
        raise ApiError("NotFound", f"There is no stream {name[:140]!r}; GET /-/admin/streams lists them.")
    return stream_document(reading, found)
