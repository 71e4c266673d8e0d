"""``/-/admin/nodes``: the nodes of the zone. A node can be drained while it serves, and brought back."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response
from pydantic import Field

from gateway.admin.catalog.fields import RequestModel
from gateway.admin.http.requests import Changer, Cursor, Limit, Page, Parts, Reader, paged
from gateway.admin.state.documents import NodeDocument
from gateway.admin.state.operations import Operations, through_redis
from gateway.admin.state.parameters import Ops
from gateway.admin.state.view import nodes_of
from gateway.model.datasets import ApiError
from gateway.model.fleet import Node, NodeState

router = APIRouter(tags=["nodes"])


class Drain(RequestModel):
    """Options for draining a node."""

    force: bool = Field(False, description="even if that empties the ring", examples=[False])


@router.get("/nodes", summary="List nodes")
async def list_nodes(
    _caller: Reader, operations: Ops, response: Response, limit: Limit = 100, cursor: Cursor = ""
) -> Page[NodeDocument]:
    """The nodes of the zone by id."""
    reading = await operations.fleet.look()
    if reading.lost:
        response.headers["X-Larder-Stale"] = "redis"
    nodes = nodes_of(reading)
    return paged(nodes, lambda node: node.id, limit, cursor)


@router.post("/nodes/{node}/drain", summary="Take a node out of the ring")
async def drain_node(
    node: str, caller: Changer, operations: Ops, parts: Parts, asked: Drain | None = None
) -> NodeDocument:
    """Take a node out of the ring: it owns no keys, but keeps serving. It is LEAVING until it is undrained or restarted.

    Other nodes take over its objects, from its cache while it is up. The last READY node is drained only with `force`.
    """
    wanted = _known_node(operations, node)
    async with parts.catalog.changes.change(caller, "nodes.drain", node) as change:
        # Changes are serialized, so two concurrent drains cannot each rely on the other's node.
        if not (asked is not None and asked.force):
            await _check_others(operations, node)
        change.before, change.after = await _drained(operations, node), {"drained": True}
        await through_redis(operations.fleet.sources.membership.drain(wanted, True))
    return _document(operations, wanted, NodeState.LEAVING)


@router.post("/nodes/{node}/undrain", summary="Bring a node back into the ring")
async def undrain_node(node: str, caller: Changer, operations: Ops, parts: Parts) -> NodeDocument:
    """The node owns its share again within a heartbeat, and uses what it has cached; the rest comes from the other nodes."""
    wanted = _known_node(operations, node)
    async with parts.catalog.changes.change(caller, "nodes.undrain", node) as change:
        change.before, change.after = await _drained(operations, node), {"drained": False}
        await through_redis(operations.fleet.sources.membership.drain(wanted, False))
    return _document(operations, wanted, NodeState.READY)


@router.delete("/nodes/{node}", summary="Dismiss a lost node", status_code=204)
async def dismiss_node(node: str, caller: Changer, operations: Ops, parts: Parts) -> None:
    """Stop listing a lost node and reporting it as missing, unless it comes back. Its counts stay in the totals."""
    reading = await operations.fleet.look()
    if node in reading.nodes:
        raise ApiError(
            "Conflict", f"The node {node!r} is a member of the fleet; it leaves the list when it is stopped."
        )
    if node not in reading.gone:
        raise _unknown(node)
    async with parts.catalog.changes.change(caller, "nodes.dismiss", node) as change:
        change.before = {"state": "GONE"}
        await through_redis(operations.fleet.sources.samples.gone(node))
    operations.fleet.stale()


async def _drained(operations: Operations, node: str) -> dict[str, bool]:
    """The fields for the audit log, before and after the change.

    Raises:
        ApiError: ServiceUnavailable, Redis is unreachable.
    """
    return {"drained": node in await through_redis(operations.fleet.sources.membership.drained())}


async def _check_others(operations: Operations, node: str) -> None:
    """Refuse to drain the only node that is in the ring, or will be after the next heartbeats.

    Raises:
        ApiError: Conflict; ServiceUnavailable, Redis is unreachable.
    """
    membership = operations.fleet.sources.membership
    drained = await through_redis(membership.drained())
    ready = [
        member.id
        for member in membership.nodes.values()
        if member.state is NodeState.READY and member.id not in drained
    ]
    if ready == [node]:
        raise ApiError(
            "Conflict",
            f"The node {node!r} is the only READY node: without it every gateway reads and caches by itself. "
            "Start another one first, or drain it by force (larder-gateway nodes drain --force).",
        )


def _known_node(operations: Operations, name: str) -> Node:
    node = operations.fleet.sources.membership.nodes.get(name)
    if node is None:
        raise _unknown(name)
    return node


def _unknown(name: str) -> ApiError:
    return ApiError("NotFound", f"Unknown node {name[:140]!r}; larder-gateway nodes lists them.")


def _document(operations: Operations, node: Node, state: NodeState) -> NodeDocument:
    """The node as of its next heartbeat."""
    fleet = operations.fleet
    known = replace(fleet.last, nodes={**fleet.last.nodes, node.id: node})
    fleet.stale()
    document = next(shown for shown in nodes_of(known) if shown.id == node.id)
    return document.model_copy(update={"state": state.value})
