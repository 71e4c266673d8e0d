"""``/-/admin/results``: results of pipelines in use, and the space that they get."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import Field

from gateway.admin.fleet.reading import FleetReading
from gateway.admin.http.documents import ResponseModel
from gateway.admin.http.requests import Cursor, Limit, Page, paged
from gateway.admin.http.tokens import Reader
from gateway.admin.operations.parts import Ops
from gateway.policies.pools import RESULTS
from gateway.policies.streams.zone import PoolReport

router = APIRouter(tags=["results"])


class ResultsDocument(ResponseModel):
    """The results of one fingerprint over one dataset of a tenant; they have a pool of their own."""

    pool: str = Field(examples=["results:6f1c2a9b0d4e4f7ea1b2c3d4e5f60718"])
    tenant: str = Field(examples=["vision"])
    dataset: str = Field(
        description="id", examples=["33108813043581e677d5c9eb047b1f7a3bccdeccac3aa28a09be4e528862199d"]
    )
    fingerprint: str = Field(
        description="of the functions before the mark",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )
    items: int = Field(description="of the dataset", examples=[1_281_167])
    size: int = Field(
        description="estimated bytes of all results; 0: no element is known yet", examples=[190_000_000_000]
    )
    target: int = Field(description="bytes that the plan gives them; 0: none are stored", examples=[120_000_000_000])
    why: str | None = Field(
        description="benefit, no-room or override; null: the plan does not speak of them yet", examples=["benefit"]
    )
    order: str = Field(description="in which they leave", examples=["uniform"])
    bytes: int = Field(description="in the cache", examples=[118_200_000_000])
    blobs: int = Field(examples=[794_000])
    hits: int = Field(examples=[2_100_000])
    misses: int = Field(examples=[1_300_000])
    evicted_bytes: int = Field(examples=[0])


def results_of(reading: FleetReading) -> list[ResultsDocument]:
    """All results in use, by the names of their pools."""
    found = []
    for name, used in sorted(reading.results.items()):
        pool = f"{RESULTS}{name}"
        order = reading.plan.pools.get(pool)
        held = [told[pool] for told in reading.held.values() if pool in told] or [PoolReport()]
        found.append(
            ResultsDocument(
                pool=pool,
                tenant=used.tenant,
                dataset=used.dataset,
                fingerprint=used.fingerprint,
                items=used.items,
                size=used.size,
                target=0 if order is None else order.target,
                why=None if order is None else order.why.value,
                order="uniform",
                bytes=sum(one.bytes for one in held),
                blobs=sum(one.blobs for one in held),
                hits=sum(one.hits for one in held),
                misses=sum(one.misses for one in held),
                evicted_bytes=sum(one.evicted_bytes for one in held),
            )
        )
    return found


@router.get("/results", summary="List results of pipelines")
async def list_results(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[ResultsDocument]:
    """The results that were used within `results.idle`, by pool."""
    return paged(results_of(await operations.fleet.look()), lambda one: one.pool, limit, cursor)
