"""The composition root: builds services from settings, and the ASGI application from services.

gateway/wiring has its parts; nothing is wired anywhere else.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gateway.admin.address import OperatorAddress, OperatorPages, PagesElsewhere
from gateway.admin.app import AdminApp
from gateway.api.ops import Lifecycle, Monitoring, OpsApp
from gateway.api.peer.announcements import announcements
from gateway.api.peer.app import PEER, PeerApp
from gateway.api.peer.importance import peer_importance
from gateway.api.peer.items import PeerItemsEdge
from gateway.api.peer.objects import PeerObjects
from gateway.api.peer.results import peer_results
from gateway.api.peer.seen import peer_sightings
from gateway.api.s3.about_bucket import BucketReads
from gateway.api.s3.accounting import Accounting
from gateway.api.s3.app import ReadPaths, S3App
from gateway.api.s3.asked_loads import AskedLoads
from gateway.api.s3.auth import Authenticator, split_address
from gateway.api.s3.direct import DirectReads
from gateway.api.s3.forward import Forwarder
from gateway.api.s3.hot import HotReads
from gateway.api.s3.objects import ObjectReads
from gateway.api.s3.relayed import RelayedReads
from gateway.api.v1.accounting import AccountedCalls, BatchAccounting
from gateway.api.v1.app import DataApp
from gateway.api.v1.batch import BatchEndpoint
from gateway.api.v1.identity import Identities
from gateway.api.v1.results import ResultsEndpoint
from gateway.base import metrics, tracing
from gateway.base.config import Settings, load_settings
from gateway.base.imports import imported
from gateway.base.logs import set_up
from gateway.base.tasks import keep_running, repeat
from gateway.base.tracing import Traced
from gateway.edge.asgi import LateApp
from gateway.engine.base.handover import Moves
from gateway.engine.base.services import Services
from gateway.engine.engine import Engine
from gateway.engine.items.registrations import Registrations
from gateway.engine.items.results import Results
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.engine.operations.watch import NodeWatch
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import OpenDatasets
from gateway.engine.space.keeper import SweepLoop
from gateway.engine.space.score_exchange import ScoreExchange
from gateway.fleet.nodes.announcer import nobody
from gateway.fleet.nodes.delegation import Delegation
from gateway.fleet.nodes.invalidations import HeardWrites, InvalidationChannel, Invalidations, NullInvalidations
from gateway.model.keys import ObjectKey, reader_of
from gateway.model.s3.sigv4 import WireRequest
from gateway.origin.client import OriginClient
from gateway.origin.listing import Listings
from gateway.server.asgi_types import Application, Begin, Receive, Scope, Send, SendFiles
from gateway.server.local import LOCAL, LocalAddress
from gateway.server.received import BODIES
from gateway.server.run import LISTENING, OPERATORS, before_stop
from gateway.store.datasets.content import Content
from gateway.store.datasets.folders import DATASETS
from gateway.store.datasets.registry import Registry
from gateway.store.files.failures import DiskFault
from gateway.store.shared.leases import FillLeases
from gateway.store.shared.only_once import OnlyOnce
from gateway.store.store import Store
from gateway.wiring import ENDPOINTS
from gateway.wiring.admin import Administration
from gateway.wiring.config_file import LAUNCH, ConfigFile
from gateway.wiring.datasets import dataset_rules, others_of, share
from gateway.wiring.fleet import FleetServices, Start, join
from gateway.wiring.live import Changing, Live, endpoints_of, rules_of
from gateway.wiring.manager import Management, keep_plan, manage, scores_of
from gateway.wiring.operations import WorkerServices, finder, operate
from gateway.wiring.spools import spooling
from gateway.wiring.store import open_store
from gateway.wiring.streams import ReaderRights, watch_streams
from gateway.wiring.traffic import account, hold_to_limits, rate_limits
from gateway.wiring.vitals import late, show_memory

log = logging.getLogger("larder.app")

_RECOVERY_PATIENCE = 2.0
_REFRESH = 0.5
_OF_NODES = f"/-{PEER}".encode()
_COLLECTED_AFTER = 10_000
"""Container objects made since the last collection of garbage that start another one. Reads leave no cycles behind, and with
Python's own 700 a cold read spent 6 % of its time on looking for some."""


