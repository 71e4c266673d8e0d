"""A job in miniature: ranks, workers and a cache whose contents change under them."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from larder.planner import Candidates, EpochOrder, EpochPlan, Progress, Shard, merge, union
from larder.planner.lengths import ItemLengths

Answer = Callable[[Candidates], np.ndarray]
Offer = Callable[[], np.ndarray]


def changing_cache(seed: int) -> Answer:
    """A cache with a new random part of all items at each request; sometimes it delivers less than requested."""
    chance = np.random.default_rng(seed)

    def answer(candidates: Candidates) -> np.ndarray:
        resident = chance.random(len(candidates.indices)) < chance.random()
        preferred = candidates.indices[np.lexsort((chance.random(len(resident)), ~resident))]
        return preferred[: chance.integers(0 if candidates.take > 1 else 1, candidates.take + 1)]

    return answer


def offering(seed: int, items: int) -> Offer:
    """A gateway that offers a new random part of the dataset before each batch, in any order, with items that are not pending."""
    chance = np.random.default_rng(seed)

    def offer() -> np.ndarray:
        return chance.integers(0, max(1, items), chance.integers(0, 40)).astype(np.uint32)

    return offer


def nothing() -> np.ndarray:
    """A gateway without offers."""
    return np.zeros(0, np.uint32)


def contrary(candidates: Candidates) -> np.ndarray:
    """Answers what spoils the order most: the last candidates, so that the first one stays pending."""
    return candidates.indices[-candidates.take :]


def canonical(candidates: Candidates) -> np.ndarray:
    """A cache that delivers the first candidates of the order."""
    return candidates.indices[: candidates.take]


def next_batch(plan: EpochPlan, answer: Answer, offer: Offer = nothing) -> tuple[np.ndarray, np.ndarray]:
    """The items of one batch, and the repetitions among them."""
    plan.offer(offer())
    own, repeated = [np.zeros(0, np.uint32)], [np.zeros(0, np.uint32)]
    candidates = plan.candidates()
    number = candidates.batch
    while candidates is not None and candidates.batch == number:
        used = answer(candidates)
        (repeated if candidates.padding else own).append(used)
        plan.deliver(used)
        candidates = plan.candidates()
    return np.concatenate(own), np.concatenate(repeated)


@dataclass
class Session:
    """All ranks of a job from its start, with one state for all or one per rank, to its end or to a number of steps."""

    states: Progress | list[Progress]
    world: int
    workers: int
    batch_size: int
    substitute: int = 10
    tail: str = "short"
    answer: Answer = canonical
    offer: Offer = nothing
    lengths: ItemLengths | None = None
    delivered: list[np.ndarray] = field(default_factory=list)
    repeated: int = 0
    counts: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    promised: list[int] = field(default_factory=list)

    def run(self, steps: int = 10**9) -> list[Progress]:
        """Every rank takes up to ``steps`` batches from its workers in turn; the states of the ranks after that."""
        return [self._run_rank(rank, steps) for rank in range(self.world)]

    def _run_rank(self, rank: int, steps: int) -> Progress:
        start = self.states if isinstance(self.states, Progress) else self.states[rank]
        plans = [
            EpochPlan(
                start.order(),
                Shard(rank, self.world, worker, self.workers),
                batch_size=self.batch_size,
                substitute=self.substitute,
                tail=self.tail,
                progress=start,
                lengths=self.lengths,
            )
            for worker in range(self.workers)
        ]
        self.promised.append(sum(map(len, plans)))
        taken = 0
        while taken < min(steps, self.promised[-1]):
            own, repeated = next_batch(plans[taken % self.workers], self.answer, self.offer)
            self.delivered.append(own)
            self.repeated += len(repeated)
            self.sizes.append(len(own) + len(repeated))
            taken += 1
        assert sum(map(len, plans)) == self.promised[-1] - taken
        assert taken < self.promised[-1] or all(plan.candidates() is None for plan in plans)
        self.counts.append(taken)
        return union((plan.progress() for plan in plans), batch_size=self.batch_size, tail=self.tail)


def fresh(order: EpochOrder) -> Progress:
    """The start of an epoch."""
    return Progress.start("d" * 64, order)


def all_items(sessions: list[Session]) -> np.ndarray:
    """Every item that was delivered in these sessions, repetitions aside, sorted."""
    parts = [part for session in sessions for part in session.delivered]
    return np.sort(np.concatenate([np.zeros(0, np.uint32), *parts]))


def through_json(states: list[Progress]) -> list[Progress]:
    """The states as they come back from a checkpoint."""
    return [Progress.from_json(json.loads(json.dumps(state.to_json()))) for state in states]


def whole(states: list[Progress]) -> Progress:
    """The states of all ranks as one, by way of a checkpoint."""
    return merge(through_json(states))
