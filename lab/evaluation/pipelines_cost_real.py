"""What workers cost under the three rules of ``pipelines_cost.py``, through a real gateway and scaled down (Cachew's Figure 10).

A worker waits for its store for some milliseconds per element, and computes for some; both are sleep, so that two cores carry
eight workers. Computing counts as processor time: a worker's utilization is the elements of a period times the time of computing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import larder
from gateway.sim.cpu_rule import CpuRule, CpuTarget
from lab.evaluation.fleet import CREDENTIALS
from lab.evaluation.pages import machine, record
from lab.evaluation.paused import Working
from lab.evaluation.pipelines_cost import TRAINER
from lab.evaluation.pipelines_real import serving
from larder import Job
from larder.reading.source import Access

ITEMS = "ticks"
BATCH = 4
"""Elements of a batch."""
SEARCHED, STEADY, SETTLING = 4000, 200, 40
"""Batches of a run with a rule and with a fixed number of workers, and batches before the latter."""
FIXED = (1, 4, 8)
FASTER = 15
"""Times by which the CPU rule's period and settling time are shortened, as a run is shorter than the simulator's."""


@dataclass(frozen=True)
class Model:
    """A model's pipeline: seconds that a worker waits and computes per element, and workers that keep the trainer busy."""

    waiting: float
    computing: float
    knee: int

    @property
    def pause(self) -> float:
        """Seconds that the trainer computes per batch."""
        return BATCH * (self.waiting + self.computing) / self.knee


MODELS = {"ResNet-50": Model(0.016, 0.008, 4), "RetinaNet": Model(0.004, 0.040, 6)}
"""The simulator's, with twice the time per element."""


class RealCost(NamedTuple):
    """Means per batch of a run, the search for workers included.

    Args:
        batch_time: seconds.
        worker_seconds: paid seconds of workers.
        workers: their number at the end.
    """

    batch_time: float
    worker_seconds: float
    workers: int

    @property
    def cost(self) -> float:
        """Of trainer and workers, in worker seconds."""
        return TRAINER * self.batch_time + self.worker_seconds


def run() -> None:
    """Measure, and write the section."""
    where = machine()
    with TemporaryDirectory() as temporary, serving(Path(temporary)) as endpoint:
        costs = {name: _costs(endpoint, name, model) for name, model in MODELS.items()}
    data = {
        "batches": SEARCHED,
        "batch": BATCH,
        "faster": FASTER,
        "costs": {
            name: {rule: {**of._asdict(), "cost": of.cost} for rule, of in rules.items()}
            for name, rules in costs.items()
        },
    }
    record("evaluation/pipelines/pipelines_cost_real", {"where": where, **data})


def _costs(endpoint: str, name: str, model: Model) -> dict[str, RealCost]:
    costs = {"Larder": _by_gateway(endpoint, name, model), "CPU": _by_cpu(endpoint, model)}
    costs |= {str(workers): _fixed(endpoint, model, workers) for workers in FIXED}
    print(name, costs, flush=True)
    return costs


def _pipeline(endpoint: str, model: Model, **options: Any) -> larder.pipelines.Pipeline:
    work = Working(model.waiting + model.computing, 8)
    access = Access(credentials=CREDENTIALS)
    return larder.pipeline(ITEMS, endpoint=endpoint, access=access, **options).map(work).batch(BATCH)


def _trained(pipeline: larder.pipelines.Pipeline, model: Model) -> Iterator[int]:
    """Train without an end, and yield the number of workers at each batch."""
    for _ in chain.from_iterable(repeat(pipeline)):
        time.sleep(model.pause)
        yield int(pipeline.stats()["workers"])


def _measured(batches: Iterator[int], count: int, after: Callable[[float], None] = lambda seconds: None) -> RealCost:
    """The cost of so many batches; ``after`` is called after each with the seconds that it took."""
    paid, workers = 0.0, 0
    began = before = time.perf_counter()
    for workers in islice(batches, count):
        now = time.perf_counter()
        paid += workers * (now - before)
        after(now - before)
        before = now
    return RealCost((before - began) / count, paid / count, workers)


def _by_gateway(endpoint: str, name: str, model: Model) -> RealCost:
    with Job(endpoint, f"cost-{name}", ITEMS, batch_size=BATCH, credentials=CREDENTIALS) as job:
        pipeline = _pipeline(endpoint, model, job=job)
        batches = _trained(pipeline, model)
        next(batches)
        cost = _measured(batches, SEARCHED)
        pipeline.close()
    return cost


def _by_cpu(endpoint: str, model: Model) -> RealCost:
    pipeline = _pipeline(endpoint, model, workers=1)
    real = CpuTarget(most=max(FIXED))
    settings = replace(real, period=real.period / FASTER, settling=real.settling / FASTER)
    rule, seconds, batches = CpuRule(settings), 0.0, 0

    def after(taken: float) -> None:
        nonlocal seconds, batches
        seconds, batches = seconds + taken, batches + 1
        if seconds >= settings.period:
            workers = int(pipeline.stats()["workers"])
            used = batches * BATCH * model.computing / (seconds * workers)
            wanted = rule.after(time.monotonic(), used, workers)
            if wanted != workers:
                pipeline.scale(wanted)
            seconds, batches = 0.0, 0

    trained = _trained(pipeline, model)
    next(trained)
    cost = _measured(trained, SEARCHED, after)
    pipeline.close()
    return cost


def _fixed(endpoint: str, model: Model, workers: int) -> RealCost:
    pipeline = _pipeline(endpoint, model, workers=workers)
    batches = _trained(pipeline, model)
    for _ in islice(batches, SETTLING):
        pass
    cost = _measured(batches, STEADY)
    pipeline.close()
    return cost
