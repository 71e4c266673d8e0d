"""What features get in one worker, and what each returns when it starts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from redis.asyncio import Redis

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.snapshot import Snapshot
from gateway.admin.state.reading import FleetReader
from gateway.api.peer.app import Address
from gateway.base.config import Settings
from gateway.engine.base.planned import Planned
from gateway.engine.base.services import Services
from gateway.engine.engine import Engine
from gateway.engine.items.registrations import Registrations
from gateway.engine.operations.watch import NodeWatch
from gateway.engine.space.stream_learner import ReadListener
from gateway.fleet.nodes.membership import Membership
from gateway.model.keys import Principal
from gateway.origin.listing import Listings


@dataclass(frozen=True, slots=True)
class Ground:
    """The services of one worker.

    ``redis`` is for commands with a short time limit. ``worker`` is this worker's id, ``NODE/WORKER``; ``watch`` tells whether
    this worker speaks for its node. ``effective`` returns the settings in force, with the catalog on top. ``find`` gives the
    principal of an access key that is valid now, or ``None``.
    """

    settings: Settings
    redis: Redis
    membership: Membership
    worker: str
    watch: NodeWatch
    fleet: FleetReader
    engine: Engine
    effective: Callable[[], Settings]
    catalog: Catalog
    has_catalog: bool
    find: Callable[[str], Principal | None]
    listings: Listings
    registrations: Registrations
    planned: Planned

    @property
    def me(self) -> str:
        """This node's id."""
        return self.membership.me


@dataclass(frozen=True, slots=True)
class CatalogGround:
    """The inputs of a follower of the catalog: ``effective`` returns the settings in force, with the catalog on top."""

    catalog: Catalog
    services: Services
    effective: Callable[[], Settings]


class BackgroundLoop(NamedTuple):
    """Work that runs until the worker ends; ``stop`` is called when it has ended."""

    work: Callable[[], Coroutine[Any, Any, None]]
    stop: Callable[[], Awaitable[None]] | None = None


@dataclass(frozen=True, slots=True)
class Following:
    """A feature's follower of the catalog.

    ``hear`` adopts a snapshot, and raises CatalogUnavailable when the catalog must be read again; a worker answers no client
    before it has adopted the first. ``reads`` is called with the clients' reads that reach the keeper.
    """

    hear: Callable[[Snapshot], Awaitable[None]] | None = None
    loop: BackgroundLoop | None = None
    reads: ReadListener | None = None


@dataclass(frozen=True, slots=True)
class RunningFeature:
    """A feature in one worker.

    ``services`` are those that its endpoints use, by their names in the application's state. ``addresses`` are those under
    ``/-/peer/v1``, by the kind under which they are counted.
    """

    services: Mapping[str, object] = field(default_factory=dict)
    loops: tuple[BackgroundLoop, ...] = ()
    addresses: Mapping[str, Address] = field(default_factory=dict)
