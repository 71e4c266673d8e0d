"""Importance in the fleet: which jobs' scores count and how much, and one threshold for all homes (SHADE, section 4.2.2).

Each node reports the scores that jobs sent it, and the distribution over scores of the bytes of items at home there. The leader
puts the reports together. The *threshold* is the score at which the items above it fill the pool's target; the bytes that a node
has above it are the node's *share*. So the fleet holds the same items as one large queue would, though each node only knows its
own items, and a home that happens to have more of the important ones gets more of the space.

A pool has this order while a job on its dataset has scores that count (``importance.freshness``), unless its registration
requests a part by demand. It also gets space that no other dataset was given.

Weights move in steps of ``STEP``, because each change ranks all items of the dataset again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gateway.policies.eviction.importance import Importance
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.importance import JobWeight, ScoreStep, freshness
from gateway.policies.space.orders import ImportanceOrder, PoolOrder, WhyCaching

STEP = 0.1
"""The smallest error of a job's weight that changes it, as a share of all reads."""
_DIGITS = 3
"""Significant digits of a factor."""


@dataclass(frozen=True, slots=True)
class JobReport:
    """A node's scores of one job: seconds since its last part and between its epochs, number of scored items, and their mean
    score."""

    age: float
    interval: float = 0.0
    scored: int = 0
    mean: float = 0.0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class ScoreReport:
    """A node's report on one dataset: each job, and the items whose home it is under the weights in force.

    ``reads`` and ``hits`` count the node's answers by tenths of the scored items, the least important first; the last entry
    counts items without a score.
    """

    jobs: Mapping[str, JobReport] = field(default_factory=dict)
    steps: tuple[ScoreStep, ...] = ()
    reads: tuple[int, ...] = ()
    hits: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ScoredDataset:
    """A dataset with scores from jobs: reports by node, reads per second by job, its bytes, and the operator's quota."""

    reports: Mapping[str, ScoreReport]
    rates: Mapping[str, float]
    size: int
    quota: int | None = None

    @property
    def limit(self) -> int:
        """The most bytes that it can use."""
        return self.size if self.quota is None else min(self.size, self.quota)


def important(
    orders: Mapping[str, PoolOrder],
    before: Mapping[str, PoolOrder],
    scored: Mapping[str, ScoredDataset],
    free: int,
) -> dict[str, PoolOrder]:
    """The orders; pools whose jobs send scores get the order ``importance``.

    Args:
        orders: as allocated, by dataset.
        before: of the last plan, by dataset.
        scored: the scores, by dataset.
        free: unassigned bytes.
    """
    weights: dict[str, dict[str, JobWeight]] = {}
    for dataset, known in scored.items():
        if dataset in orders and _may(orders[dataset]):
            last = before.get(dataset)
            of_last = last.importance.jobs if last is not None and last.importance is not None else {}
            weighed = weigh(of_last, known)
            if weighed:
                weights[dataset] = weighed
    missing = {name: max(0, scored[name].limit - orders[name].target) for name in weights}
    wanted = sum(missing.values())
    result = dict(orders)
    for name, jobs in weights.items():
        target = orders[name].target + min(missing[name], max(0, free) * missing[name] // max(1, wanted))
        result[name] = _filled(orders[name], target, jobs, scored[name])
    return result


def unscored(order: PoolOrder | None) -> PoolOrder | None:
    """The order of a dataset whose jobs are gone, and their scores with them."""
    return None if order is None else replace(order, order="", importance=None)


def _may(order: PoolOrder) -> bool:
    if order.caching is CachingMode.PART:
        return order.why is not WhyCaching.REQUESTED
    return order.caching is CachingMode.FULL


def _filled(order: PoolOrder, target: int, jobs: Mapping[str, JobWeight], known: ScoredDataset) -> PoolOrder:
    partial = target < known.size
    threshold, shares = divide({node: report.steps for node, report in known.reports.items()}, target)
    if not partial:
        threshold, shares = None, {}
    return replace(
        order,
        caching=CachingMode.FULL,
        order=Importance.name,
        target=target,
        importance=ImportanceOrder(jobs, threshold, shares, partial),
    )


def weigh(before: Mapping[str, JobWeight], known: ScoredDataset) -> dict[str, JobWeight]:
    """Weight of each job's scores; none for jobs that are gone, or whose scores are too old.

    Args:
        before: the last decision.
        known: the dataset's scores.
    """
    rates: dict[str, float] = {}
    means: dict[str, float] = {}
    for job, rate in sorted(known.rates.items()):
        reports = [report.jobs[job] for report in known.reports.values() if job in report.jobs]
        fresh = max((freshness(report.age, report.interval) for report in reports), default=0.0)
        count = sum(report.scored for report in reports)
        if fresh and count:
            rates[job] = rate * fresh
            means[job] = sum(report.mean * report.scored for report in reports) / count
    if not rates:
        return {}
    # A job without a known rate counts as an average one.
    usual = sum(rates.values()) / max(1, sum(rate > 0 for rate in rates.values())) or 1.0
    reads = {job: rate or usual for job, rate in rates.items()}
    shares = {job: rate / sum(reads.values()) for job, rate in reads.items()}
    near = before.keys() == shares.keys() and all(abs(before[job].share - shares[job]) < STEP for job in shares)
    if near:
        shares = {job: weight.share for job, weight in before.items()}
    weights = {}
    for job, share in shares.items():
        factor = 1.0 if len(shares) == 1 else _rounded(share / max(means[job], 1e-6))
        settled = near and abs(before[job].factor - factor) <= STEP * factor
        weights[job] = before[job] if settled else JobWeight(round(share, _DIGITS), factor)
    return weights


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")


def divide(steps: Mapping[str, tuple[ScoreStep, ...]], target: int) -> tuple[float | None, dict[str, int]]:
    """The threshold at which ``target`` bytes are above it, and the share of each node.

    Every node gets the same part of the items at the threshold itself.

    Returns:
        ``None`` and all bytes if less than ``target`` is scored.
    """
    ordered = sorted((step.score for node in steps.values() for step in node), reverse=True)
    above = dict.fromkeys(steps, 0)
    for score in dict.fromkeys(ordered):
        here = {node: sum(step.bytes for step in of if step.score == score) for node, of in steps.items()}
        size = sum(here.values())
        left = target - sum(above.values())
        if size >= left:
            return score, {node: above[node] + here[node] * max(0, left) // max(1, size) for node in steps}
        above = {node: above[node] + here[node] for node in steps}
    return None, above