class Larder:
    """One worker's ASGI application: S3 at ``/``, everything else under ``/-/``; its lifespan owns the services."""

    def __init__(self, settings: Settings, start: Start, file: ConfigFile | None = None) -> None:
        self._settings = settings
        self._start = start
        self._file = file
        self._operators = OperatorAddress.between(start.operators, start.address)
        self._operator_pages = OperatorPages(self._ops_at)
        self._pages = PagesElsewhere(self._operators, exclusive=settings.admin.exclusive)
        self._lifecycle = Lifecycle()
        self._stack = AsyncExitStack()
        self.begin: Begin
        """See ``Edge.begin``."""
        self._objects: S3App
        self._ops: OpsApp
        self._data: DataApp
        self._endpoints: LateApp
        self._api: AccountedCalls
        self._peer: PeerApp | None = None
        self._admin: Administration
        self._exchange: ScoreExchange
        self._results: Results
        self._heard: Callable[[Sequence[ObjectKey]], Awaitable[None]]

    def at_exit(self, work: Callable[[], None]) -> None:
        """Do ``work`` when everything is closed."""
        self._stack.callback(work)

    def at(self, server: tuple[str, int] | None) -> Application:
        """The application for connections whose end here is ``server``."""
        here = self._operators is not None and self._operators.accepted(server)
        return self._operator_pages if here else self

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if scope["type"] != "http" or scope["raw_path"].startswith(b"/-"):
            return self._answer_elsewhere(scope, receive, send)
        return self._objects(scope, receive, send)

    def _begin_elsewhere(
        self, scope: Scope, receive: Receive, send: Send, send_files: SendFiles
    ) -> Awaitable[None] | None:
        """See ``Edge.begin``: objects for other nodes are sent at once."""
        peer, domain = self._peer, self._settings.server.domain
        if peer is not None and scope["raw_path"].startswith(_OF_NODES) and (not domain or self._is_ops(scope)):
            return peer.begin(scope, receive, send, send_files)
        return self._answer_elsewhere(scope, receive, send)

    def _answer_elsewhere(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve paths under "/-", unless the host names a bucket: there, "/-/x" is the object "-/x"."""
        if scope["type"] == "lifespan":
            return self._lifespan(receive, send)
        if not self._is_ops(scope):
            return self._objects(scope, receive, send)
        path = scope["path"][2:] or "/"
        return self._app_of(path)({**scope, "path": path}, receive, send)

    def _app_of(self, path: str) -> Application:
        if self._peer is not None and path.startswith(PEER):
            return self._peer
        if DataApp.handles(path):
            return self._data
        return self._pages if self._pages.handles(path) else self._ops_at(path)

    def _ops_at(self, path: str) -> Application:
        if AdminApp.handles(path):
            return self._admin.app
        return self._ops if OpsApp.handles(path) else self._api

    def _is_ops(self, scope: Scope) -> bool:
        raw_path: bytes = scope["raw_path"]
        if not raw_path.startswith(b"/-/") and raw_path != b"/-":
            return False
        if not self._settings.server.domain:
            return True
        request = WireRequest(scope["method"], raw_path, b"", scope["headers"])
        return split_address(request, self._settings.server.domain)[0] == "-"

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.start()
        except Exception as failure:
            log.exception("the gateway cannot start")
            await self._stack.aclose()
            await send({"type": "lifespan.startup.failed", "message": str(failure)})
            return
        await send({"type": "lifespan.startup.complete"})
        try:
            await receive()
        except asyncio.CancelledError:
            return  # a second signal: the process ends without waiting for anything
        self._drain()
        await self._stack.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def start(self) -> None:
        """Open the services in the order of their dependencies; the stack closes them in reverse."""
        settings, stack = self._settings, self._stack
        stack.callback(metrics.publish)
        BODIES.limit = settings.server.body_memory
        store = await open_store(settings, stack)
        origin = OriginClient(settings.origins, settings.credentials, now=time.time)
        stack.push_async_callback(origin.close)
        fleet = await join(settings, self._start, stack)
        before_stop(self._drain)
        channel = self._channel(store, fleet)
        management = manage(settings, self._start.redis, fleet.membership, stack)
        services = self._services(store, origin, fleet, channel, management)
        origin.hedges.follow(lambda: services.rules)
        engine = _engine(settings, services, channel if self._shared else NullInvalidations())
        stack.push_async_callback(engine.close)
        self._heard = engine.forget_from_fleet
        await engine.settle_origins(endpoints_of(settings))
        await channel.start()
        # Confirmations from before this process received the fleet's writes are as untrusted as those from before a gap.
        channel.heard.since = time.time()
        stack.push_async_callback(channel.stop)
        keeper = SweepLoop(store, engine.blocks)
        self._loop(keeper.run())
        listings = Listings(origin)
        rates = hold_to_limits(settings.limits, management, stack)
        authenticator, live = await self._administrate(services, listings, engine, rates)
        self._loop(_ready(keeper, fleet, self._admin.known))
        accounting = account(settings.log.access, management, rates, stack)
        reads, hot = ObjectReads(engine), HotReads(engine, fleet.membership)
        relayed = RelayedReads(reads, engine, fleet.membership, fleet.peers)
        forwarder = Forwarder(engine, spooling(settings, store), relayed.warm)
        rights = ReaderRights(listings, partial(reader_of, find=finder(authenticator)))
        note = watch_streams(settings, management, engine, rights, self._admin.listeners, stack)
        direct, of_buckets = DirectReads(engine, fleet.peers, note, accounting), BucketReads(relayed, forwarder, engine)
        asked_loads = AskedLoads(engine, WarmObjects(engine, services.fleet))
        ways = ReadPaths(hot, relayed, direct, of_buckets, asked_loads, note)
        s3 = S3App(authenticator, ways, forwarder, accounting, settings.server, self._begin_elsewhere)
        self._objects, self.begin = s3, s3.begin
        identities, calls = Identities(authenticator, rates), BatchAccounting(accounting)
        registrations = self._serve_datasets(identities, engine, origin, management, calls)
        self._data.read_keys(s3, accounting)
        ground = WorkerServices(
            settings, self._start, fleet, management, engine, channel, listings, authenticator, live, self._admin,
            lambda: [edge for edge in (self._objects, self._data, self._peer) if edge is not None],
        )  # fmt: skip
        watch = self._serve_peers(ground, PeerObjects(reads, hot, engine.warm), registrations)
        refresh = partial(self._refresh, watch, s3, origin, keeper, channel, accounting)
        may_read = self._admin.app.may_read
        self._ops = OpsApp(Monitoring(self._lifecycle, watch.problems, refresh, may_read, store.waits_for))
        self._endpoints = LateApp(
            lambda: imported(ENDPOINTS).serving(ground, registrations, self._exchange, identities)
        )
        self._api = AccountedCalls(self._endpoints, calls)
        self._loop(repeat("gauges", partial(_later, _REFRESH, refresh)))
        await self._settle(keeper)
        self._loop(self._load())

    async def _load(self) -> None:
        """Import in a thread what the start did without, so that the first request for it need not wait."""
        await self._endpoints.load()
        await self._admin.load()

    def _services(
        self, store: Store, origin: OriginClient, fleet: FleetServices, channel: Invalidations, management: Management
    ) -> Services:
        """The services shared by the parts of the engine."""
        settings = self._settings
        leases = FillLeases(store.directory.leases if settings.server.workers > 1 else None)
        self._stack.callback(leases.close)
        return Services(
            store,
            origin,
            rules_of(settings.rules),
            settings.cache.capacity,
            settings.cache.block_size,
            leases,
            # An embedded Redis has no clients on other machines, and workers share generations: no write can be missed.
            heard=channel.heard if self._shared else HeardWrites(),
            fleet=others_of(fleet),
            moves=None if fleet.gate is None else Moves(fleet.membership, fleet.peers),
            keeps=management.planned.keeps,
            share=management.planned.share,
            scores=scores_of(store, management),
        )

    async def _administrate(
        self, services: Services, listings: Listings, engine: Engine, rates: TenantRates
    ) -> tuple[Authenticator, Live]:
        """Enforce the credentials of the file and the catalog from now on."""
        authenticator = Authenticator(self._settings)
        changing = Changing(
            authenticator,
            services,
            services.origin,
            engine.settle_origins,
            lambda limits: rates.replace(rate_limits(limits)),
        )
        live = Live(self._settings, changing)
        self._stack.push_async_callback(live.close)
        if self._file is not None:
            self._loop(live.follow_file(self._file))
        self._admin = Administration(self._settings, live, listings, services)
        await self._admin.start(self._start, authenticator, self._stack)
        return authenticator, live

    async def _settle(self, keeper: SweepLoop) -> None:
        """Become ready when the cache is recovered, or when recovery takes too long to wait for."""
        try:
            # A small cache is recovered before the first request; a large one while requests are answered.
            await asyncio.wait_for(keeper.ready.wait(), _RECOVERY_PATIENCE)
        except TimeoutError:
            log.info("recovery continues in the background")
        if not self._admin.known.is_set():
            log.error("no request is served until the catalog has been read; see /-/readyz")
            self._loop(self._ready_when_known())
            return
        self._ready_now()

    async def _ready_when_known(self) -> None:
        await self._admin.known.wait()
        self._ready_now()

    def _drain(self) -> None:
        self._lifecycle.state = "draining"

    def _ready_now(self) -> None:
        if self._lifecycle.state == "starting":
            self._lifecycle.state = "ready"
        # Everything alive now lives as long as the process: exempt it from garbage collection.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_COLLECTED_AFTER)

    def _serve_datasets(
        self,
        identities: Identities,
        engine: Engine,
        origin: OriginClient,
        management: Management,
        accounting: BatchAccounting,
    ) -> Registrations:
        """Serve datasets under ``/-/v1``."""
        settings, store = self._settings, engine.services.store
        registry = Registry(
            Path(settings.cache.dir) / DATASETS,
            store.directory.boot,
            dataset_rules(settings),
            on_open=_in_loop(store.items.adopt),
            work=store.work,
        )
        self._stack.callback(registry.close)
        self._loop(_swept(registry))
        registrations = share(settings, self._start.redis, registry, engine.services.fleet, self._stack)
        self._loop(registrations.run())
        planned = management.planned
        batches = BatchEndpoint(engine.batches, planned, accounting)
        fleet = engine.services.fleet
        self._results = Results(store, fleet, management.claims, management.parts.results, settings.results)
        results = ResultsEndpoint(self._results)
        self._data = DataApp(identities, registrations, batches, results, store, settings.server.max_in_flight)
        scores = engine.services.scores
        assert isinstance(scores, ItemScores)
        self._exchange = ScoreExchange(scores, fleet, time.time)
        shelves = OpenDatasets(registrations.find, registry.contents, origin.has)
        keep_plan(settings, management, engine, shelves, self._stack)
        return registrations

    def _serve_peers(self, ground: WorkerServices, objects: PeerObjects, registrations: Registrations) -> NodeWatch:
        """Run operators' requests for this node, and serve other nodes if there may be any; returns the node's watch."""
        operated = operate(ground, registrations, self._stack)
        if ground.fleet.gate is not None:
            items = PeerItemsEdge(registrations, ground.engine.batches, ground.engine.services.store)
            addresses = {
                "object": objects.address,
                **items.addresses(),
                "announce": announcements(ground.channel.announce_for),
                "seen": peer_sightings(ground.engine.sightings),
                "importance": peer_importance(self._exchange, registrations.find),
                "results": peer_results(registrations, self._results),
                **operated.addresses,
            }
            limit = self._settings.server.max_in_flight
            services = ground.engine.services
            ground.fleet.gate.once = OnlyOnce(lambda: services.store.generations.seen, services.leases, services.now)
            self._peer = PeerApp(ground.fleet.gate, ground.engine.services.origin.has, addresses, limit)
        return operated.watch

    @property
    def _shared(self) -> bool:
        """Whether Redis can have clients on other machines."""
        return self._settings.redis.url != "embedded"

    def _channel(self, store: Store, fleet: FleetServices) -> Invalidations:
        """The channel of the fleet's invalidations."""

        async def gap() -> None:
            channel.heard.since = time.time()

        async def forget(keys: Sequence[ObjectKey]) -> None:
            await self._heard(keys)

        channel = Invalidations(
            self._start.redis,
            on_forget=forget,
            on_gap=gap,
            others=Delegation(fleet.membership, fleet.peers) if fleet.gate is not None else nobody,
            debts=store.generations if self._shared else None,
        )
        return channel

    def _refresh(
        self,
        watch: NodeWatch,
        s3: S3App,
        origin: OriginClient,
        keeper: SweepLoop,
        channel: Invalidations,
        accounting: Accounting,
    ) -> None:
        """Update the gauges of this worker."""
        # If the clock was set back, everything learned from now on would count as older.
        channel.heard.since = min(channel.heard.since, time.time())
        metrics.IN_FLIGHT.set(s3.in_flight)
        metrics.ORIGIN_IN_FLIGHT.set(origin.in_flight)
        metrics.CHANNEL_HEALTHY.set(channel.healthy)
        metrics.READY.set(self._lifecycle.ready(watch.problems()))
        show_memory()
        accounting.publish()
        keeper.publish()
        metrics.publish()

    def _loop(self, work: Coroutine[Any, Any, None]) -> None:
        keep_running(work, self._stack)


def _engine(settings: Settings, services: Services, channel: InvalidationChannel) -> Engine:
    return Engine(
        services,
        channel,
        entries=settings.cache.entries,
        max_fills=settings.cache.max_fills,
        preload_bandwidth=settings.manager.preload_bandwidth,
    )


async def _ready(keeper: SweepLoop, fleet: FleetServices, known: asyncio.Event) -> None:
    """Enter the ring once the disk has been read and credentials are known, and while the disk is in use."""
    await keeper.recovered.wait()
    await known.wait()
    fleet.membership.ready()


async def _later(seconds: float, work: Callable[[], None]) -> None:
    with late(seconds):
        await asyncio.sleep(seconds)
    work()


def _in_loop(hear: Callable[[Content], None]) -> Callable[[Content], None]:
    """Schedules ``hear`` in the event loop, for calls from threads."""
    loop = asyncio.get_running_loop()

    def tell(content: Content) -> None:
        loop.call_soon_threadsafe(hear, content)

    return tell


async def _swept(registry: Registry) -> None:
    with suppress(DiskFault, OSError):
        await registry.work.chore(registry.sweep)


def create() -> Application:
    """Build the application of one worker from the environment prepared by ``larder-gateway serve``.

    Raises:
        ConfigError: it cannot trace.
    """
    launch = json.loads(os.environ[LAUNCH])
    path = Path(launch["config"]) if launch["config"] else None
    environ = {name: value for name, value in os.environ.items() if name != LAUNCH}

    def load() -> Settings:
        return load_settings(path, environ, launch["flags"])

    file = None if path is None else ConfigFile(path, load)
    settings = load() if file is None else file.load()
    set_up(settings.log.level, settings.log.format)
    local = LocalAddress.parse(os.environ[LOCAL])
    start = Start(launch["redis"], launch["boot"], os.environ[LISTENING], local, os.environ[OPERATORS])
    larder = Larder(settings, start, file)
    if not settings.tracing.enabled:
        return larder
    larder.at_exit(tracing.start())
    return Traced(larder)
