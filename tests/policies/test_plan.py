"""The plan as JSON: read by the version that wrote it, and by others in a fleet that is being upgraded."""

from typing import Any

import pytest

from gateway.fleet.jobs.plans import plan_document, read_plan
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import Pool
from gateway.policies.space.orders import JobOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan, dataset_pools, node_pools
from gateway.policies.space.remembered import ManagerMemory

ORDER = PoolOrder(CachingMode.PART, WhyCaching.OVERRIDE, 200, 150)
PLAN = Plan(3, 7, dataset_pools({"d": ORDER}), {"t/j": JobOrder(True, Phase.STEADY, 2.5)}, ManagerMemory(1), {"i": [1]})


def test_a_plan_comes_back_as_it_was() -> None:
    """Rule: a plan survives its text form."""
    assert read_plan(plan_document(PLAN)) == PLAN


def test_a_plan_of_an_older_node_is_followed() -> None:
    """Rule: a plan from before pools has the same datasets; their grants are the targets, and chunks are a part."""
    document = plan_document(PLAN)
    (pool,) = document.pop("pools").values()
    granted = {name: value for name, value in pool.items() if name not in ("target", "minimum")}
    granted |= {
        "granted": 200,
        "caching": "chunked",
        "partitions": 10,
        "units": 20,
        "chunks": {"complete": [1, 2], "loading": 3},
    }
    found = read_plan(document | {"datasets": {"d": granted}})
    assert found.of("d") == PoolOrder(CachingMode.PART, WhyCaching.OVERRIDE, 200)
    assert (found.jobs, found.version, found.fence) == (PLAN.jobs, 3, 7)


def _without(document: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key != name}


def test_what_an_older_node_does_not_know_it_refuses() -> None:
    """Rule: the plan lacks names that older nodes require, so they keep their last plan and do not follow half of this one."""
    assert "datasets" not in plan_document(PLAN)
    with pytest.raises(KeyError):
        read_plan(_without(plan_document(PLAN), "pools"))


def test_fields_of_a_newer_node_are_left_out() -> None:
    """Rule: unknown fields of a newer version's plan are ignored."""
    document = plan_document(PLAN)
    document["pools"]["dataset:d"]["idle"] = 60
    assert read_plan(document | {"news": 1}) == PLAN


def test_pools_that_hold_no_dataset_are_no_datasets() -> None:
    """Rule: a plan's datasets are its pools with a dataset's name; other pools are not listed as datasets."""
    plan = Plan(pools={**PLAN.pools, "stream:b/p": ORDER})
    assert plan.datasets == {"d": ORDER}


def test_a_pinned_pool_has_a_minimum_on_every_node() -> None:
    """Rule: a node keeps its share of a pinned pool even when other pools need room."""
    assert node_pools(PLAN, 50, 100) == (Pool("dataset:d", 111, "uniform", 83),)
