"""IGTCache's Figure 12 in the simulator: who gets which part of the cache, by Larder's, Quiver's and Fluid's rules."""

from __future__ import annotations

from gateway.sim.jobs.scenario import OriginSpec
from gateway.sim.streams.read_scenario import ClientSpec, PrefixSpec, ReadRunSpec, ReadScenario
from gateway.sim.streams.transparent import ReadRunResult, simulate_reads
from lab.evaluation.pages import table

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


def figure12(seed: int = 0) -> str:
    """The section of the page."""
    rules = simulated(seed)
    rows = []
    for name, found in rules.items():
        hits, seconds = found.hit_ratio(), found.mean_seconds()
        rows.append(
            [name, f"{hits:.1%}", f"{seconds:.0f} s", *(f"{one.hits / one.reads:.0%}" for one in found.clients)]
        )
    others = [name for name in rules if name != STREAMS]
    best = max(others, key=lambda name: rules[name].hit_ratio())
    quickest = min(others, key=lambda name: rules[name].mean_seconds())
    more = rules[STREAMS].hit_ratio() / rules[best].hit_ratio() - 1
    less = rules[STREAMS].mean_seconds() / rules[quickest].mean_seconds() - 1
    return "\n\n".join(
        [
            "Two training jobs and two of queries that share a store, simulated. *Quiver*: half for training, where the job with "
            "the larger benefit per byte, its rate over its size, gets what it can use first; half for the queries. *Fluid*: "
            "training jobs get parts by their readers of all readers, 8 of 20 each, the queries the rest. Such parts keep what "
            "they have (`uniform`), the queries' part is LRU.",
            table(["rule", "hits", "mean time", *(f"hits of {one.name}" for one in JOBS)], rows),
            f"Against the best of the others, streams have {more:+.1%} hits ({best}) and {less:+.1%} mean time "
            f"({quickest}). The paper reports +10.1 % and -7.5 %.",
        ]
    )


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
