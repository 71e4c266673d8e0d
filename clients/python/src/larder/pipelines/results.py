"""Reads a split through a mark: stored results are read, the rest is computed and stored in bulk.

Two jobs that begin together compute each element once. A split's missing elements are claimed when the split is computed, not
when it is read ahead: a worker holds claims for one split only. It computes and stores its claimed elements before it waits for
elements of another job. A worker that waits therefore holds no claim, and no two workers wait for each other.

Nothing here can make an element fail. A store that does not answer, refuses or is full costs a computation. A stored element that
cannot be decoded is computed again and replaced. A worker replaces each element at most once: otherwise two versions of Larder
that cannot read each other's elements would take turns forever.

Results have numbers: the index of the item, plus the number of items times the version, at a mark that has several.

A killed trainer leaves claims, which others respect until they expire. Its successor need not wait for them: the owner is in the
saved state, or follows from the name of the job. All ranks of a job are one owner, as their shares are disjoint.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from time import perf_counter

from larder.base.errors import ElementDamaged
from larder.pipelines.elements import Encoded
from larder.pipelines.stages import ElementFailure, StageCounts
from larder.reading.results import Lookup, ResultStore, Stored

PUT_BYTES = 4 << 20
"""Bytes of elements that are stored before the end of a split."""
FIRST_CLAIM = 30.0
"""Seconds of a claim while the cost of an element is unknown."""
_SHORTEST_CLAIM, _LONGEST_CLAIM = 10.0, 600.0
"""Seconds of the shortest and the longest claim; gateways grant no longer ones."""
_MARGIN = 4.0
"""Duration of a claim, as a multiple of the time that its elements should take, by those so far."""
WAIT = 5.0
"""Seconds of one request that waits for other jobs' elements."""

Outcome = Encoded | ElementFailure
Compute = Callable[[int], Outcome]
"""An element at the mark, by the number of its result."""
Finish = Callable[[int, "bytearray | memoryview", float], Outcome]
"""Takes an element of the mark through the later stages: number, element, seconds spent on it. Raises ElementDamaged."""


def claim_owner(job: str) -> str:
    """The owner of the claims of a run that does not resume from a state.

    Args:
        job: name of the training run; empty without one.
    """
    return sha256(f"job {job}".encode()).hexdigest()[:32] if job else uuid.uuid4().hex


@dataclass
class _Puts:
    """The results of a split to be stored."""

    elements: dict[int, list[bytes]] = field(default_factory=dict)
    replacing: dict[int, list[bytes]] = field(default_factory=dict)
    given_up: list[int] = field(default_factory=list)
    size: int = 0


