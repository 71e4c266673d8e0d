"""``/-/v1/fleet``: the nodes of the fleet. Clients compute the home of each item from them, and ask that node first."""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends
from pydantic import BaseModel, Field

from gateway.api.v1.requests import WITHOUT_BODY, v1_router
from gateway.edge.endpoints import of_state
from gateway.fleet.nodes.membership import Membership
from gateway.model.fleet import NodeState
from gateway.policies.fleet.ring import RING
from gateway.server.local import LocalAddress


class FleetNode(BaseModel):
    """One node. Only READY ones are in the ring."""

    id: str = Field(examples=["gw-1"])
    address: str = Field(description="the address it advertises", examples=["http://10.0.0.7:9000"])
    capacity: int = Field(description="of its cache in bytes; its weight in the ring", examples=[8_000_000_000_000])
    state: NodeState


class UnixSocket(BaseModel):
    """A unix socket. Another socket at this path has another inode, or one that changed at another time."""

    path: str = Field(examples=["/run/larder/gateway.sock"])
    inode: int = Field(examples=[1041])
    changed_ns: int = Field(description="Unix time of the inode's last change in nanoseconds")


class Fleet(BaseModel):
    """The fleet as this node knows it; a standalone node lists only itself."""

    zone: str = Field(examples=["default"])
    ring: int = Field(description="version of the function from nodes and keys to homes", examples=[RING])
    version: int = Field(description="increases with every change, per worker", examples=[3])
    nodes: list[FleetNode] = Field(description="by id")
    unix_socket: UnixSocket | None = Field(description="where the node that answers listens for clients on its machine")


router = v1_router("fleet", {400: "InvalidRequest, or S3's codes for a malformed signature"})


@router.get("/fleet", summary="Show the fleet", dependencies=WITHOUT_BODY)
async def show_fleet(
    fleet: Annotated[Membership, Depends(of_state("membership"))],
    local: Annotated[LocalAddress | None, Depends(of_state("local"))],
) -> Fleet:
    """The nodes of this zone: the input of the client's ring."""
    nodes = [FleetNode.model_validate(node, from_attributes=True) for node in fleet.nodes.values()]
    socket = None if local is None else UnixSocket(**local._asdict())
    return Fleet(zone=fleet.zone, ring=RING, version=fleet.version, nodes=nodes, unix_socket=socket)
