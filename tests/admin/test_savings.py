"""The money that the space of datasets saves, as the admin API and the commands show it."""

from __future__ import annotations

from gateway.admin.state.documents import Savings
from gateway.admin.state.view import savings_of
from gateway.commands.common.output import saves
from gateway.policies.space.plan import Plan

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


def test_commands_show_both() -> None:
    """Rule: an hour and a day, with enough digits for small amounts."""
    shown = saves({"per_hour": 0.0125, "per_day": 1234.5, "currency": "EUR"})
    assert shown == "EUR 0.0125 an hour, EUR 1,234.50 a day"
