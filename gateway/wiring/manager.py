"""Wires the management of the zone: jobs and plan in Redis, the manager's loop, and the plan's execution on this node."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from gateway.base.config import Settings
from gateway.base.tasks import keep_running, repeat
from gateway.engine.base.planned import Planned
from gateway.engine.engine import Engine
from gateway.engine.space.held_results import HeldReporter
from gateway.engine.space.importance_ranking import ImportanceLinks, ImportanceRanking
from gateway.engine.space.item_scores import ItemScores
from gateway.engine.space.job_readers import JobReaders, OpenDatasets
from gateway.engine.space.manager import Coordination, Electorate, Manager, Silences, settings_of
from gateway.engine.space.plan_executor import PlanExchange, PlanExecutor
from gateway.engine.space.preload import Preloader
from gateway.engine.space.read_tally import ReadTally
from gateway.fleet.jobs.result_claims import ResultClaims
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.membership import Membership
from gateway.fleet.redis.connection import commands
from gateway.model.fleet import NodeState
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.prices import UnitPrices
from gateway.store.shared.decile_reads import DecileReads
from gateway.store.shared.importance import ScoreTables
from gateway.store.store import Store

_REPORTS_LAST = 3
"""Node expiries for which a node's report is valid, because a large eviction delays the next report."""


@dataclass(frozen=True, slots=True)
class Management:
    """The parts of the management in one worker."""

    parts: Coordination
    planned: Planned
    membership: Membership
    claims: ResultClaims
    overrides: Callable[[], Overrides]
    """The operators' overrides in force."""


def manage(
    settings: Settings,
    url: str,
    membership: Membership,
    overrides: Callable[[], Overrides],
    stack: AsyncExitStack,
) -> Management:
    """Follow the zone's plan, and lead when elected, until the stack is closed.

    ``overrides`` are set by operators; they are known before the node becomes READY, and so before it may lead.
    """
    pace = settings.fleet
    redis = commands(url, pace.expire / 2)
    stack.push_async_callback(redis.aclose)
    prefix, expire = membership.prefix, settings.manager.job_expire
    silences = Silences(expire, _REPORTS_LAST * pace.expire, settings.results.idle)
    parts = Coordination.of(redis, prefix, f"{membership.me}/{uuid.uuid4().hex}", silences)

    def may_lead() -> bool:
        return membership.state is NodeState.READY and not membership.conflict

    def capacity() -> int:
        ready = sum(node.capacity for node in electorate.ready())
        return ready or settings.cache.capacity

    electorate = Electorate(lambda: membership.nodes.values(), may_lead)
    cost = settings.cost
    prices = UnitPrices(cost.gb_read, cost.thousand_requests, cost.gpu_hour, cost.currency)
    chosen = settings_of(settings.manager.probe_batches, settings.results.tenant_percent, prices)
    manager = Manager(parts, electorate, chosen, settings.manager.job_expire, overrides)
    keep_running(repeat("manager", manager.run_once, pace.heartbeat), stack, manager.stop)
    planned = Planned(lambda: parts.plans.plan, capacity)
    keep_running(repeat("uses of results", parts.results.run_once, pace.heartbeat, DOWN), stack)
    return Management(parts, planned, membership, ResultClaims(redis, prefix), overrides)


def scores_of(store: Store, management: Management) -> ItemScores:
    """Importance scores of items, as this worker sees them."""
    return ItemScores(ScoreTables(store.directory.generations), store.pools, lambda: management.parts.plans.plan)


def keep_plan(
    settings: Settings, management: Management, engine: Engine, shelves: OpenDatasets, stack: AsyncExitStack
) -> None:
    """Execute the plan on this node, in the worker with the node lock, until the stack is closed."""
    parts, store, scores = management.parts, engine.services.store, engine.services.scores
    assert isinstance(scores, ItemScores)
    preloader = Preloader(engine.fetches, engine.lane)
    exchange = PlanExchange(management.planned, parts.jobs, parts.reports, management.membership)
    executor = PlanExecutor(store, shelves, exchange, settings.cache.eviction, scores)
    keep_running(repeat("plan keeper", executor.run_once, settings.fleet.heartbeat), stack, executor.stop)
    held = HeldReporter(store, partial(parts.held.send, management.membership.me))
    keep_running(repeat("held results", held.run_once, settings.fleet.heartbeat, DOWN), stack)
    membership = management.membership
    tally = ReadTally(scores, DecileReads(store.directory.generations))
    store.accesses.subscribe(tally.hear)
    links = ImportanceLinks(
        lambda: parts.plans.plan, membership, shelves.contents, partial(parts.scores.send, membership.me), tally
    )
    readers = JobReaders(parts.jobs, shelves, store.items)
    important = ImportanceRanking(store, scores, preloader, readers, links)

    async def end() -> None:
        await important.stop()
        await readers.stop()

    keep_running(repeat("importance", important.run_once, settings.fleet.heartbeat), stack, end)
