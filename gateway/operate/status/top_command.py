"""``larder-gateway top``: the fleet at work, refreshed on a terminal."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.commands.common.connection import connected
from gateway.commands.common.grammar import asking, count, describe, duration
from gateway.commands.common.live import refresh
from gateway.commands.common.output import (
    Column,
    document,
    heading,
    line,
    listed,
    milliseconds,
    number,
    share,
    size,
    table,
    terminal,
)
from gateway.commands.fleet import nodes, streams
from gateway.operate.status import command as status
from gateway.operate.traffic import command as traffic

_ROWS = 8
"""Rows of each table."""
_EVERY = 2.0
"""Seconds between two refreshes."""
_POOLS = (
    Column("pool"),
    Column("what"),
    Column("held", shown=size),
    Column("target", lambda row: row.get("state") or size(row.get("target")), number=True),
    Column("hits", shown=share),
)
_ORIGINS = (
    Column("origin", "name"),
    Column("state"),
    Column("requests", lambda row: f"{number(row.get('requests_per_second'), 1)}/s", number=True),
    Column("p50", shown=milliseconds),
    Column("p95", shown=milliseconds),
    Column("p99", shown=milliseconds),
    Column("lost by", shown=listed),
)


def add(command: ArgumentParser) -> None:
    """Define the command's arguments."""
    describe(
        command,
        _top,
        "Problems, traffic, the busiest buckets with their tenants, the most missed prefixes, the largest pools, origins and\n"
        "nodes. On a terminal it is refreshed until Ctrl-C, as much as fits; elsewhere it is printed once.",
        "larder-gateway top",
        "larder-gateway top --once",
        "larder-gateway top --once --json | jq .traffic",
    )
    command.add_argument("--once", action="store_true", help="print it once")
    command.add_argument("--every", metavar="TIME", type=duration, default=_EVERY, help="between two refreshes (2s)")
    command.add_argument("--rows", metavar="N", type=count, default=_ROWS, help=f"rows of each table ({_ROWS})")
    asking(command)


def _top(options: Namespace) -> int:
    with connected(options) as admin:
        if options.json:
            document(admin.get("overview"))
        elif options.once or not terminal():
            _show(admin.get("overview"), options.rows)
        else:
            refresh(lambda: _show(admin.get("overview"), options.rows), options.every)
    return 0


def _show(overview: Mapping[str, Any], rows: int) -> None:
    busiest = overview.get("traffic", {})
    status.headline(overview)
    status.show_problems(overview)
    line()
    status.show_traffic(overview)
    _part("buckets, last minute", traffic.BUCKETS, busiest.get("buckets", [])[:rows])
    _part("missed prefixes, last minutes", traffic.PREFIXES, busiest.get("misses", [])[:rows])
    _part("pools", _POOLS, pools(overview)[:rows])
    _part("origins", _ORIGINS, overview.get("origins", [])[:rows])
    _part("nodes", nodes.COLUMNS, overview.get("nodes", [])[:rows])


def _part(name: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> None:
    if rows:
        line()
        heading(name)
        table(columns, rows)


def pools(overview: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The space of datasets, access streams and results of pipelines, the largest target first."""
    rows = [
        {
            "pool": (dataset.get("names") or [dataset.get("id")])[0],
            "what": "dataset",
            "held": int(dataset["resident_share"] * dataset["bytes"]) if dataset.get("bytes") else None,
            "target": dataset.get("granted"),
        }
        for dataset in overview.get("datasets", [])
    ]
    rows += [
        {**_pool(stream["pool"], stream.get("name"), "stream"), "state": streams.target(stream)}
        for stream in overview.get("streams", [])
        if stream.get("pool")
    ]
    rows += [_pool(results, results.get("pool"), "results") for results in overview.get("results", [])]
    return sorted(rows, key=lambda row: -(row.get("target") or 0))


def _pool(pool: Mapping[str, Any], name: object, what: str) -> dict[str, Any]:
    reads = pool.get("hits", 0) + pool.get("misses", 0)
    return {
        "pool": name,
        "what": what,
        "held": pool.get("bytes"),
        "target": pool.get("target"),
        "hits": pool["hits"] / reads if reads else None,
    }
