"""What loading was like: where items came from, what waiting cost, and how random the order stayed.

Counting costs the same for any size of dataset. Only the order needs to remember items, and it remembers a fixed sample of them:
those whose number, multiplied by a constant (Knuth, The Art of Computer Programming, volume 3, section 6.4), falls below a bound.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

SAMPLE = 4096
_KNUTH = np.uint64(2654435761)
_RANGE = 1 << 32
BY_NODE = "node/"
"""What the names of counts by node begin with."""


@dataclass(slots=True)
class _Part:
    """What one observer saw of one epoch: the places of the sampled items in the order of delivery."""

    seen: int = 0
    hits: int = 0
    hit_places: int = 0
    items: list[NDArray[np.uint32]] = field(default_factory=list)
    places: list[NDArray[np.int64]] = field(default_factory=list)

    def fractions(self) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        """Sampled items, and for each how much of the epoch had been seen by then."""
        if not self.items:
            return np.empty(0, np.uint32), np.empty(0, np.float64)
        return np.concatenate(self.items), (np.concatenate(self.places) + 0.5) / self.seen


class OrderQuality:
    """How random the order of delivery stays, although items in the cache may come earlier than their turn.

    Args:
        items: number of items of the dataset; 0 while it is not known, then nothing is sampled.
    """

    def __init__(self, items: int = 0) -> None:
        self.items = items
        self._epochs: dict[int, list[_Part]] = {}

    def observe(self, epoch: int, indices: NDArray[np.uint32], hits: NDArray[np.bool_]) -> None:
        """These items of the epoch were delivered next; ``hits`` says which of them came from the cache."""
        if epoch not in self._epochs:
            self._epochs = {known: parts for known, parts in self._epochs.items() if known == epoch - 1}
        parts = self._epochs.setdefault(epoch, [_Part()])
        part = parts[0]
        places = np.arange(part.seen, part.seen + len(indices), dtype=np.int64)
        part.seen += len(indices)
        part.hits += int(np.count_nonzero(hits))
        part.hit_places += int(places[hits].sum())
        if not self.items:
            return
        bound = np.uint64(min(_RANGE, _RANGE * SAMPLE // self.items))
        sampled = (indices.astype(np.uint64) * _KNUTH) % np.uint64(_RANGE) < bound
        if sampled.any():
            part.items.append(indices[sampled])
            part.places.append(places[sampled])

    def merge(self, other: OrderQuality) -> None:
        """Add what another observer saw of the same epochs."""
        self.items = self.items or other.items
        for epoch, parts in other._epochs.items():
            self._epochs.setdefault(epoch, []).extend(parts)
        last = max(self._epochs, default=0)
        self._epochs = {epoch: parts for epoch, parts in self._epochs.items() if epoch >= last - 1}

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of the last two epochs' orders: 0 if they have nothing in common, 1 if they are the
        same; ``None`` before there are two with at least three sampled items in both."""
        last = max(self._epochs, default=0)
        if last not in self._epochs or last - 1 not in self._epochs:
            return None
        before, after = (_joined(self._epochs[epoch]) for epoch in (last - 1, last))
        _, left, right = np.intersect1d(before[0], after[0], return_indices=True)
        if len(left) < 3:
            return None
        ranks = [np.argsort(np.argsort(values)).astype(np.float64) for values in (before[1][left], after[1][right])]
        return float(np.asarray(np.corrcoef(ranks))[0, 1])

    @property
    def hit_position(self) -> float | None:
        """Where in the last epoch the items from the cache came on average: 0.5 if they were spread evenly, towards 0 if they
        came first; ``None`` if there were none."""
        parts = self._epochs.get(max(self._epochs, default=0), [])
        hits = sum(part.hits for part in parts)
        if not hits:
            return None
        return sum((part.hit_places + 0.5 * part.hits) / part.seen for part in parts if part.seen) / hits


def _joined(parts: list[_Part]) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    found = [part.fractions() for part in parts]
    return np.concatenate([items for items, _ in found]), np.concatenate([places for _, places in found])


