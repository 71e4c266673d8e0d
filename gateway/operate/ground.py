"""What features stand on in one worker, and what each gives back when it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from redis.asyncio import Redis

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.snapshot import Snapshot
from gateway.api.peer.app import Address
from gateway.base.config import Settings
from gateway.engine.engine import Engine
from gateway.engine.operations.watch import NodeWatch
from gateway.fleet.nodes.membership import Membership
from gateway.store.store import Store


@dataclass(frozen=True, slots=True)
class Ground:
    """The services of one worker.

    ``redis`` is for commands that nobody waits for long. ``watch`` knows whether this worker speaks for its node. ``effective``
    returns the settings in force, with the catalog on top.
    """

    settings: Settings
    redis: Redis
    membership: Membership
    watch: NodeWatch
    engine: Engine
    effective: Callable[[], Settings]

    @property
    def me(self) -> str:
        """This node's id."""
        return self.membership.me


@dataclass(frozen=True, slots=True)
class CatalogGround:
    """What a follower of the catalog gets: ``effective`` returns the settings in force, with the catalog on top."""

    catalog: Catalog
    store: Store
    effective: Callable[[], Settings]


class CatalogListener(Protocol):
    """Follows the catalog. A worker answers no client before it has heard the first snapshot."""

    async def hear(self, snapshot: Snapshot) -> None:
        """Adopt a snapshot. Raises CatalogUnavailable when the catalog must be read again."""

    async def run(self) -> None:
        """Work in the background, until cancelled."""


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
