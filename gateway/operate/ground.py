"""What features stand on in one worker, and what each gives back when it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.asyncio import Redis

from gateway.api.peer.app import Address
from gateway.base.config import Settings
from gateway.engine.operations.watch import NodeWatch
from gateway.fleet.nodes.membership import Membership


@dataclass(frozen=True, slots=True)
class Ground:
    """The services of one worker.

    ``redis`` is for commands that nobody waits for long. ``watch`` knows whether this worker speaks for its node.
    """

    settings: Settings
    redis: Redis
    membership: Membership
    watch: NodeWatch

    @property
    def me(self) -> str:
        """This node's id."""
        return self.membership.me


class BackgroundLoop(NamedTuple):
    """Work that runs until the worker ends; ``stop`` is called when it has ended."""

    work: Coroutine[Any, Any, None]
    stop: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class RunningFeature:
    """A feature in one worker.

    ``services`` are those of its endpoints, by the names with which they ask the application's state. ``addresses`` are those
    under ``/-/peer/v1``, by the kind they are counted as.
    """

    services: Mapping[str, object] = field(default_factory=dict)
    loops: tuple[BackgroundLoop, ...] = ()
    addresses: Mapping[str, Address] = field(default_factory=dict)
