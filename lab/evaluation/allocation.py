"""Three datasets and twelve jobs with the paper's ratios, really run, beside the simulator with the same numbers."""

from __future__ import annotations

import math
import os
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean

from gateway.sim.figures import pyplot
from gateway.sim.jobs.run import simulate, speedup
from gateway.sim.jobs.scenario import Scenario, parse_as
from lab.evaluation.fleet import Fleet, fleet
from lab.evaluation.jobs import Log, Training, s3_through, straight_to, through_fleet, together
from lab.evaluation.origin import Data, Origin, origin
from lab.evaluation.pages import machine, picture, record

TIME = 0.4
"""Seconds here per second of the paper."""
BATCH = 8
LENGTH = 4096
PER_15_GB = 20
"""Mini-batches of 15 GB."""
JOBS = 4
BUDGETS = (100, 200, 700)
PROBE = 6
SETTLE, FILL, REST, MEASURE, BRIEF = 50.0, 12.0, 28.0, 60.0, 30.0
"""Seconds until every job is probed; with unlimited stores, to cache the plan's data; with limits again, until steady; of the
measurement; and of the measurement of runs without probes."""
SEEDS = 4
"""Runs of the simulator: the order of the probes depends on the seed, and so do the measurements."""
BEGIN, END = SETTLE + FILL + REST, SETTLE + FILL + REST + MEASURE
"""Seconds of a run between which it is measured."""


@dataclass(frozen=True)
class Kind:
    """One of the paper's workloads: GB of its dataset, and seconds of a mini-batch with and without the cache (Table 3)."""

    name: str
    dataset: str
    size: int
    hit: float
    miss: float

    @property
    def data(self) -> Data:
        """The dataset, scaled down."""
        return Data(self.dataset, round(self.size / 15 * PER_15_GB * BATCH), LENGTH)

    @property
    def bandwidth(self) -> float:
        """The bandwidth of its store, chosen so that four jobs without a cache take as long as in the paper."""
        return JOBS * BATCH * LENGTH / (self.miss * TIME)

    def jobs(self, seed: int) -> list[Training]:
        """Four jobs that run until they are stopped."""
        return [
            Training(
                name=f"{self.name}-{number}",
                data=self.data,
                batch=BATCH,
                compute=self.hit * TIME,
                epochs=0,
                ahead=0,
                substitute=4,
                seed=seed + number,
            )
            for number in range(JOBS)
        ]


KINDS = (
    Kind("ResNet50", "ImageNet", 154, 0.646, 2.505),
    Kind("Inception", "OpenImages", 531, 1.274, 2.874),
    Kind("DeepSpeech", "LibriSpeech", 90, 1.234, 1.614),
)
SCALE = KINDS[0].data.size / (KINDS[0].size * 1e9)


@dataclass(frozen=True)
class Outcome:
    """``ratio`` is the jobs' mean speed-up over no cache; ``caching`` has the decisions by dataset.

    Several runs give their mean, and the most frequent decisions; ``lowest`` and ``highest`` are the extremes. ``reads`` are
    those of the stores per item that the jobs of a real run got.
    """

    ratio: float
    caching: dict[str, str]
    lowest: float = 0.0
    highest: float = 0.0
    reads: float = 0.0


def capacity(budget: int) -> float:
    """Bytes of the caches, for a size of the paper in binary gigabytes: only with these do the paper's own decisions fit."""
    return budget * 2**30 * SCALE


def run() -> None:
    """Measure, simulate, and write the page."""
    where = machine()
    with tempfile.TemporaryDirectory() as temporary, origin([kind.data for kind in KINDS], 0) as store:
        _limit(store)
        base = _rates(together([straight_to(store, job) for job in _jobs()], BRIEF), BRIEF / 3, BRIEF)
        real = {f"Larder {budget} GB": larder(store, Path(temporary), budget, base) for budget in BUDGETS}
        real["LRU 200 GB"] = lru(store, Path(temporary) / "lru", 200, base)
    where += f", after: {os.getloadavg()[0]:.1f}"
    publish(real, where)


def publish(real: dict[str, Outcome], where: str) -> None:
    """Simulate, record the figures, and write the section."""
    simulated = simulation(BEGIN, END)
    _plot(real, simulated)
    order, expected = (sorted(real, key=lambda name: of[name].ratio) for of in (real, simulated))
    data = {
        "kinds": [{"dataset": kind.dataset, "items": kind.data.items, "gigabytes": kind.size} for kind in KINDS],
        "length": LENGTH,
        "time": TIME,
        "probe": PROBE,
        "settle": SETTLE,
        "fill": FILL,
        "rest": REST,
        "measure": MEASURE,
        "seeds": SEEDS,
        "real": {name: asdict(of) for name, of in real.items()},
        "simulated": {name: asdict(simulated[name]) for name in real},
        "same_order": order == expected,
        "same_decisions": [name for name, of in real.items() if of.caching == simulated[name].caching],
    }
    record("evaluation/jobs/allocation", {"where": where, **data})


def _jobs() -> list[Training]:
    return [job for place, kind in enumerate(KINDS) for job in kind.jobs(10 * place)]


def _limit(store: Origin) -> None:
    for kind in KINDS:
        store.limit(kind.bandwidth, data=kind.data)


def _free(store: Origin) -> None:
    for kind in KINDS:
        store.limit(0, data=kind.data)


def _rates(logs: list[Log], since: float, until: float) -> dict[str, float]:
    began = min(log.began for log in logs)
    return {log.name: log.rate(began + since, began + until) for log in logs}


