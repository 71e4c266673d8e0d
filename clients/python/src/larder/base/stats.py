"""Statistics of loading: sources of items, waiting times, and the randomness of the order.

Cost and memory do not depend on the size of the dataset. Only the order statistics store items, and only a fixed sample: items
whose multiplicative hash (Knuth, The Art of Computer Programming, volume 3, section 6.4) is below a bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

SAMPLE = 4096
"""Expected number of sampled items."""
_KNUTH = np.uint64(2654435761)
_RANGE = 1 << 32
"""The number of possible hashes."""
BY_NODE = "node/"
"""Prefix of the names of counts by node."""
BY_WAY = "way/"
"""Prefix of the names of counts by way."""
BY_DATASET = "dataset/"
"""Prefix of the names of counts by dataset of a mixture: ``dataset/items/NAME``."""


class Counters(Protocol):
    """Receives counts: ``requests``, ``retries``, ``truncated``, ``crc_errors``, ``fallback_reads``, ``split``, ``redirected``,
    ``node/`` followed by a node's id for the items that it sent, and ``way/`` followed by a way (`Stats.by_way`)."""

    def add(self, name: str, value: int, /) -> object:
        """Add to a count."""


class NoCounters:
    """Counts nothing."""

    def add(self, name: str, value: int, /) -> None:
        """Nothing."""


@dataclass(slots=True)
class _Part:
    """One observer's view of an epoch: the sampled items' places in the order of delivery."""

    seen: int = 0
    hits: int = 0
    hit_places: int = 0
    items: list[NDArray[np.uint32]] = field(default_factory=list)
    places: list[NDArray[np.int64]] = field(default_factory=list)

    def fractions(self) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
        """Sampled items, and the fraction of the epoch that preceded each."""
        if not self.items:
            return np.empty(0, np.uint32), np.empty(0, np.float64)
        return np.concatenate(self.items), (np.concatenate(self.places) + 0.5) / self.seen


class OrderQuality:
    """Randomness of the order of delivery, in which cached items come early.

    Args:
        items: number of items of the dataset; 0 while unknown, when nothing is sampled.
    """

    def __init__(self, items: int = 0) -> None:
        self.items = items
        self._epochs: dict[int, list[_Part]] = {}

    def observe(self, epoch: int, indices: NDArray[np.uint32], hits: NDArray[np.bool_]) -> None:
        """Add the next delivered items of an epoch; ``hits`` marks those from the cache."""
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
        """Add another observer's view of the same epochs."""
        self.items = self.items or other.items
        for epoch, parts in other._epochs.items():
            self._epochs.setdefault(epoch, []).extend(parts)
        last = max(self._epochs, default=0)
        self._epochs = {epoch: parts for epoch, parts in self._epochs.items() if epoch >= last - 1}

    @property
    def correlation(self) -> float | None:
        """Spearman's rank correlation of the last two epochs' orders: 0 if independent, 1 if equal; ``None`` until two epochs
        have at least three sampled items in common."""
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
        """Mean position of cache hits in the last epoch: 0.5 if spread evenly, near 0 if they came first; ``None`` without
        hits."""
        parts = self._epochs.get(max(self._epochs, default=0), [])
        hits = sum(part.hits for part in parts)
        if not hits:
            return None
        return sum((part.hit_places + 0.5 * part.hits) / part.seen for part in parts if part.seen) / hits


def _joined(parts: list[_Part]) -> tuple[NDArray[np.uint32], NDArray[np.float64]]:
    fractions = [part.fractions() for part in parts]
    return np.concatenate([items for items, _ in fractions]), np.concatenate([places for _, places in fractions])


@dataclass(frozen=True, slots=True)
class EpochReads:
    """An epoch that a loader delivered from its beginning to its end.

    Args:
        epoch: its number.
        items: delivered items.
        origin_reads: of these, the items that were read from the origin.
        least: share of the dataset that was not cached when the epoch began: all jobs on the dataset together can read no less in
            an epoch. ``None`` if no gateway stated it.
    """

    epoch: int
    items: int
    origin_reads: int
    least: float | None = None

    @property
    def per_item(self) -> float:
        """Reads of the origin per item."""
        return self.origin_reads / self.items if self.items else 0.0

    def __str__(self) -> str:
        bound = (
            ""
            if self.least is None
            else f"; {self.least:.2f} is the least possible, for all jobs on the dataset together"
        )
        return f"Epoch {self.epoch} read {self.per_item:.2f} of its items from the origin{bound}."


