"""``larder-gateway pipelines``: input pipelines of jobs, and operators' overrides."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands.common.connection import Admin, path
from gateway.commands.common.grammar import Run, subcommand, subcommands
from gateway.commands.common.output import Column, facts, hint, line, number, printable, share, size, table
from gateway.commands.common.resources import add_list, answering, listing
from gateway.model.errors import LarderError


def _override_of(pipeline: Mapping[str, Any]) -> str:
    mode, mark = pipeline.get("override") or "", pipeline.get("pinned")
    return mode if mark is None else f"{mode}, stage {mark}"


def _of_mark(pipeline: Mapping[str, Any]) -> str:
    return "-" if pipeline.get("cache") is None else f"stage {pipeline['cache']}"


COLUMNS = (
    Column("job", lambda pipeline: f"{pipeline.get('tenant')}/{pipeline.get('job')}"),
    Column("dataset", "dataset_name"),
    Column("mode"),
    Column("mark", _of_mark),
    Column("why", "reason"),
    Column("override", lambda pipeline: _override_of(pipeline) or "-"),
    Column("workers", number=True),
    Column("target", shown=size),
)


def _of_stage(stage: Mapping[str, Any]) -> str:
    versions = f", {stage['versions']} versions" if stage.get("versions", 1) > 1 else ""
    return f"{stage['stage']}, {'mark' if stage.get('mark') else 'end'}{versions}"


_STAGES = (
    Column("stage", _of_stage),
    Column("per element", "seconds", lambda value: f"{1000 * value:.3f} ms", number=True),
    Column("size", "bytes", size),
    Column("elements", shown=number),
)
_DECISIONS = (
    Column("at"),
    Column("epoch", number=True),
    Column("mark", _of_mark),
    Column("why", "reason"),
    Column("projected", lambda decision: _projected(decision.get("projections") or ())),
)
_WORKERS = (Column("at"), Column("rank", number=True), Column("workers", number=True), Column("mode"))


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    commands = subcommands(
        command,
        "Input pipelines of jobs: what their stages cost, where they cache and why, and their workers over time. pin stores\n"
        "results whatever that saves, at the cheapest mark or at --mark; never stores none, auto lets the fleet decide.\n"
        "docs/pipelines.md explains the reasons.",
        "larder-gateway pipelines list",
        "larder-gateway pipelines show vision/resnet50-17",
        "larder-gateway pipelines never vision/resnet50-17",
    )
    add_list(commands, "pipelines", "list the pipelines", listing("pipelines", COLUMNS))
    shown = subcommand(
        commands,
        "show",
        "show one pipeline, and its decisions with their numbers",
        answering(lambda admin, options: admin.get(_address(admin, options.job)), _show),
        "larder-gateway pipelines show vision/resnet50-17",
    )
    decided = [
        subcommand(
            commands, word, summary, _override(mode, word), f"larder-gateway pipelines {word} vision/resnet50-17"
        )
        for word, summary, mode in (
            ("pin", "store results, whatever that saves", "pin"),
            ("never", "store no results", "never"),
            ("auto", "let the fleet decide again", None),
        )
    ]
    decided[0].add_argument(
        "--mark", metavar="STAGE", type=int, help="the stage of the mark; default: the cheapest mark"
    )
    for parser in (shown, *decided):
        parser.add_argument("job", metavar="[TENANT/]JOB", help="the tenant is optional if only one has such a job")


def _address(admin: Admin, wanted: str) -> str:
    """The address of a pipeline.

    Raises:
        LarderError: there is no such pipeline, or more than one.
    """
    known = [f"{pipeline['tenant']}/{pipeline['job']}" for pipeline in admin.listed("pipelines")]
    matching = [name for name in known if wanted in (name, name.rpartition("/")[2])]
    if not matching:
        raise LarderError(f"unknown pipeline {wanted!r}; see {hint('pipelines', 'list')}")
    if len(matching) > 1:
        raise LarderError(f"several tenants have a job {wanted!r}: {', '.join(matching)}")
    tenant, _, job = matching[0].rpartition("/")
    return path("pipelines", tenant, job)


def _override(mode: str | None, word: str) -> Run:
    def ask(admin: Admin, options: Namespace) -> Any:
        mark = getattr(options, "mark", None)
        body = {"mode": mode} if mark is None else {"mode": mode, "mark": mark}
        return admin.ask("PUT", f"{_address(admin, options.job)}/override", body)

    def tell(options: Namespace, _answer: object) -> None:
        line(f"{printable(options.job)}: {word}, from the next epoch on")

    return answering(ask, tell)


def _projected(projections: Any) -> str:
    parts = []
    for projection in projections:
        name = "compute" if projection.get("cache") is None else f"stage {projection['cache']}"
        fits = "" if projection.get("share", 1) >= 1 else f" ({share(projection['share'])} fits)"
        filling = f" + {number(projection['filling'], 1)} s filling" if projection.get("filling") else ""
        parts.append(f"{name} {number(projection.get('seconds'), 1)} s{filling}{fits}")
    return ", ".join(parts) or "-"


def _show(_options: Namespace, pipeline: Mapping[str, Any]) -> None:
    facts(
        (
            ("job", f"{pipeline.get('tenant')}/{pipeline.get('job')}"),
            ("dataset", pipeline.get("dataset_name")),
            ("mode", pipeline.get("mode")),
            ("mark", _of_mark(pipeline)),
            ("why", pipeline.get("reason")),
            ("override", _override_of(pipeline) or "none: the fleet decides"),
            ("workers", number(pipeline.get("workers"))),
            ("pool", pipeline.get("pool")),
            ("target", size(pipeline.get("target"))),
        )
    )
    for columns, rows in ((_STAGES, "stages"), (_DECISIONS, "decisions"), (_WORKERS, "scaling")):
        if pipeline.get(rows):
            line()
            table(columns, pipeline[rows])
