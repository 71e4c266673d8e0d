"""Access streams of plain reads: how well patterns are recognised, at what cost, and what follows in the simulator."""

from __future__ import annotations

import gc
import time
import tracemalloc
from collections.abc import Iterable, Mapping
from enum import Enum
from itertools import pairwise
from typing import Any

import numpy as np

from gateway.policies.space.stream_space import SHARE
from gateway.policies.streams.names import SiblingNames
from gateway.policies.streams.pattern import WINDOW, Evidence, Pattern
from gateway.policies.streams.tree import AccessStreamTree
from gateway.sim.jobs.scenario import OriginSpec
from gateway.sim.streams.read_scenario import ClientSpec, Parts, PrefixSpec, ReadRunSpec, ReadScenario
from gateway.sim.streams.reads import (
    RANDOM_ORDERS,
    SEQUENTIAL_ORDERS,
    SKEWED_ORDERS,
    FleetView,
    ReadOrder,
    seen_by_gateways,
)
from gateway.sim.streams.transparent import SAMPLE, ReadRunResult, simulate_reads
from lab.evaluation.allocations import figure12
from lab.evaluation.pages import machine, numbers, record
from lab.evaluation.scenarios import fields
from lab.evaluation.streams_table3 import table3_figures

ITEMS = 10_000
WINDOWS = 100
"""Windows by which each view is judged."""
VIEWS = [FleetView(clients, gateways, workers) for clients in (1, 8) for gateways in (1, 3) for workers in (1, 2, 4)]
ORDERS: dict[str, tuple[ReadOrder, Pattern]] = {
    name: (order, truth)
    for orders, truth in (
        (RANDOM_ORDERS, Pattern.RANDOM),
        (SKEWED_ORDERS, Pattern.SKEWED),
        (SEQUENTIAL_ORDERS, Pattern.SEQUENTIAL),
    )
    for name, order in orders.items()
}
ORIGIN = OriginSpec(bandwidth="125MB", latency="100ms")
DRAWN = 18
"""Mixes that are drawn at random."""


def run() -> None:
    """Measure all of it, and write the section."""
    where = machine()
    data = {
        "accuracy": _accuracy(),
        "cost": _cost(),
        "table3": table3_figures(),
        "prefetch": _prefetch(),
        "eviction": _eviction(),
        "lifetime": _lifetime(),
        "mixes": _mixes(MIXES),
        "fixed_parts": _fixed_parts(),
        "drawn": _drawn(),
        "figure12": figure12(),
        "orders": list(ORDERS),
        "fields": fields({"[[prefixes]]": PrefixSpec, "[[clients]]": ClientSpec, "[[runs]]": ReadRunSpec}),
    }
    record("evaluation/streams/streams", {"where": where, **data})


# --- recognition


class Listed(Enum):
    """When a gateway learns the names of a prefix."""

    NEVER = "never"
    WHEN_RANDOM = "a window after it takes its reads for random, as it then loads the prefix"
    AT_ONCE = "with the first window"


