"""``larder-gateway plan``."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gateway.commands.common.connection import Admin
from gateway.commands.common.grammar import asking, count, describe
from gateway.commands.common.grammar import size as size_of
from gateway.commands.common.output import Column, facts, line, listed, moment, named, number, saves, share, size, table
from gateway.commands.common.resources import answering
from gateway.commands.fleet.jobs import step, times

_DIGITS = 12
"""Digits of the id of a dataset that has no name."""
_NAMED = frozenset({"at", "version", "what", "dataset", "id", "names", "job"})


def _when(at: object) -> str | None:
    return moment(datetime.fromtimestamp(at, UTC).isoformat()) if isinstance(at, int | float) else None


def _how(event: Mapping[str, Any]) -> str | None:
    return named({name: value for name, value in event.items() if name not in _NAMED})


def _called(dataset: Mapping[str, Any]) -> str:
    """Names of a dataset; of one that is not registered any more, the beginning of its id."""
    return listed(dataset.get("names")) or str(dataset.get("id", ""))[:_DIGITS]


_DATASETS = (
    Column("dataset", _called),
    Column("caching"),
    Column("why"),
    Column("granted", shown=size),
    Column("saves", shown=saves),
    Column("decided here", "override"),
    Column("inputs", "inputs", named),
)
_JOBS = (
    Column("job", "id"),
    Column("phase"),
    Column("t hit", shown=step, number=True),
    Column("predicted", "t_predicted", step, number=True),
    Column("with more", "t_with_more", step, number=True),
    Column("benefit", shown=times, number=True),
)
_SPACES = (
    Column("dataset", _called),
    Column("now", "granted", size),
    Column("then", "granted_then", size),
    Column("saved now", "saved", share),
    Column("saved then", "saved_then", share),
)
_SPEEDS = (
    Column("job"),
    Column("step now", "seconds", step, number=True),
    Column("step then", "seconds_then", step, number=True),
)
_CHANGES = (
    Column("when", "at", _when),
    Column("version", number=True),
    Column("what"),
    Column("of", lambda event: event.get("job") or _called(event)),
    Column("how", _how),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        answering(_asked, _show),
        "The plan in force: the space of each dataset and why, the manager's inputs; of each job the time of a step as\n"
        "measured, as predicted, and as predicted with a tenth of the dataset more; recent changes, newest first.\n"
        "docs/jobs.md explains the terms.",
        "larder-gateway plan",
        "larder-gateway plan --history 100",
        "larder-gateway plan --json | jq .inputs",
        "larder-gateway plan --what-if 40TB",
    )
    command.add_argument("--history", metavar="N", type=count, default=10, help="show at most N changes (10)")
    command.add_argument(
        "--what-if",
        metavar="CAPACITY",
        type=size_of,
        help="show instead what caches of this size, all nodes together, would save",
    )
    asking(command)


def _asked(admin: Admin, options: Namespace) -> Any:
    return admin.get("plan") if options.what_if is None else admin.get("plan/what-if", capacity=options.what_if)


def _show(options: Namespace, plan: Mapping[str, Any]) -> None:
    if options.what_if is None:
        _show_plan(options, plan)
    else:
        _show_outcome(plan)


def _show_outcome(outcome: Mapping[str, Any]) -> None:
    """Print the present figures beside the projected ones."""
    now, then = (_worth(outcome, ending) for ending in ("", "_then"))
    facts(
        (
            ("capacity", _beside(size(outcome["capacity"]), size(outcome["capacity_then"]))),
            ("saves", _beside(now, then)),
            ("not measured", _left_out(outcome.get("unmeasured", 0))),
        )
    )
    line()
    table(_SPACES, outcome["datasets"], "no dataset is in the plan: no job is registered")
    if jobs := outcome["jobs"]:
        line()
        table(_SPEEDS, jobs)


def _worth(outcome: Mapping[str, Any], ending: str) -> str | None:
    if (money := outcome[f"saves{ending}"]) is not None:
        return saves(money)
    return f"{number(outcome[f'gpu_seconds{ending}'])} GPU seconds an hour"


def _left_out(jobs: int) -> str | None:
    """What is said of jobs whose benefit is not measured yet; ``None`` if there are none."""
    return f"{jobs} {'job' if jobs == 1 else 'jobs'}, not counted in what is saved" if jobs else None


def _beside(now: object, then: object) -> str:
    return f"{now} now, {then} then"


def _show_plan(options: Namespace, plan: Mapping[str, Any]) -> None:
    granted, capacity = plan.get("granted") or 0, plan.get("capacity") or 0
    part = f" ({share(granted / capacity)})" if capacity else ""
    facts(
        (
            ("version", plan.get("version")),
            ("granted", f"{size(granted)} of {size(capacity)}{part}"),
            ("saves", saves(plan.get("saves"))),
        )
    )
    line()
    inputs, overrides = (plan.get("inputs") or {}).get("datasets") or {}, plan.get("overrides") or {}
    names = plan.get("names") or {}
    table(
        _DATASETS,
        (
            {
                **order,
                "id": dataset,
                "names": names.get(dataset),
                "override": overrides.get(dataset),
                "inputs": inputs.get(dataset) or {},
            }
            for dataset, order in (plan.get("datasets") or {}).items()
        ),
        "no dataset is in the plan: no job is registered",
    )
    if jobs := plan.get("jobs") or {}:
        line()
        table(_JOBS, ({**job, "id": name} for name, job in jobs.items()))
    if history := (plan.get("history") or [])[: options.history]:
        line()
        of = ((event, event.get("dataset", "")) for event in history)
        table(_CHANGES, ({**event, "id": dataset, "names": names.get(dataset)} for event, dataset in of))
