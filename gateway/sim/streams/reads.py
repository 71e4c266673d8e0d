"""Generates reads of plain clients: the order in which a prefix's items are read, by which client, and as seen by a gateway.

An order is the sequence of positions, in the listing, that one client reads. ``RANDOM_ORDERS`` are those of training jobs,
``SKEWED_ORDERS`` those of queries, with the hot items adjacent or anywhere in the listing, and ``SEQUENTIAL_ORDERS`` those of
scans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

Positions = NDArray[np.int64]
ReadOrder = Callable[[Generator, int, int], Positions]
"""Takes a generator of random numbers, the number of items, and the number of reads."""
_BATCH = 50
"""Reads that a worker hands over at once."""


def epochs(rng: Generator, items: int, reads: int) -> Positions:
    """Each item once per epoch, in a different order each epoch."""
    return np.concatenate([rng.permutation(items) for _ in range(-(-reads // items))])[:reads]


def four_jobs(rng: Generator, items: int, reads: int) -> Positions:
    """Four concurrent jobs with separate epochs."""
    jobs = [epochs(rng, items, -(-reads // 4)) for _ in range(4)]
    return np.stack(jobs, axis=1).reshape(-1)[:reads]


def replacement(rng: Generator, items: int, reads: int) -> Positions:
    """Draws with replacement."""
    return rng.integers(0, items, reads)


def ranks(rng: Generator, items: int, reads: int) -> Positions:
    """Eight ranks that share each epoch and read mini-batches of 32, out of step."""
    order = epochs(rng, items, reads)
    batches = [order[at : at + 32] for at in range(0, reads, 32)]
    places = np.argsort(np.arange(len(batches)) + rng.uniform(0, 8, len(batches)))
    return np.concatenate([batches[place] for place in places])


def _zipf(rng: Generator, items: int, reads: int, exponent: float, scattered: bool) -> Positions:
    weights = np.arange(1, items + 1, dtype=float) ** -exponent
    drawn = rng.choice(items, reads, p=weights / weights.sum())
    return _places(items)[drawn] if scattered else drawn


def _places(items: int) -> Positions:
    """Positions of the items by popularity rank; the same for all clients."""
    return np.random.default_rng(items).permutation(items)


def zipf_in_a_row(rng: Generator, items: int, reads: int) -> Positions:
    """Zipf's law with exponent 1, the hot items at the beginning of the listing."""
    return _zipf(rng, items, reads, 1.0, scattered=False)


def zipf_anywhere(rng: Generator, items: int, reads: int) -> Positions:
    """Zipf's law with exponent 1, the hot items anywhere."""
    return _zipf(rng, items, reads, 1.0, scattered=True)


def hot_anywhere(rng: Generator, items: int, reads: int) -> Positions:
    """Nine of ten reads go to 2 % of the items, spread over the listing."""
    hot = _places(items)[: max(1, items // 50)]
    return np.where(rng.random(reads) < 0.9, rng.choice(hot, reads), rng.integers(0, items, reads))


def neighbourhood(rng: Generator, items: int, reads: int) -> Positions:
    """Normally distributed around the middle of the listing, like queries of similar tables."""
    return np.clip(rng.normal(items / 2, items / 20, reads), 0, items - 1).astype(np.int64)


def scan(rng: Generator, items: int, reads: int) -> Positions:
    """Repeated scans from a position in the first tenth to the end."""
    return (rng.integers(0, max(1, items // 10)) + np.arange(reads)) % items


def loose_scan(rng: Generator, items: int, reads: int) -> Positions:
    """A scan whose reads come up to ten places early or late, as with several threads."""
    order = scan(rng, items, reads)
    return order[np.argsort(np.arange(reads) + rng.uniform(0, 10, reads))]


RANDOM_ORDERS: Mapping[str, ReadOrder] = {
    "epochs": epochs,
    "four jobs": four_jobs,
    "with replacement": replacement,
    "eight ranks": ranks,
}
SKEWED_ORDERS: Mapping[str, ReadOrder] = {
    "zipf, in a row": zipf_in_a_row,
    "zipf, anywhere": zipf_anywhere,
    "hot 2 %, anywhere": hot_anywhere,
    "neighbourhood, in a row": neighbourhood,
}
SEQUENTIAL_ORDERS: Mapping[str, ReadOrder] = {"scan": scan, "scan within 10": loose_scan}


class SeenRead(NamedTuple):
    """One read, as recorded by a gateway."""

    position: int
    time: float
    client: int


class FleetView(NamedTuple):
    """How the reads of a prefix are spread: clients, gateways, and workers per gateway."""

    clients: int = 1
    gateways: int = 1
    workers: int = 1


def seen_by_gateways(order: ReadOrder, rng: Generator, items: int, reads: int, view: FleetView) -> list[list[SeenRead]]:
    """The reads that each gateway folds, in the order of folding.

    Clients take turns, one read each; each read goes to a random gateway and worker. A worker hands its reads over in batches,
    so a gateway folds concurrent reads one batch after the other.
    """
    own_reads = -(-reads * view.gateways // view.clients)
    orders = [order(rng, items, own_reads) for _ in range(view.clients)]
    steps = np.arange(own_reads)
    folded: list[list[SeenRead]] = [[] for _ in range(view.gateways)]
    rings: list[list[SeenRead]] = [[] for _ in range(view.gateways * view.workers)]
    for step in steps.tolist():
        for client in range(view.clients):
            ring = int(rng.integers(len(rings)))
            time = step + (client + float(rng.random())) / view.clients
            rings[ring].append(SeenRead(int(orders[client][step]), time, client))
            if len(rings[ring]) >= _BATCH:
                folded[ring // view.workers].extend(rings[ring])
                rings[ring].clear()
    return folded
