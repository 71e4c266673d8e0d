"""Shared by the parts of the engine: the node's store, the origin client, the rules in force, and the clock."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gateway.engine.base.handover import Moves
from gateway.engine.base.homes import PeerNodes
from gateway.fleet.nodes.invalidations import HeardWrites
from gateway.model.reader import ReadingJob
from gateway.origin.client import OriginClient
from gateway.policies.reads.rules import Rules
from gateway.store.datasets.content import Content
from gateway.store.shared.leases import FillLeases
from gateway.store.store import Store


def _unplanned(_content: Content) -> float | None:
    return None


def _everything(_content: Content) -> bool:
    return True


class ScoredItems(Protocol):
    """Importance scores of items; see ``gateway.engine.space.item_scores.ItemScores``."""

    def need(self, content: Content, index: int) -> float | None:
        """The need of an item, if its dataset is kept by importance."""

    def drawn(self, content: Content, reader: ReadingJob | None, indices: NDArray[np.uint32]) -> None:
        """Record that a job reads items."""

    async def admits(self, content: Content, index: int) -> bool:
        """Whether an item that is not here may be stored."""


class FolderScope(NamedTuple):
    """A folder of a tenant whose listings are recorded, and the number under which the folders were read."""

    name: str
    number: int


class ListedFolders(Protocol):
    """Folders of datasets whose listings are recorded; see ``gateway.engine.objects.registered_folders.RegisteredFolders``."""

    def none(self) -> bool:
        """Whether there are surely no such folders, so that a write is in none."""

    def forget(self, path: str) -> Iterable[str]:
        """The scopes of folders with a written ``bucket/key``."""

    async def scope(self, tenant: str, prefix: str) -> FolderScope | None:
        """The scope of listings of ``bucket/prefix`` by a tenant."""


class _Unregistered:
    """No dataset is registered."""

    def none(self) -> bool:
        return True

    def forget(self, path: str) -> Iterable[str]:
        return ()

    async def scope(self, tenant: str, prefix: str) -> FolderScope | None:
        return None


class _Unscored:
    """No item is more important than another."""

    def need(self, content: Content, index: int) -> float | None:
        return None

    def drawn(self, content: Content, reader: ReadingJob | None, indices: NDArray[np.uint32]) -> None:
        pass

    async def admits(self, content: Content, index: int) -> bool:
        return True


@dataclass(slots=True)
class Services:
    """Shared by the engine's parts; ``rules`` is replaced when the configuration is reloaded, ``folders`` once, at the start.

    ``heard`` says which writes elsewhere in the fleet this worker knows of. ``fleet`` calls other nodes; ``None`` outside a
    fleet. ``moves`` takes objects over from their previous homes; ``None`` outside a fleet. ``keeps`` says whether the plan has
    space for a dataset, ``share`` gives its share of the cache, ``scores`` the importance of items. ``folders``: those of
    datasets whose listings are recorded.
    """

    store: Store
    origin: OriginClient
    rules: Rules
    capacity: int
    block_size: int
    leases: FillLeases = field(default_factory=FillLeases)
    now: Callable[[], float] = time.time
    heard: HeardWrites = field(default_factory=HeardWrites)
    fleet: PeerNodes | None = None
    moves: Moves | None = None
    keeps: Callable[[Content], bool] = _everything
    share: Callable[[Content], float | None] = _unplanned
    scores: ScoredItems = field(default_factory=_Unscored)
    folders: ListedFolders = field(default_factory=_Unregistered)

    def trusted_since(self) -> float:
        """The earliest time of confirmation with which an object is served without asking the origin.

        In seconds since the epoch; ``inf`` while writes may be missed. ``Hits.find`` repeats this check inline.
        """
        heard = self.heard
        return max(heard.since, self.store.generations.since) if time.monotonic() < heard.until else math.inf
