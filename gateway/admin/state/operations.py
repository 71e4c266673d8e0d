"""What most endpoints need: the state of the fleet, access keys, and rules."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from gateway.admin.state.reading import FleetReader
from gateway.edge.problems import refused_field
from gateway.fleet.nodes.announcer import DOWN
from gateway.model.datasets import ApiError
from gateway.model.keys import Principal
from gateway.policies.reads.rules import Rules

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operations:
    """The services of one worker.

    ``find`` gives the principal of an access key that is valid now, or ``None``; ``rules`` are those in force.
    """

    fleet: FleetReader
    find: Callable[[str], Principal | None]
    rules: Callable[[], Rules]


def principal_of(operations: Operations, access_key_id: str) -> Principal:
    """The principal of an access key.

    Raises:
        ApiError: InvalidRequest, the key is not valid.
    """
    principal = operations.find(access_key_id)
    if principal is None:
        raise refused_field(
            "access_key_id",
            "The field access_key_id must be a valid key of this gateway; this one is unknown, revoked or expired.",
        )
    return principal


async def through_redis(work: Awaitable[T]) -> T:
    """Await work that needs Redis.

    Raises:
        ApiError: ServiceUnavailable, it cannot be reached.
    """
    try:
        return await work
    except DOWN:
        raise unreachable() from None


def unreachable() -> ApiError:
    """The error while Redis is unreachable."""
    return ApiError(
        "ServiceUnavailable",
        "Redis cannot be reached, so the nodes cannot be informed; try again.",
        headers={"Retry-After": "5"},
    )
