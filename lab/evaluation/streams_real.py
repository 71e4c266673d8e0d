"""Access streams by real S3 clients through real gateways: the workloads of IGTCache's Table 3, and its Figures 9 to 13.

Usage: python -m lab.evaluation streams_real. ``python -m lab.evaluation.streams_real --short`` prints the first table only.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from gateway.sim.figures import pyplot
from lab.evaluation.allocations import figure12
from lab.evaluation.pages import machine, numbers, picture, table, write_section
from lab.evaluation.sides import LATENCY, Outcome, Side, run_sides
from lab.evaluation.variants import TIME
from lab.evaluation.workloads import BLOCK, DATA, TABLE3, prefetch, table3

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
    """Measure all of it, and write the page; a short run prints the first table only."""
    where = machine()
    suite = _run_suite(SUITE)
    sections = {"Table 3": _table3(suite)}
    print(sections["Table 3"], flush=True)
    if short:
        return
    sections["Without its parts"] = _parts(_run_suite(PARTS), suite[STREAMS])
    print(sections["Without its parts"], flush=True)
    figures = _run_figures()
    sections["Figure 9: prefetch"] = _figure9(figures)
    sections["Figure 10: eviction"] = _figure10()
    sections["Figure 11: time-to-live"] = _figure11(figures)
    sections["Figure 12: allocation"] = figure12()
    sections["Figure 13: space at run time"] = _figure13(suite[STREAMS])
    parts = [text for title, section in sections.items() for text in (f"### {title}", section)]
    write_section("streams", "streams_real", "Real clients and gateways", where, _intro(), *parts)


def _intro() -> str:
    size = sum(DATA[name].size_of_all for name in TABLE3)
    return (
        "Real S3 clients through real gateways, scaled down to a machine of two cores: objects have a tenth of their size, "
        f"blocks {BLOCK // 1024} KiB, there are {size / 1e6:.0f} MB instead of 430 GB, and the cache has 35 % of it. Times "
        f"are a fifth: the store gives 1 Gbit/s with {1000 * LATENCY:.0f} ms before the first byte, jobs compute, and "
        f"policies wait, a fifth of theirs (space moves every {60 * TIME:.0f} s, the time-to-live has {60 * TIME:.0f} s on "
        "top). Windows of 100 reads and depths of 4 are not scaled. Each side has clients, a gateway and a store of its "
        "own. Sides run one after the other in the first two tables, else at the same time. Hits are the access "
        "log's.\n\n`lab/evaluation/variants.py` leaves out parts of the gateway, and has other systems' schemes. LRU with "
        "stride is JuiceFS's: 4 blocks loaded after 4 consecutive ones."
    )


# --- Table 3


def _starts() -> tuple[float, ...]:
    """Seconds after which each job begins."""
    rng = np.random.default_rng(3)
    count = len(table3())
    return tuple(np.cumsum(rng.exponential(ARRIVALS, count))[rng.permutation(count)].tolist())


def _run_suite(sides: Sides) -> dict[str, Outcome]:
    """Run the jobs on each side, one side at a time: concurrent sides would slow the jobs several times, but not the policies'
    clocks."""
    found: dict[str, Outcome] = {}
    for name, (variant, tables) in sides.items():
        side = Side(name, variant, "table3", TABLE3, tables=tables, starts=_starts(), sampled=name == STREAMS)
        found |= run_sides([side], SUITE_LIMIT)
    return found


def _table3(found: Mapping[str, Outcome]) -> str:
    streams, stride = found[STREAMS], found[STRIDE]
    each = [
        [
            job.name, job.pattern, job.client, str(streams.reads.get(key, 0)),
            f"{stride.hit_ratio([key]):.0%}", f"{streams.hit_ratio([key]):.0%}", _time(stride, [key]), _time(streams, [key]),
        ]
        for key, job in table3().items()
    ]  # fmt: skip
    heads = ["job", "pattern", "client", "GETs", "hits, stride", "hits, streams", "time, stride", "time, streams"]
    return "\n\n".join(
        [
            f"Jobs begin {ARRIVALS:.0f} s apart on average, by a Poisson process. *Ahead* was loaded before it was asked for, "
            "*unread* is what of it was not read in time. + marks a job that was cut, ! a client that gave up. "
            f"{numbers('streams_real-jobs', heads, each)} has each job.",
            _sides_table(found),
            _verdict(streams, stride),
        ]
    )


def _sides_table(found: Mapping[str, Outcome]) -> str:
    jobs = table3()
    by_pattern = {pattern: [key for key, job in jobs.items() if job.pattern == pattern] for pattern in PATTERNS}
    rows = []
    for name, one in found.items():
        parts = [text for keys in by_pattern.values() for text in (f"{one.hit_ratio(keys):.0%}", _time(one, keys))]
        amounts = [f"{amount / 1e6:.0f} MB" for amount in (one.origin_bytes, one.ahead_bytes, one.wasted_bytes)]
        rows.append([name, f"{one.hit_ratio():.1%}", _time(one), *parts, *amounts])
    columns = ["side", "hits", "mean time", *(text for pattern in PATTERNS for text in (f"{pattern} hits", "time"))]
    return table([*columns, "origin sent", "ahead", "unread"], rows)


def _parts(found: Mapping[str, Outcome], before: Outcome) -> str:
    """The section on the gain of each part; ``before``: the run of Table 3 with all parts, an identical repetition."""
    whole = found[STREAMS]
    noise, slower = abs(whole.hit_ratio() - before.hit_ratio()), abs(whole.mean_seconds() - before.mean_seconds())
    rest = {name: one for name, one in found.items() if name != STREAMS}
    least = max(0.01, noise)
    better = [name for name, one in rest.items() if one.hit_ratio() > whole.hit_ratio() + least]
    most = min(rest, key=lambda name: rest[name].hit_ratio())
    lost = whole.hit_ratio() - rest[most].hit_ratio()
    return "\n\n".join(
        [
            "Streams that lack one part: nothing loaded ahead, no random stream loaded whole, `lru` in every pool, no end "
            "of a stream, the same space for all.",
            _sides_table(found),
            f"The largest loss is {most}, {lost:.1%} of hits. Between this run with all parts and that of Table 3, hits "
            f"differ by {noise:.1%}, mean times by {slower:.1f} s. Sides that hit over {least:.1%} more than all parts: "
            f"{', '.join(better) or 'none'}.",
        ]
    )


def _verdict(streams: Outcome, stride: Outcome) -> str:
    hits = streams.hit_ratio() / max(1e-9, stride.hit_ratio()) - 1
    seconds = streams.mean_seconds() / stride.mean_seconds() - 1
    text = (
        f"Against LRU with stride, streams have {hits:+.1%} hits, {seconds:+.1%} mean completion time and "
        f"{streams.origin_bytes / stride.origin_bytes - 1:+.1%} bytes from the store. The paper reports +55.6 % and -52.2 %. "
    )
    if hits < 0.556:
        bound = 1 / max(1e-9, stride.hit_ratio()) - 1
        text += (
            f"More than {bound:+.0%} hits is impossible here, as LRU has {stride.hit_ratio():.0%}. A scan is known after 16 "
            "reads, another stream after 100, of these jobs' hundreds. "
        )
    if streams.origin_bytes > 1.05 * stride.origin_bytes:
        text += "Small objects get space before large blocks, so that fewer reads wait, and more bytes come from the store. "
    return text


def _time(one: Outcome, keys: Sequence[str] = ()) -> str:
    chosen = keys or list(one.seconds)
    marks = "+" * bool(set(chosen) & set(one.cut)) + "!" * bool(set(chosen) & set(one.failed))
    return f"{one.mean_seconds(chosen):.1f} s{marks}"


# --- figures


def _run_figures() -> dict[str, Outcome]:
    sides = [Side(name, variant, "prefetch", FIGURE9_DATA, share=2.0) for name, variant in FIGURE9.items()]
    sides += [
        Side(f"lifetime, {name}", variant, "lifetime", ("one", "other"), share=0.5, sampled=True)
        for name, variant in (("adaptive", "no-prefetch"), ("none", "eviction-only"))
    ]
    return run_sides(sides, FIGURES_LIMIT)


def _figure9(found: Mapping[str, Outcome]) -> str:
    jobs = prefetch()
    rows = []
    for name in FIGURE9:
        one = found[name]
        parts = [f"{one.hit_ratio([key]):.0%}, {_time(one, [key])}" for key in jobs]
        rows.append([name, *parts, f"{one.origin_bytes / found['none'].origin_bytes:.2f}"])
    best = max((name for name in FIGURE9 if name != STREAMS), key=lambda name: found[name].hit_ratio())
    marine = next(key for key, job in jobs.items() if job.name.startswith("4 "))
    whole = found["whole prefixes"].seconds[marine] / found[STREAMS].seconds[marine]
    return "\n\n".join(
        [
            "Four jobs with an empty cache that can hold everything. *SFP* is a Markov chain over files; *whole prefixes* "
            "are streams that load all files of the next folders. Origin bytes are relative to no prefetch.",
            table(["prefetch", *(job.name for job in jobs.values()), "origin bytes"], rows),
            f"Streams have {found[STREAMS].hit_ratio():.0%} hits, {best}, the best of the others, "
            f"{found[best].hit_ratio():.0%}. Job 4 takes {whole:.2f} times as long when whole prefixes are loaded. SFP has "
            "nothing to learn: nothing is read twice.",
        ]
    )


def _figure10() -> str:
    names = {"random": "random", "skewed": "skewed"}
    sides = [
        Side(f"{name}, {kind}", variant, kind, ("one",), share=0.5, tables=tables)
        for name, (variant, tables) in FIGURE10.items()
        for kind in names
    ]
    found = run_sides(sides, EVICTION_LIMIT)
    rows = []
    for name in FIGURE10:
        both = [found[f"{name}, {kind}"] for kind in names]
        rows.append([name, *(text for one in both for text in (f"{one.hit_ratio():.1%}", _time(one)))])
    second = {
        kind: sorted((found[f"{name}, {kind}"].hit_ratio() for name in FIGURE10 if name != STREAMS), reverse=True)[0]
        for kind in names
    }
    own = {kind: found[f"{STREAMS}, {kind}"].hit_ratio() for kind in names}
    missed = [f"{kind} by {best - own[kind]:.1%}" for kind, best in second.items() if own[kind] < best - 0.02]
    return "\n\n".join(
        [
            f"One job with {DATA['one'].files} objects, a cache of half of them, eight times as many reads, no prefetch.",
            table(["order", "random hits", "time", "skewed hits", "time"], rows),
            "Streams are below the best of the others by more than 2 points: " + ", ".join(missed) + "."
            if missed
            else "Streams are within 2 points of the best of the others, or better, for both.",
        ]
    )


def _figure11(found: Mapping[str, Outcome]) -> str:
    rows = []
    for kind in ("adaptive", "none"):
        samples = found[f"lifetime, {kind}"].samples
        held = [(at, _held(streams, "lake/one/"), _read(streams, "lake/other/")) for at, streams in samples]
        last = max((_read(streams, "lake/one/") for _, streams in samples), default=0)
        ended = next((at for at, streams in samples if last and _read(streams, "lake/one/") == last), 0.0)
        largest = max((size for _, size, _ in held), default=0)
        released = next((at - ended for at, size, _ in held if at > ended and size <= 0.1 * largest), None)
        rows.append(
            [
                kind,
                "not within the run" if released is None else f"{released:.0f} s",
                _rate([one for one in held if one[0] <= ended]),
                _rate(held[-6:]),
            ]
        )
    columns = ["time-to-live", "its space was released after", "throughput of the other before", "at the end"]
    return "\n\n".join(
        [
            "Two training jobs share a cache of half their data; one ends. Times are a fifth of the paper's, where release "
            f"took 86 s ({86 * TIME:.0f} s here) instead of 660 s.",
            table(columns, rows),
        ]
    )


def _held(streams: Mapping[str, Any], name: str) -> int:
    return int(((streams.get(name) or {}).get("pool") or {}).get("bytes", 0))


def _read(streams: Mapping[str, Any], name: str) -> int:
    return int((streams.get(name) or {}).get("bytes", 0))


def _rate(samples: Sequence[tuple[float, int, int]]) -> str:
    seen = [(at, size) for at, _, size in samples if size]
    if len(seen) < 2 or seen[-1][0] == seen[0][0]:
        return "-"
    return f"{(seen[-1][1] - seen[0][1]) / (seen[-1][0] - seen[0][0]) / 1e6:.2f} MB/s"


def _figure13(streams: Outcome) -> str:
    figure, axes = pyplot().subplots(figsize=(8, 3.5))
    for row, (prefix, beginnings) in enumerate(FIGURE13.items(), 1):
        pools = [(at, (found.get(f"lake/{prefix}/") or {}).get("pool")) for at, found in streams.samples]
        sizes = [(at, pool["target"] / 1e6) for at, pool in pools if pool]
        (line,) = axes.plot(*zip(*sizes, strict=True), label=prefix) if sizes else axes.plot([], label=prefix)
        for (key, job), start in zip(table3().items(), _starts(), strict=True):
            if f"{job.name} ".startswith(tuple(f"{number} " for number in beginnings)):
                axes.hlines(-3 * row, start, start + streams.seconds[key], color=line.get_color(), linewidth=4)
    axes.set_xlabel("seconds")
    axes.set_ylabel("target, MB")
    axes.legend()
    return (
        "Targets of four streams in the run of Table 3; bars show when jobs read each. After a thousand reads a stream has "
        f"at most a tenth more than its size. When its jobs have ended, a random stream keeps its space for {60 * TIME:.0f} "
        f"s, a skewed one or a scan for {10 * TIME:.0f} s.\n\n" + picture("streams_real-space", figure)
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Access streams by real clients.")
    parser.add_argument("--short", action="store_true", help="print the first table; no page is written")
    run(parser.parse_args().short)
    sys.exit(0)
