"""What workers cost under three rules: the gateway's, Kubernetes' by CPU, and a fixed number (Cachew's Figure 10)."""

from __future__ import annotations

from typing import NamedTuple

from gateway.policies.space.autocache import COMPUTE
from gateway.policies.space.autoscale import ScaleSettings
from gateway.sim.cpu_rule import CpuTarget
from gateway.sim.figures import pyplot
from gateway.sim.pipelines import SOURCE, PipelineControl, PipelineModel, simulate_pipeline, with_knee
from lab.evaluation.pages import machine, numbers, picture, record

EPOCHS = 10
MOST = 16
TRAINER = 37
"""The price of a trainer in workers: with it, a time that is 4.1 times as long costs 3.8 times as much, as in Figure 10."""
RULES = ("Larder", "CPU", "1", "4", "8")
COLOURS = ("#1b7f5c", "#c0732a", "#cccccc", "#999999", "#666666")


def _models() -> dict[str, tuple[PipelineModel, int]]:
    """The pipelines by name, with the mark that is read: workers that wait for a store, that compute, and that compete."""
    resnet = with_knee(PipelineModel(0.004, source=0.008, elements=60_000), 4)
    retina = with_knee(PipelineModel(0.020, source=0.002, elements=60_000), 6)
    simclr = PipelineModel(0.008, source=0.001, elements=60_000, contention=0.3)
    models = {"ResNet-50": resnet, "RetinaNet": retina, "SimCLR": simclr}
    modes = {"compute": COMPUTE, "source cache": SOURCE}
    return {f"{name}, {mode}": (model, mark) for name, model in models.items() for mode, mark in modes.items()}


class RuleCost(NamedTuple):
    """Means per epoch over all epochs of a run, the search for workers included.

    Args:
        batch_time: seconds per batch.
        worker_seconds: paid seconds of workers.
        workers: their number at the end.
        cost: of trainer and workers, in worker seconds.
    """

    batch_time: float
    worker_seconds: float
    workers: int
    cost: float


def cost(model: PipelineModel, mark: int, rule: str) -> RuleCost:
    """The cost of a pipeline under a rule of ``RULES``."""
    control = {
        "Larder": PipelineControl(mark, scale=ScaleSettings(most=MOST)),
        "CPU": PipelineControl(mark, cpu=CpuTarget(most=MOST)),
    }.get(rule) or PipelineControl(mark, workers=int(rule))
    epochs = (result := simulate_pipeline(model, control, EPOCHS)).epochs
    seconds = epochs[-1].ended / EPOCHS
    paid = result.worker_seconds(0.0, epochs[-1].ended) / EPOCHS
    return RuleCost(seconds / (model.elements // model.batch), paid, epochs[-1].workers, TRAINER * seconds + paid)


def run() -> None:
    """Simulate all of it, and write the section."""
    where = machine()
    costs = {name: {rule: cost(model, mark, rule) for rule in RULES} for name, (model, mark) in _models().items()}
    _figure(costs)
    rows = [
        [
            name,
            rule,
            str(of.workers),
            f"{1000 * of.batch_time:.1f}",
            f"{of.worker_seconds:.0f}",
            f"{of.cost / rules['Larder'].cost:.2f}",
        ]
        for name, rules in costs.items()
        for rule, of in rules.items()
    ]
    numbers("pipelines-cost", ["model", "rule", "workers", "ms per batch", "worker s per epoch", "cost"], rows)
    data = {
        "epochs": EPOCHS,
        "trainer": TRAINER,
        "costs": {name: {rule: of._asdict() for rule, of in rules.items()} for name, rules in costs.items()},
    }
    record("evaluation/pipelines/pipelines_cost", {"where": where, **data})


def _figure(costs: dict[str, dict[str, RuleCost]]) -> None:
    figure, (times, seconds) = pyplot().subplots(1, 2, figsize=(10, 3.5))
    width = 0.8 / len(RULES)
    for number, (rule, colour) in enumerate(zip(RULES, COLOURS, strict=True)):
        places = [place + (number - len(RULES) / 2 + 0.5) * width for place in range(len(costs))]
        label = rule if not rule.isdigit() else f"{rule} fixed"
        times.bar(places, [1000 * rules[rule].batch_time for rules in costs.values()], width, color=colour, label=label)
        seconds.bar(places, [rules[rule].worker_seconds for rules in costs.values()], width, color=colour)
    for axes, title in ((times, "ms per batch"), (seconds, "worker seconds per epoch")):
        axes.set_xticks(range(len(costs)), [name.replace(", ", "\n") for name in costs], fontsize=6)
        axes.set_ylabel(title)
    times.legend(fontsize=7)
    picture("pipelines-cost", figure)
