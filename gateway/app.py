"""The composition root: builds services from settings, and the ASGI application from services.

gateway/wiring has its parts; nothing is wired anywhere else.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from gateway.admin.address import OperatorAddress, OperatorPages, PagesElsewhere
from gateway.admin.app import AdminApp
from gateway.api.ops import Lifecycle, OpsApp
from gateway.api.peer.app import PEER, PeerApp
from gateway.api.s3.app import S3App
from gateway.api.s3.auth import split_address
from gateway.api.v1.app import DataApp
from gateway.base import metrics, tracing
from gateway.base.config import Settings, load_settings
from gateway.base.logs import set_up
from gateway.base.tasks import keep_running
from gateway.model.s3.sigv4 import WireRequest
from gateway.server.asgi_types import Application, Begin, Receive, Scope, Send, SendFiles
from gateway.server.local import LOCAL, LocalAddress
from gateway.server.run import LISTENING, OPERATORS, before_stop
from gateway.wiring.admin import Administration, administrate
from gateway.wiring.config_file import LAUNCH, ConfigFile
from gateway.wiring.datasets import serve_datasets
from gateway.wiring.engine import open_engine, open_origin
from gateway.wiring.fleet import FleetServices, Start, join
from gateway.wiring.gauges import Gauges
from gateway.wiring.manager import manage
from gateway.wiring.operations import WorkerServices, finder, late_endpoints, operate
from gateway.wiring.peers import serve_peers
from gateway.wiring.s3 import serve_s3
from gateway.wiring.store import open_store, sweep
from gateway.wiring.streams import ReaderRights, watch_streams
from gateway.wiring.traffic import account, hold_to_limits

log = logging.getLogger("larder.app")

_RECOVERY_PATIENCE = 2.0
_OF_NODES = f"/-{PEER}".encode()
_COLLECTED_AFTER = 10_000
"""Container objects that must be created before the garbage collector runs again. Reads leave no cycles behind, and with Python's
default of 700 a cold read spent 6 % of its time looking for some."""


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
        self._api: Application
        self._peer: PeerApp | None = None
        self._admin: Administration

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
        store = await open_store(settings, stack)
        origin = open_origin(settings, stack)
        fleet = await join(settings, self._start, stack)
        before_stop(self._drain)
        url = self._start.redis
        management = manage(settings, url, fleet.membership, lambda: self._admin.catalog.overrides, stack)
        engine, channel = await open_engine(settings, url, store, origin, fleet, management, stack)
        sweeping = sweep(store, engine, stack)
        rates = hold_to_limits(settings.limits, management, stack)
        self._admin, authenticator, live = await administrate(settings, self._start, self._file, engine, rates, stack)
        self._loop(_ready(sweeping.recovered, fleet, self._admin.known))
        accounting = account(settings.log.access, management, rates, stack)
        rights = ReaderRights.of(self._admin.listings, finder(authenticator))
        note = watch_streams(settings, management, engine, rights, self._admin.listeners, stack)
        s3, objects = serve_s3(settings, engine, fleet, authenticator, accounting, note, self._begin_elsewhere)
        self._objects, self.begin = s3, s3.begin
        datasets = serve_datasets(settings, url, authenticator, rates, engine, management, accounting, stack)
        self._data = datasets.app
        self._data.read_keys(s3, accounting)
        ground = WorkerServices(
            settings, self._start, fleet, management, engine, channel, self._admin.listings, authenticator, live, self._admin,
            lambda: [edge for edge in (s3, self._data, self._peer) if edge is not None],
        )  # fmt: skip
        operated = operate(ground, datasets.registrations, stack)
        self._peer = serve_peers(ground, objects, datasets, operated.addresses)
        gauges = Gauges(self._lifecycle, operated.watch, s3, origin, sweeping, channel, accounting)
        self._ops = gauges.monitor(self._admin.app.may_read, store.waits_for)
        endpoints = late_endpoints(ground, datasets)
        self._api = datasets.account(endpoints)
        gauges.keep(stack)
        await self._settle(sweeping.ready)
        self._loop(self._load(endpoints.load))

    async def _load(self, load: Callable[[], Awaitable[object]]) -> None:
        """Import in a thread the modules that the start left out, so that the first request for them need not wait."""
        await load()
        await self._admin.load()

    async def _settle(self, recovered: asyncio.Event) -> None:
        """Become ready when the cache is recovered, or when recovery takes too long to wait for."""
        try:
            # A small cache is recovered before the first request; a large one while requests are answered.
            await asyncio.wait_for(recovered.wait(), _RECOVERY_PATIENCE)
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

    def _loop(self, work: Coroutine[Any, Any, None]) -> None:
        keep_running(work, self._stack)


async def _ready(recovered: asyncio.Event, fleet: FleetServices, known: asyncio.Event) -> None:
    """Enter the ring once the disk has been read and credentials are known, and while the disk is in use."""
    await recovered.wait()
    await known.wait()
    fleet.membership.ready()


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
    return tracing.Traced(larder)
