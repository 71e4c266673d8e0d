"""``larder-gateway plan``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.commands.connection import connected
from gateway.commands.grammar import asking, count, describe
from gateway.commands.output import Column, document, facts, line, moment, named, share, size, table

_DATASETS = (
    Column("dataset"),
    Column("caching"),
    Column("why"),
    Column("granted", number=True),
    Column("decided here"),
    Column("the manager saw"),
)
_CHANGES = (Column("when"), Column("version", number=True), Column("what"), Column("of"), Column("how"))
_DIGITS = 12
_NAMED = frozenset({"at", "version", "what", "dataset", "job"})


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    describe(
        command,
        _plan,
        "The plan in force: which dataset gets how much space and why, what the manager saw when it decided, and the last\n"
        "changes, the newest first. docs/jobs.md explains the words.",
        "larder-gateway plan",
        "larder-gateway plan --history 100",
        "larder-gateway plan --json | jq .inputs",
    )
    command.add_argument("--history", metavar="N", type=count, default=10, help="show so many changes at most (10)")
    asking(command)


def _plan(options: Namespace) -> int:
    with connected(options) as admin:
        plan = admin.get("plan")
    if options.json:
        document(plan)
        return 0
    granted, capacity = plan.get("granted") or 0, plan.get("capacity") or 0
    part = f" ({share(granted / capacity)})" if capacity else ""
    facts((("version", plan.get("version")), ("granted", f"{size(granted)} of {size(capacity)}{part}")))
    line()
    inputs, overrides = (plan.get("inputs") or {}).get("datasets") or {}, plan.get("overrides") or {}
    orders = plan.get("datasets") or {}
    table(
        _DATASETS,
        (_dataset(name, order, overrides.get(name), inputs.get(name) or {}) for name, order in orders.items()),
        "no dataset is planned: no job has registered",
    )
    if history := (plan.get("history") or [])[: options.history]:
        line()
        table(_CHANGES, map(_change, history))
    return 0


def _dataset(name: str, order: Mapping[str, Any], override: object, inputs: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        name[:_DIGITS],
        order.get("caching"),
        order.get("why"),
        size(order.get("granted")),
        override or None,
        named(inputs),
    )


def _change(event: Mapping[str, Any]) -> tuple[object, ...]:
    how = named({name: value for name, value in event.items() if name not in _NAMED})
    of = event.get("job") or str(event.get("dataset", ""))[:_DIGITS]
    return _when(event.get("at")), event.get("version"), event.get("what"), of or None, how


def _when(at: object) -> str | None:
    return moment(datetime.fromtimestamp(at, UTC).isoformat()) if isinstance(at, int | float) else None
