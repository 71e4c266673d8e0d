"""Randomness of the order of delivery over many epochs: the shipped planner over a simulated cache.

The cache chooses by the gateway's code (``gateway.policies.items.batch``), evicts like the gateway, and takes no time.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.policies.items.batch import choose
from larder.planner import EpochOrder, EpochPlan, Layout, Shard

Places = NDArray[np.float64]
"""By epoch and item, the item's place in the epoch: 0 is its beginning, 1 its end."""
ORDER_SEED = 0x1A2D32
_ALONE = Shard(0, 1, 0, 1)


class SimulatedCache:
    """A simulated cache: the set of resident items.

    Args:
        items: of the dataset.
        room: items that fit.
        rotating: evict the items loaded first; otherwise the first items stay forever.
        seed: of its choices.
    """

    def __init__(self, items: int, room: int, *, rotating: bool, seed: int = 0) -> None:
        self.resident = np.zeros(items, np.bool_)
        self._room = room
        self._rotating = rotating
        self._random = np.random.default_rng(seed)
        self._loaded: deque[int] = deque()

    def take(self, candidates: NDArray[np.uint32], take: int) -> tuple[NDArray[np.uint32], int]:
        """The candidates for a batch, and the number of hits among them; the others are loaded."""
        here = self.resident[candidates]
        choice = choose(self._random.permutation(len(candidates)), here, np.zeros(len(candidates), np.bool_))
        hits = min(take, len(choice.resident))
        got = candidates[np.concatenate([choice.resident, choice.others])[:take]]
        for item in got[hits:].tolist():
            self._load(item)
        return got, hits

    def _load(self, item: int) -> None:
        if len(self._loaded) >= self._room:
            if not self._rotating:
                return
            self.resident[self._loaded.popleft()] = False
        self.resident[item] = True
        self._loaded.append(item)


def simulate(
    layout: Layout,
    cache: SimulatedCache,
    *,
    epochs: int,
    batch_size: int,
    substitute: int,
    seed: int = 0,
) -> tuple[Places, list[float]]:
    """Simulate a single job over the cache; returns the places of all items, and the hit ratio of each epoch.

    Args:
        layout: of the dataset.
        cache: empty or not.
        epochs: how many.
        batch_size: items of a batch.
        substitute: candidates per item.
        seed: of the job.
    """
    places = np.empty((epochs, layout.items))
    ratios = []
    for epoch in range(epochs):
        order = EpochOrder(layout, seed=seed, epoch=epoch)
        plan = EpochPlan(order, _ALONE, batch_size=batch_size, substitute=substitute)
        delivered = hits = 0
        while (offered := plan.candidates()) is not None:
            got, from_cache = cache.take(offered.indices, offered.take)
            plan.deliver(got)
            # A batch is delivered in the order of the epoch, whatever the order of arrival.
            got = offered.indices[np.isin(offered.indices, got)]
            places[epoch, got] = (delivered + np.arange(len(got)) + 0.5) / layout.items
            delivered += len(got)
            hits += from_cache
        ratios.append(hits / layout.items)
    return places, ratios


def kolmogorov(places: Places) -> NDArray[np.float64]:
    """For each item the Kolmogorov-Smirnov distance of its places over the epochs from the uniform distribution."""
    count = len(places)
    ordered = np.sort(places, axis=0)
    steps = np.arange(1, count + 1)[:, None] / count
    distance: NDArray[np.float64] = np.maximum(steps - ordered, ordered - steps + 1 / count).max(axis=0)
    return distance


def rank_correlations(places: Places) -> NDArray[np.float64]:
    """Spearman's rank correlation of the items' places in each epoch and the next."""
    ranks = np.argsort(np.argsort(places, axis=1), axis=1)
    return np.array([np.corrcoef(before, after)[0, 1] for before, after in itertools.pairwise(ranks)])


def class_mix(sequence: NDArray[np.uint32], classes: int, batch_size: int) -> dict[str, float]:
    """Mixing of the classes of a dataset that is sorted by class, in the order of delivery.

    Both figures are shares of what a random permutation gives on average, so that 1 is chance: with ``k`` classes of equal size,
    ``b`` random items have ``k (1 - (1 - b / n) ** (n / k))`` classes to a good approximation (n items).

    Args:
        sequence: the items of an epoch in the order of delivery.
        classes: item ``i`` of ``n`` has the class ``i * classes // n``.
        batch_size: items of a batch.
    """
    items = len(sequence)
    labels = sequence.astype(np.int64) * classes // items

    def mean_distinct(size: int) -> float:
        starts = range(0, items - size + 1, size)
        return float(np.mean([len(np.unique(labels[start : start + size])) for start in starts]))

    def expected(size: int) -> float:
        return float(classes * (1 - (1 - size / items) ** (items / classes)))

    tenth = items // 10
    return {
        "batch": mean_distinct(batch_size),
        "batch_share": mean_distinct(batch_size) / expected(batch_size),
        "tenth": mean_distinct(tenth),
        "tenth_share": mean_distinct(tenth) / expected(tenth),
    }


def random_places(epochs: int, items: int, seed: int = 0) -> Places:
    """Figures of truly random epochs, for comparison."""
    generator = np.random.default_rng(seed)
    return np.array([(generator.permutation(items) + 0.5) / items for _ in range(epochs)])


def quality(places: Places) -> dict[str, Any]:
    """Mean and largest distance from uniform places; mean correlation of consecutive epochs, and the mean of its absolute
    value."""
    distances, correlations = kolmogorov(places), rank_correlations(places)
    return {
        "ks_mean": float(distances.mean()),
        "ks_most": float(distances.max()),
        "correlation": float(correlations.mean()),
        "correlation_size": float(np.abs(correlations).mean()),
    }