def _accuracy() -> dict[str, Any]:
    """The least of the shares of all orders, which are in a file beside the page."""
    orders = {}
    for name, (order, truth) in ORDERS.items():
        views = {
            listed: [_recognised(order, truth, view, listed=listed) for view in VIEWS]
            for listed in (Listed.WHEN_RANDOM, Listed.NEVER)
        }
        usual, unlisted = views.values()
        orders[truth.value, name] = {
            "paper's test alone": _recognised(order, truth, FleetView(), listed=Listed.AT_ONCE).paper,
            "one view": _recognised(order, truth, FleetView()).windows,
            "worst of 12 views": min(view.windows for view in usual),
            "believed, worst": min(view.believed for view in usual),
            "window 10": _recognised(order, truth, FleetView(), window=10).windows,
            "window 1000": _recognised(order, truth, FleetView(), window=1000, windows=WINDOWS // 3).windows,
            "one view, no listing": _recognised(order, truth, FleetView(), listed=Listed.NEVER).windows,
            "believed, worst, no listing": min(view.believed for view in unlisted),
        }
    columns = list(next(iter(orders.values())))
    rows = [[*order, *(f"{share:.0%}" for share in shares.values())] for order, shares in orders.items()]
    numbers("streams-accuracy", ["pattern", "order", *columns], rows)
    least = {column: min(shares[column] for shares in orders.values()) for column in columns}
    return {"items": ITEMS, "windows": WINDOWS, "window": WINDOW, "orders": len(orders), "least": least}


class _Shares:
    """Shares of windows: recognised correctly, recognised by the paper's test alone, and correct after hysteresis."""

    def __init__(self) -> None:
        self._all = self._right = self._paper = self._believed = 0

    def add(self, seen: Pattern, believed: Pattern, by_paper: Pattern, truth: Pattern) -> None:
        self._all += 1
        self._right += seen is truth
        self._paper += by_paper is truth
        self._believed += believed is truth

    @property
    def windows(self) -> float:
        return self._right / max(1, self._all)

    @property
    def paper(self) -> float:
        return self._paper / max(1, self._all)

    @property
    def believed(self) -> float:
        return self._believed / max(1, self._all)


def _recognised(
    order: ReadOrder,
    truth: Pattern,
    view: FleetView,
    window: int = WINDOW,
    windows: int = WINDOWS,
    listed: Listed = Listed.WHEN_RANDOM,
) -> _Shares:
    shares = _Shares()
    rng = np.random.default_rng([7, window])
    for reads in seen_by_gateways(order, rng, ITEMS, (windows + 2) * window, view):
        tree, looked, asked = AccessStreamTree(window=window), 0, False
        for read in reads:
            stream = tree.record("b", f"p/{read.position:06d}", 0, 1, read.time, read.client, False)
            if stream is None or stream.next_look == looked or stream.pattern is None or stream.evidence is None:
                continue
            if looked:
                shares.add(stream.recognition.other or stream.pattern, stream.pattern, _paper(stream.evidence), truth)
            if (asked or listed is Listed.AT_ONCE) and stream.listing is None:
                tree.siblings(stream.name, _listing())
            asked = asked or (listed is Listed.WHEN_RANDOM and stream.pattern is Pattern.RANDOM)
            looked = stream.next_look
    return shares


def _listing() -> SiblingNames:
    """Names that a gateway learns by listing the prefix."""
    names = SiblingNames()
    names.list_page(f"{number:06d}" for number in range(ITEMS))
    names.end_listing()
    return names


def _paper(evidence: Evidence) -> Pattern:
    """The pattern without the test of repeats."""
    if evidence.statistic == 0.0:
        return Pattern.SEQUENTIAL
    return Pattern.RANDOM if evidence.statistic <= evidence.threshold else Pattern.SKEWED


# --- cost


def _cost() -> dict[int, dict[str, float]]:
    return {nodes: _measured(_spread_reads(nodes, 60_000), nodes) for nodes in (100, 1000, 10_000)}


def _spread_reads(nodes: int, reads: int) -> list[str]:
    rng = np.random.default_rng(nodes)
    prefixes, files = rng.integers(0, max(1, nodes // 101), reads), rng.integers(0, 300, reads)
    return [f"data/train/{at:04d}/{number:06d}.jpg" for at, number in zip(prefixes, files, strict=True)]


def _measured(keys: list[str], nodes: int) -> dict[str, float]:
    def folded() -> AccessStreamTree:
        tree = AccessStreamTree(bound=nodes + 100)
        for at, key in enumerate(keys):
            tree.record("bucket", key, 0, 1, at * 0.01, 0, False, 1)
        return tree

    times = []
    for _ in range(3):
        began = time.process_time()
        folded()
        times.append(time.process_time() - began)
    gc.collect()
    tracemalloc.start()
    tree = folded()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"used": tree.nodes, "streams": len(tree.streams()), "read": min(times) / len(keys), "bytes": held}


# --- the simulator


def _simulated(
    prefixes: Iterable[PrefixSpec], clients: Iterable[ClientSpec], runs: Iterable[ReadRunSpec], capacity: int
) -> dict[str, ReadRunResult]:
    scenario = ReadScenario(
        title="", capacity=capacity, origin=ORIGIN, prefixes=tuple(prefixes), clients=tuple(clients), runs=tuple(runs)
    )
    return {result.run.name: result for result in simulate_reads(scenario)}


def _runs(*modes: str, **streams: tuple[Parts, ...]) -> list[ReadRunSpec]:
    plain = [ReadRunSpec(name=mode, mode=mode) for mode in modes]
    return plain + [ReadRunSpec(name=name, mode="streams", without=without) for name, without in streams.items()]


def _prefetch() -> dict[str, Any]:
    cases = {
        "files in order": (
            PrefixSpec(name="p", files=3000, size=150_000),
            ClientSpec(name="c", prefix="p", order="scan", compute=0.05),
        ),
        "blocks in order": (
            PrefixSpec(name="p", files=1, size=1_600_000_000),
            ClientSpec(name="c", prefix="p", order="scan", compute=0.2),
        ),
        "one file of each folder": (
            PrefixSpec(name="p", folders=1000, files=10, size=150_000, same_names=True),
            ClientSpec(name="c", prefix="p", order="scan", file="000003", compute=0.05),
        ),
        "training, first epoch": (
            PrefixSpec(name="p", files=3000, size=150_000),
            ClientSpec(name="c", prefix="p", order="epochs", compute=0.3),
        ),
    }
    runs = [
        ReadRunSpec(name="none", mode="lru"),
        ReadRunSpec(name="stride", mode="lru", stride=True),
        ReadRunSpec(name="streams", mode="streams"),
    ]
    measured = {}
    for name, (prefix, client) in cases.items():
        results = _simulated([prefix], [client], runs, 2_000_000_000)
        ways = {run: {"hits": of.hit_ratio(), "seconds": of.mean_seconds()} for run, of in results.items()}
        measured[name] = {"ways": ways, "sent": results["streams"].origin_bytes / results["none"].clients[0].bytes}
    return measured


def _eviction() -> dict[str, dict[str, Any]]:
    modes = ("lru", "fifo", "arc", "uniform")
    orders = {}
    for name, (_, truth) in ORDERS.items():
        if truth is Pattern.SEQUENTIAL:
            continue
        results = _simulated(
            [PrefixSpec(name="p", files=2000, size=100_000)],
            [ClientSpec(name="c", prefix="p", order=name, reads=20_000)],
            _runs(*modes, streams=(Parts.PREFETCH,)),
            100_000_000,
        )
        orders[name] = {"pattern": truth, "hits": {mode: result.hit_ratio() for mode, result in results.items()}}
    return orders


def _lifetime() -> dict[str, dict[str, float | None]]:
    prefixes = [PrefixSpec(name=name, files=2000, size=100_000) for name in ("ended", "other")]
    clients = [
        ClientSpec(name="ended", prefix="ended", order="epochs", epochs=1.5, workers=4, compute=0.05),
        ClientSpec(name="other", prefix="other", order="epochs", epochs=12.0, workers=4, compute=0.05),
    ]
    ways = {
        "streams": (),
        "without prefetch": (Parts.PREFETCH,),
        "without prefetch and time-to-live": (Parts.PREFETCH, Parts.LIFETIME),
    }
    return {
        name: _released(result) for name, result in _simulated(prefixes, clients, _runs(**ways), 200_000_000).items()
    }


def _released(result: ReadRunResult) -> dict[str, float | None]:
    """When the space of the stream that ended was the other's, and the other's throughput."""
    sizes, bytes_read = result.occupied["data/other/"], result.samples["other"]
    ended, other = (client.seconds for client in result.clients)
    full = next((SAMPLE * at for at, size in enumerate(sizes, 1) if size >= SHARE * 200e6), None)
    rate = [(after - before) / SAMPLE for before, after in pairwise([0, *bytes_read])]
    at, minute = int(ended // SAMPLE), int(60 // SAMPLE)
    return {
        "released": None if full is None else full - ended,
        "before": float(np.mean(rate[max(0, at - minute) : at])),
        "later": float(np.mean(rate[at + 3 * minute : at + 5 * minute] or [0])),
        "seconds": other,
    }


MIXES: Mapping[str, tuple[str, ...]] = {
    "training": ("epochs",),
    "queries": ("zipf, anywhere",),
    "training and queries": ("epochs", "zipf, anywhere"),
    "two training jobs and two of queries": ("epochs", "four jobs", "zipf, anywhere", "hot 2 %, anywhere"),
    "scan storm over queries": ("zipf, anywhere", "scan", "scan", "scan"),
    "scan storm over training": ("epochs", "scan", "scan"),
    "one-hit wonders": ("zipf, anywhere", "with replacement"),
    "shifting skew": ("shift 1", "shift 2", "shift 3"),
    "neighbourhoods": ("neighbourhood, in a row", "zipf, in a row"),
    "scans within 10": ("scan within 10", "scan within 10", "eight ranks"),
}


def _mixes(mixes: Mapping[str, tuple[str, ...]]) -> dict[str, dict[str, Any]]:
    """Hits of each mix, the origin's bytes as a multiple of the lesser, and whether the goal is met."""
    measured = {}
    for name, orders in mixes.items():
        prefixes, clients = _mix(orders)
        capacity = int(0.35 * sum(prefix.files * prefix.size for prefix in prefixes))
        results = _simulated(prefixes, clients, _runs("lru", "uniform", streams=()), capacity)
        hits = {mode: result.hit_ratio() for mode, result in results.items()}
        sent = results["streams"].origin_bytes / min(results["lru"].origin_bytes, results["uniform"].origin_bytes)
        kept = hits["streams"] >= max(hits["lru"], hits["uniform"]) - 0.01 and sent <= 1.05
        measured[name] = {"hits": hits, "sent": sent, "kept": kept}
    return measured


def _drawn() -> dict[str, Any]:
    """Randomly drawn mixes: those that miss the goal. All are in a file beside the page."""
    mixes = {}
    for number in range(DRAWN):
        rng = np.random.default_rng([5, number])
        orders = tuple(map(str, rng.choice(list(ORDERS), int(rng.integers(2, 5)))))
        mixes[f"{number + 1}: {'; '.join(orders)}"] = orders
    drawn = _mixes(mixes)
    rows = [
        [name, *(f"{hits:.1%}" for hits in of["hits"].values()), f"{of['sent']:.2f}", "yes" if of["kept"] else "no"]
        for name, of in drawn.items()
    ]
    numbers("streams-mixes", ["mix", "LRU", "uniform", "streams", "origin bytes", "kept"], rows)
    return {"count": DRAWN, "missed": {name: of for name, of in drawn.items() if not of["kept"]}}


def _fixed_parts() -> float:
    """The most hits that fixed parts reach on mixes with one-hit wonders."""
    prefixes, clients = _mix(MIXES["one-hit wonders"])
    capacity = int(0.35 * sum(prefix.files * prefix.size for prefix in prefixes))
    sizes = [capacity * tenths // 10 for tenths in range(2, 10)]
    runs = [ReadRunSpec(name=str(size), mode="lru", parts={"p1": size}) for size in sizes]
    return max(result.hit_ratio() for result in _simulated(prefixes, clients, runs, capacity).values())


def _mix(orders: tuple[str, ...]) -> tuple[list[PrefixSpec], list[ClientSpec]]:
    """Each order on its own prefix; ``shift`` orders follow one another on one prefix, each with other hot items."""
    if orders[0].startswith("shift"):
        prefixes = [PrefixSpec(name="p0", files=1500, size=100_000)]
        turns = ("zipf, in a row", "neighbourhood, in a row", "zipf, anywhere")
        return prefixes, [
            ClientSpec(name=order, prefix="p0", order=turn, reads=4000, start=500 * at, compute=0.02)
            for at, (order, turn) in enumerate(zip(orders, turns, strict=True))
        ]
    prefixes = [PrefixSpec(name=f"p{at}", files=1500, size=100_000) for at in range(len(orders))]
    return prefixes, [
        ClientSpec(name=f"c{at}", prefix=f"p{at}", order=order, reads=18_000, compute=0.02)
        for at, order in enumerate(orders)
    ]