def _ratio(rates: dict[str, float], base: dict[str, float]) -> float:
    return mean(rates[name] / base[name] for name in base)


def larder(store: Origin, directory: Path, budget: int, base: dict[str, float]) -> Outcome:
    """Run all jobs through a fleet with this budget: probe them, load the plan's data, then measure."""
    with fleet(
        store, directory / str(budget), capacity(budget), tables={"[manager]": {"probe_batches": PROBE}}
    ) as running:
        names = {running.register(kind.data).id: kind.dataset for kind in KINDS}
        caching: dict[str, str] = {}
        reads: list[float] = []

        def watch(stop: object) -> Log:
            time.sleep(SETTLE)
            _free(store)
            time.sleep(FILL)
            _limit(store)
            time.sleep(REST)
            reads.append(_reads(store))
            time.sleep(MEASURE * 0.9)
            reads.append(_reads(store))
            caching.update(_decided(running, names))
            return Log("watch", began=time.monotonic())

        logs = together([watch, *(through_fleet(running, job, n) for n, job in enumerate(_jobs()))], END)
    per_item = (reads[1] - reads[0]) / _items(logs[1:], BEGIN, BEGIN + MEASURE * 0.9)
    return Outcome(_ratio(_rates(logs[1:], BEGIN, END), base), caching, reads=per_item)


def _reads(store: Origin) -> float:
    return sum(store.reads(kind.data) for kind in KINDS)


def _items(logs: list[Log], since: float, until: float) -> int:
    began = min(log.began for log in logs)
    return sum(
        items for log in logs for at, items in zip(log.times, log.items, strict=True) if since <= at - began < until
    )


def _decided(running: Fleet, names: dict[str, str]) -> dict[str, str]:
    datasets = running.ask("/-/v1/plan")["datasets"]
    return {names[dataset]: of["caching"] for dataset, of in datasets.items()}


def lru(store: Origin, directory: Path, budget: int, base: dict[str, float]) -> Outcome:
    """All jobs as plain S3 clients of a fleet with this budget and a full cache."""
    with fleet(store, directory, capacity(budget)) as running:
        _free(store)
        together([s3_through(running, replace(job, compute=0.0), n) for n, job in enumerate(_jobs()[::JOBS])], FILL)
        _limit(store)
        before = _reads(store)
        logs = together([s3_through(running, job, n) for n, job in enumerate(_jobs())], BRIEF)
        reads = (_reads(store) - before) / _items(logs, 0.0, math.inf)
    return Outcome(_ratio(_rates(logs, BRIEF / 3, BRIEF), base), {}, reads=reads)


def simulation(since: float, until: float) -> dict[str, Outcome]:
    """The same in virtual time, over several seeds: the same sizes, times, stores and settings, measured between two moments."""
    scenario = parse_as(Scenario, _scenario(since, until))
    found: dict[str, list[Outcome]] = {}
    for seed in range(SEEDS):
        base, *others = simulate(scenario, seed)
        for result in others:
            found.setdefault(result.run.name, []).append(Outcome(speedup(result, base), result.caching))
    return {name: _mean(outcomes) for name, outcomes in found.items()}


def _mean(outcomes: list[Outcome]) -> Outcome:
    ratios = [each.ratio for each in outcomes]
    decided = Counter(tuple(sorted(each.caching.items())) for each in outcomes)
    return Outcome(mean(ratios), dict(decided.most_common(1)[0][0]), min(ratios), max(ratios))


def _scenario(since: float, until: float) -> str:
    tables = [
        f'title = "allocation"\nduration = {until}\nmeasure_from = {since}',
        f'[origin]\nbandwidth = "1TB"\nsharing = "arrival"\nunlimited = [{SETTLE}, {SETTLE + FILL}]',
        f"[fleet]\ncapacity = {round(capacity(200))}",
        f'[manager]\nprobe_batches = {PROBE}\nprobe_every = "1d"',
    ]
    for kind in KINDS:
        tables.append(
            f'[[datasets]]\nname = "{kind.dataset}"\nsize = {kind.data.size}\nitem = {LENGTH}\n'
            f"bandwidth = {round(kind.bandwidth)}"
        )
        tables.append(
            f'[[jobs]]\nname = "{kind.name}"\ndataset = "{kind.dataset}"\ncount = {JOBS}\ngpus = 4\nsubstitute = 4\n'
            f"batch = {BATCH * LENGTH}\ncompute = {kind.hit * TIME}"
        )
    tables.append('[[runs]]\nname = "no cache"\nmode = "none"')
    tables += [
        f'[[runs]]\nname = "Larder {budget} GB"\nmode = "larder"\ncapacity = {round(capacity(budget))}'
        for budget in BUDGETS
    ]
    tables.append(f'[[runs]]\nname = "LRU 200 GB"\nmode = "lru"\ncapacity = {round(capacity(200))}\nwarm = true')
    return "\n\n".join(tables)


def _plot(real: dict[str, Outcome], simulated: dict[str, Outcome]) -> None:
    figure, axes = pyplot().subplots(figsize=(6, 3.2))
    for place, (name, of) in enumerate(real.items()):
        axes.bar(place - 0.2, of.ratio, 0.38, color="#1b7f5c", label="real run" if not place else None)
        axes.bar(place + 0.2, simulated[name].ratio, 0.38, color="#3b78a8", label="simulator" if not place else None)
    axes.set_xticks(range(len(real)), list(real), fontsize=8)
    axes.axhline(1, color="black", linewidth=0.5)
    axes.set_ylabel("throughput, relative to no cache")
    axes.legend(fontsize=8)
    picture("allocation", figure)
