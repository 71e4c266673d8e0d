"""Ranks of each eviction order; ARC is compared with the paper's algorithm."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.access import Access
from gateway.model.keys import OriginIdentity
from gateway.policies.eviction.arc import Arc
from gateway.policies.eviction.order import BlobFacts, Ledger
from gateway.policies.pools import ORDERS, order_named

READER = OriginIdentity("default", "AK")
POOL = Ledger(1000)


def read(time: float) -> Access:
    """A read at a time."""
    return Access("dataset", 0, b"digest", True, time, READER)


def ranks(order: str, *steps: tuple[float, int]) -> list[float]:
    """A blob's rank after it entered with the first step, and after each read: time, and reads that it stands for."""
    found: list[float] = []
    for time, reads in steps:
        rank = found[-1] if found else None
        found.append(ORDERS[order].rank(read(time), BlobFacts(POOL, 10, rank, reads), time))
    return found


def test_lru_ranks_by_the_latest_access() -> None:
    """Rule: a read makes a blob younger; a late record of an earlier read does not make it older."""
    assert ranks("lru", (5.0, 1), (9.0, 1), (7.0, 1)) == [5.0, 9.0, 9.0]


def test_lfu_ranks_by_reads_and_then_by_time() -> None:
    """Rule: a blob with more reads stays longer; of equal counts, the later read does; an announcement is not a read."""
    once, twice = ranks("lfu", (5.0, 1), (6.0, 1))
    assert once < ranks("lfu", (9.0, 1))[0] < twice < ranks("lfu", (1.0, 5))[0]
    assert ranks("lfu", (5.0, 1), (6.0, 0))[1] < twice


def test_uniform_gives_the_newcomer_first() -> None:
    """Rule: the latest blob leaves first, however often it is read."""
    assert ranks("uniform", (5.0, 1), (9.0, 7)) == [-5.0, -5.0]


def test_consumed_gives_what_was_read_first() -> None:
    """Rule: the earliest read leaves first; blobs loaded ahead and not read yet leave after all read ones."""
    ahead, consumed = ranks("consumed", (9.0, 0), (10.0, 1))
    assert consumed < 0 < ahead
    assert ranks("consumed", (3.0, 1))[0] < consumed


def test_importance_gives_what_nobody_scored_and_then_the_least_important() -> None:
    """Rule: the rank is the score; blobs without one rank below all others, the newest first."""
    order = ORDERS["importance"]
    scored = [order.rank(read(5.0), BlobFacts(POOL, 10, score=score), 5.0) for score in (0.0, 2.5)]
    unknown = ranks("importance", (5.0, 1), (9.0, 7))
    assert scored == [0.0, 2.5]
    assert unknown == [-5.0, -5.0]
    assert order.rank(read(9.0), BlobFacts(POOL, 10, -5.0, score=1.0), 9.0) == 1.0
    assert order.rank(read(9.0), BlobFacts(POOL, 10, 1.0), 9.0) == 1.0


def test_importance_keeps_the_rank_of_what_is_stored_again() -> None:
    """Rule: a ranked item keeps its rank when a second worker stores it with an older score."""
    order = ORDERS["importance"]
    assert order.rank(read(9.0), BlobFacts(POOL, 10, 3.0, score=1.0), 9.0) == 3.0
    assert order.rank(read(9.0), BlobFacts(POOL, 10, 0.0, score=1.0), 9.0) == 0.0


def test_loop_gives_what_was_read_last() -> None:
    """Rule: the latest read leaves first; blobs loaded ahead and not read yet leave after all read ones."""
    ahead, read_once, read_again = ranks("loop", (9.0, 0), (10.0, 1), (20.0, 1))
    assert read_again < read_once < 0 < ahead
    assert ranks("loop", (3.0, 1), (2.0, 1)) == [-3.0, -3.0]


def test_an_unknown_order_is_lru() -> None:
    """Rule: an order that only a newer version knows leaves the cache usable."""
    assert order_named("of next year").name == "lru"


@pytest.mark.parametrize("name", ORDERS)
@given(times=st.lists(st.floats(0, 4e9), min_size=1, max_size=6), reads=st.integers(0, 1000))
def test_ranks_are_finite_and_depend_on_nothing_else(name: str, times: list[float], reads: int) -> None:
    """Rule: for any accesses an order gives a finite rank, and the same rank for the same accesses."""
    steps = [(time, reads) for time in times]
    assert ranks(name, *steps) == ranks(name, *steps)
    assert all(abs(rank) < 1e12 for rank in ranks(name, *steps))


