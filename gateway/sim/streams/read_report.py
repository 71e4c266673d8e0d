"""Results of a simulation of plain clients, as tables for people and as JSON for programs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gateway.model.units import format_size
from gateway.policies.streams.pattern import Pattern
from gateway.sim.jobs.report import aligned, headed
from gateway.sim.streams.read_scenario import ReadScenario
from gateway.sim.streams.transparent import ClientResult, ReadRunResult


def runs_table(results: Sequence[ReadRunResult]) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row per run: hits and mean completion time, of all clients and by the pattern of their orders."""
    patterns = [pattern for pattern in Pattern if any(client.pattern == pattern for client in results[0].clients)]
    columns = ["run", "hits", "mean time"]
    for pattern in patterns:
        columns += [f"{pattern} hits", "time"]
    rows = []
    for result in results:
        row = [result.run.name]
        for chosen in ("", *map(str, patterns)):
            row += [f"{result.hit_ratio(chosen):.1%}", f"{result.mean_seconds(chosen):.0f} s"]
        rows.append([*row, *map(format_size, (result.origin_bytes, result.ahead_bytes, result.wasted_bytes))])
    return [*columns, "origin sent", "ahead", "unread"], rows


def clients_table(result: ReadRunResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row for each client of a run."""
    rows = [
        [
            client.spec.name,
            client.pattern,
            str(client.reads),
            f"{client.hits / max(1, client.reads):.1%}",
            f"{client.seconds:.0f} s",
        ]
        for client in result.clients
    ]
    return [f"client in {result.run.name}", "order", "reads", "hits", "time"], rows


def streams_table(result: ReadRunResult) -> tuple[list[str], list[list[str]]]:
    """Columns and rows, one row for each stream of a run that had a pool at the end."""
    return ["stream", "pattern"], [[name, pattern.value] for name, pattern in sorted(result.patterns.items())]


def reads_as_text(scenario: ReadScenario, results: Sequence[ReadRunResult]) -> str:
    """The scenario's description, a table of runs, and the clients and streams of the last run with streams."""
    tables = [aligned(*runs_table(results))]
    shown = next((result for result in results if result.run.mode == "streams"), results[-1])
    tables.append(aligned(*clients_table(shown)))
    if shown.patterns:
        tables.append(aligned(*streams_table(shown)))
    return headed(scenario.title, scenario.text, *tables)


def reads_as_json(scenario: ReadScenario, results: Sequence[ReadRunResult]) -> list[dict[str, Any]]:
    """All measurements of each run, as JSON types."""
    return [
        {
            "name": result.run.name,
            "mode": result.run.mode,
            "hits": result.hit_ratio(),
            "seconds": result.mean_seconds(),
            "origin_bytes": result.origin_bytes,
            "ahead_bytes": result.ahead_bytes,
            "unread_bytes": result.wasted_bytes,
            "ended_bytes": result.released,
            "patterns": {name: pattern.value for name, pattern in result.patterns.items()},
            "clients": [_client_json(client) for client in result.clients],
        }
        for result in results
    ]


def _client_json(client: ClientResult) -> dict[str, Any]:
    return {
        "name": client.spec.name,
        "order": client.pattern,
        "reads": client.reads,
        "hits": client.hits,
        "late": client.late,
        "seconds": client.seconds,
    }
