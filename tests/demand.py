"""Training jobs at the level of the protocol: each reads epochs of a dataset in its own order, and takes what is offered."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rig.batches import Stock, bytes_of, decoded, stock
from rig.gateways import Running
from rig.origin import FakeOrigin
from rig.v1 import Reply, ask

BATCH = 8
CANDIDATES = 10 * BATCH


def dataset_of(origin: FakeOrigin, home: Path, items: int, size: int) -> Stock:
    """A dataset of equally large items."""
    return stock(origin, home / "files", "demand", bytes_of(items, size, "demand"))


@dataclass
class TrainingJob:
    """One job. ``orders`` has the items of each epoch as they came; ``nodes`` are asked in turn."""

    name: str
    nodes: Sequence[Running]
    data: Stock
    epochs: int
    offered: bool = True
    orders: list[list[int]] = field(default_factory=list)
    sharing: int = 0

    def __post_init__(self) -> None:
        self._chance = random.Random(self.name)
        self._pending: dict[int, None] = {}
        self._asked = 0

    @property
    def ended(self) -> bool:
        """Whether all epochs are read."""
        return not self._pending and len(self.orders) == self.epochs

    @property
    def epoch(self) -> int:
        """The current epoch."""
        return len(self.orders) - 1

    def step(self) -> None:
        """Read one batch; the first one of an epoch begins it."""
        if not self._pending:
            items = list(range(len(self.data.rows)))
            self._chance.shuffle(items)
            self._pending = dict.fromkeys(items)
            self.orders.append([])
        order = list(self._pending)
        own = order[:BATCH]
        offers = self._offers(set(own)) if self.sharing and self.offered else []
        rest = [item for item in order[BATCH:] if item not in set(offers)][: CANDIDATES - BATCH]
        indices = [*own, *offers, *rest]
        reply = self._batch(indices, len(own), len(offers))
        received = decoded(indices, reply.body)
        assert not received.failures
        assert len(received.positions) == len(own)
        for position, data in zip(received.positions, received.data, strict=True):
            assert bytes(data) == self.data.bodies[indices[position]]
            del self._pending[indices[position]]
            self.orders[-1].append(indices[position])
        self.sharing = int(reply.headers["x-larder-sharing"])

    def _node(self) -> Running:
        self._asked += 1
        return self.nodes[self._asked % len(self.nodes)]

    def _offers(self, own: set[int]) -> list[int]:
        path = f"/v1/datasets/{self.data.id}/offers?job={self.name}&epoch={self.epoch}&most=4096"
        reply = ask(self._node(), "GET", path)
        assert reply.status == 200, reply.body
        offers = np.frombuffer(reply.body, "<u4").tolist()
        return [item for item in offers if item in self._pending and item not in own]

    def _batch(self, indices: Sequence[int], take: int, offers: int) -> Reply:
        query = f"mode=substitute&take={take}&job={self.name}&epoch={self.epoch}"
        if self.offered:
            query += f"&offers={offers}"
        reply = self.data.ask(self._node(), indices, query)
        assert reply.status == 200, reply.body
        return reply


@dataclass
class Schedule:
    """When jobs read: job j sends a batch in every ``pace``-th round from round ``start`` on."""

    job: TrainingJob
    start: int = 0
    pace: int = 1


def run(schedules: Sequence[Schedule], until: TrainingJob, epoch: int, first: int = 0) -> int:
    """Let jobs read at the same time, round by round, until one has ended an epoch; returns the number of the next round."""
    number = first
    with ThreadPoolExecutor(len(schedules)) as pool:
        while (len(until.orders) <= epoch and not until.ended) or (until.epoch == epoch and until._pending):
            due = [
                each.job
                for each in schedules
                if number >= each.start and (number - each.start) % each.pace == 0 and not each.job.ended
            ]
            list(pool.map(TrainingJob.step, due))
            number += 1
    return number
