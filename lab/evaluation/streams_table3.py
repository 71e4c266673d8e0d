"""IGTCache's Table 3 in the simulator: the gain over LRU with stride, and the bounds that these jobs have."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from gateway.policies.streams.pattern import Pattern
from gateway.sim.jobs.scenario import OriginSpec, parse_as, scenario_text
from gateway.sim.streams.read_report import clients_table, runs_table
from gateway.sim.streams.read_scenario import ReadRunSpec, ReadScenario
from gateway.sim.streams.stored import SimulatedStore
from gateway.sim.streams.transparent import ReadRunResult, simulate_reads
from gateway.sim.world.pooled import CachedBlock
from lab.evaluation.pages import numbers


def table3_figures() -> dict[str, Any]:
    """The jobs of Table 3 in the simulator: the gain of streams, and why the paper's gain is out of reach."""
    scenario = parse_as(ReadScenario, scenario_text("igtcache-table3"), "igtcache-table3")
    results = simulate_reads(scenario)
    named = {result.run.name: result for result in results}
    streams, stride = named["streams"], named["LRU with stride"]
    numbers("streams-jobs", *clients_table(streams))
    columns, rows = runs_table(results)
    return {
        "text": " ".join(scenario.text.split()),
        "columns": columns,
        "rows": rows,
        "gain": _gain(stride, streams, _without_waiting(scenario)),
        "patterns": _by_pattern(scenario, stride, streams),
    }


def _gain(stride: ReadRunResult, streams: ReadRunResult, computing: float) -> dict[str, float]:
    """The gain over LRU with stride beside the paper's. ``computing``: mean seconds without any waiting."""
    lru, ours = stride.hit_ratio(), streams.hit_ratio()
    before, after = stride.mean_seconds(), streams.mean_seconds()
    return {
        "hits": ours / lru - 1,
        "seconds": after / before - 1,
        "paper_hits": 1.556 * lru,
        "paper_seconds": 0.478 * before,
        "computing": computing,
        "missed": 1 - lru,
        "of_missed": (ours - lru) / (1 - lru),
        "waiting": before - computing,
        "of_waiting": (before - after) / (before - computing),
    }


def _by_pattern(scenario: ReadScenario, stride: ReadRunResult, streams: ReadRunResult) -> dict[str, dict[str, float]]:
    """Hits by pattern, and the share of reads that are not the first of their block."""
    store, blocks = SimulatedStore(scenario.prefixes, scenario.block), defaultdict[str, set[CachedBlock]](set)
    for number, client in enumerate(streams.clients):
        reads = store.reads_of(client.spec, np.random.default_rng([scenario.seed, number]))
        blocks[client.pattern].update(reads)
        blocks[""].update(reads)
    patterns = {}
    for pattern in ("", *map(str, Pattern)):
        count = sum(client.reads for client in streams.clients if pattern in ("", client.pattern))
        patterns[pattern or "all"] = {
            "reads": count,
            "blocks": len(blocks[pattern]),
            "again": 1 - len(blocks[pattern]) / count,
            "stride": stride.hit_ratio(pattern),
            "streams": streams.hit_ratio(pattern),
        }
    return patterns


def _without_waiting(scenario: ReadScenario) -> float:
    """Mean seconds of the clients with a store that answers at once."""
    at_once = OriginSpec(bandwidth="1TB")
    alone = scenario.model_copy(update={"origin": at_once, "runs": (ReadRunSpec(name="none", mode="none"),)})
    (result,) = simulate_reads(alone)
    return result.mean_seconds()
