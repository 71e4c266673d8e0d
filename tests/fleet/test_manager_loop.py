"""The manager's loop over a real Redis: one leads, another takes over, and a Redis that was lost or emptied takes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from prometheus_client import REGISTRY
from redis.asyncio import Redis

from gateway.base import metrics
from gateway.engine.space.manager import Coordination, Electorate, Manager, Silences, settings_of
from gateway.fleet.jobs.jobs import Beat, JobRecord, Jobs, KnownJob
from gateway.fleet.jobs.leadership import Leadership
from gateway.fleet.jobs.pipelines import PROFILE
from gateway.fleet.jobs.plans import Plans
from gateway.fleet.redis.embedded import EmbeddedRedis
from gateway.model.fleet import Node, NodeState
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import results_pool
from gateway.policies.space.autocache import StageProfile
from gateway.policies.space.cache_mode import PipelineProfile
from gateway.policies.space.epochs import EpochReads
from gateway.policies.space.orders import Phase
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.pipelines import RankProfile
from gateway.policies.space.plan import Plan
from gateway.policies.space.probing import PhaseTotals
from tests.fleet.conftest import counted
from tests.fleet.waiting import eventually

Z = "larder:z:"
D = "d" * 64
LONG = 1000.0
NONE = Overrides()
POOL = results_pool("t", D, "p" * 64)
RECORD = JobRecord("t", "j", D, "name", 4, 32, 1, "on", "default", "key", 10_000, 100, "part")


@dataclass
class Worker:
    """One worker of a node of capacity 10,000: half of it usable, so the dataset does not fit."""

    manager: Manager
    parts: Coordination
    node: Node

    @property
    def plan(self) -> Plan:
        """The plan that it follows."""
        return self.parts.plans.plan


def worker(
    redis: Redis, name: str, patience: float = LONG, jobs: Jobs | None = None, overrides: Overrides = NONE
) -> Worker:
    """A worker of a separate node."""
    node = Node(name, "http://x", 5_000, "z", NodeState.READY)
    parts = Coordination.of(redis, Z, name, Silences(LONG, LONG, LONG))
    parts = replace(parts, jobs=jobs or parts.jobs, leadership=Leadership(redis, Z, name, LONG))
    electorate = Electorate(lambda: [node], lambda: True)
    return Worker(Manager(parts, electorate, settings_of(0), patience, lambda: overrides), parts, node)


async def join(redis: Redis) -> None:
    """Register the job and say where it is."""
    jobs = Jobs(redis, Z, LONG)
    await jobs.register(RECORD)
    totals = {Phase.STEADY: PhaseTotals(10, 1.0, 0.1, 320, 0)}
    await jobs.beat("t/j", Beat(0, 0, totals))


async def turned(one: Worker) -> None:
    """Let a worker turn until it leads."""

    async def leads() -> bool:
        await one.manager.run_once()
        return one.manager.leads

    await eventually(leads)


async def with_a_job(redis: Redis, leader: Worker) -> None:
    """Have a plan that gives the job's dataset space."""
    await join(redis)
    await turned(leader)


async def test_the_leader_decides_and_all_follow(redis: Redis) -> None:
    """Rule: a job's dataset gets space for a part of it, and every worker has the same plan."""
    first, second = worker(redis, "a"), worker(redis, "b")
    await join(redis)
    await turned(first)
    await second.manager.run_once()
    assert (first.manager.leads, second.manager.leads) == (True, False)
    order = second.plan.datasets[D]
    assert order.caching is CachingMode.PART
    assert 0 < order.target < 10_000
    assert second.plan.datasets == first.plan.datasets
    assert second.plan.jobs["t/j"].cache


