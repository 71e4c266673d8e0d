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
    pipelines = _pipelines(api_of(arguments))
    if arguments.json:
        output.document({"pipelines": pipelines})
    elif pipelines:
        output.table([_HEADING, *map(_row, pipelines)])
    else:
        output.line("no pipelines")
    return 0


def show(arguments: Namespace) -> int:
    """``larder pipelines show``."""
    pipeline = next((known for known in _pipelines(api_of(arguments)) if known.get("job") == arguments.job), None)
    if pipeline is None:
        raise LarderError(f"unknown pipeline {arguments.job!r}; see larder pipelines list")
    if arguments.json:
        output.document(pipeline)
        return 0
    output.table([_HEADING, _row(pipeline)])
    _part(_STAGES, [_stage(stage) for stage in pipeline.get("stages", ())])
    _part(_DECISIONS, [_decision(decision) for decision in pipeline.get("decisions", ())])
    _part(
        _WORKERS, [tuple(change.get(name.lower(), "") for name in _WORKERS) for change in pipeline.get("scaling", ())]
    )
    return 0


def _pipelines(api: Api) -> list[dict[str, Any]]:
    return all_pages(api, "/-/v1/pipelines", "pipelines")


def _part(heading: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    if rows:
        output.line("")
        output.table([heading, *rows])


def _row(pipeline: dict[str, Any]) -> tuple[object, ...]:
    workers = pipeline.get("workers")
    return (
        pipeline.get("job", ""),
        pipeline.get("dataset_name", ""),
        pipeline.get("mode", ""),
        _mark(pipeline),
        pipeline.get("reason", ""),
        "-" if workers is None else workers,
    )


def _mark(facts: dict[str, Any]) -> str:
    return "-" if facts.get("cache") is None else f"stage {facts['cache']}"


def _stage(stage: dict[str, Any]) -> tuple[object, ...]:
    kind, versions = "mark" if stage.get("mark") else "end", stage.get("versions", 1)
    milliseconds = 1000 * stage.get("seconds", 0.0)
    return (
        stage.get("stage", ""),
        f"{kind}, {versions} versions" if versions > 1 else kind,
        f"{milliseconds:.3f} ms",
        f"{stage.get('bytes', 0.0):.0f}",
        stage.get("elements", ""),
    )


def _decision(decision: dict[str, Any]) -> tuple[object, ...]:
    projected = ", ".join(map(_projected, decision.get("projections", ())))
    return (
        decision.get("at", ""),
        decision.get("epoch", ""),
        _mark(decision),
        decision.get("reason", ""),
        projected or "-",
    )


def _projected(projection: dict[str, Any]) -> str:
    mode = "compute" if projection.get("cache") is None else _mark(projection)
    share, filling = projection.get("share", 1.0), projection.get("filling", 0.0)
    seconds = f"{mode} {projection.get('seconds', 0.0):.1f} s" + (f" + {filling:.1f} s filling" if filling else "")
    return seconds + (f" ({share:.1%} fits)" if share < 1 else "")
