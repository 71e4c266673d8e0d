"""``/-/admin/nodes``: the nodes of the zone; one can be taken out of the ring while it serves on, and brought back."""

from __future__ import annotations

from dataclasses import replace

from fastapi import APIRouter, Response
from pydantic import Field

from gateway.admin.fleet.documents import NodeDocument
from gateway.admin.fleet.view import nodes_of
from gateway.admin.http.documents import RequestModel
from gateway.admin.http.requests import Cursor, Limit, Page, Parts, paged
from gateway.admin.http.tokens import Admin, Reader
from gateway.admin.operations.parts import Operations, Ops, through_redis
from gateway.model.datasets import ApiError
from gateway.model.fleet import Node, NodeState

router = APIRouter(tags=["nodes"])


class Drain(RequestModel):
    """How to drain a node."""

    force: bool = Field(False, description="even if no node is home of anything then", examples=[False])


@router.get("/nodes", summary="List nodes")
async def list_nodes(
    _caller: Reader, operations: Ops, response: Response, limit: Limit = 100, cursor: Cursor = ""
) -> Page[NodeDocument]:
    """The nodes of the zone by id."""
    reading = await operations.board.look()
    if reading.lost:
        response.headers["X-Larder-Stale"] = "redis"
    found = nodes_of(reading)
    return paged(found, lambda node: node.id, limit, cursor)


@router.post("/nodes/{node}/drain", summary="Take a node out of the ring")
async def drain(node: str, caller: Admin, operations: Ops, parts: Parts, asked: Drain | None = None) -> NodeDocument:
    """The node is home of nothing any more, and answers what it is asked; it is LEAVING until it is brought back or started anew.

    Others take over what it was home of, from it as long as it is there. The last READY node is drained with `force` only.
    """
    wanted = _found(operations, node)
    async with parts.catalog.changes.change(caller, "nodes.drain", node) as change:
        # Changes are one after the other: two who drain at the same moment do not each rely on the other's node.
        if not (asked is not None and asked.force):
            await _check_others(operations, node)
        change.before, change.after = {"state": wanted.state.value}, {"drained": True}
        await through_redis(operations.board.parts.membership.drain(wanted, True))
    return _document(operations, wanted, NodeState.LEAVING)


@router.post("/nodes/{node}/undrain", summary="Bring a node back into the ring")
async def undrain(node: str, caller: Admin, operations: Ops, parts: Parts) -> NodeDocument:
    """The node is home of its share again within a heartbeat; what it held meanwhile counts, the rest comes from the others."""
    wanted = _found(operations, node)
    async with parts.catalog.changes.change(caller, "nodes.undrain", node) as change:
        change.before, change.after = {"state": wanted.state.value}, {"drained": False}
        await through_redis(operations.board.parts.membership.drain(wanted, False))
    return _document(operations, wanted, NodeState.READY)


@router.delete("/nodes/{node}", summary="Dismiss a node that is gone", status_code=204)
async def dismiss(node: str, caller: Admin, operations: Ops, parts: Parts) -> None:
    """It is not listed, nor missed, any more, unless it comes back; what it has counted stays in the totals."""
    reading = await operations.board.look()
    if node in reading.nodes:
        raise ApiError("Conflict", f"{node!r} is there; stop it, and it takes itself off the list.")
    if node not in reading.gone:
        raise _unknown(node)
    async with parts.catalog.changes.change(caller, "nodes.dismiss", node) as change:
        change.before = {"state": "GONE"}
        await through_redis(operations.board.parts.samples.gone(node))
    operations.board.stale()


async def _check_others(operations: Operations, node: str) -> None:
    """Refuse to take the only node out of the ring that is in it, or will be after the heartbeats that are due.

    Raises:
        ApiError: Conflict; ServiceUnavailable, Redis cannot be asked.
    """
    membership = operations.board.parts.membership
    drained = await through_redis(membership.drained())
    ready = [one.id for one in membership.nodes.values() if one.state is NodeState.READY and one.id not in drained]
    if ready == [node]:
        raise ApiError(
            "Conflict",
            f"{node!r} is the only node that is READY: without it every gateway reads and keeps everything for itself. Start "
            'another one first, or send {"force": true}.',
        )


def _found(operations: Operations, name: str) -> Node:
    node = operations.board.parts.membership.nodes.get(name)
    if node is None:
        raise _unknown(name)
    return node


def _unknown(name: str) -> ApiError:
    return ApiError("NotFound", f"There is no node {name[:140]!r} in this zone; GET /-/admin/nodes lists them.")


def _document(operations: Operations, node: Node, state: NodeState) -> NodeDocument:
    """The node as it will be with its next heartbeat."""
    board = operations.board
    known = replace(board.last, nodes={**board.last.nodes, node.id: node})
    board.stale()
    found = next(each for each in nodes_of(known) if each.id == node.id)
    return found.model_copy(update={"state": state.value})
