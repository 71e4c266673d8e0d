"""``larder pipelines``: the input pipelines of the jobs of the caller's tenant."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from larder.base.errors import LarderError
from larder.commands import output
from larder.commands.jobs import all_pages, api_of
from larder.http.api import Api

_HEADING = ("JOB", "DATASET", "MODE", "MARK", "WHY", "WORKERS")
_STAGES = ("STAGE", "", "PER ELEMENT", "BYTES", "ELEMENTS")
_DECISIONS = ("AT", "EPOCH", "MARK", "WHY", "PROJECTED PER EPOCH")
_WORKERS = ("AT", "RANK", "WORKERS", "MODE")


def listing(arguments: Namespace) -> int:
    """``larder pipelines list``."""
    found = _pipelines(api_of(arguments))
    if arguments.json:
        output.document({"pipelines": found})
    elif found:
        output.table([_HEADING, *map(_row, found)])
    else:
        output.line("no pipelines")
    return 0


def show(arguments: Namespace) -> int:
    """``larder pipelines show``."""
    found = next((one for one in _pipelines(api_of(arguments)) if one.get("job") == arguments.job), None)
    if found is None:
        raise LarderError(f"unknown pipeline {arguments.job!r}; see larder pipelines list")
    if arguments.json:
        output.document(found)
        return 0
    output.table([_HEADING, _row(found)])
    _part(_STAGES, [_stage(one) for one in found.get("stages", ())])
    _part(_DECISIONS, [_decision(one) for one in found.get("decisions", ())])
    _part(_WORKERS, [tuple(one.get(name.lower(), "") for name in _WORKERS) for one in found.get("scaling", ())])
    return 0


def _pipelines(api: Api) -> list[dict[str, Any]]:
    return all_pages(api, "/-/v1/pipelines", "pipelines")


def _part(heading: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        output.line("")
        output.table([heading, *rows])


def _row(one: dict[str, Any]) -> tuple[object, ...]:
    workers = one.get("workers")
    return (
        one.get("job", ""),
        one.get("dataset_name", ""),
        one.get("mode", ""),
        _mark(one),
        one.get("reason", ""),
        "-" if workers is None else workers,
    )


def _mark(one: dict[str, Any]) -> str:
    return "-" if one.get("cache") is None else f"stage {one['cache']}"


def _stage(one: dict[str, Any]) -> tuple[object, ...]:
    kind = "mark" if one.get("mark") else "end"
    milliseconds = 1000 * one.get("seconds", 0.0)
    return one.get("stage", ""), kind, f"{milliseconds:.3f} ms", f"{one.get('bytes', 0.0):.0f}", one.get("elements", "")


def _decision(one: dict[str, Any]) -> tuple[object, ...]:
    projected = ", ".join(map(_projected, one.get("projections", ())))
    return one.get("at", ""), one.get("epoch", ""), _mark(one), one.get("reason", ""), projected or "-"


def _projected(one: dict[str, Any]) -> str:
    mode = "compute" if one.get("cache") is None else _mark(one)
    share = one.get("share", 1.0)
    return f"{mode} {one.get('seconds', 0.0):.1f} s" + (f" ({share:.1%} fits)" if share < 1 else "")
