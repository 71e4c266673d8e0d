"""Wires operations: the node's watch, verifications, warm-ups, and the fleet snapshot for the pages."""

from __future__ import annotations

import itertools
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.admin.fleet.overrides import report_sizes
from gateway.admin.state.operations import Operations
from gateway.admin.state.reading import FleetReader, FleetSources
from gateway.api.peer.app import Address
from gateway.api.peer.loads import peer_loads
from gateway.api.s3.auth import Authenticator
from gateway.base.config import Settings
from gateway.base.imports import imported
from gateway.base.tasks import keep_running
from gateway.edge.asgi import Edge, LateApp
from gateway.engine.engine import Engine
from gateway.engine.items.registrations import Registrations
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.engine.operations.watch import NodeIdentity, NodeView, NodeWatch
from gateway.fleet.jobs.datasets import DatasetTable
from gateway.fleet.nodes.invalidations import Invalidations
from gateway.fleet.nodes.samples import Samples
from gateway.fleet.redis.connection import commands
from gateway.model.keys import Principal
from gateway.operate.features import FEATURES
from gateway.operate.ground import Ground, RunningFeature
from gateway.origin.listing import Listings
from gateway.wiring import ENDPOINTS
from gateway.wiring.admin import Administration
from gateway.wiring.datasets import DatasetEdge
from gateway.wiring.fleet import FleetServices, Start
from gateway.wiring.live import Live
from gateway.wiring.manager import Management
from gateway.wiring.problems import redis_problem, sources

_WIRING = tuple(imported(feature.wiring) for feature in FEATURES if feature.wiring)
"""Imported with this module, and so before workers are forked."""
_PATIENCE = 2.0
"""Seconds for one command to Redis."""


@dataclass(frozen=True, slots=True)
class WorkerServices:
    """The worker's services that operations depend on."""

    settings: Settings
    start: Start
    fleet: FleetServices
    management: Management
    engine: Engine
    channel: Invalidations
    listings: Listings
    authenticator: Authenticator
    live: Live
    admin: Administration
    edges: Callable[[], Iterable[Edge]]

    @property
    def me(self) -> str:
        """This node's id."""
        return self.fleet.membership.me


@dataclass(frozen=True, slots=True)
class Operated:
    """The node's watch, and the addresses under ``/-/peer/v1`` for operators' requests."""

    watch: NodeWatch
    addresses: Mapping[str, Address]


def operate(ground: WorkerServices, registrations: Registrations, stack: AsyncExitStack) -> Operated:
    """Watch this node, run operators' requests, and read the fleet's state, until the stack is closed."""
    membership, parts = ground.fleet.membership, ground.management.parts
    redis = commands(ground.start.redis, _PATIENCE)
    stack.push_async_callback(redis.aclose)
    worker = f"{ground.me}/{uuid.uuid4().hex}"
    samples = Samples(redis, membership.prefix)
    watch = NodeWatch(
        samples, NodeIdentity(ground.me, ground.start.boot, worker, membership.address), _seen(ground, registrations)
    )
    table = DatasetTable(redis, membership.prefix) if ground.engine.services.fleet is not None else None
    folders, batches = registrations.registry.folders, ground.settings.manager.probe_batches
    overrides = ground.management.overrides
    fleet = FleetReader(FleetSources(samples, parts, membership, watch, table, folders, overrides, batches))
    find = finder(ground.authenticator)
    keep_running(watch.run(), stack, watch.stop)
    keep_running(report_sizes(overrides, parts, lambda: watch.speaks, fleet.look), stack)
    state = ground.admin.app.state
    state.operations = Operations(fleet, find, lambda: ground.engine.services.rules)
    below = Ground(
        ground.settings, redis, membership, worker, watch, fleet, ground.engine, lambda: ground.live.effective,
        ground.admin.catalog, ground.admin.exists, find, ground.listings, registrations, ground.management.planned,
    )  # fmt: skip
    addresses = {"warm": peer_loads(WarmObjects(ground.engine, ground.engine.services.fleet))}
    for feature in _started(below, stack):
        vars(state).update(feature.services)
        addresses |= feature.addresses
    return Operated(watch, addresses)


def late_endpoints(ground: WorkerServices, datasets: DatasetEdge) -> LateApp:
    """The endpoints that wait for no data; imported after the start."""
    return LateApp(lambda: imported(ENDPOINTS).serving(ground, datasets))


def _started(ground: Ground, stack: AsyncExitStack) -> Iterator[RunningFeature]:
    """Start the features; their loops run until the stack is closed."""
    for module in _WIRING:
        running: RunningFeature = module.start(ground)
        for loop in running.loops:
            keep_running(loop.work(), stack, loop.stop)
        yield running


def _seen(ground: WorkerServices, registrations: Registrations) -> NodeView:
    channel, fleet, store = ground.channel, ground.fleet, ground.engine.services.store
    known = sources(ground.engine.services, channel, fleet, ground.live, ground.admin, ground.edges)
    return NodeView(
        store=store,
        contents=registrations.registry.contents,
        plan=lambda: ground.management.parts.plans.plan,
        stopping=lambda: fleet.membership.stopping,
        parts=lambda: itertools.chain.from_iterable(source() for source in known),
        redis=lambda: not redis_problem(channel, fleet),
        origins=lambda: ground.engine.services.origin.contacts,
    )


def finder(authenticator: Authenticator) -> Callable[[str], Principal | None]:
    """Looks up the principal of an access key that is currently valid."""

    def find(access_key_id: str) -> Principal | None:
        account = authenticator.find(access_key_id)
        return None if account is None or account.expires_at <= time.time() else account.principal

    return find
