"""``larder-gateway status``: the fleet at a glance."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Mapping
from typing import Any

from gateway.commands.common.connection import connected
from gateway.commands.common.grammar import asking, describe, duration
from gateway.commands.common.live import refresh
from gateway.commands.common.output import (
    STYLES,
    facts,
    heading,
    line,
    milliseconds,
    moment,
    number,
    printable,
    share,
    size,
    speed,
    table,
    terminal,
)
from gateway.commands.common.resources import answering
from gateway.commands.fleet import datasets, jobs, nodes

_EVERY = 2.0
"""Seconds between two refreshes."""


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _status,
        "Nodes, traffic, jobs, datasets, and problems with their remedies. Exit status 1 if there is a problem of severity\n"
        "error that is not muted, for use in health checks.",
        "larder-gateway status --endpoint http://127.0.0.1:9000 --token-file /etc/larder/admin-token",
        "larder-gateway status --json | jq .now.hit_ratio",
        "larder-gateway status --watch 5s",
    )
    command.add_argument(
        "--watch",
        metavar="TIME",
        type=duration,
        nargs="?",
        const=_EVERY,
        help="on a terminal: refresh until Ctrl-C, so often (2s)",
    )
    asking(command)


def _status(options: Namespace) -> int:
    if options.watch and terminal() and not options.json:
        with connected(options) as admin:
            refresh(lambda: _show(options, admin.get("overview")), options.watch)
    return answering(lambda admin, _: admin.get("overview"), _show, _problem)(options)


def _problem(_options: Namespace, overview: Mapping[str, Any]) -> int:
    open_ones = (problem for problem in overview.get("problems", []) if not problem.get("muted_until"))
    return 1 if any(problem.get("severity") == "error" for problem in open_ones) else 0


def _show(_options: Namespace, overview: Mapping[str, Any]) -> None:
    headline(overview)
    table(nodes.COLUMNS, overview.get("nodes", []), "no nodes")
    line()
    show_traffic(overview)
    if overview.get("jobs"):
        line()
        table(jobs.COLUMNS, overview["jobs"])
    if overview.get("datasets"):
        line()
        table(datasets.COLUMNS, overview["datasets"])
    line()
    show_problems(overview)


def headline(overview: Mapping[str, Any]) -> None:
    """Print the fleet's identity."""
    heading(f"zone {overview.get('zone')}, Larder {overview.get('version')}")


def show_traffic(overview: Mapping[str, Any]) -> None:
    """Print rates and totals."""
    now, total, answers = (overview.get(name, {}) for name in ("now", "total", "answers"))
    facts(
        (
            ("requests", f"{_rate(now, 'requests_per_second')}, {number(total.get('requests'))} in all"),
            ("batch items", f"{_rate(now, 'batch_items_per_second')}, {number(total.get('batch_items'))} in all"),
            ("from the cache", _from_the_cache(now)),
            ("from the origin", _from_the_origin(now)),
            ("answers", _answers(answers)),
            ("saved", f"{size(total.get('saved_bytes'))} of {size(total.get('sent_bytes'))} sent"),
        )
    )


def _rate(now: Mapping[str, Any], name: str) -> str:
    return f"{number(now.get(name), 1)}/s"


def _answers(answers: Mapping[str, Any]) -> str | None:
    """Statuses per second, and percentiles of all requests."""
    statuses = [f"{name} {number(count, 1)}/s" for name, count in answers.get("statuses", {}).items() if count]
    of_all: Mapping[str, Any] = next(iter(answers.get("latency", [])), {})
    percentiles = [f"{name} {milliseconds(of_all[name])}" for name in ("p50", "p95", "p99") if of_all.get(name)]
    return ", ".join([*statuses, *percentiles]) or None


def _from_the_cache(now: Mapping[str, Any]) -> str:
    ratio = share(now.get("hit_ratio"))
    return f"{speed(now.get('cache_bytes_per_second'))}{f', {ratio} of all bytes' if ratio else ''}"


def _from_the_origin(now: Mapping[str, Any]) -> str:
    return f"{speed(now.get('origin_bytes_per_second'))}, {_rate(now, 'origin_requests_per_second')}"


def show_problems(overview: Mapping[str, Any]) -> None:
    """Print the problems with their remedies."""
    problems: Iterable[Mapping[str, Any]] = overview.get("problems", [])
    if not problems:
        line("no problems")
    for problem in problems:
        node = f" (node {problem['node']})" if problem.get("node") else ""
        severity, since = str(problem.get("severity")), moment(problem.get("since"))
        when = f", since {since}" if since else ""
        if problem.get("muted_until"):
            when += f", muted until {moment(problem['muted_until'])}"
        heading(f"{severity}{node}{when}: {problem.get('what')}", STYLES.get(severity, ""))
        if problem.get("remedy"):
            line(f"  {printable(str(problem['remedy']))}")
        if problem.get("runbook"):
            line(f"  see {printable(str(problem['runbook']))}")
