"""``larder jobs``: the training jobs of the caller's tenant."""

from __future__ import annotations

from argparse import Namespace
from typing import Any
from urllib.parse import quote

from larder.base.errors import UnexpectedAnswer
from larder.commands import output
from larder.http.api import Api
from larder.http.credentials import CredentialSource, endpoint_of

_HEADING = (
    *("JOB", "DATASET", "GPUS", "RANKS", "EPOCH", "PHASE", "CACHE"),
    *("T_MISS", "T_HIT", "PREDICTED", "WITH_MORE", "BENEFIT", "SILENT"),
)


def listing(arguments: Namespace) -> int:
    """``larder jobs list``."""
    api = api_of(arguments)
    jobs = all_pages(api, "/-/v1/jobs", "jobs")
    if arguments.json:
        output.document({"jobs": jobs})
    elif jobs:
        output.table([_HEADING, *map(_row, jobs)])
    else:
        output.line("no jobs")
    return 0


def show(arguments: Namespace) -> int:
    """``larder jobs show``."""
    job = api_of(arguments).json("GET", f"/-/v1/jobs/{quote(arguments.job, safe='~')}")
    if arguments.json:
        output.document(job)
    else:
        output.facts(_facts(job))
    return 0


def all_pages(api: Api, path: str, name: str) -> list[dict[str, Any]]:
    """A list that the gateway returns page by page; ``name`` is its field in each answer."""
    rows: list[dict[str, Any]] = []
    cursor = ""
    while True:
        page = api.json("GET", path, query=f"cursor={quote(cursor, safe='')}" if cursor else "")
        part, following = page.get(name), page.get("next")
        if not isinstance(part, list):
            raise UnexpectedAnswer(api.endpoint, 200, f'"{name}" is missing')
        rows += part
        if not isinstance(following, str) or following <= cursor:
            return rows
        cursor = following


def api_of(arguments: Namespace) -> Api:
    """The gateway that the arguments name."""
    endpoint = endpoint_of(arguments.endpoint, profile=arguments.profile)
    return Api(endpoint, credentials=CredentialSource(profile=arguments.profile), timeout=10.0)


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    return (
        job.get("job", ""),
        job.get("name", ""),
        job.get("gpus", 0),
        f"{job.get('ranks_heard')}/{job.get('ranks')}",
        _or_dash(_epoch(job)),
        job.get("phase", ""),
        "yes" if job.get("cache") else "no",
        _or_dash(_seconds(job.get("t_miss"))),
        _or_dash(_seconds(job.get("t_hit"))),
        _or_dash(_seconds(job.get("t_predicted"))),
        _or_dash(_seconds(job.get("t_with_more"))),
        _or_dash(_benefit(job)),
        f"{job.get('silent', 0):.0f} s",
    )


def _facts(job: dict[str, Any]) -> list[tuple[str, object]]:
    """What is known of a job, as ``larder-gateway jobs show`` says it; ``None`` for what is not known."""
    return [
        ("job", job.get("job")),
        ("dataset", job.get("name") or job.get("dataset")),
        ("gpus", job.get("gpus")),
        ("ranks", job.get("ranks")),
        ("epoch", _epoch(job)),
        ("phase", job.get("phase")),
        ("cache", "yes" if job.get("cache") else "no"),
        ("t miss", _seconds(job.get("t_miss"))),
        ("t hit", _seconds(job.get("t_hit"))),
        ("predicted", _seconds(job.get("t_predicted"))),
        ("with more", _seconds(job.get("t_with_more"))),
        ("benefit", _benefit(job)),
        ("silent", _age(job.get("silent", 0))),
        ("origin reads", _origin_reads(job.get("last_epoch"))),
    ]


def _or_dash(cell: object) -> object:
    return "-" if cell is None else cell


def _epoch(job: dict[str, Any]) -> int | None:
    """The epoch; ``None`` before the first heartbeat."""
    epoch: int = job.get("epoch", -1)
    return None if epoch < 0 else epoch


def _seconds(mean: float | None) -> str | None:
    return f"{mean:.3f} s" if mean else None


def _benefit(job: dict[str, Any]) -> str | None:
    return f"{job['benefit']:.2f}x" if job.get("benefit") else None


def _age(seconds: float) -> str:
    """The two largest units: ``"3 d 4 h"``, ``"12 min 5 s"``."""
    left, parts = int(seconds), list[str]()
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2]) or "0 s"


def _origin_reads(last: dict[str, Any] | None) -> str | None:
    """The reads of the origin in the last whole epoch; ``None`` before its end."""
    if not last:
        return None
    least = last.get("least")
    bound = "" if least is None else f"; {least:.2f} is the least possible, for all jobs on the dataset together"
    return f"{last.get('per_item', 0):.2f} per item of epoch {last.get('epoch')}{bound}"
