"""The money that the space of datasets saves, as the admin API and the commands show it."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from gateway.admin.state.documents import Savings
from gateway.admin.state.view import savings_of
from gateway.commands.common.output import saves
from gateway.model.keys import ObjectKey
from gateway.operate.explain.api import space_of
from gateway.operate.explain.items import ObjectItems
from gateway.operate.explain.work import Knowledge
from gateway.policies.pools import DEFAULT, dataset_pool
from gateway.policies.space.plan import Plan, dataset_pools

PLAN = Plan(inputs={"currency": "EUR", "datasets": {"a": {"saves": 1.25}, "b": {"saves": 0.5}, "old": {"gain": 1.0}}})


def test_savings_are_summed_by_hour_and_day() -> None:
    """Rule: the plan's datasets save 1.75 an hour together, which is 42 a day."""
    assert savings_of(PLAN, ["a", "b", "old", "unknown"]) == Savings(per_hour=1.75, per_day=42.0, currency="EUR")
    assert savings_of(PLAN, ["a"]) == Savings(per_hour=1.25, per_day=30.0, currency="EUR")


def test_without_prices_nothing_is_said() -> None:
    """Rule: no price, no money; nor of a dataset without jobs."""
    assert savings_of(Plan(), ["a"]) is None
    assert savings_of(PLAN, ["old"]) is None
    assert saves(None) is None


def test_an_object_that_only_loaders_read_is_in_its_datasets_pool() -> None:
    """Rule: explain shows the pool and the money of a dataset for the bytes of its items, also if no read by name has charged
    them; a dataset without space does not count."""
    pools: Any = dataset_pools({"a": None, "b": None})  # type: ignore[dict-item]
    reading: Any = SimpleNamespace(streams={}, plan=replace(PLAN, pools=pools))
    key, knowledge = ObjectKey("default", "bucket", "key"), Knowledge("node")
    items = [ObjectItems("forgotten", 1, 1, "old"), ObjectItems("first", 1, 1, "a"), ObjectItems("second", 1, 0, "b")]
    told = space_of(reading, key, knowledge, items)
    assert (told["pool"], told["saves"].per_hour) == (dataset_pool("a"), 1.25)
    other = space_of(reading, key, knowledge, items[:1])
    assert (other["pool"], other["saves"]) == (DEFAULT, None)
    told = space_of(reading, key, replace(knowledge, pool=dataset_pool("b")), items)
    assert (told["pool"], told["saves"].per_hour) == (dataset_pool("b"), 0.5)


def test_commands_show_both() -> None:
    """Rule: an hour and a day, with enough digits for small amounts."""
    shown = saves({"per_hour": 0.0125, "per_day": 1234.5, "currency": "EUR"})
    assert shown == "EUR 0.0125 an hour, EUR 1,234.50 a day"
