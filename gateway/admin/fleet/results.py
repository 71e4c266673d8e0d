"""``/-/admin/results``: results of pipelines in use, the space that they get, and operators' overrides.

Overrides are stored like those of datasets, with the name of a pool instead of a dataset's id (``overrides.py``).
"""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Response
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.catalog.fields import RequestModel
from gateway.admin.fleet.datasets import OverrideDocument, override_document
from gateway.admin.fleet.overrides import Decision, decision_of, replace_override
from gateway.admin.http.requests import Changer, Cursor, IfMatch, Limit, Page, Parts, Reader, paged
from gateway.admin.state.documents import ResultsDocument
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReader, FleetReading
from gateway.admin.state.view import dataset_names
from gateway.model.datasets import ApiError
from gateway.policies.pools import RESULTS

router = APIRouter(tags=["results"])

PoolName = Annotated[
    str,
    PathParameter(pattern=r"^results:[0-9a-f]{32}$", description="as listed", examples=[f"{RESULTS}{'6f1c2a9b' * 4}"]),
]


_SUMS = ("bytes", "hits", "misses", "evicted_bytes")


class ResultsOverride(RequestModel):
    """An operator's override of the plan for one pool of results."""

    mode: Literal["pin", "never"] | None = Field(
        description="pin: space before other results, whatever they save; never: none are stored; null: the plan decides",
        examples=["pin"],
    )
    quota: Annotated[int, Field(ge=1, le=2**60)] | None = Field(
        None, description="most bytes that they may take; null: no limit", examples=[40_000_000_000]
    )


class ResultsDetail(ResultsDocument):
    """The results of one fingerprint in detail."""

    override: OverrideDocument


def results_of(reading: FleetReading) -> list[ResultsDocument]:
    """All results in use, by the names of their pools."""
    documents, names = [], dataset_names(reading)
    for name, used in sorted(reading.results.items()):
        pool = f"{RESULTS}{name}"
        order = reading.plan.pools.get(pool)
        held = [by_pool[pool] for by_pool in reading.held.values() if pool in by_pool]
        documents.append(
            ResultsDocument.of(
                used,
                pool=pool,
                dataset_name=", ".join(names.get(used.dataset, ())),
                target=0 if order is None else order.target,
                why=None if order is None else order.why.value,
                order="uniform",
                # Copies on two nodes, as after a change of homes, are two files but one element: nodes report only how many.
                blobs=min(used.items, sum(pool_report.blobs for pool_report in held)),
                blobs_least=min(used.items, max((pool_report.blobs for pool_report in held), default=0)),
                **{name: sum(getattr(pool_report, name) for pool_report in held) for name in _SUMS},
            )
        )
    return documents


@router.get("/results", summary="List results of pipelines")
async def list_results(
    _caller: Reader, operations: Ops, limit: Limit = 100, cursor: Cursor = ""
) -> Page[ResultsDocument]:
    """The results that were used within `results.idle`, by pool."""
    return paged(results_of(await operations.fleet.look()), lambda results: results.pool, limit, cursor)


@router.get("/results/{pool}", summary="Show results of pipelines")
async def show_results(
    pool: PoolName, _caller: Reader, operations: Ops, parts: Parts, response: Response
) -> ResultsDetail:
    """One pool of results: its space, what was read from it, and the override in force."""
    results = await _results(operations.fleet, pool)
    override = override_document(await decision_of(parts.catalog, pool))
    response.headers["ETag"] = override.etag
    return ResultsDetail(**results.model_dump(), override=override)


@router.put("/results/{pool}/override", summary="Override the plan for results of pipelines")
async def override_results(
    pool: PoolName,
    caller: Changer,
    operations: Ops,
    parts: Parts,
    asked: ResultsOverride,
    response: Response,
    if_match: IfMatch = None,
) -> OverrideDocument:
    """Pin results, store none, or set a quota; it takes effect with the next plan, a heartbeat later. Omitted fields are reset,
    so `{"mode": null}` lets the plan decide again."""
    await _results(operations.fleet, pool)
    decision = Decision(asked.mode, asked.quota)
    after = await replace_override(caller, operations, parts, "results.override", pool, decision, if_match)
    document = override_document(after)
    response.headers["ETag"] = document.etag
    return document


async def _results(fleet: FleetReader, pool: str) -> ResultsDocument:
    if (document := await fleet.find(results_of, lambda results: results.pool == pool)) is None:
        raise ApiError("NotFound", f"No results {pool!r} are in use; larder-gateway results lists them.")
    return document
