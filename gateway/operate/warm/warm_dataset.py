"""Warm-up of a dataset: its items are loaded part by part, each at its home, like items announced by a loader.

A dataset that the cache does not keep whole is refused: it is larger than the cache, or the plan gives the space to others. Parts
follow the items' order; within a part the order is random (gateway/engine/items/prefetch.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gateway.base.tasks import for_each
from gateway.engine.base.planned import Planned
from gateway.engine.items.answers import BatchAsk
from gateway.engine.items.batch import Batches
from gateway.engine.items.wanted import FailedItem, Wanted
from gateway.model.errors import LarderError
from gateway.model.frames import ItemStatus
from gateway.model.keys import Principal
from gateway.model.units import format_size
from gateway.operate.warm.warming import (
    Capacity,
    PrincipalSource,
    WarmupFailed,
    WarmupProgress,
    WarmupRefused,
    require_valid,
)
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.datasets import CachingMode
from gateway.store.datasets.content import UNKNOWN_LENGTH
from gateway.store.datasets.opened import FindRegistration, Registration

_PART = 512
_LOOK = 0.1
_QUIET = 2.0
"""Seconds without progress after which the remaining items of a part are requested one by one, to learn the reasons."""
_AT_ONCE = 8

Rights = Callable[[Principal, Registration, NDArray[np.uint32]], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class DatasetAccess:
    """Access to datasets: ``rights`` raises LarderError for items that a
    caller may not read."""

    find: FindRegistration
    rights: Rights
    planned: Planned
    batches: Batches


class WarmDataset:
    """Loads one dataset.

    Args:
        name: of the dataset, or its id.
        principal: the reader.
        datasets: finds datasets and loads their items.
        capacity: bytes that the caches of the fleet can hold.
    """

    def __init__(self, name: str, principal: PrincipalSource, datasets: DatasetAccess, capacity: Capacity) -> None:
        self._name = name
        self._principal = principal
        self._datasets = datasets
        self._capacity = capacity

    async def run(self, progress: WarmupProgress) -> None:
        """Load everything after ``progress.cursor``, keeping ``progress`` up to date.

        Raises:
            WarmupRefused: it cannot succeed.
            WarmupFailed: it cannot continue now.
        """
        registration = await self.check()
        content = registration.content
        progress.total, progress.total_bytes = content.items, content.size
        for start in range(int(progress.cursor or 0), content.items, _PART):
            part = np.arange(start, min(start + _PART, content.items), dtype=np.uint32)
            await self._load(registration, part, progress)
            progress.mark(str(start + len(part)))

    async def check(self) -> Registration:
        """Check whether the dataset can be warmed up, as of now.

        Raises:
            WarmupRefused: it cannot.
            WarmupFailed: that cannot be decided now.
        """
        principal = require_valid(self._principal)
        try:
            registration = await self._datasets.find(principal.tenant, self._name)
        except LarderError as failure:
            raise WarmupFailed(str(failure)) from None
        if registration is None:
            raise WarmupRefused(
                f"the access key's tenant {principal.tenant} has no dataset {self._name[:140]!r}; register it first"
            )
        size, limit = registration.content.size, self._capacity()
        if size > limit:
            raise WarmupRefused(
                f"the dataset has {format_size(size)}, and the caches of the fleet hold {format_size(limit)}: add nodes, or let "
                "jobs use what fits, which needs no warm-up"
            )
        mode = self._datasets.planned.of(registration).caching
        if mode not in (CachingMode.FULL, CachingMode.PART):
            raise WarmupRefused(
                f"the plan caches the dataset as {mode.value!r}, not whole; pin it (larder-gateway datasets pin), "
                "or leave it to the plan"
            )
        return registration

    async def _load(self, registration: Registration, part: NDArray[np.uint32], progress: WarmupProgress) -> None:
        principal = require_valid(self._principal)
        try:
            await self._datasets.rights(principal, registration, part)
        except LarderError as refusal:
            raise WarmupFailed(str(refusal)) from None
        ask = BatchAsk(
            registration,
            principal.identity,
            self._datasets.planned.of(registration).caching,
            BatchMode.PREFETCH,
            part,
            len(part),
        )
        before = (progress.done, progress.done_bytes)
        resident = await self._datasets.batches.known.lookup(ask)
        progress.there += int(np.count_nonzero(resident))
        if not bool(resident.all()):
            await self._datasets.batches.prefetch(replace(ask, indices=part[~resident]))
            resident = await self._settled(ask, progress, before)
        left = await self._ask_for(ask, part[~resident])
        resident = await self._datasets.batches.known.lookup(ask)
        progress.done = before[0] + int(np.count_nonzero(resident))
        progress.done_bytes = before[1] + _bytes_of(registration, part[resident])
        for index in part[~resident].tolist():
            progress.fail(f"item {index}", left.get(index, "the cache did not keep it"))

    async def _settled(self, ask: BatchAsk, progress: WarmupProgress, before: tuple[int, int]) -> NDArray[np.bool_]:
        """Wait until a part makes no more progress; returns, by position, whether the item is in the cache."""
        loop = asyncio.get_running_loop()
        resident: NDArray[np.bool_] = await self._datasets.batches.known.lookup(ask)
        quiet_since = loop.time()
        while not bool(resident.all()) and loop.time() - quiet_since < _QUIET:
            await asyncio.sleep(_LOOK)
            require_valid(self._principal)
            now = await self._datasets.batches.known.lookup(ask)
            if np.count_nonzero(now) > np.count_nonzero(resident):
                quiet_since = loop.time()
            resident = now
            progress.done = before[0] + int(np.count_nonzero(resident))
            progress.done_bytes = before[1] + _bytes_of(ask.registration, ask.indices[resident])
        return resident

    async def _ask_for(self, ask: BatchAsk, left: NDArray[np.uint32]) -> dict[int, str]:
        """Request the remaining items one by one; returns the reasons for those that cannot be loaded."""
        reasons: dict[int, str] = {}

        async def fetch(index: int) -> None:
            wanted = Wanted(ask.registration, index, ask.identity, ask.caching)
            outcome = await self._datasets.batches.fetches.fetch(wanted)
            if isinstance(outcome, FailedItem):
                reasons[index] = _why(outcome)

        await for_each(left.tolist(), fetch, _AT_ONCE)
        return reasons


def _why(failed: FailedItem) -> str:
    return failed.detail or ItemStatus(failed.status).name.lower()


def _bytes_of(registration: Registration, indices: NDArray[np.uint32]) -> int:
    lengths = registration.content.lengths[indices]
    return int(lengths[lengths != UNKNOWN_LENGTH].sum())