class EpochTally:
    """Counts epochs. An epoch that was broken off, or resumed in the middle, does not count.

    Attributes:
        last: the last whole epoch; ``None`` before its end.
    """

    def __init__(self) -> None:
        self.last: EpochReads | None = None
        self._now: EpochReads | None = None

    def begin(self, epoch: int, least: float | None) -> None:
        """An epoch begins; the rest of an earlier one does not count."""
        self._now = EpochReads(epoch, 0, 0, least)

    def add(self, epoch: int, items: int, origin_reads: int) -> None:
        """Add delivered items to the epoch, if its beginning was seen."""
        now = self._now
        if now is not None and now.epoch == epoch:
            self._now = replace(now, items=now.items + items, origin_reads=now.origin_reads + origin_reads)

    def end(self, epoch: int) -> None:
        """The epoch is over."""
        if self._now is not None and self._now.epoch == epoch:
            self.last, self._now = self._now, None

    def merge(self, other: EpochTally) -> None:
        """Add another observer's part of the same epoch, or adopt its epoch if that is later."""
        mine, theirs = self.last, other.last
        if mine is None or theirs is None or mine.epoch != theirs.epoch:
            self.last = max((mine, theirs), key=lambda reads: -1 if reads is None else reads.epoch)
            return
        items, reads = mine.items + theirs.items, mine.origin_reads + theirs.origin_reads
        self.last = replace(mine, items=items, origin_reads=reads)


