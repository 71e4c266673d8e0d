"""The plan in a real Redis: writers and followers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace

import pytest
from redis.asyncio import Redis

from gateway.fleet.jobs.leadership import Leadership
from gateway.fleet.jobs.plans import HISTORY, Plans, plan_document
from gateway.fleet.nodes.reports import HELD_ITEMS, NodeReport, NodeReports
from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.orders import JobOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, dataset_pools
from gateway.policies.space.remembered import ManagerMemory
from tests.fleet.waiting import eventually

Z = "larder:z:"
LONG = 1000.0
ORDER = PoolOrder(CachingMode.PART, WhyCaching.BENEFIT, 200)
PLAN = Plan(3, 0, dataset_pools({"d": ORDER}), {"t/j": JobOrder(False, Phase.PROBE_MISS)}, ManagerMemory(1), {"i": [1]})


def leadership(redis: Redis, me: str, lease: float = LONG) -> Leadership:
    """A worker's part."""
    return Leadership(redis, Z, me, lease)


async def lead_after(leader: Leadership, seen: int = 0) -> int:
    """Try until this worker leads; its fence."""
    await eventually(lambda: leader.lead(seen))
    return leader.fence


# --- who leads


async def test_one_of_all_leads(redis: Redis) -> None:
    """Rule: of workers that try at once exactly one gets the lease, and keeps it with the same fence while it renews."""
    workers = [leadership(redis, str(number)) for number in range(8)]
    got = await asyncio.gather(*(worker.lead(0) for worker in workers))
    assert sum(got) == 1
    leader = workers[got.index(True)]
    fence = leader.fence
    assert await leader.lead(0) is True
    assert leader.fence == fence > 0


async def test_a_lease_that_is_not_renewed_runs_out(redis: Redis) -> None:
    """Rule: the successor of a silent leader has a higher fence, and the old one, when it comes back, does not lead."""
    first, second = leadership(redis, "a", 0.1), leadership(redis, "b")
    before = await lead_after(first)
    assert await lead_after(second) > before
    assert await first.lead(0) is False
    assert first.fence == 0


async def test_who_resigns_lets_another_lead_at_once(redis: Redis) -> None:
    """Rule: a stopping leader gives the lease back; giving back a lease that one does not have has no effect."""
    first, second = leadership(redis, "a"), leadership(redis, "b")
    await first.lead(0)
    await second.resign()
    assert await second.lead(0) is False
    await first.resign()
    assert await second.lead(0) is True


async def test_an_empty_redis_gives_no_old_fence(redis: Redis) -> None:
    """Rule: after Redis was emptied the next fence is still higher than the highest that the new leader has seen."""
    await redis.flushall()
    leader = leadership(redis, "a")
    assert await lead_after(leader, seen=41) == 42


# --- the plan


async def test_a_plan_is_followed(redis: Redis) -> None:
    """Rule: after a refresh followers have the leader's plan, whole and equal."""
    leader, writer, follower = leadership(redis, "a"), Plans(redis, Z), Plans(redis, Z)
    await follower.refresh()
    assert follower.plan == Plan()
    plan = replace(PLAN, fence=await lead_after(leader))
    assert await writer.write(plan) is True
    await follower.refresh()
    assert follower.plan == writer.plan == plan
    assert follower.dataset("d") == ORDER
    assert follower.dataset("other") is None
    assert follower.plan.jobs.get("t/j") == JobOrder(False, Phase.PROBE_MISS)
    assert follower.plan.jobs.get("u/j") is None


async def test_followers_seldom_read_what_only_a_leader_needs(redis: Redis) -> None:
    """Rule: only some plans come with the manager's memory; a new leader has that of the last plan."""
    leader, writer, follower, eager = (
        leadership(redis, "a"),
        Plans(redis, Z),
        Plans(redis, Z, LONG),
        Plans(redis, Z, 0.0),
    )
    first = replace(PLAN, fence=await lead_after(leader))
    second = replace(first, version=4, memory=ManagerMemory(2), inputs={"i": [2]})
    await writer.write(first)
    await follower.refresh()
    await eager.refresh()
    await writer.write(second)
    await follower.refresh()
    await eager.refresh()
    assert follower.plan == replace(second, memory=first.memory)
    assert eager.plan == second
    assert await follower.latest()
    assert follower.plan == second


async def test_whoever_asks_about_jobs_gets_their_last_measurements(redis: Redis) -> None:
    """Rule: a follower remembers what was measured since the last plan, if it has not looked lately."""
    leader, writer, lately, eager = (
        leadership(redis, "a"),
        Plans(redis, Z),
        Plans(redis, Z, LONG),
        Plans(redis, Z, 0.0),
    )
    plan = replace(PLAN, fence=await lead_after(leader))
    measured = replace(plan, memory=ManagerMemory(2))
    await writer.write(plan)
    await lately.refresh()
    await eager.refresh()
    await writer.write(measured)
    await eager.refresh()
    assert eager.plan == plan
    await lately.remember()
    await eager.remember()
    assert (lately.plan, eager.plan) == (plan, measured)


