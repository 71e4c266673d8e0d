"""IGTCache's Figure 12 in the simulator: who gets which part of the cache, by Larder's, Quiver's and Fluid's rules."""

from __future__ import annotations

from collections.abc import Sequence

from evaluation.pages import table
from gateway.sim.read_scenario import ClientSpec, PrefixSpec, ReadRunSpec, ReadScenario
from gateway.sim.scenario import OriginSpec
from gateway.sim.transparent import ClientResult, simulate_reads

ORIGIN = OriginSpec(bandwidth="125MB", latency="150ms")  # type: ignore[arg-type]
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


def figure12() -> str:
    """The section of the page."""
    shared = _simulated((*TRAINING, *QUERIES), CAPACITY, "lru")
    rules = {"shared LRU": shared, "Quiver": _quiver(), "Fluid": _fluid()}
    rules["streams"] = _simulated((*TRAINING, *QUERIES), CAPACITY, "streams")
    rows = []
    for name, found in rules.items():
        hits, seconds = _hits(found), _seconds(found)
        rows.append([name, f"{hits:.1%}", f"{seconds:.0f} s", *(f"{one.hits / one.reads:.0%}" for one in found)])
    others = [name for name in rules if name != "streams"]
    best = max(others, key=lambda name: _hits(rules[name]))
    quickest = min(others, key=lambda name: _seconds(rules[name]))
    more = _hits(rules["streams"]) / _hits(rules[best]) - 1
    less = _seconds(rules["streams"]) / _seconds(rules[quickest]) - 1
    return "\n\n".join(
        [
            "Two training jobs and two of queries, in the simulator: rules that give fixed parts are simulated part by part. "
            "*Quiver*: half for training, where the job with the larger benefit per byte, its rate over its size, gets "
            "what it can use first; half for the queries. *Fluid*: training jobs get parts by their readers of all "
            "readers, 8 of 20 each; the rest is the queries'. Fixed parts keep what they have (`uniform`), the queries' "
            "part is LRU.",
            table(["rule", "hits", "mean time", *(f"hits of {one.spec.name}" for one in shared)], rows),
            f"Against the best of the others, streams have {more:+.1%} hits ({best}) and {less:+.1%} mean time "
            f"({quickest}). The paper reports +10.1 % and -7.5 %.",
        ]
    )


def _quiver() -> list[ClientResult]:
    first = max(TRAINING, key=lambda job: job.workers / (job.compute * _size(job)))
    (second,) = (job for job in TRAINING if job is not first)
    given = min(_size(first), CAPACITY // 2)
    parts = {first.name: given, second.name: CAPACITY // 2 - given}
    trained = [one for job in TRAINING for one in _simulated((job,), max(1, parts[job.name]), "uniform")]
    return trained + _simulated(QUERIES, CAPACITY // 2, "lru")


def _fluid() -> list[ClientResult]:
    readers = sum(job.workers for job in (*TRAINING, *QUERIES))
    parts = [min(_size(job), CAPACITY * job.workers // readers) for job in TRAINING]
    trained = [one for job, part in zip(TRAINING, parts, strict=True) for one in _simulated((job,), part, "uniform")]
    return trained + _simulated(QUERIES, CAPACITY - sum(parts), "lru")


def _size(job: ClientSpec) -> int:
    return sum(stored.size for stored in PREFIXES[job.prefix].objects(4_000_000))


def _simulated(clients: Sequence[ClientSpec], capacity: int, mode: str) -> list[ClientResult]:
    scenario = ReadScenario(
        title="",
        capacity=capacity,
        origin=ORIGIN,
        prefixes=tuple(PREFIXES[client.prefix] for client in clients),
        clients=tuple(clients),
        runs=(ReadRunSpec(name=mode, mode=mode),),  # type: ignore[arg-type]
    )
    (result,) = simulate_reads(scenario)
    return result.clients


def _hits(found: Sequence[ClientResult]) -> float:
    return sum(one.hits for one in found) / sum(one.reads for one in found)


def _seconds(found: Sequence[ClientResult]) -> float:
    return sum(one.seconds for one in found) / len(found)
