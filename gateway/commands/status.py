"""``larder-gateway status``: what a person wants to know first."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from typing import Any

from gateway.commands import nodes
from gateway.commands.connection import connected
from gateway.commands.grammar import asking, describe
from gateway.commands.output import (
    STYLES,
    Column,
    age,
    document,
    facts,
    heading,
    line,
    moment,
    number,
    printable,
    share,
    size,
    speed,
    table,
)

_JOBS = (
    Column("job"),
    Column("dataset"),
    Column("epoch", number=True),
    Column("gpus", number=True),
    Column("phase"),
    Column("cache"),
    Column("benefit", number=True),
    Column("silent", number=True),
)
_DATASETS = (
    Column("dataset"),
    Column("items", number=True),
    Column("bytes", number=True),
    Column("caching"),
    Column("why"),
    Column("granted", number=True),
    Column("resident", number=True),
)


def add(command: ArgumentParser) -> None:
    """Say what the command takes."""
    describe(
        command,
        _status,
        "The fleet's nodes, what they do now, jobs, datasets, and problems with what to do about them.\n"
        "Exit status 1 if there is a problem of severity error, so that a check can call it.",
        "larder-gateway status --endpoint http://127.0.0.1:9000 --token-file /etc/larder/admin-token",
        "larder-gateway status --json | jq .now.hit_ratio",
    )
    asking(command)


def _status(options: Namespace) -> int:
    with connected(options) as admin:
        overview = admin.get("overview")
    problems = overview.get("problems", [])
    if options.json:
        document(overview)
    else:
        _show(overview)
    return 1 if any(problem.get("severity") == "error" for problem in problems) else 0


def _show(overview: Mapping[str, Any]) -> None:
    heading(f"zone {overview.get('zone')}, Larder {overview.get('version')}")
    nodes.show(overview.get("nodes", []))
    line()
    _traffic(overview.get("now", {}), overview.get("total", {}))
    if jobs := overview.get("jobs"):
        line()
        table(_JOBS, map(_job, jobs))
    if datasets := overview.get("datasets"):
        line()
        table(_DATASETS, map(_dataset, datasets))
    line()
    _problems(overview.get("problems", []))


def _traffic(now: Mapping[str, Any], total: Mapping[str, Any]) -> None:
    saved = size(total.get("saved_bytes"))
    facts(
        (
            (
                "requests",
                f"{number(now.get('requests_per_second'), 1) or 0}/s, {number(total.get('requests')) or 0} in all",
            ),
            ("from the cache", _from_the_cache(now)),
            ("from the origin", _from_the_origin(now)),
            ("saved", None if saved is None else f"{saved} of {size(total.get('sent_bytes')) or 0} sent"),
        )
    )


def _from_the_cache(now: Mapping[str, Any]) -> str:
    ratio = share(now.get("hit_ratio"))
    return f"{speed(now.get('cache_bytes_per_second')) or 0}" + (f", {ratio} of all bytes" if ratio else "")


def _from_the_origin(now: Mapping[str, Any]) -> str:
    requests = number(now.get("origin_requests_per_second"), 1) or 0
    return f"{speed(now.get('origin_bytes_per_second')) or 0}, {requests} requests/s"


def _job(job: Mapping[str, Any]) -> tuple[object, ...]:
    benefit = job.get("benefit")
    return (
        f"{job.get('tenant')}/{job.get('job')}",
        job.get("dataset_name") or job.get("dataset"),
        job.get("epoch"),
        job.get("gpus"),
        job.get("phase"),
        "yes" if job.get("cache") else "no",
        f"{benefit:.2f}x" if benefit else None,
        age(job.get("silent_seconds")),
    )


def _dataset(dataset: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        ", ".join(dataset.get("names") or [str(dataset.get("id"))]),
        number(dataset.get("items")),
        size(dataset.get("bytes")),
        dataset.get("caching"),
        dataset.get("why"),
        size(dataset.get("granted")),
        share(dataset.get("resident_share")),
    )


def _problems(problems: list[Mapping[str, Any]]) -> None:
    if not problems:
        line("no problems")
    for problem in problems:
        node = f" on {problem['node']}" if problem.get("node") else ""
        severity, since = str(problem.get("severity")), moment(problem.get("since"))
        heading(
            f"{severity}: {problem.get('what')}{node}{f', since {since}' if since else ''}", STYLES.get(severity, "")
        )
        if problem.get("remedy"):
            line(f"  {printable(str(problem['remedy']))}")
