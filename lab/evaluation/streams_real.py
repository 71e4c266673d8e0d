"""Access streams by real S3 clients through real gateways: IGTCache's Table 3, and its Figures 9 to 11 and 13.

Usage: python -m lab.evaluation streams_real. ``python -m lab.evaluation.streams_real --short`` prints the first table only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.sim.figures import pyplot
from lab.evaluation.pages import machine, numbers, picture, record
from lab.evaluation.sides import LATENCY, Outcome, Side, run_sides
from lab.evaluation.variants import TIME
from lab.evaluation.workloads import BLOCK, DATA, TABLE3, prefetch, table3
from lab.pages.rendering import rendered

ARRIVALS = 60 * TIME / 2.4
"""Mean seconds between two jobs: the paper's 60, scaled, and a shorter one, as jobs are shorter."""
SUITE_LIMIT, FIGURES_LIMIT, EVICTION_LIMIT = 160.0, 70.0, 100.0
"""The most seconds of a section's sides; unfinished jobs are cut and marked."""
OFF: dict[str, dict[str, object]] = {"[streams]": {"enabled": False}}
NO_CACHE: dict[str, dict[str, object]] = {**OFF, "[[rules]]": {"cache": False}}
STREAMS, STRIDE, SHARED = "streams", "LRU with stride", "LRU"
Sides = Mapping[str, tuple[str, Mapping[str, Mapping[str, object]]]]
"""Variant and tables of the configuration, by the name of the side."""
SUITE: Sides = {
    "no cache": ("streams", NO_CACHE),
    STRIDE: ("stride", {}),
    "uniform": ("uniform", {}),
    STREAMS: ("streams", {}),
}
PARTS: Sides = {
    STREAMS: ("streams", {}),
    "without prefetch": ("no-prefetch", {}),
    "without whole streams": ("no-whole", {}),
    "without eviction": ("no-eviction", {}),
    "without lifetime": ("no-lifetime", {}),
    "without space": ("no-space", {}),
}
FIGURE9 = {
    "none": "lru",
    "stride": "stride",
    "enhanced stride": "enhanced-stride",
    "SFP": "sfp",
    "whole prefixes": "whole-prefixes",
    STREAMS: "streams",
}
FIGURE9_DATA = ("FashionProduct", "AirQuality", "ICOADS", "OPT-125M")
FIGURE10: Sides = {
    SHARED: ("lru", OFF),
    "FIFO": ("fifo", {}),
    "ARC": ("lru", {**OFF, "[cache]": {"eviction": "arc"}}),
    "uniform": ("uniform", {}),
    STREAMS: ("eviction-only", {}),
}
FIGURE13: Mapping[str, tuple[str, ...]] = {
    "ImageNet": ("8", "9", "10"),
    "MITPlaces": ("11", "12", "13"),
    "LakeBench": ("14", "15"),
    "COCO": ("18 LLaVa images",),
}
"""Prefixes, and the beginnings of the names of the jobs that read them."""
PATTERNS = ("sequential", "random", "skewed")


def run(short: bool = False) -> None:
    """Measure all of it, and write the section; a short run prints the first table only."""
    where = machine()
    suite = _run_suite(SUITE)
    print(rendered("evaluation/streams/_sides", {"sides": _sides(suite)}), flush=True)
    if short:
        return
    parts = _run_suite(PARTS)
    figures = _run_figures()
    _write_jobs(suite)
    _draw_space(suite[STREAMS])
    data = {
        "setting": {
            "bytes": sum(DATA[name].size_of_all for name in TABLE3),
            "block": BLOCK,
            "latency": LATENCY,
            "time": TIME,
            "gap": ARRIVALS,
            "objects": DATA["one"].files,
        },
        "suite": {"sides": _sides(suite), "gain": _gain(suite[STREAMS], suite[STRIDE])},
        "parts": {"sides": _sides(parts), **_losses(parts, suite[STREAMS])},
        "figure9": _figure9(figures),
        "figure10": _figure10(),
        "figure11": {kind: _released(figures[f"lifetime, {kind}"]) for kind in ("adaptive", "none")},
    }
    record("evaluation/streams/streams_real", {"where": where, **data})


# --- Table 3


