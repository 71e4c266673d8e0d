"""IGTCache's Table 3 with the paper's sizes: 430 GB, and caches of several sizes, as in its Figure 16."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from gateway.policies.streams.pattern import Pattern
from gateway.sim.jobs.scenario import OriginSpec, parse_as, scenario_text
from gateway.sim.streams.read_report import clients_table
from gateway.sim.streams.read_scenario import ClientSpec, PrefixSpec, ReadRunSpec, ReadScenario
from gateway.sim.streams.transparent import ClientResult, ReadRunResult, simulate_reads
from lab.evaluation.pages import machine, numbers, record

GAP = 3.0
"""The mean gap between jobs is 60 s, as in the paper; that of the small scenario is a third of it."""
PREFIXES = (
    PrefixSpec(name="AudioMNIST", folders=6, files=5000, size=200_000, grouped=10),
    PrefixSpec(name="FashionProduct", files=44_440, size=340_000, grouped=20),
    PrefixSpec(name="AirQuality", files=20_000, size=1_000_000, grouped=10),
    PrefixSpec(name="ICOADS", folders=12_000, files=10, size=300_000, same_names=True),
    PrefixSpec(name="Bookcorpus", files=4, size=1_200_000_000),
    PrefixSpec(name="OPT-125M", files=1, size=500_000_000),
    PrefixSpec(name="ImageNet", folders=50, files=25_600, size=110_000, grouped=64),
    PrefixSpec(name="MITPlaces", folders=36, files=50_112, size=58_000, grouped=48),
    PrefixSpec(name="LakeBench", files=150_000, size=400_000),
    PrefixSpec(name="Wiki", files=10, size=2_200_000_000),
    PrefixSpec(name="LLaVa-text", files=1, size=600_000_000),
    PrefixSpec(name="COCO", files=118_000, size=160_000, grouped=40),
)
SKEWED = {"LakeBench": 5, "Wiki": 5}
"""Reads of skewed jobs, as multiples of those in the small scenario."""
WORKERS = {"ImageNet": (16, 32), "MITPlaces": (16, 32), "COCO": (16, 16)}
"""Workers of scanning and of training jobs on many small images: a GPU takes hundreds of images a second."""
TRAINED = ("ImageNet", "MITPlaces")
"""Prefixes on which two jobs train while they are scanned."""
SHARES = (0.15, 0.35, 0.6, 1.0)
"""Cached shares of all data. The paper's Table 3 has 0.35."""
USUAL = 0.35
RUNS = (ReadRunSpec(name="JuiceFS", mode="lru", stride=True), ReadRunSpec(name="streams", mode="streams"))
Results = dict[tuple[str, float], ReadRunResult]
"""Results by name of the run and cached share."""


def run() -> None:
    """Simulate, and write the section."""
    where = machine()
    todo = [(RUNS[1], share) for share in SHARES] + [(RUNS[0], share) for share in SHARES]
    todo += [(ReadRunSpec(name="no cache", mode="none"), USUAL), (ReadRunSpec(name="at once", mode="none"), USUAL)]
    with ProcessPoolExecutor(2) as pool:
        simulations = pool.map(simulated, *zip(*todo, strict=True))
        results = {(kind.name, share): result for (kind, share), result in zip(todo, simulations, strict=True)}
    numbers("streams_scale-jobs", *clients_table(results["streams", USUAL]))
    record("evaluation/streams/streams_scale", {"where": where, **figures(results)})


def total() -> int:
    """Bytes of all data."""
    return sum(prefix.files * max(1, prefix.folders) * prefix.size for prefix in PREFIXES)


def scenario(kind: ReadRunSpec, share: float) -> ReadScenario:
    """The small scenario's jobs on data of the paper's sizes; each reads its data once, and skewed jobs more often."""
    small = parse_as(ReadScenario, scenario_text("igtcache-table3"), "igtcache-table3")
    origin = OriginSpec(bandwidth="1TB") if kind.name == "at once" else small.origin
    return small.model_copy(
        update={
            "capacity": int(share * total()),
            "prefixes": PREFIXES,
            "clients": tuple(map(_client, small.clients)),
            "runs": (kind,),
            "origin": origin,
        }
    )


def _client(client: ClientSpec) -> ClientSpec:
    reads = client.reads * SKEWED.get(client.prefix, 1)
    workers = client.workers
    if client.prefix in WORKERS:
        workers = WORKERS[client.prefix][client.order != "scan"]
    return client.model_copy(update={"start": GAP * client.start, "epochs": 1.0, "reads": reads, "workers": workers})


def simulated(kind: ReadRunSpec, share: float) -> ReadRunResult:
    """One run, without the samples over time."""
    (result,) = simulate_reads(scenario(kind, share))
    result.samples.clear()
    result.occupied.clear()
    print(
        f"streams_scale: {kind.name} at {share:g}: {result.hit_ratio():.1%}, {result.mean_seconds() / 3600:.2f} h",
        flush=True,
    )
    return result


def figures(results: Results) -> dict[str, Any]:
    """The numbers of the section."""
    ours, lru = results["streams", USUAL], results["JuiceFS", USUAL]
    return {
        "bytes": total(),
        "reads": sum(client.reads for client in ours.clients),
        "usual": USUAL,
        "shares": {share: {kind.name: _figures(results[kind.name, share]) for kind in RUNS} for share in SHARES},
        "patterns": {pattern or "all": _by_pattern(results, pattern) for pattern in ("", *map(str, Pattern))},
        "scans": _scans(ours.clients),
        "behind": [
            {"job": mine.spec.name, "hits": mine.hits / mine.reads, "JuiceFS": theirs.hits / theirs.reads}
            for mine, theirs in zip(ours.clients, lru.clients, strict=True)
            if mine.hits < theirs.hits - 0.01 * mine.reads
        ],
    }


def _figures(result: ReadRunResult) -> dict[str, float]:
    return {"hits": result.hit_ratio(), "seconds": result.mean_seconds(), "sent": result.origin_bytes}


def _by_pattern(results: Results, pattern: str) -> dict[str, dict[str, float]]:
    return {
        name: {"hits": results[name, USUAL].hit_ratio(pattern), "seconds": results[name, USUAL].mean_seconds(pattern)}
        for name in ("no cache", "JuiceFS", "streams", "at once")
    }


def _scans(clients: Sequence[ClientResult]) -> dict[str, float]:
    """Hits of long scans: of prefixes that nobody else reads, and of those on which jobs train meanwhile."""
    scans = [client for client in clients if client.spec.order == "scan" and client.reads > 10_000]
    beside = [client for client in scans if client.spec.prefix in TRAINED]
    return {"alone": _hits([client for client in scans if client not in beside]), "beside": _hits(beside)}


def _hits(clients: Sequence[ClientResult]) -> float:
    return sum(client.hits for client in clients) / sum(client.reads for client in clients)