async def test_a_plan_of_an_earlier_version_is_whole(redis: Redis) -> None:
    """Rule: earlier versions write the memory inside the plan; a separate one is then obsolete."""
    plans, follower = Plans(redis, Z), Plans(redis, Z)
    await plans.write(replace(PLAN, fence=await lead_after(leadership(redis, "a"))))
    earlier = replace(plans.plan, version=9, memory=ManagerMemory(7))
    await redis.set(f"{Z}plan", json.dumps(plan_document(earlier)))
    await redis.set(f"{Z}plan:stamp", f"{earlier.fence} 9")
    await follower.refresh()
    assert follower.plan == earlier


async def test_a_deposed_leader_writes_nothing(redis: Redis) -> None:
    """Rule: the plan of a leader that has lost its lease is refused with its history, and the other's stays."""
    first, second = leadership(redis, "a", 0.1), leadership(redis, "b")
    old, new = Plans(redis, Z), Plans(redis, Z)
    fence = await lead_after(first)
    assert await new.write(replace(PLAN, version=4, fence=await lead_after(second))) is True
    assert await old.write(replace(PLAN, version=9, fence=fence), [{"what": "refused"}]) is False
    assert (await old.history(), old.plan) == ([], Plan())
    await old.refresh()
    assert old.plan.version == 4


async def test_nobody_writes_without_a_lease(redis: Redis) -> None:
    """Rule: a former leader may not write after its lease has expired, even if no other has it."""
    leader = leadership(redis, "a")
    fence = await lead_after(leader)
    await leader.resign()
    assert await Plans(redis, Z).write(replace(PLAN, fence=fence)) is False


async def test_nobody_goes_back_to_an_older_fence(redis: Redis) -> None:
    """Rule: a follower ignores an earlier leader's plan of a replica that was behind."""
    writer, follower = Plans(redis, Z), Plans(redis, Z)
    follower.plan = replace(PLAN, version=8, fence=7)
    await writer.write(replace(PLAN, fence=await lead_after(leadership(redis, "a"))))
    await follower.refresh()
    assert follower.plan.version == 8
    assert await follower.latest() is False


@pytest.mark.parametrize("text", ["", "{", "[]", '{"version": 1}', '{"version": "x", "fence": 1}'])
async def test_what_is_no_plan_changes_nothing(redis: Redis, text: str) -> None:
    """Rule: a plan that cannot be read is not followed; the last readable one stays in force."""
    plans = Plans(redis, Z)
    await plans.write(replace(PLAN, fence=await lead_after(leadership(redis, "a"))))
    before = plans.plan
    await redis.set(f"{Z}plan", text)
    await redis.set(f"{Z}plan:stamp", "1 99")
    await plans.refresh()
    assert plans.plan == before


async def test_zones_have_plans_of_their_own(redis: Redis) -> None:
    """Rule: the plans of zones are separate."""
    await Plans(redis, Z).write(replace(PLAN, fence=await lead_after(leadership(redis, "a"))))
    assert await Plans(redis, "larder:other:").latest() is False


# --- what lies beside it


async def test_the_history_is_bounded(redis: Redis) -> None:
    """Rule: the newest hundred changes are kept, newest first."""
    plans = Plans(redis, Z)
    fence = await lead_after(leadership(redis, "a"))
    for number in range(HISTORY + 20):
        await plans.write(replace(PLAN, fence=fence), [{"n": 2 * number}, {"n": 2 * number + 1}])
    assert [event["n"] for event in await plans.history()] == list(range(239, 139, -1))


async def test_a_silent_node_reports_nothing(redis: Redis) -> None:
    """Rule: a node's last report replaces the one before, and counts only for a time."""
    reports = NodeReports(redis, Z, HELD_ITEMS, LONG)
    await reports.send("n1", {"d": NodeReport(3, 10)})
    await reports.send("n1", {"d": NodeReport(4, 11), "e": NodeReport()})
    assert await reports.all() == {"n1": {"d": NodeReport(4, 11), "e": NodeReport(-1, 0)}}
    impatient = NodeReports(redis, Z, HELD_ITEMS, 0.05)

    async def nothing() -> bool:
        return not await impatient.all()

    await eventually(nothing)
    assert await reports.all() == {}


@pytest.mark.parametrize("text", ["", "later", "9999999999999 {", "9999999999999 []", '9999999999999 {"d":[1,2,3]}'])
async def test_a_report_that_is_none_says_nothing(redis: Redis, text: str) -> None:
    """Rule: an invalid report does not keep the leader from reading the other nodes'."""
    reports = NodeReports(redis, Z, HELD_ITEMS, LONG)
    await reports.send("n1", {"d": NodeReport(4, 11)})
    await redis.hset(f"{Z}loaded", "n2", text)
    assert await reports.all() == {"n1": {"d": NodeReport(4, 11)}}