def _starts() -> tuple[float, ...]:
    """Seconds after which each job begins."""
    rng = np.random.default_rng(3)
    count = len(table3())
    return tuple(np.cumsum(rng.exponential(ARRIVALS, count))[rng.permutation(count)].tolist())


def _run_suite(sides: Sides) -> dict[str, Outcome]:
    """Run the jobs on each side, one side at a time: concurrent sides would slow the jobs several times, but not the policies'
    clocks."""
    outcomes: dict[str, Outcome] = {}
    for name, (variant, tables) in sides.items():
        side = Side(name, variant, "table3", TABLE3, tables=tables, starts=_starts(), sampled=name == STREAMS)
        outcomes |= run_sides([side], SUITE_LIMIT)
    return outcomes


def _write_jobs(outcomes: Mapping[str, Outcome]) -> None:
    """The file with each job, beside the page."""
    streams, stride = outcomes[STREAMS], outcomes[STRIDE]
    rows = [
        [
            job.name, job.pattern, job.client, str(streams.reads.get(key, 0)),
            f"{stride.hit_ratio([key]):.0%}", f"{streams.hit_ratio([key]):.0%}", _time(stride, key), _time(streams, key),
        ]
        for key, job in table3().items()
    ]  # fmt: skip
    heads = ["job", "pattern", "client", "GETs", "hits, stride", "hits, streams", "time, stride", "time, streams"]
    numbers("streams_real-jobs", heads, rows)


def _time(outcome: Outcome, key: str) -> str:
    jobs = _jobs(outcome, [key])
    return f"{jobs['seconds']:.1f} s{jobs['marks']}"


def _jobs(outcome: Outcome, keys: Sequence[str] = ()) -> dict[str, Any]:
    """Hits and mean time of some jobs, or of all; + marks a job that was cut, ! a client that gave up."""
    chosen = set(keys or outcome.seconds)
    marks = "+" * bool(chosen & set(outcome.cut)) + "!" * bool(chosen & set(outcome.failed))
    return {"hits": outcome.hit_ratio(keys), "seconds": outcome.mean_seconds(keys), "marks": marks}


def _sides(outcomes: Mapping[str, Outcome]) -> dict[str, dict[str, Any]]:
    by_pattern: dict[str, list[str]] = {pattern: [] for pattern in PATTERNS}
    for key, job in table3().items():
        by_pattern[job.pattern].append(key)
    return {
        name: {
            **_jobs(outcome),
            "patterns": {pattern: _jobs(outcome, keys) for pattern, keys in by_pattern.items()},
            "sent": outcome.origin_bytes,
            "ahead": outcome.ahead_bytes,
            "unread": outcome.wasted_bytes,
        }
        for name, outcome in outcomes.items()
    }


def _gain(streams: Outcome, stride: Outcome) -> dict[str, float]:
    """What streams gain over LRU with stride, and the most that is possible."""
    lru = stride.hit_ratio()
    return {
        "hits": streams.hit_ratio() / lru - 1,
        "seconds": streams.mean_seconds() / stride.mean_seconds() - 1,
        "sent": streams.origin_bytes / stride.origin_bytes - 1,
        "most": 1 / lru - 1,
        "lru": lru,
    }


def _losses(outcomes: Mapping[str, Outcome], before: Outcome) -> dict[str, Any]:
    """What each part gains; ``before``: the run of Table 3 with all parts, an identical repetition."""
    whole = outcomes[STREAMS]
    lost = {name: whole.hit_ratio() - of.hit_ratio() for name, of in outcomes.items() if name != STREAMS}
    most = max(lost, key=lambda name: lost[name])
    noise = {
        "hits": abs(whole.hit_ratio() - before.hit_ratio()),
        "seconds": abs(whole.mean_seconds() - before.mean_seconds()),
    }
    least = max(0.01, noise["hits"])
    better = [name for name, hits in lost.items() if hits < -least]
    return {"most": {"side": most, "hits": lost[most]}, "noise": noise, "least": least, "better": better}


# --- figures