class ReadThrough:
    """Computes splits through one mark.

    Args:
        store: of the mark's results.
        what: the mark, for messages.
    """

    def __init__(self, store: ResultStore, what: str) -> None:
        self._store = store
        self._what = what
        self._seconds = 0.0
        self._computed = 0
        self._replaced: set[int] = set()
        self.counts = StageCounts()
        """The counts of the mark's results since the counts were last taken."""
        self.notices: set[str] = set()
        """Notices for the user, without repetitions."""

    def close(self) -> None:
        """Close idle connections; it stays usable."""
        self._store.close()

    def look(self, indices: Sequence[int]) -> Lookup:
        """The stored results of a split; for the thread that reads ahead."""
        return self._store.get(indices)

    def elements(
        self, indices: Sequence[int], lookup: Lookup, compute: Compute, finish: Finish, *, hurried: bool = False
    ) -> Iterator[Outcome]:
        """The elements of a split, in order.

        Args:
            indices: of its items.
            lookup: from ``look``.
            compute: computes an element up to the mark.
            finish: takes it through the later stages.
            hurried: store every element at once and wait for none, because a worker has died in this split.
        """
        known, waiting = self._claimed(indices, lookup, hurried=hurried)
        ready: dict[int, bytes | ElementFailure] = {}
        puts = _Puts()
        if waiting:
            first = [index for index in indices if index not in known and index not in waiting]
            self._compute_all(first, compute, ready, puts)
            self._await(waiting, known, compute, ready, puts)
        for index in indices:
            stored = known.pop(index, None)
            outcome = None if stored is None else self._finished(index, stored, finish)
            if outcome is not None:
                yield outcome
                continue
            began = perf_counter()
            value = ready.pop(index, None)
            if value is None:
                value = self._computed_one(index, compute, puts, damaged=stored is not None)
            if isinstance(value, ElementFailure):
                yield value
            else:
                yield finish(index, bytearray(value), perf_counter() - began)
            self._put(puts, all_of_them=hurried)
        self._put(puts, all_of_them=True)

    def _claimed(
        self, indices: Sequence[int], lookup: Lookup, *, hurried: bool
    ) -> tuple[dict[int, memoryview], set[int]]:
        """Claim the missing elements; returns those now stored, and those that another job computes."""
        known = dict(lookup.elements)
        missing = [index for index in indices if index not in known]
        self.counts.damaged += lookup.damaged
        if not missing or hurried:
            return known, set()
        claimed = self._store.get(missing, claim=self._claim(len(missing)))
        self.counts.damaged += claimed.damaged
        known.update(claimed.elements)
        self._notify()
        return known, set(claimed.busy)

    def _await(
        self,
        waiting: set[int],
        known: dict[int, memoryview],
        compute: Compute,
        ready: dict[int, bytes | ElementFailure],
        puts: _Puts,
    ) -> None:
        """Get the elements that other jobs compute, and compute those that they gave up."""
        while waiting:
            got = self._store.get(sorted(waiting), claim=self._claim(len(waiting)), wait=WAIT)
            self.counts.damaged += got.damaged
            known.update(got.elements)
            # If the store does not answer, their state is unknown.
            mine = [index for index in sorted(waiting) if index not in got.elements and index not in got.busy]
            self._compute_all(mine, compute, ready, puts)
            waiting = got.busy

    def _compute_all(
        self, indices: Sequence[int], compute: Compute, ready: dict[int, bytes | ElementFailure], puts: _Puts
    ) -> None:
        for index in indices:
            ready[index] = self._computed_one(index, compute, puts)
            self._put(puts)
        self._put(puts, all_of_them=True)

    def _computed_one(
        self, index: int, compute: Compute, puts: _Puts, *, damaged: bool = False
    ) -> bytes | ElementFailure:
        began = perf_counter()
        outcome = compute(index)
        self._seconds += perf_counter() - began
        self._computed += 1
        if isinstance(outcome, ElementFailure):
            puts.given_up.append(index)
            return outcome
        # A copy: a later stage may change the arrays.
        data = outcome.to_bytes()
        if damaged and index in self._replaced:
            return data
        if damaged:
            self._replaced.add(index)
        (puts.replacing if damaged else puts.elements)[index] = [data]
        puts.size += len(data)
        return data

    def _finished(self, index: int, stored: memoryview, finish: Finish) -> Outcome | None:
        """Take a stored element through the later stages; ``None`` if it has to be computed."""
        try:
            outcome = finish(index, stored, 0.0)
        except ElementDamaged:
            self.counts.damaged += 1
            return None
        self.counts.read += 1
        return outcome

    def _put(self, puts: _Puts, *, all_of_them: bool = False) -> None:
        if puts.size < PUT_BYTES and not all_of_them:
            return
        if puts.elements or puts.given_up:
            self._take_in(self._store.put(puts.elements, puts.given_up))
        if puts.replacing:
            self._take_in(self._store.put(puts.replacing, replace=True))
        puts.elements, puts.replacing, puts.given_up, puts.size = {}, {}, [], 0

    def _take_in(self, done: Stored) -> None:
        self.counts.stored += done.stored
        self.counts.refused += sum(done.refused.values())
        self._notify(done.refused)

    def _notify(self, refused: Collection[str] = ()) -> None:
        if self._store.unread:
            self.notices.add(f"results of {self._what} are computed: {self._store.unread}")
        elif self._store.unstored:
            self.notices.add(f"results of {self._what} are not stored: {self._store.unstored}")
        for reason in refused:
            if reason in _REFUSALS:
                self.notices.add(f"some results of {self._what} are computed in every epoch: {_REFUSALS[reason]}")

    def _claim(self, elements: int) -> float:
        if not self._computed:
            return FIRST_CLAIM
        expected = _MARGIN * elements * self._seconds / self._computed
        return min(_LONGEST_CLAIM, max(_SHORTEST_CLAIM, expected))


_REFUSALS = {
    "full": "the cache has no room for them",
    "too-large": "they are larger than the gateway's setting results.largest",
    "unreachable": "the gateway did not take them",
    "unavailable": "the gateway's cache disk does not take them",
}
