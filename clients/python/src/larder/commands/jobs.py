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
        output.table([(name, _shown(value)) for name, value in job.items()])
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
        "-" if job.get("epoch", -1) < 0 else job["epoch"],
        job.get("phase", ""),
        "yes" if job.get("cache") else "no",
        _seconds(job.get("t_miss")),
        _seconds(job.get("t_hit")),
        _seconds(job.get("t_predicted")),
        _seconds(job.get("t_with_more")),
        f"{job['benefit']:.2f}x" if job.get("benefit") else "-",
        f"{job.get('silent', 0):.0f} s",
    )


def _seconds(mean: float | None) -> str:
    return f"{mean:.3f} s" if mean else "-"


def _shown(value: object) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value)) or "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