def _run_figures() -> dict[str, Outcome]:
    sides = [Side(name, variant, "prefetch", FIGURE9_DATA, share=2.0) for name, variant in FIGURE9.items()]
    sides += [
        Side(f"lifetime, {name}", variant, "lifetime", ("one", "other"), share=0.5, sampled=True)
        for name, variant in (("adaptive", "no-prefetch"), ("none", "eviction-only"))
    ]
    return run_sides(sides, FIGURES_LIMIT)


def _figure9(outcomes: Mapping[str, Outcome]) -> dict[str, Any]:
    jobs = prefetch()
    sides = {
        name: {
            "jobs": [_jobs(outcomes[name], [key]) for key in jobs],
            "sent": outcomes[name].origin_bytes / outcomes["none"].origin_bytes,
        }
        for name in FIGURE9
    }
    best = max((name for name in FIGURE9 if name != STREAMS), key=lambda name: outcomes[name].hit_ratio())
    marine = next(key for key, job in jobs.items() if job.name.startswith("4 "))
    return {
        "jobs": [job.name for job in jobs.values()],
        "sides": sides,
        "hits": outcomes[STREAMS].hit_ratio(),
        "best": {"side": best, "hits": outcomes[best].hit_ratio()},
        "whole": outcomes["whole prefixes"].seconds[marine] / outcomes[STREAMS].seconds[marine],
    }


def _figure10() -> dict[str, dict[str, Any]]:
    kinds = ("random", "skewed")
    sides = [
        Side(f"{name}, {kind}", variant, kind, ("one",), share=0.5, tables=tables)
        for name, (variant, tables) in FIGURE10.items()
        for kind in kinds
    ]
    outcomes = run_sides(sides, EVICTION_LIMIT)
    return {name: {kind: _jobs(outcomes[f"{name}, {kind}"]) for kind in kinds} for name in FIGURE10}


def _released(outcome: Outcome) -> dict[str, float | None]:
    """When the space of the stream that ended was released, and the other's throughput."""
    held = [(at, _held(streams, "lake/one/"), _read(streams, "lake/other/")) for at, streams in outcome.samples]
    last = max((_read(streams, "lake/one/") for _, streams in outcome.samples), default=0)
    ended = next((at for at, streams in outcome.samples if last and _read(streams, "lake/one/") == last), 0.0)
    largest = max((size for _, size, _ in held), default=0)
    released = next((at - ended for at, size, _ in held if at > ended and size <= 0.1 * largest), None)
    before = [sample for sample in held if sample[0] <= ended]
    return {"released": released, "before": _rate(before), "later": _rate(held[-6:])}


def _held(streams: Mapping[str, Any], name: str) -> int:
    return int(((streams.get(name) or {}).get("pool") or {}).get("bytes", 0))


def _read(streams: Mapping[str, Any], name: str) -> int:
    return int((streams.get(name) or {}).get("bytes", 0))


def _rate(samples: Sequence[tuple[float, int, int]]) -> float | None:
    """Bytes per second."""
    seen = [(at, size) for at, _, size in samples if size]
    if len(seen) < 2 or seen[-1][0] == seen[0][0]:
        return None
    return (seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0])


def _draw_space(streams: Outcome) -> None:
    """Figure 13: targets of four streams in the run of Table 3; bars show when jobs read each."""
    figure, axes = pyplot().subplots(figsize=(8, 3.5))
    for row, (prefix, beginnings) in enumerate(FIGURE13.items(), 1):
        pools = [(at, (held.get(f"lake/{prefix}/") or {}).get("pool")) for at, held in streams.samples]
        sizes = [(at, pool["target"] / 1e6) for at, pool in pools if pool]
        (line,) = axes.plot(*zip(*sizes, strict=True), label=prefix) if sizes else axes.plot([], label=prefix)
        for (key, job), start in zip(table3().items(), _starts(), strict=True):
            if f"{job.name} ".startswith(tuple(f"{number} " for number in beginnings)):
                axes.hlines(-3 * row, start, start + streams.seconds[key], color=line.get_color(), linewidth=4)
    axes.set_xlabel("seconds")
    axes.set_ylabel("target, MB")
    axes.legend()
    picture("streams_real-space", figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Access streams by real clients.")
    parser.add_argument("--short", action="store_true", help="print the first table; no page is written")
    run(parser.parse_args().short)
    sys.exit(0)
