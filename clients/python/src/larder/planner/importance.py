"""One rank's view of training by importance: scores, the list of the epoch, the rank's share, and how much of the share was
trained.

All ranks draw the same list and take every ``world``-th entry of it, so shares are disjoint and their union is the list. That
needs equal scores on all ranks, so ranks exchange their new scores between two epochs (`contribution`, `absorb`). If they cannot,
each rank has a *part*: a fixed share of the items, from which it draws a list by its own scores alone.

The loader reads ahead, so requested entries are not yet trained. The place in the list is therefore taken from the updates: an
epoch is trained up to the last updated mini-batch, and a saved state continues after it.
"""

import base64
import zlib
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from larder.base.errors import StateError
from larder.planner.draw import Drawn, DrawRule, draw
from larder.planner.guard import AccuracyCurve, LossCurve
from larder.planner.permutation import permutation
from larder.planner.scores import NEVER, ItemScores, rank_scores

VERSION = 1
_MOST_RANKS = 1 << 20
"""The most ranks of a training run: a list has fewer than this many extra entries, which give all ranks equally many."""
_LOOKED_AT = 8
"""The most occurrences of a mini-batch's first item at which the mini-batch is searched in the list."""


class RankPart(NamedTuple):
    """The fixed share of the items that a rank draws from if ranks cannot exchange scores."""

    rank: int
    world: int


class Contribution(NamedTuple):
    """The scores that one rank learned in an epoch, for the other ranks; ``taken``: entries of the list that it knows are
    trained; ``accuracy``: reported to it since the last exchange, ``None`` if none was; ``cached``: by item, whether a cache
    holds it, ``None`` if it does not know."""

    fingerprint: str
    taken: int
    ids: NDArray[np.uint32]
    values: NDArray[np.float16]
    loss: float
    weight: float
    batch: int
    accuracy: float | None = None
    cached: NDArray[np.bool_] | None = None


