"""Which small blobs stay in memory (gateway/policies/reads/memory.py)."""

from __future__ import annotations

import random

from gateway.policies.reads.memory import MARGIN, MOST_WAITING, Copied, MemoryOrder

SIZE = 100


class Memory:
    """A memory for ``room`` blobs, and reads of it."""

    def __init__(self, room: int) -> None:
        self.order: MemoryOrder[Copied] = MemoryOrder(room * SIZE, 2 * SIZE)

    def read(self, name: int, size: int = SIZE) -> bool:
        """Read a blob; returns whether it was in memory."""
        digest = name.to_bytes(8, "big")
        resident = self.order.residents.get(digest)
        if resident is not None:
            resident.reads += 1
            return True
        if reads := self.order.enters(digest, size):
            self.order.add(digest, Copied(bytes(size), reads))
        return False

    def has(self, name: int) -> bool:
        """Whether a blob is in memory."""
        return name.to_bytes(8, "big") in self.order.residents


def test_a_blob_enters_while_there_is_room() -> None:
    """Rule: blobs are kept as they are offered, up to the budget, and none beyond it."""
    memory = Memory(3)
    for name in range(5):
        memory.read(name)
    assert [memory.has(name) for name in range(5)] == [True, True, True, False, False]
    assert memory.order.used == 3 * SIZE


def test_a_scan_changes_nothing() -> None:
    """Rule: blobs that are read once each do not replace any that is there, however many they are."""
    memory = Memory(10)
    for name in range(10):
        memory.read(name)
    for name in range(1000, 1000 + MOST_WAITING + 100):
        memory.read(name)
    assert all(memory.has(name) for name in range(10))


def test_of_epochs_over_more_than_fits_memory_answers_its_share() -> None:
    """Rule: jobs that read all items once an epoch, in any order, hit as often as the part that fits."""
    memory, rng = Memory(100), random.Random(7)
    names = list(range(400))
    hits = []
    for _epoch in range(40):
        rng.shuffle(names)
        hits.append(sum(memory.read(name) for name in names))
    assert sum(hits[1:]) >= 0.98 * 39 * 100


def test_what_is_read_more_often_replaces_what_is_not() -> None:
    """Rule: a blob enters a full memory when its reads exceed those of another by the margin."""
    memory = Memory(2)
    memory.read(1)
    memory.read(2)
    read = [memory.read(3) for _ in range(MARGIN + 2)]
    assert read == [False] * (MARGIN + 1) + [True]
    assert memory.order.used == 2 * SIZE


def test_old_fame_fades() -> None:
    """Rule: what was read a thousand times long ago gives way to what is read now."""
    memory = Memory(4)
    for name in range(4):
        for _ in range(1000):
            memory.read(name)
    for _ in range(2000):
        for name in range(10, 14):
            memory.read(name)
    assert all(memory.has(name) for name in range(10, 14))


def test_no_budget_and_no_blob_that_is_too_large() -> None:
    """Rule: nothing is kept without a budget, nor a blob that exceeds the largest size."""
    memory, none = Memory(10), Memory(0)
    memory.read(1, 2 * SIZE + 1)
    none.read(1)
    assert not memory.order.residents
    assert not none.order.residents


def test_a_read_that_does_not_enter_costs_little() -> None:
    """Rule: of a full memory only a few residents are compared with a candidate, others with the next one."""
    memory = Memory(1000)
    for name in range(1000):
        for _ in range(9):
            memory.read(name)
    for _ in range(4):
        memory.read(1000)
    assert [int.from_bytes(digest, "big") for digest in memory.order.residents][-6:] == [0, 1, 2, 3, 4, 5]


def test_the_counts_of_others_are_bounded() -> None:
    """Rule: memory does not grow with the number of blobs that are read and not kept."""
    memory = Memory(1)
    for name in range(MOST_WAITING + 1000):
        memory.read(name)
    assert len(memory.order._waiting) == MOST_WAITING


def test_a_blob_that_leaves_gives_its_bytes_back() -> None:
    """Rule: whoever still remembers a blob that has left the memory keeps none of its bytes."""
    memory = Memory(1)
    memory.read(1)
    copy = memory.order.residents[(1).to_bytes(8, "big")]
    for _ in range(MARGIN + 2):
        memory.read(2)
    assert not memory.has(1)
    assert copy.body == b""


def test_an_empty_blob_stays_outside() -> None:
    """Rule: a blob without bytes never enters."""
    memory = Memory(1)
    assert not memory.read(1, size=0)
    assert not memory.read(1, size=0)
