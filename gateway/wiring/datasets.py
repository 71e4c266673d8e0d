"""Wires the fleet's datasets and the requests for their items."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gateway.api.s3.accounting import Accounting
from gateway.api.s3.auth import Authenticator
from gateway.api.v1.accounting import AccountedCalls, BatchAccounting
from gateway.api.v1.app import DataApp
from gateway.api.v1.batch import BatchEndpoint
from gateway.api.v1.identity import Identities
from gateway.api.v1.results import ResultsEndpoint
from gateway.base.config import Settings
from gateway.base.tasks import keep_running
from gateway.engine.base import homes
from gateway.engine.engine import Engine
from gateway.engine.items.registrations import Registrations, Shared
from gateway.engine.items.results import Results
from gateway.engine.objects.registered_folders import CHANGED, RegisteredFolders
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import OpenDatasets
from gateway.engine.space.score_exchange import ScoreExchange
from gateway.fleet.jobs.datasets import DatasetTable
from gateway.fleet.redis.connection import commands
from gateway.policies.items.dataset_quota import quota_of
from gateway.server.asgi_types import Application
from gateway.store.datasets.content import Content
from gateway.store.datasets.conversion import Limits
from gateway.store.datasets.folders import DATASETS
from gateway.store.datasets.listed import ListedRegistrations
from gateway.store.datasets.registry import RegistrationRules, Registry
from gateway.store.files.failures import DiskFault
from gateway.store.store import Store
from gateway.wiring.fleet import FleetServices
from gateway.wiring.manager import Management, keep_plan

_PATIENCE = 2.0
"""Seconds for one command to Redis about the table of datasets."""


@dataclass(frozen=True, slots=True)
class DatasetEdge:
    """Datasets in one worker: the application of their data paths, and the services behind it."""

    app: DataApp
    identities: Identities
    calls: BatchAccounting
    registrations: Registrations
    results: Results
    exchange: ScoreExchange

    def account(self, api: Application) -> Application:
        """The endpoints of ``/-`` that wait for no data, with accounting of their calls."""
        return AccountedCalls(api, self.calls)


def others_of(fleet: FleetServices) -> homes.PeerNodes | None:
    """The other nodes, as used by the engine; ``None`` for a node outside a fleet."""
    return None if fleet.gate is None else homes.PeerNodes(fleet.membership, fleet.peers)


def share(
    settings: Settings, redis_url: str, registry: Registry, fleet: homes.PeerNodes | None, stack: AsyncExitStack
) -> Registrations:
    """Share the registrations of a node and its fleet, until the stack is closed."""
    if fleet is None:
        return Registrations(registry)
    redis = commands(redis_url, _PATIENCE)
    stack.push_async_callback(redis.aclose)
    registrations = Registrations(registry, Shared(fleet, DatasetTable(redis, f"larder:{settings.fleet.zone}:")))
    stack.push_async_callback(registrations.close)
    return registrations


def dataset_rules(settings: Settings) -> RegistrationRules:
    """The rules of registration that the configuration sets."""
    datasets, capacity = settings.datasets, settings.cache.capacity
    return RegistrationRules(
        Limits(datasets.read_memory, datasets.read_time, settings.cache.reserve),
        quota_of(datasets.tenant_registrations, datasets.tenant_items, datasets.tenant_bytes, capacity),
        datasets.keep_unused,
    )


def serve_datasets(
    settings: Settings,
    redis_url: str,
    authenticator: Authenticator,
    rates: TenantRates,
    engine: Engine,
    management: Management,
    accounting: Accounting,
    stack: AsyncExitStack,
) -> DatasetEdge:
    """Serve datasets under ``/-/v1`` until the stack is closed."""
    identities, calls = Identities(authenticator, rates), BatchAccounting(accounting)
    services, store, planned = engine.services, engine.services.store, management.planned
    registry = Registry(
        Path(settings.cache.dir) / DATASETS,
        store.directory.boot,
        dataset_rules(settings),
        on_open=_in_loop(store.items.adopt),
        work=store.work,
    )
    stack.callback(registry.close)
    keep_running(_swept(registry), stack)
    registrations = share(settings, redis_url, registry, services.fleet, stack)
    keep_running(registrations.run(), stack)
    services.folders = _folders(registrations, store, stack)
    batches = BatchEndpoint(engine.batches, planned, calls)
    results = Results(store, services.fleet, management.claims, management.parts.results, settings.results)
    app = DataApp(identities, registrations, batches, ResultsEndpoint(results), store, settings.server.max_in_flight)
    scores = services.scores
    assert isinstance(scores, ItemScores)
    exchange = ScoreExchange(scores, services.fleet, time.time)
    shelves = OpenDatasets(registrations.find, registry.contents, services.origin.has)
    keep_plan(settings, management, engine, shelves, stack)
    return DatasetEdge(app, identities, calls, registrations, results, exchange)


def _folders(registrations: Registrations, store: Store, stack: AsyncExitStack) -> RegisteredFolders:
    """The folders whose listings are recorded; they follow the registrations of this node."""
    registry, generations = registrations.registry, store.generations
    registry.folders.listings_change = partial(generations.bump, CHANGED)
    listed = ListedRegistrations(registry.folders, partial(generations.of, CHANGED))
    folders = RegisteredFolders(generations, partial(registry.work.chore, listed.read), registrations.bring_listed)
    stack.push_async_callback(folders.close)
    return folders


def _in_loop(hear: Callable[[Content], None]) -> Callable[[Content], None]:
    """Schedules ``hear`` in the event loop, for calls from other threads."""
    loop = asyncio.get_running_loop()

    def tell(content: Content) -> None:
        loop.call_soon_threadsafe(hear, content)

    return tell


async def _swept(registry: Registry) -> None:
    with suppress(DiskFault, OSError):
        await registry.work.chore(registry.sweep)
