"""``/-/v1/fleet``: the nodes of the fleet. A client computes the home of each item from it, and asks that node first."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from pydantic import BaseModel, Field

from gateway.api.v1.identity import Identities
from gateway.edge.problems import refusals
from gateway.fleet.membership import Membership
from gateway.model.datasets import ApiError
from gateway.model.fleet import NodeState
from gateway.policies.ring import RING
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


class FleetService:
    """Implements the endpoint.

    Args:
        identities: verifies callers.
        membership: of this node.
        local: this node's unix socket, if it has one.
    """

    def __init__(self, identities: Identities, membership: Membership, local: LocalAddress | None) -> None:
        self._identities = identities
        self._membership = membership
        self._local = None if local is None else UnixSocket(**local._asdict())

    async def admit(self, request: Request) -> None:
        """Admit any verified caller.

        Raises:
            S3Error: the caller is not verified.
            ApiError: InvalidRequest if there is a body or a parameter.
        """
        caller = self._identities.admit(request.scope)
        if request.query_params:
            raise ApiError("InvalidRequest", "This address takes no parameters.")
        async for piece in request.stream():
            if piece:
                raise ApiError("InvalidRequest", "A GET of this address takes no body.")
        caller.confirm_body(b"")

    def show(self) -> Fleet:
        """The document."""
        fleet = self._membership
        nodes = [
            FleetNode(id=node.id, address=node.address, capacity=node.capacity, state=node.state)
            for node in fleet.nodes.values()
        ]
        return Fleet(zone=fleet.zone, ring=RING, version=fleet.version, nodes=nodes, unix_socket=self._local)


def _service(request: Request) -> FleetService:
    service: FleetService = request.app.state.fleet
    return service


Service = Annotated[FleetService, Depends(_service)]


async def _admitted(request: Request, service: Service) -> None:
    await service.admit(request)


router = APIRouter(
    prefix="/v1",
    tags=["fleet"],
    responses=refusals(
        {
            400: "InvalidRequest, or S3's codes for a malformed signature",
            403: "AccessDenied, SignatureDoesNotMatch, InvalidAccessKeyId, RequestTimeTooSkewed",
        }
    ),
)


@router.get("/fleet", summary="Show the fleet", dependencies=[Depends(_admitted)])
async def show_fleet(service: Service) -> Fleet:
    """The nodes of this zone: the input of the client's ring."""
    return service.show()
