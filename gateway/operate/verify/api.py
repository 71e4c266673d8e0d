"""``/-/admin/verifications``: nodes check their caches while they serve, and report defects."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Response
from fastapi import Path as PathParameter
from pydantic import Field

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.fields import RequestModel
from gateway.admin.http.requests import (
    Changer,
    Cursor,
    Idempotent,
    Limit,
    Page,
    Parts,
    Reader,
    change_once,
    located,
    sliced,
)
from gateway.admin.state.operations import Operations, through_redis
from gateway.admin.state.parameters import Ops
from gateway.edge.documents import ResponseModel, moment
from gateway.edge.endpoints import of_state
from gateway.edge.problems import refused_field
from gateway.fleet.nodes.verifications import Verification
from gateway.model.datasets import ApiError
from gateway.operate.verify.work import Verifications

router = APIRouter(tags=["verifications"])

_ID = "5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f"
State = Literal["queued", "running", "done", "failed"]
Service = Annotated[Verifications, Depends(of_state("verifications"))]
VerificationId = Annotated[str, PathParameter(pattern="^[0-9a-f]{32}$", description="of the verification")]


class VerificationRequest(RequestModel):
    """The nodes to verify."""

    nodes: list[Annotated[str, Field(max_length=64)]] = Field(
        default_factory=list, max_length=1000, description="ids; empty: all members", examples=[["gw-1"]]
    )


class NodeVerified(ResponseModel):
    """The result of one node so far. A node drops corrupt, missing and orphaned blobs when it encounters them; readers get
    correct bytes."""

    node: str = Field(examples=["gw-1"])
    state: State = Field(examples=["running"])
    share: float = Field(description="of the cache that has been read", examples=[0.42])
    blobs: int = Field(examples=[120_331])
    bytes: int = Field(examples=[13_002_111_222])
    corrupt: int = Field(description="the bytes do not match the digest", examples=[0])
    missing: int = Field(description="in the index, but not on the disk", examples=[0])
    orphans: int = Field(description="no object uses them", examples=[0])
    examples: list[str] = Field(description="some of them, as files below blobs/", examples=[[]])
    failure: str = Field(description="why it failed; empty if it did not", examples=[""])


class VerificationDocument(ResponseModel):
    """A verification."""

    id: str = Field(examples=[_ID])
    at: str = Field(description="when it was requested, ISO 8601", examples=["2026-03-02T14:30:00.000Z"])
    state: State = Field(description="done when all nodes are", examples=["running"])
    sound: bool | None = Field(description="whether no defect was found; null until done", examples=[None])
    nodes: list[NodeVerified] = Field(description="by id")


@router.post("/verifications", summary="Verify caches", status_code=202)
async def verify_caches(
    caller: Changer,
    operations: Ops,
    verifications: Service,
    parts: Parts,
    once: Idempotent,
    response: Response,
    asked: VerificationRequest | None = None,
) -> VerificationDocument:
    """Nodes compare every blob with its digest, and the index with the disk. Nothing is changed, but it costs disk reads."""
    there = operations.fleet.sources.membership.nodes
    wanted = sorted(set(asked.nodes if asked is not None and asked.nodes else there))
    unknown = [name for name in wanted if name not in there]
    if unknown:
        raise refused_field("nodes", f"Unknown node {unknown[0][:64]!r}; larder-gateway nodes lists them.")

    async def work(change: CatalogChange) -> VerificationDocument:
        name = await through_redis(verifications.queue.add(wanted))
        verification = await through_redis(verifications.queue.find(name))
        change.target, change.after = name, {"nodes": wanted}
        assert verification is not None
        return _document(verification, operations)

    document = await change_once(parts.catalog, caller, "verifications.start", once, VerificationDocument, work)
    located(response, f"verifications/{document.id}")
    return document


@router.get("/verifications", summary="List verifications")
async def list_verifications(
    _caller: Reader, operations: Ops, verifications: Service, limit: Limit = 100, cursor: Cursor = ""
) -> Page[VerificationDocument]:
    """The last hundred verifications of the past week, newest first."""
    kept = await through_redis(verifications.queue.all())
    return sliced([_document(verification, operations) for verification in kept], limit, cursor)


@router.get("/verifications/{verification}", summary="Show a verification")
async def show_verification(
    verification: VerificationId, _caller: Reader, operations: Ops, verifications: Service
) -> VerificationDocument:
    """Progress and results."""
    known = await through_redis(verifications.queue.find(verification))
    if known is None:
        raise ApiError("NotFound", "Unknown verification; they are deleted after a week.")
    return _document(known, operations)


def _document(verification: Verification, operations: Operations) -> VerificationDocument:
    there = operations.fleet.sources.membership.nodes
    nodes = [_node(name, verification.nodes[name], name in there) for name in sorted(verification.nodes)]
    states = {node.state for node in nodes}
    ended = states <= {"done", "failed"}
    state: State = "running"
    if ended:
        state = "failed" if "failed" in states else "done"
    elif states == {"queued"}:
        state = "queued"
    wrong = any(node.corrupt or node.missing or node.orphans or node.failure for node in nodes)
    return VerificationDocument(
        id=verification.id, at=moment(verification.at), state=state, sound=not wrong if ended else None, nodes=nodes
    )


def _node(name: str, report: Any, there: bool) -> NodeVerified:
    state: State = report.get("state") if report.get("state") in ("queued", "running", "done", "failed") else "failed"
    failure = str(report.get("failure", ""))
    if not there and state in ("queued", "running"):
        state, failure = "failed", "the node is gone; it continues if the node comes back"
    numbers = {key: int(report.get(key, 0)) for key in ("blobs", "bytes", "corrupt", "missing", "orphans")}
    return NodeVerified(
        node=name,
        state=state,
        share=float(report.get("share", 0.0)),
        **numbers,
        examples=[str(example) for example in report.get("examples", ())],
        failure=failure,
    )