@dataclass(slots=True)
class Stats:
    """Counts of one loader, or merged from several. Times are seconds; in workers they add up over the workers.

    Args:
        batches: handed out.
        items: handed out in them.
        bytes: of these items.
        hits: items that were in the cache.
        joined: items that another reader was fetching already.
        origin_reads: items that were read at the origin for this loader, those that it had read ahead included.
        fallback_reads: items read past the gateway, because it could not be reached.
        substitutions: items that came in place of one whose turn it was.
        skipped: items left out because they could not be had.
        untransformable: items left out because the transform failed.
        padded: items repeated to fill the last batch.
        retries: requests that were repeated.
        truncated: answers that broke off.
        requests: for batches.
        crc_errors: items that arrived damaged, and were asked for again.
        prefetch_errors: announcements of the next chunk that failed; they cost time, never items.
        split: batches that were asked of several nodes, or of the one that is home of all of it.
        redirected: parts of them that went to another node, because theirs did not answer.
        fetching: between asking for a batch and having it.
        waited: what the consumer waited for batches. Of a watched loader: the training loop, in the main process.
        computed: what the consumer did between batches.
        transforming: spent in the transform.
        by_node: items by the id of the node that sent them, of batches that were split.
    """

    batches: int = 0
    items: int = 0
    bytes: int = 0
    hits: int = 0
    joined: int = 0
    origin_reads: int = 0
    fallback_reads: int = 0
    substitutions: int = 0
    skipped: int = 0
    untransformable: int = 0
    padded: int = 0
    retries: int = 0
    truncated: int = 0
    requests: int = 0
    crc_errors: int = 0
    prefetch_errors: int = 0
    split: int = 0
    redirected: int = 0
    fetching: float = 0.0
    waited: float = 0.0
    computed: float = 0.0
    transforming: float = 0.0
    order: OrderQuality = field(default_factory=OrderQuality)
    by_node: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, value: float = 1) -> None:
        """Add to one of the counts; ``node/`` and an id is that node's in ``by_node``.

        Raises:
            ValueError: there is no such count.
        """
        if name.startswith(BY_NODE):
            node = name.removeprefix(BY_NODE)
            self.by_node[node] = self.by_node.get(node, 0) + int(value)
            return
        if name not in _COUNTS:
            raise ValueError(f"no count is called {name!r}; there are {', '.join(_COUNTS)}")
        setattr(self, name, getattr(self, name) + value)

    def merge(self, other: Stats) -> None:
        """Add all that another one counted."""
        for name, count in other.counts().items():
            self.add(name, count)
        self.order.merge(other.order)

    def counts(self) -> dict[str, float]:
        """Every count by name, those of nodes as ``add`` takes them; what is derived from them, and the order, left out."""
        nodes = {f"{BY_NODE}{node}": items for node, items in self.by_node.items()}
        return {**{name: getattr(self, name) for name in _COUNTS}, **nodes}

    @property
    def hit_ratio(self) -> float | None:
        """Share of the items that came from the cache; ``None`` before the first one."""
        return self.hits / self.items if self.items else None

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, with JSON types."""
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "by_node": dict(self.by_node),
            "hit_ratio": self.hit_ratio,
            "rank_correlation": self.order.correlation,
            "hit_position": self.order.hit_position,
        }

    def __str__(self) -> str:
        if not self.items:
            return "No item was delivered yet."
        said = [
            f"{self.items:,} items ({self.bytes / 1e6:,.1f} MB) in {self.batches:,} batches: {self.hits / self.items:.1%} from "
            f"the cache, {self.joined:,} joined, {self.origin_reads:,} origin reads, {self.substitutions:,} substitutions.",
            f"Waited {self.waited:.2f} s, computed {self.computed:.2f} s, fetched {self.fetching:.2f} s, "
            f"transformed {self.transforming:.2f} s.",
        ]
        troubles = [f"{value:,} {words}" for name, words in _TROUBLES.items() if (value := getattr(self, name))]
        if troubles:
            said.append(f"There were {', '.join(troubles)}.")
        if self.order.correlation is not None:
            said.append(f"Rank correlation with the epoch before: {self.order.correlation:+.3f}.")
        if self.order.hit_position is not None:
            said.append(f"Mean place of cached items: {self.order.hit_position:.2f} (0.5 is even).")
        return " ".join(said)


_COUNTS = tuple(each.name for each in fields(Stats) if each.name not in ("order", "by_node"))
_TROUBLES = {
    "fallback_reads": "reads past the gateway",
    "retries": "retries",
    "truncated": "truncated answers",
    "crc_errors": "damaged items",
    "prefetch_errors": "failed prefetches",
    "redirected": "parts of batches that another node was asked for",
    "skipped": "skipped items",
    "untransformable": "items whose transform failed",
    "padded": "repeated items",
}
