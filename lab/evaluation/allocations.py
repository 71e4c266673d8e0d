"""IGTCache's Figure 12 in the simulator: who gets which part of the cache, by Larder's, Quiver's and Fluid's rules."""

from __future__ import annotations

from typing import Any

from gateway.sim.jobs.scenario import OriginSpec
from gateway.sim.streams.read_scenario import ClientSpec, PrefixSpec, ReadRunSpec, ReadScenario
from gateway.sim.streams.transparent import ReadRunResult, simulate_reads

ORIGIN = OriginSpec(bandwidth="125MB", latency="150ms")
CAPACITY = 1_430_000_000
"""35 % of the four prefixes."""
PREFIXES = {
    "ImageNet": PrefixSpec(name="ImageNet", folders=150, files=50, size=110_000),
    "MITPlaces": PrefixSpec(name="MITPlaces", folders=120, files=50, size=110_000),
    "LakeBench": PrefixSpec(name="LakeBench", files=2500, size=400_000),
    "Wiki": PrefixSpec(name="Wiki", files=10, size=160_000_000),
}
TRAINING = (
    ClientSpec(name="9", prefix="ImageNet", order="epochs", epochs=4.0, workers=8, compute=0.15),
    ClientSpec(name="13", prefix="MITPlaces", order="epochs", epochs=6.0, workers=8, compute=0.08),
)
QUERIES = (
    ClientSpec(name="14", prefix="LakeBench", order="zipf, anywhere", reads=8000, workers=2, compute=0.05),
    ClientSpec(name="16", prefix="Wiki", order="zipf, anywhere", reads=3000, workers=2, compute=0.1),
)
JOBS = (*TRAINING, *QUERIES)
STREAMS = "streams"


def figure12(seed: int = 0) -> dict[str, Any]:
    """Hits and times of each rule."""
    rules = {
        name: {
            "hits": result.hit_ratio(),
            "seconds": result.mean_seconds(),
            "of_jobs": [client.hits / client.reads for client in result.clients],
        }
        for name, result in simulated(seed).items()
    }
    return {"jobs": [job.name for job in JOBS], "rules": rules}


def simulated(seed: int = 0) -> dict[str, ReadRunResult]:
    """Result of each rule."""
    runs = (
        ReadRunSpec(name="shared LRU", mode="lru"),
        ReadRunSpec(name="Quiver", mode="lru", parts=_quiver()),
        ReadRunSpec(name="Fluid", mode="lru", parts=_fluid()),
        ReadRunSpec(name=STREAMS, mode="streams"),
    )
    scenario = ReadScenario(
        title="", capacity=CAPACITY, origin=ORIGIN, prefixes=tuple(PREFIXES.values()), clients=JOBS, runs=runs
    )
    return {result.run.name: result for result in simulate_reads(scenario, seed)}


def _quiver() -> dict[str, int]:
    first = max(TRAINING, key=lambda job: job.workers / (job.compute * _size(job)))
    (second,) = (job for job in TRAINING if job is not first)
    given = min(_size(first), CAPACITY // 2)
    return {first.prefix: given, second.prefix: CAPACITY // 2 - given}


def _fluid() -> dict[str, int]:
    readers = sum(job.workers for job in JOBS)
    return {job.prefix: min(_size(job), CAPACITY * job.workers // readers) for job in TRAINING}


def _size(job: ClientSpec) -> int:
    return sum(stored.size for stored in PREFIXES[job.prefix].objects(4_000_000))