@dataclass
class PaperArc:
    """Megiddo and Modha, FAST 2003, figure 4, line by line; lists hold the least recent page first."""

    c: int
    p: float = 0.0
    t1: OrderedDict[int, None] = field(default_factory=OrderedDict)
    t2: OrderedDict[int, None] = field(default_factory=OrderedDict)
    b1: OrderedDict[int, None] = field(default_factory=OrderedDict)
    b2: OrderedDict[int, None] = field(default_factory=OrderedDict)

    def request(self, x: int) -> None:
        """One page is read."""
        if x in self.t1 or x in self.t2:
            self.t1.pop(x, None)
            self.t2.pop(x, None)
            self.t2[x] = None
        elif x in self.b1:
            self.p = min(float(self.c), self.p + max(1.0, len(self.b2) / len(self.b1)))
            self.replace(x)
            del self.b1[x]
            self.t2[x] = None
        elif x in self.b2:
            self.p = max(0.0, self.p - max(1.0, len(self.b1) / len(self.b2)))
            self.replace(x)
            del self.b2[x]
            self.t2[x] = None
        else:
            self.miss(x)

    def miss(self, x: int) -> None:
        """Case IV."""
        if len(self.t1) + len(self.b1) == self.c:
            if len(self.t1) < self.c:
                self.b1.popitem(last=False)
                self.replace(x)
            else:
                self.t1.popitem(last=False)
        else:
            total = len(self.t1) + len(self.t2) + len(self.b1) + len(self.b2)
            if total >= self.c:
                if total == 2 * self.c:
                    self.b2.popitem(last=False)
                self.replace(x)
        self.t1[x] = None

    def replace(self, x: int) -> None:
        """Evict a page."""
        if self.t1 and ((x in self.b2 and len(self.t1) == self.p) or len(self.t1) > self.p):
            self.b1[self.t1.popitem(last=False)[0]] = None
        else:
            self.b2[self.t2.popitem(last=False)[0]] = None


@dataclass
class Ranked:
    """A cache that uses the order ``arc``, and keeps the same facts for it as the index."""

    c: int
    adapted: float = 0.0
    held: dict[int, float] = field(default_factory=dict)
    ghosts: dict[int, float] = field(default_factory=dict)

    def ledger(self) -> Ledger:
        """The sums."""
        fresh, gone = sum(rank < 0 for rank in self.held.values()), sum(rank < 0 for rank in self.ghosts.values())
        return Ledger(self.c, len(self.held), fresh, len(self.ghosts), gone, self.adapted)

    def request(self, x: int, time: float) -> None:
        """One blob of size 1 is read."""
        order, pool = Arc(), self.ledger()
        facts = BlobFacts(pool, 1, self.held.get(x), 1, self.ghosts.get(x))
        if x not in self.held:
            self.adapted = order.adapted(facts)
            self.ghosts.pop(x, None)
            if len(self.held) == self.c:
                self.evict(order.victims(replace(pool, adapted=self.adapted), facts))
        self.held[x] = order.rank(read(time), facts, time)
        while sum(rank < 0 for rank in (*self.held.values(), *self.ghosts.values())) > self.c:
            self.forget(fresh=True)
        while len(self.held) + len(self.ghosts) > 2 * self.c:
            self.forget(fresh=False)

    def evict(self, span: tuple[float, float]) -> None:
        """The lowest rank of the span leaves, of all if the span is empty."""
        within = [(rank, x) for x, rank in self.held.items() if span[0] <= rank < span[1]]
        rank, victim = min(within or [(rank, x) for x, rank in self.held.items()])
        del self.held[victim]
        self.ghosts[victim] = rank

    def forget(self, *, fresh: bool) -> None:
        """The oldest ghost of a side is one no more."""
        del self.ghosts[next(x for x, rank in self.ghosts.items() if (rank < 0) is fresh)]

    def lists(self) -> tuple[list[int], list[int], list[int], list[int]]:
        """T1, T2, B1 and B2, the least recent first."""
        by_rank = sorted(self.held, key=lambda x: self.held[x])
        return (
            [x for x in by_rank if self.held[x] < 0],
            [x for x in by_rank if self.held[x] >= 0],
            [x for x, rank in self.ghosts.items() if rank < 0],
            [x for x, rank in self.ghosts.items() if rank >= 0],
        )


@given(c=st.integers(1, 8), requests=st.lists(st.integers(0, 20), max_size=200))
def test_arc_is_the_papers_algorithm(c: int, requests: list[int]) -> None:
    """Rule: with blobs of one size all four lists and p are the paper's after every request, and the ghosts are bounded."""
    paper, ranked = PaperArc(c), Ranked(c)
    for time, x in enumerate(requests, 1):
        paper.request(x)
        ranked.request(x, float(time))
        assert ranked.lists() == (list(paper.t1), list(paper.t2), list(paper.b1), list(paper.b2))
        assert ranked.adapted == pytest.approx(paper.p)
        assert len(ranked.held) + len(ranked.ghosts) <= 2 * c