class ImportancePlan:
    """Which items a rank trains on, epoch by epoch. Pure: the caller brings ids and losses, and exchanges contributions.

    Args:
        items: number of items, 1 to 2**32 - 1.
        rule: how lists are drawn.
        seed: of the lists.
        guard: whether the share of unseen items follows loss and accuracy (`larder.planner.guard`), and items of which scores say
            that their labels are wrong count as the mean (`larder.planner.scores`).
    """

    def __init__(self, items: int, rule: DrawRule, *, seed: int = 0, guard: bool = True) -> None:
        self.items = items
        self.rule = rule
        self.seed = seed
        self.epoch = NEVER
        """The current epoch; ``NEVER`` before the first."""
        self.level = 0.0
        """Part of the share of unseen items that the current epoch uses."""
        self.drawn: Drawn | None = None
        self.counts = {"updates": 0, "updated": 0, "not_finite": 0}
        self._guard = guard
        self._part: RankPart | None = None
        self._scores = ItemScores(items)
        self._curve = LossCurve()
        self._accuracies = AccuracyCurve()
        self._batch = 0
        self._basis = np.zeros(0, np.uint16)
        self._cached: NDArray[np.bool_] | None = None  # when the epoch began
        self._own = np.zeros(0, np.uint32)  # the items of the part
        self._taken = 0  # entries of the list that all ranks had trained when the share was made
        self._steps = 0  # updates in the epoch
        self._ranks = 0  # among which the list was dealt; 0 by older releases
        self._share = np.zeros(0, np.uint32)
        self._at = 0
        self._world = 1

    @property
    def scores(self) -> NDArray[np.float16]:
        """The latest score of each item; NaN for those never scored."""
        return self._scores.values

    @property
    def believed(self) -> NDArray[np.float16]:
        """The scores by which items are drawn: with a guard, those of doubted items are the mean."""
        return self._scores.believed(self._batch) if self._guard else self._scores.values.copy()

    @property
    def trained(self) -> int:
        """Entries of this rank's share that were trained."""
        return self._at

    @property
    def silent(self) -> bool:
        """Whether the epoch before the current one had no update."""
        return self._curve.silent

    def begin(
        self,
        epoch: int,
        rank: int = 0,
        world: int = 1,
        *,
        apart: bool = False,
        cached: NDArray[np.bool_] | None = None,
    ) -> NDArray[np.uint32]:
        """End the current epoch, draw the list of another one, and return this rank's share of it.

        Args:
            epoch: its number.
            rank: this rank.
            world: number of ranks; every share has equally many entries, so up to ``world - 1`` items come once more.
            apart: whether ranks have a part each, because they cannot exchange scores.
            cached: by item, whether a cache holds it now, the same in all ranks; ``None``: not known.

        Raises:
            ValueError: there are fewer items than parts.
        """
        if apart and self.items < world:
            raise ValueError(f"{self.items} items are too few for {world} ranks that cannot exchange scores")
        if self.epoch != NEVER:
            self._curve.close()
        started = bool(self._curve.means) or self._curve.silent
        self.level = self._curve.level() if self._guard else float(started and not self._curve.silent)
        self._accuracies.close()
        if self._guard and self._accuracies.lost:
            self.level = 0.0
        self.epoch, self._taken, self._at, self._steps = epoch, 0, 0, 0
        self._part = RankPart(rank, world) if apart and world > 1 else None
        self._ranks = 1 if self._part else world
        self._cached = None if self._part else cached
        self._basis = self._scores.weights(epoch, self._batch if self._guard else 0)
        self._draw(world)
        return self.rest(rank, world)

    def rest(self, rank: int = 0, world: int = 1) -> NDArray[np.uint32]:
        """This rank's share of the rest of the current list, even if the world size has changed since its beginning.

        Raises:
            StateError: the list is of a part, and ``rank`` and ``world`` are not those of the part.
        """
        assert self.drawn is not None
        part = self._part
        self._taken = self._trained
        self._at, self._world = 0, world
        left = self.drawn.order[self._taken :]
        if part is not None:
            if part != (rank, world):
                raise StateError(
                    f"the list is of rank {part.rank} of {part.world} alone, not of rank {rank} of {world}"
                )
            self._share = self._own[left]
        else:
            padded = np.concatenate([left, np.resize(left, -len(left) % world)]) if len(left) else left
            self._share = padded[rank::world]
        return self._share

    def update(self, ids: ArrayLike, losses: ArrayLike) -> None:
        """Score a mini-batch by its losses. Losses that are not finite are counted, and their items keep their scores.

        Args:
            ids: of its items.
            losses: of its samples, in the same order.

        Raises:
            TypeError: ``ids`` are not whole numbers, or ``losses`` are not numbers.
            ValueError: ``ids`` and ``losses`` do not each have one number per sample.
            IndexError: there is no such item.
        """
        ids, losses = _checked(ids, losses, self.items)
        self.counts["updates"] += 1
        self._steps += 1
        self._at = _behind(self._share, self._at, ids)
        finite = np.isfinite(losses)
        if not finite.all():
            self.counts["not_finite"] += len(ids) - int(np.count_nonzero(finite))
            ids, losses = ids[finite], losses[finite]
        if not len(ids):
            return
        self.counts["updated"] += len(ids)
        self._batch = max(self._batch, len(ids))
        self._curve.add(losses, self._weights(ids))
        if len(ids) > 1:
            self._scores.set(ids, rank_scores(losses, self._batch), max(self.epoch, 0))

    def report_accuracy(self, accuracy: float) -> None:
        """See `AccuracyCurve.report`."""
        self._accuracies.report(accuracy)

    def weights(self, ids: ArrayLike) -> NDArray[np.float32]:
        """p/q of Eq. 1 for items of the current list (`Drawn.weights`); 1 before the first list.

        Raises:
            TypeError: ``ids`` are not whole numbers.
            ValueError: ``ids`` are not one number per sample.
            IndexError: there is no such item, or it is not in this rank's part.
        """
        numbers = _checked_ids(np.asarray(ids), self.items)
        if self.drawn is not None and self._part is not None:
            strange = self._own[self._place_in_part(numbers)] != numbers
            if strange.any():
                raise IndexError(
                    f"item {numbers[strange][0]} is not one of those that rank {self._part.rank} draws from"
                )
        return self._weights(numbers)

    def _weights(self, ids: NDArray[np.integer]) -> NDArray[np.float32]:
        if self.drawn is None:
            return np.ones(len(ids), np.float32)
        return self.drawn.weights(ids if self._part is None else self._place_in_part(ids))

    def _place_in_part(self, ids: NDArray[np.integer]) -> NDArray[np.intp]:
        return np.searchsorted(self._own, ids).clip(max=len(self._own) - 1)

    # --- between the ranks

    @property
    def _trained(self) -> int:
        """Entries of the list that all ranks have trained, as far as this rank knows."""
        return self._taken + self._at * (1 if self._part else self._world)

    def contribution(self, cached: NDArray[np.bool_] | None = None) -> Contribution:
        """The scores that this rank learned in the current epoch, and what it knows to be cached now."""
        facts = repr((self.seed, self.epoch, self.rule, self.level, self._steps, self._ranks)).encode()
        basis = self._basis.tobytes() + (b"" if self._cached is None else self._cached.tobytes())
        fingerprint = blake2b(facts + basis, digest_size=16).hexdigest()
        ids, values = self._scores.of_epoch(max(self.epoch, 0))
        curve, reported = self._curve, self._accuracies.reported
        learned = curve.loss, curve.weight, self._batch
        return Contribution(fingerprint, self._trained, ids, values, *learned, reported, cached)

    def follow(self, contributions: Sequence[Contribution]) -> None:
        """Count as trained every entry that any rank knows is trained: a rank that missed the last items of a mini-batch knows
        fewer.

        Raises:
            StateError: as `absorb`.
        """
        require_same(contributions)
        ahead = max(contribution.taken for contribution in contributions) - self._taken
        self._at = -(-ahead // (1 if self._part else self._world))

    def absorb(self, contributions: Sequence[Contribution]) -> None:
        """Adopt the scores of all ranks, this one included. If several ranks scored an item, the last rank's score counts; the
        first rank's accuracy does.

        Raises:
            StateError: the ranks are not in the same epoch of the same list, as after loading states of different steps.
        """
        require_same(contributions)
        for contribution in contributions:
            self._scores.set(contribution.ids, contribution.values, max(self.epoch, 0))
        self._curve.loss = sum(contribution.loss for contribution in contributions)
        self._curve.weight = sum(contribution.weight for contribution in contributions)
        self._batch = max(contribution.batch for contribution in contributions)
        reported = (contribution.accuracy for contribution in contributions if contribution.accuracy is not None)
        self._accuracies.reported = next(reported, None)

    # --- statistics

    def listed(self) -> NDArray[np.intp]:
        """By item, how often it comes in the current list."""
        assert self.drawn is not None
        if self._part is None:
            return self.drawn.counts()
        counts = np.zeros(self.items, np.intp)
        counts[self._own] = self.drawn.counts()
        return counts

    def stats(self) -> dict[str, Any]:
        """``epoch``; ``level``: used part of the share; ``unseen``: share of items that are not in the current list;
        ``known``: share of items with a score; ``doubted``: share of items whose labels may be wrong; ``oldest``: epochs since
        the oldest score; ``loss``: mean losses of the last epochs; ``accuracy``: the last one reported; and counts."""
        ages = self._scores.ages(max(self.epoch, 0))
        unseen = 0.0 if self.drawn is None else 1 - np.count_nonzero(self.drawn.counts()) / len(self.drawn.expected)
        return {
            "epoch": self.epoch,
            "level": self.level,
            "unseen": float(unseen),
            "known": len(ages) / self.items,
            "doubted": float(np.mean(self._scores.doubted(self._batch))),
            "oldest": int(ages.max(initial=0)),
            "loss": list(self._curve.means),
            "accuracy": self._accuracies.last,
            **self.counts,
        }

    # --- saved states

    def state_dict(self) -> dict[str, Any]:
        """The state to save, of JSON types: the rest of the current list, scores, and the loss curve.

        Scores are float16, compressed: about four MB for a million items.
        """
        curve = self._curve
        return {
            "version": VERSION,
            "items": self.items,
            "seed": self.seed,
            "unseen": self.rule.unseen,
            "repeats": self.rule.repeats,
            "epoch": self.epoch,
            "level": self.level,
            "taken": self._trained,
            "steps": self._steps,
            "length": 0 if self.drawn is None else len(self.drawn.order),
            "ranks": self._ranks,
            "part": None if self._part is None else list(self._part),
            "batch": self._batch,
            "curve": [curve.means, curve.loss, curve.weight],
            "accuracies": [self._accuracies.best, self._accuracies.last, self._accuracies.reported],
            "scores": _packed(self._scores.values),
            "scored": _packed(self._scores.epochs),
            "topped": _packed(self._scores.topped(self._batch)),
            "basis": _packed(self._basis),
            "cached": None if self._cached is None else _packed(np.packbits(self._cached)),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a saved state: `rest` returns the rest of its list.

        Raises:
            StateError: the state is damaged, of another version or of a dataset of another size.
        """
        if not isinstance(state, Mapping):
            raise StateError(f"expected a dictionary from state_dict(), not {type(state).__name__}")
        if state.get("version") != VERSION or state.get("items") != self.items:
            other = f"version {state.get('version')!r} and {state.get('items')!r} items"
            raise StateError(f"expected a state of version {VERSION} and {self.items} items, not of {other}")
        try:
            part, epoch = state["part"], int(state["epoch"])
            # States of older releases have no accuracies, no items that ranked at the top before, and shuffled lists.
            accuracies = state.get("accuracies", (None, None, None))
            best, last, reported = (None if value is None else float(value) for value in accuracies)
            loaded: dict[str, Any] = {
                "rule": DrawRule(state["unseen"], state["repeats"]),
                "seed": int(state["seed"]),
                "epoch": epoch,
                "level": float(state["level"]),
                "_batch": int(state["batch"]),
                "_taken": int(state["taken"]),
                "_steps": int(state.get("steps", 0)),
                "_ranks": int(state.get("ranks", 0)),
                "_part": None if part is None else RankPart(*map(int, part)),
                "_curve": LossCurve(*state["curve"]),
                "_accuracies": AccuracyCurve(best, last, reported),
                "_basis": _unpacked(state["basis"], np.uint16, self.items if epoch != NEVER else 0),
            }
            scores = (
                _unpacked(state["scores"], np.float16, self.items),
                _unpacked(state["scored"], np.int32, self.items),
            )
            bits = -(-self.items // 8)
            topped = _unpacked(state["topped"], np.uint8, bits) if "topped" in state else np.zeros(bits, np.uint8)
            if (cached := state.get("cached")) is not None:
                cached = np.unpackbits(_unpacked(cached, np.uint8, bits), count=self.items).astype(np.bool_)
            length = int(state["length"])
            _require_possible(self.items, length, loaded)
        except (KeyError, TypeError, ValueError, zlib.error) as error:
            raise StateError(f"the saved state is damaged: {type(error).__name__}: {error}") from error
        self.__dict__.update(loaded)
        self._scores.values, self._scores.epochs = scores
        self._scores.restore_topped(topped)
        self._cached = cached
        self._at, self._world, self._share, self.drawn = 0, 1, np.zeros(0, np.uint32), None
        if epoch != NEVER:
            self._draw(1, length)

    def _draw(self, world: int, length: int = 0) -> None:
        weights = self._basis
        purpose: tuple[str | int, ...] = ("importance", self.seed, self.epoch)
        if self._part is not None:
            members = permutation(self.items, "importance", self.seed, "parts")[self._part.rank :: self._part.world]
            self._own = np.sort(members)
            weights, purpose = weights[self._own], (*purpose, self._part.rank)
        length = length or -(-self.items // world) * (1 if self._part else world)
        self.drawn = draw(weights, length, self.rule, self.level, *purpose, ranks=self._ranks, cached=self._cached)


def _require_possible(items: int, length: int, loaded: Mapping[str, Any]) -> None:
    """Raise ValueError for a state with impossible numbers, which would give an epoch that is silently short."""
    part = loaded["_part"]
    if part is not None and not 0 <= part.rank < part.world:
        raise ValueError(f"there is no rank {part.rank} of {part.world}")
    least = 0 if loaded["epoch"] == NEVER else items if part is None else -(-items // part.world)
    if loaded["epoch"] < NEVER:
        raise ValueError(f"there is no epoch {loaded['epoch']}")
    ranks = loaded["_ranks"]
    if not 0 <= ranks <= _MOST_RANKS or (ranks and length % ranks):
        raise ValueError(f"a list of {length} entries was not dealt to {ranks} ranks")
    if not least <= length < 2 * items + _MOST_RANKS:
        raise ValueError(f"a list of {length} entries is none of {items} items")
    if not 0 <= loaded["_taken"] <= length + _MOST_RANKS or loaded["_steps"] < 0:
        raise ValueError(f"{loaded['_taken']} entries of {length} cannot be trained")
    if not 0 <= loaded["level"] <= 1 or loaded["_batch"] < 0:
        raise ValueError(f"level {loaded['level']} and batch {loaded['_batch']} are out of range")


def require_same(contributions: Sequence[Contribution]) -> None:
    """Compare the ranks' lists.

    Raises:
        StateError: they differ; the message names the first rank that differs from rank 0.
    """
    for rank, contribution in enumerate(contributions):
        if contribution.fingerprint != contributions[0].fingerprint:
            raise StateError(
                f"rank {rank} has another list than rank 0, so some items would come twice and others not at all: give all ranks "
                "the same seed and share, and load states that were saved at the same step"
            )


def _checked(ids: ArrayLike, losses: ArrayLike, items: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    if ids is None:
        raise TypeError("losses without ids: make the dataset with ids=True, and batches are (ids, samples)")
    numbers, values = np.asarray(ids), np.asarray(losses)
    if values.dtype.kind not in "fiu":
        raise TypeError(f"losses must be numbers, not {values.dtype}")
    if numbers.ndim != 1 or values.ndim != 1 or len(numbers) != len(values):
        raise ValueError(
            f"expected one loss for each id, got losses of shape {values.shape} for ids of shape {numbers.shape}; "
            "larder.torch.per_sample makes a loss module return one loss per sample"
        )
    return _checked_ids(numbers, items), values.astype(np.float64)


def _checked_ids(numbers: NDArray[Any], items: int) -> NDArray[np.int64]:
    if numbers.ndim != 1:
        raise ValueError(f"expected one id for each sample, got ids of shape {numbers.shape}")
    if numbers.dtype.kind not in "iu" and len(numbers):
        raise TypeError(f"ids must be whole numbers, not {numbers.dtype}")
    if len(numbers) and not (numbers.min() >= 0 and numbers.max() < items):
        wrong = numbers[(numbers < 0) | (numbers >= items)][0]
        raise IndexError(f"id out of range: item {wrong} of a dataset of {items} items")
    return numbers.astype(np.int64)


def _behind(share: NDArray[np.uint32], at: int, ids: NDArray[np.integer]) -> int:
    """The place after a mini-batch in a share with ``at`` trained entries; ``at`` if the mini-batch is not found there.

    Unreadable items are missing in a mini-batch, and a training loop may skip the update of a mini-batch.
    """
    if np.array_equal(share[at : at + len(ids)], ids):
        return at + len(ids)
    if not len(ids):
        return at
    wanted = ids.tolist()
    for start in (at + np.flatnonzero(share[at:] == ids[0]))[:_LOOKED_AT].tolist():
        matched = 0
        for place, entry in enumerate(share[start : start + 2 * len(wanted)].tolist(), start + 1):
            matched += entry == wanted[matched]
            if matched == len(wanted):
                return place
    return at


def _packed(values: NDArray[Any]) -> str:
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return base64.b64encode(zlib.compress(little.tobytes(), 6)).decode("ascii")


def _unpacked(text: str, kind: DTypeLike, count: int) -> NDArray[Any]:
    """An array of ``count`` values; decompresses at most as many bytes as they need. Raises ValueError and zlib.error."""
    size = count * np.dtype(kind).itemsize
    data = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), size + 1)
    if len(data) != size:
        raise ValueError(f"an array has not the {size} bytes of {count} values")
    return np.frombuffer(data, np.dtype(kind).newbyteorder("<")).astype(kind)