@dataclass(slots=True)
class Stats:
    """Counts of one loader, or merged from several. Times are seconds, summed over the workers.

    Args:
        batches: delivered batches.
        items: delivered items.
        bytes: bytes of these items.
        hits: items from the cache.
        joined: items that another reader was fetching already.
        origin_reads: items that the gateway read from the origin for this loader, ahead of time or on request.
        fallback_reads: items read from the origin while the gateway was unavailable.
        substitutions: items delivered ahead of their turn, in place of another.
        skipped: unavailable items that were left out.
        untransformable: items left out because their transform raised.
        padded: items repeated to fill the last batch.
        retries: repeated requests.
        truncated: answers that broke off.
        requests: requests for batches.
        crc_errors: items that arrived damaged, and were requested again.
        prefetch_errors: failed announcements; they cost time, never items.
        split: batches requested from their home nodes.
        redirected: parts of these that moved to another node, because their home did not answer.
        fetching: time from requesting a batch to receiving it.
        waited: time that the consumer waited for batches; for a watched loader, the training loop in the main process.
        computed: time of the consumer between batches.
        transforming: time in the transform.
        by_node: items by the id of the sending node, for split batches.
        by_way: items of a gateway with a unix socket, by the way that they came: ``files`` that it opened; ``socket/`` and the
            reason why they came as bytes; ``tcp/`` and the reason why the socket was not used.
        by_dataset: of a `larder.Mix`: the counts of items of each dataset, by its name as given.
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
    order: OrderQuality = field(default_factory=OrderQuality, repr=False)
    by_node: dict[str, int] = field(default_factory=dict)
    by_way: dict[str, int] = field(default_factory=dict)
    by_dataset: dict[str, Stats] = field(default_factory=dict)
    epochs: EpochTally = field(default_factory=EpochTally, repr=False)

    def add(self, name: str, value: float = 1) -> None:
        """Add to a count; ``node/`` followed by an id counts in ``by_node``, ``way/`` in ``by_way``, and ``dataset/`` followed by
        a count and a name in ``by_dataset``.

        Raises:
            ValueError: unknown count.
        """
        for prefix, counts in ((BY_NODE, self.by_node), (BY_WAY, self.by_way)):
            if name.startswith(prefix):
                of = name.removeprefix(prefix)
                counts[of] = counts.get(of, 0) + int(value)
                return
        if name.startswith(BY_DATASET):
            count, _, dataset = name.removeprefix(BY_DATASET).partition("/")
            self.by_dataset.setdefault(dataset, Stats()).add(count, value)
            return
        if name not in _COUNTS:
            raise ValueError(f"no count is called {name!r}; there are {', '.join(_COUNTS)}")
        setattr(self, name, getattr(self, name) + value)

    def merge(self, other: Stats) -> None:
        """Add the counts of another instance."""
        for name, count in other.counts().items():
            self.add(name, count)
        self.order.merge(other.order)
        self.epochs.merge(other.epochs)
        for dataset, theirs in other.by_dataset.items():
            self.by_dataset.setdefault(dataset, Stats()).epochs.merge(theirs.epochs)

    def begin_epoch(self, epoch: int, least: Mapping[str, float | None]) -> None:
        """A whole epoch begins.

        Args:
            epoch: its number.
            least: share of its items that must be read from the origin, ``None`` if unknown: the share of all items under the
                empty name, and those of each dataset of a mixture.
        """
        self.epochs.begin(epoch, least.get(""))
        for dataset, share in least.items():
            if dataset:
                self.by_dataset.setdefault(dataset, Stats()).epochs.begin(epoch, share)

    def add_to_epoch(self, epoch: int, counts: Mapping[str, float]) -> None:
        """Count delivered items, by the names that ``add`` takes, for their epoch."""
        self.epochs.add(epoch, int(counts.get("items", 0)), int(counts.get("origin_reads", 0)))
        for dataset, of_dataset in self.by_dataset.items():
            items, reads = (int(counts.get(f"{BY_DATASET}{name}/{dataset}", 0)) for name in ("items", "origin_reads"))
            of_dataset.epochs.add(epoch, items, reads)

    def end_epoch(self, epoch: int) -> None:
        """The epoch is over."""
        for of_dataset in (self, *self.by_dataset.values()):
            of_dataset.epochs.end(epoch)

    def counts(self) -> dict[str, float]:
        """Counts by name, in the form of ``add``, without derived values and the order."""
        nodes = {f"{BY_NODE}{node}": items for node, items in self.by_node.items()}
        ways = {f"{BY_WAY}{way}": items for way, items in self.by_way.items()}
        datasets = {
            f"{BY_DATASET}{name}/{dataset}": count
            for dataset, of_dataset in self.by_dataset.items()
            for name, count in of_dataset.counts().items()
            if count
        }
        return {**{name: getattr(self, name) for name in _COUNTS}, **nodes, **ways, **datasets}

    @property
    def hit_ratio(self) -> float | None:
        """Fraction of the items that came from the cache; ``None`` before the first item."""
        return self.hits / self.items if self.items else None

    @property
    def rank_correlation(self) -> float | None:
        """See `OrderQuality.correlation`."""
        return self.order.correlation

    @property
    def hit_position(self) -> float | None:
        """See `OrderQuality.hit_position`."""
        return self.order.hit_position

    @property
    def last_epoch(self) -> EpochReads | None:
        """The last whole epoch's reads from the origin; ``None`` before its end."""
        return self.epochs.last

    def as_dict(self) -> dict[str, Any]:
        """Everything by name, with JSON types."""
        last = self.epochs.last
        return {
            **{name: getattr(self, name) for name in _COUNTS},
            "by_node": dict(self.by_node),
            "by_way": dict(self.by_way),
            "hit_ratio": self.hit_ratio,
            "rank_correlation": self.rank_correlation,
            "hit_position": self.hit_position,
            "last_epoch": None if last is None else {**asdict(last), "per_item": last.per_item},
            "by_dataset": {dataset: counted.as_dict() for dataset, counted in self.by_dataset.items()},
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
        if self.epochs.last is not None:
            said.append(str(self.epochs.last))
        return " ".join(said)


_COUNTS = tuple(count.name for count in fields(Stats) if count.type in ("int", "float"))
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
