"""The page of ``lab/benchmarks/fleet_large.py``: counts, and the rates that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gateway.base.config import FleetSettings
from gateway.fleet.nodes.announcer import Timing
from gateway.fleet.nodes.samples import EVERY
from lab.benchmarks.report import table

NODES = (4, 16, 64)
"""Nodes of one worker each; a node of four workers counts as four, except for the work of the worker with the node lock."""
JOBS, RANKS, DATASETS = 1000, 8, 200
KEYS = 500_000
PACE = FleetSettings()


@dataclass(frozen=True)
class Usage:
    """Redis' work for one message: commands, bytes received and sent, microseconds of CPU."""

    commands: float
    received: float
    sent: float
    cpu_us: float

    def times(self, factor: float) -> Usage:
        """The usage of ``factor`` messages."""
        return Usage(*(factor * value for value in (self.commands, self.received, self.sent, self.cpu_us)))

    def cells(self) -> list[str]:
        """The columns of a table."""
        return [f"{self.commands:,.1f}", f"{self.received:,.0f} B", f"{self.sent:,.0f} B", f"{self.cpu_us:,.0f} µs"]


@dataclass
class JobsFound:
    """Cost of 1,000 jobs: by message, and figures of one number each."""

    messages: dict[str, Usage]
    figures: dict[str, float]


def rates(of: Mapping[str, Usage], nodes: int) -> dict[str, tuple[float, Usage]]:
    """Messages per second of a whole idle fleet under the shipped settings, with their cost."""
    beats = 1 / PACE.heartbeat
    often = {
        "heartbeat": beats,
        "lease and plan": beats,
        "channel heartbeat": 1 / Timing().heartbeat,
        "sample and status": 1 / EVERY,
        "table of datasets": 1.0,
    }
    return {name: (nodes * rate, of[name].times(nodes * rate)) for name, rate in often.items()}


def ring_text(rings: Mapping[int, Mapping[str, float]]) -> str:
    rows = [
        [
            str(nodes),
            f"{of['smallest']:.3f} to {of['largest']:.3f}",
            f"{of['moved']:.4f} ({1 / (nodes + 1):.4f})",
            f"{of['moved between others']:.4f}",
            f"{of['first_us']:.1f} µs",
            f"{of['again_us']:.2f} µs",
            f"{of['batch_us']:.2f} µs",
        ]
        for nodes, of in rings.items()
    ]
    columns = [
        "nodes", "share of a node / mean", "moved when one joins (least possible)", "between others", "home of a key", "again",
        "in a batch",
    ]  # fmt: skip
    return f"## The ring\n\n{KEYS:,} random keys, equal nodes.\n\n" + table(columns, rows)


def fleet_text(found: Mapping[int, Mapping[str, Usage]], real: Usage) -> str:
    rows = [
        [name, str(nodes), *of[name].cells()]
        for name in found[NODES[0]]
        for nodes, of in found.items()
        if name != "channel heartbeat" or nodes == NODES[-1]
    ]
    idle = rates(found[NODES[-1]], NODES[-1])
    per_second = [[name, f"{rate:,.0f}", *used.cells()] for name, (rate, used) in idle.items()]
    sums = [sum(values) for values in zip(*(vars(used).values() for _, used in idle.values()), strict=True)]
    total = Usage(*sums)
    per_second.append(["together", f"{sum(rate for rate, _ in idle.values()):,.0f}", *total.cells()])
    per_second.append([f"{NODES[-1]} times a real worker", "", *real.times(NODES[-1]).cells()])
    alone, together = (of for name, of in found[NODES[-1]].items() if name.startswith("write"))
    columns = ["commands", "to Redis", "from Redis", "Redis' CPU"]
    return (
        "## Messages\n\nOne of each kind, sent by every worker in turn; commands include those that scripts call. A write is "
        "announced to every worker before and after it, and each answers.\n\n"
        + table(["message", "workers", *columns], rows)
        + f"\n\nAn idle fleet of {NODES[-1]} workers, each second:\n\n"
        + table(["message", "per second", *columns], per_second)
        + "\n\nThe last row is a gateway of one worker that nobody uses, watched for some seconds, times the number of workers: "
        "what else it sends does not depend on the fleet. Redis uses "
        f"{real.times(NODES[-1]).cpu_us / 1e4:.1f} % of a core for it. With {NODES[-1]} workers it can announce "
        f"{1e6 / alone.cpu_us:,.0f} writes per second if they come one by one; writes at the same time share announcements: "
        f"{1e6 / together.cpu_us:,.0f} per second."
    )


def jobs_text(found: JobsFound) -> str:
    rows = [[name, *used.cells()] for name, used in found.messages.items()]
    beats = JOBS * RANKS / PACE.heartbeat
    load = found.messages["heartbeat of a rank"].cpu_us * beats / 1e4
    parts = ", ".join(
        f"{name.removeprefix('plan: ')} {size / 1e3:.0f} kB"
        for name, size in found.figures.items()
        if name.startswith("plan: ")
    )
    return (
        f"## Jobs\n\n{JOBS:,} jobs of {RANKS} ranks on {DATASETS} datasets, {NODES[-1]} nodes.\n\n"
        + table(["message", "commands", "to Redis", "from Redis", "Redis' CPU"], rows)
        + f"\n\nThe heartbeats of all ranks take {load:.0f} % of a core of Redis. The leader's turn takes "
        f"{found.figures['planning'] * 1e3:.0f} ms of its worker's CPU, once a second, "
        f"{found.figures['reading jobs'] * 1e3:.0f} ms of them to read the jobs. The plan has "
        f"{found.figures['plan'] / 1e3:.0f} kB ({parts}). All of it takes {found.figures['Redis memory'] / 1e6:.1f} MB of Redis."
    )