async def commands_of_a_turn(redis: Redis, asking: Worker, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many commands a turn of a worker sends."""
    sent, send = [], redis.execute_command

    async def noted(*command: Any, **options: Any) -> Any:
        sent.append(command)
        return await send(*command, **options)

    with monkeypatch.context() as patched:
        patched.setattr(redis, "execute_command", noted)
        await asking.manager.run_once()
    return len(sent)


async def test_the_leader_of_an_idle_zone_asks_little(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: without jobs and datasets a turn is three commands: lease, time with the number of jobs, results in use."""
    leader = worker(redis, "a")
    await turned(leader)
    assert await commands_of_a_turn(redis, leader, monkeypatch) == 3


async def test_a_follower_reads_the_plan_only_if_it_has_changed(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: the answer to a follower's attempt to lead tells it whether there is another plan; it has that with the same turn."""
    leader, follower = worker(redis, "a"), worker(redis, "b")
    await turned(leader)
    assert await commands_of_a_turn(redis, follower, monkeypatch) == 2
    assert follower.plan.fence == leader.plan.fence
    assert await commands_of_a_turn(redis, follower, monkeypatch) == 1
    await with_a_job(redis, leader)
    assert await commands_of_a_turn(redis, follower, monkeypatch) == 2
    assert follower.plan.datasets == leader.plan.datasets != {}


async def test_the_plan_that_is_followed_can_be_seen(redis: Redis) -> None:
    """Rule: jobs by phase, datasets by treatment and the allocated space are gauges; the leader's changes are counted."""
    before = {what: counted("larder_plan_changes_total", what=what) for what in ("allocated", "judged")}
    probes = counted("larder_job_phases_total", phase="steady")
    leader = worker(redis, "a")
    await with_a_job(redis, leader)
    assert counted("larder_jobs", phase="steady") == 1
    assert counted("larder_jobs", phase="probe-miss") == 0
    assert counted("larder_jobs_using_cache") == 1
    assert counted("larder_planned_datasets", caching="part") == 1
    assert counted("larder_planned_bytes") == leader.plan.datasets[D].target > 0
    after = {what: counted("larder_plan_changes_total", what=what) for what in before}
    assert {what: after[what] - before[what] for what in before} == {"allocated": 1, "judged": 1}
    assert counted("larder_job_phases_total", phase="steady") == probes + 1


async def test_each_whole_epoch_is_counted_once(redis: Redis) -> None:
    """Rule: the leader counts an epoch that all ranks report once; a new leader, those after the ones that it finds. The least is
    divided among the jobs of the dataset, which can share it."""
    jobs, leader = Jobs(redis, Z, LONG), worker(redis, "a")
    kinds = ("delivered", "read", "least")

    def counts() -> list[float]:
        return [counted("larder_dataset_epoch_items_total", tenant="t", dataset="name", kind=kind) for kind in kinds]

    async def finished(epoch: int, reads: int) -> None:
        await jobs.beat("t/j", Beat(0, epoch + 1, {}, finished=EpochReads(epoch, 100, reads, 0.5)))

    await with_a_job(redis, leader)
    before = counts()
    await finished(0, 60)
    for _ in range(2):
        await leader.manager.run_once()
    assert [after - at for after, at in zip(counts(), before, strict=True)] == [100, 60, 50]
    second = worker(redis, "b")
    await leader.manager.stop()
    await turned(second)
    assert [after - at for after, at in zip(counts(), before, strict=True)] == [100, 60, 50]
    await jobs.register(replace(RECORD, job="k"))
    await jobs.beat("t/k", Beat(0, 1, {}, finished=EpochReads(0, 100, 0, 0.5)))
    await second.manager.run_once()
    await finished(1, 40)
    await second.manager.run_once()
    assert [after - at for after, at in zip(counts(), before, strict=True)] == [200, 100, 75]


async def test_another_goes_on_from_where_the_leader_was(redis: Redis) -> None:
    """Rule: when the leader turns no more, another leads within the lease, with the same plan and a higher fence."""
    first, second = worker(redis, "a"), worker(redis, "b")
    await with_a_job(redis, first)
    before = first.plan
    # A short lease would also end while the test waits for the processor.
    assert 0 < await redis.pttl(f"{Z}leader") <= 1000 * LONG
    await redis.pexpire(f"{Z}leader", 1)
    await turned(second)
    assert second.plan.fence > before.fence
    assert second.plan.datasets == before.datasets
    assert second.plan.version == before.version


async def test_who_may_not_lead_does_not(redis: Redis) -> None:
    """Rule: a worker whose node is no longer READY returns the lease and becomes a follower."""
    first, second = worker(redis, "a"), worker(redis, "b")
    await join(redis)
    await turned(first)
    first.manager._electorate = Electorate(lambda: [first.node], lambda: False)
    await first.manager.run_once()
    await second.manager.run_once()
    assert (first.manager.leads, second.manager.leads) == (False, True)


class Interrupted(Jobs):
    """Jobs whose reads take so long that another worker has taken the lease."""

    async def all(self) -> tuple[float, list[KnownJob]]:
        """The jobs, too late."""
        found = await super().all()
        await self._redis.set(f"{Z}leader", "999 other")
        return found


async def test_a_deposed_leader_is_refused_and_stops(redis: Redis) -> None:
    """Rule: a leader whose lease another has taken has its plan refused, counts that, and follows."""
    await join(redis)
    deposed = worker(redis, "a", jobs=Interrupted(redis, Z, LONG))
    before = metrics.MANAGER_DEPOSED._value.get()
    await deposed.manager.run_once()
    assert metrics.MANAGER_DEPOSED._value.get() == before + 1
    assert not deposed.manager.leads
    assert await redis.get(f"{Z}plan") is None
    assert deposed.plan == Plan()


async def test_an_emptied_redis_takes_no_space_from_anybody(redis: Redis) -> None:
    """Rule: after Redis was emptied the known plan is published again, and nothing is decided until its jobs are back."""
    first, second = worker(redis, "a"), worker(redis, "b")
    await with_a_job(redis, first)
    await second.manager.run_once()
    before = first.plan
    await redis.flushall()
    await turned(second)
    assert second.plan.fence > before.fence
    assert second.plan.datasets == before.datasets
    await second.manager.run_once()
    assert second.plan.datasets == before.datasets
    await join(redis)
    await second.manager.run_once()
    assert second.plan.datasets == before.datasets


async def test_jobs_that_do_not_come_back_hold_nothing_for_ever(redis: Redis) -> None:
    """Rule: after the expiry time of silent jobs, decisions continue without the jobs that did not register again."""
    first, second = worker(redis, "a"), worker(redis, "b", patience=0.0)
    await with_a_job(redis, first)
    await second.manager.run_once()
    await redis.flushall()
    await turned(second)
    assert "t/j" not in second.plan.jobs


async def test_a_lost_redis_freezes_the_plan(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Rule: with Redis down a turn raises nothing, changes nothing, and no worker leads."""
    first = worker(redis, "a")
    await with_a_job(redis, first)
    before = first.plan
    await redis_server.stop()
    await first.manager.run_once()
    assert first.plan == before
    assert not first.manager.leads
    await first.manager.stop()


class Deafened(Plans):
    """Redis takes the first plan that is written, and the answer is lost."""

    def __init__(self, redis: Redis, prefix: str) -> None:
        super().__init__(redis, prefix)
        self._lost = False

    async def write(self, plan: Plan, events: Sequence[Mapping[str, Any]] = ()) -> bool:
        """See ``Plans.write``."""
        if self._lost:
            return await super().write(plan, events)
        self._lost = True
        known = self.plan, self._stamp
        await super().write(plan, events)
        self.plan, self._stamp = known
        raise TimeoutError


async def test_a_plan_that_was_taken_although_nobody_said_so_is_gone_on_from(redis: Redis) -> None:
    """Rule: Redis may take a plan and be too slow to say so; no other plan may then go by the same version."""
    leader, follower = worker(redis, "a"), worker(redis, "b")
    leader.manager._parts = replace(leader.parts, plans=Deafened(redis, Z))
    await join(redis)
    await turned(leader)
    await follower.manager.run_once()
    assert follower.plan.datasets[D].target > 0
    await Jobs(redis, Z, LONG).register(replace(RECORD, job="k"))
    for one in (leader, follower):
        await one.manager.run_once()
    assert follower.plan.datasets == leader.manager._parts.plans.plan.datasets


async def test_one_tenants_claim_of_a_size_is_not_everybodys(redis: Redis) -> None:
    """Rule: lengths are claims; the size of a dataset of several tenants is the one that most of them state."""
    leader, jobs = worker(redis, "a"), Jobs(redis, Z, LONG)
    for tenant, size in (("a", 10_000), ("b", 10_000), ("u", 0), ("v", 1), ("z", 10**15)):
        await jobs.register(replace(RECORD, tenant=tenant, size=size))
    await turned(leader)
    assert leader.plan.datasets[D].caching is CachingMode.PART
    assert leader.plan.inputs["datasets"][D]["size"] == 10_000


async def test_what_changes_is_remembered_with_its_reason(redis: Redis) -> None:
    """Rule: the history has the changes of datasets and jobs, each once."""
    leader = worker(redis, "a")
    await with_a_job(redis, leader)
    for _ in range(3):
        await leader.manager.run_once()
    changes = [(event["what"], event.get("job")) for event in await leader.parts.plans.history()]
    assert sorted(changes, key=str) == [("allocated", None), ("judged", "t/j")]


async def test_a_dataset_without_jobs_keeps_its_space_while_there_is_room(redis: Redis) -> None:
    """Rule: when the last job has gone, its dataset keeps its space in the plan."""
    leader = worker(redis, "a")
    await with_a_job(redis, leader)
    await Jobs(redis, Z, LONG).remove("t/j")
    await leader.manager.run_once()
    order = leader.plan.datasets[D]
    assert (order.caching, order.why.value) == (CachingMode.PART, "no-jobs")


async def test_results_of_pipelines_get_space(redis: Redis) -> None:
    """Rule: a job's decision to store results brings their pool into the plan, and the metric counts the pipeline."""
    one = worker(redis, "a")
    await join(redis)
    end = StageProfile(2, 0.01, 10.0, 100)
    profile = PipelineProfile(0, 0, 100, end, (end,), {2: "p" * 64})
    await one.parts.jobs.beat("t/j", Beat(0, 0, {}), PROFILE.text(RankProfile(100, profile)))
    await turned(one)
    await one.manager.run_once()
    assert one.plan.pools[POOL].target == 1100
    assert REGISTRY.get_sample_value("larder_pipelines", {"mode": "cache"}) == 1


async def test_an_operator_decides_on_results_before_there_are_any(redis: Redis) -> None:
    """Rule: a pool that was denied space gets none, nor one with a quota more, while a pipeline has stored no element of it."""
    for decision, quota, target in (("never", None, 0), (None, 300, 300)):
        one = worker(redis, "a", overrides=Overrides.of([(POOL, decision, quota)]))
        await join(redis)
        end = StageProfile(2, 0.01, 10.0, 100)
        profile = PipelineProfile(0, 0, 100, end, (end,), {2: "p" * 64})
        await one.parts.jobs.beat("t/j", Beat(0, 0, {}), PROFILE.text(RankProfile(100, profile)))
        await turned(one)
        await one.manager.run_once()
        assert one.plan.pools[POOL].target == target
        await one.manager.stop()
