"""Measures the sides of a comparison in turn, so that other load on the machine affects them alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from lab.benchmarks.load import run_wrk
from lab.benchmarks.servers import Running


def in_turn(sides: Mapping[str, Callable[[], float]], repeats: int) -> dict[str, list[float]]:
    """Measure every side ``repeats`` times, in turn; return the values of all rounds, by side."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, measure in sides.items():
            found[name].append(measure())
    return found


def medians_of(rounds: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """The median of each side's rounds."""
    return {name: median(values) for name, values in rounds.items()}


def cpu_per_request(server: Running, script: Path, connections: int, also: Sequence[Running] = ()) -> float:
    """Microseconds of CPU per request in one second of load.

    Args:
        server: gets the requests.
        script: of the requests.
        connections: to the server.
        also: further servers that take part in the work.

    Raises:
        RuntimeError: a request failed.
    """
    servers = (server, *also)
    before = sum(each.cpu_seconds() for each in servers)
    outcome = run_wrk(script, server.port, connections, 1)
    used = sum(each.cpu_seconds() for each in servers) - before
    if outcome.errors:
        raise RuntimeError(f"{server.name}: {outcome.errors} of {outcome.requests} requests failed")
    return used / outcome.requests * 1e6
