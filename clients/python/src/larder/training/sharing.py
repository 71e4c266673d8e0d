"""Reads items that other jobs on the dataset load, so that one read of the origin serves all of them.

A gateway that holds a part of a dataset first evicts the items that the fewest jobs still need in their epochs. So a job reads
its own uniform order, but replaces items that it would have to wait for by items that other jobs have just read: those are
cached, and will be evicted soon. The gateway names them (`BatchReader.offers`), the plan picks those of its own share
(`EpochPlan.offer`), and each still comes once per epoch. A single job follows its order exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

from larder.base.errors import LarderError
from larder.planner import Candidates, EpochPlan
from larder.planner.layout import Shard
from larder.reading.merging import Fetched
from larder.reading.source import ItemReader, SharingReader

PER_ITEM = 4
"""Offers to request, per item of a batch and per reader among which the epoch is divided."""


@dataclass(slots=True)
class Sharing:
    """A loader's knowledge of the other jobs on its dataset.

    ``jobs``: their number, by the last answer; -1 until a gateway has stated that it makes offers.
    """

    jobs: int = -1


class SharedReads:
    """The reads of one worker in one epoch.

    Args:
        reader: reads the items.
        sharing: of the loader.
        shard: the worker, which can only use its own share of the offers.
        job: name of the training run.
        offers: whether to request offers.
    """

    def __init__(self, reader: ItemReader, sharing: Sharing, shard: Shard, job: str, *, offers: bool = True) -> None:
        self._reader = reader if isinstance(reader, SharingReader) else None
        self._sharing = sharing
        self._readers = shard.world * shard.workers
        self._job = job
        self._asks = offers and bool(job)

    @property
    def others(self) -> bool:
        """Whether other jobs read the dataset, so that taking their loads is better than announcing items."""
        return self._sharing.jobs > 0

    def ask(self, plan: EpochPlan, batch_size: int, epoch: int) -> None:
        """Ask for offers before a batch; without them the batch follows the plan's order."""
        if self._reader is None or self._sharing.jobs <= 0 or not self._asks:
            return
        try:
            plan.offer(self._reader.offers(PER_ITEM * batch_size * self._readers, epoch=epoch, job=self._job))
        except LarderError:
            return  # the batch itself reports the error

    def fetch(self, offered: Candidates, epoch: int) -> Fetched | None:
        """The items of a batch; ``None`` if the gateway makes no offers, or if there is no choice."""
        if self._reader is None or self._sharing.jobs < 0 or len(offered.indices) == offered.take:
            return None
        return self._reader.fetch_shared(
            offered.indices, take=offered.take, offers=offered.offers, epoch=epoch, job=self._job
        )

    def learn(self, fetched: Fetched) -> None:
        """Record an answer's information about other jobs."""
        if fetched.directives.caching:
            self._sharing.jobs = fetched.directives.sharing if fetched.directives.partly else -1
