"""Merging answers: no item is repeated or lost, for any answers."""

import random
from collections import Counter

import numpy as np
import pytest

from larder.base.dataset import Directives
from larder.reading.frames import MISSING, NOT_RESIDENT, ORIGIN_ERROR, REFUSED, ItemFailure, Received
from larder.reading.merging import MAX_ITEMS, Merge


def _answer(chance, merge, asked):
    """A possible answer: some of the requested items, in any order."""
    received = Received()
    positions = chance.sample(range(len(asked)), chance.randint(0, len(asked)))
    for position in positions:
        index = int(merge.request[asked[position]])
        status = chance.choice([0, 0, 0, MISSING, ORIGIN_ERROR, NOT_RESIDENT, REFUSED])
        if status:
            received.failures[position] = ItemFailure(index, status)
        elif len(received.positions) < merge.wanted:
            received.positions.append(position)
            received.data.append(memoryview(b"%d" % index))
            received.flags.append(index % 8)
    return received


@pytest.mark.parametrize("seed", range(200))
def test_exact_over_any_answers(seed):
    """Every position is delivered once or fails, and is not requested afterwards."""
    chance = random.Random(seed)
    request = np.array([chance.randint(0, 20) for _ in range(chance.randint(0, 30))], dtype="<u4")
    merge = Merge(request, None, patience=3)
    settled: set[int] = set()
    while not merge.done():
        asked = merge.ask()
        assert not settled & set(asked.tolist())
        received = _answer(chance, merge, asked)
        merge.accept(asked, received)
        settled |= {int(asked[position]) for position in received.positions}
    fetched = merge.result(Directives())
    assert [bytes(data) for data in fetched.data] == [b"%d" % index for index in fetched.indices]
    assert fetched.flags.tolist() == [index % 8 for index in fetched.indices.tolist()]
    lost = Counter(request.tolist()) - Counter(fetched.indices.tolist())
    assert Counter(fetched.indices.tolist()) <= Counter(request.tolist())
    assert set(lost) == set(fetched.failed)


@pytest.mark.parametrize("seed", range(200))
def test_substitute_over_any_answers(seed):
    """As many items as requested come, none twice; fewer only if all others failed."""
    chance = random.Random(seed)
    request = np.array(chance.sample(range(100), chance.randint(0, 30)), dtype="<u4")
    take = chance.randint(0, 30)
    merge = Merge(request, take, patience=3)
    while not merge.done():
        asked = merge.ask()
        merge.accept(asked, _answer(chance, merge, asked))
    fetched = merge.result(Directives())
    delivered = fetched.indices.tolist()
    assert len(set(delivered)) == len(delivered) <= take
    assert set(delivered) <= set(request.tolist())
    assert not set(delivered) & set(fetched.failed)
    if len(delivered) < min(take, len(request)):
        assert len(delivered) + len(fetched.failed) == len(request)


def test_candidates_that_failed_are_asked_for_last():
    """A failed candidate is replaced by another while there are enough."""
    merge = Merge(np.arange(4, dtype="<u4"), 2, patience=3)
    asked = merge.ask()
    merge.accept(asked, Received(failures={0: ItemFailure(0, ORIGIN_ERROR)}))
    assert merge.ask().tolist() == [1, 2, 3]
    merge.accept(merge.ask(), Received(failures={0: ItemFailure(1, ORIGIN_ERROR), 1: ItemFailure(2, ORIGIN_ERROR)}))
    assert merge.ask().tolist() == [0, 1, 2, 3]


def test_no_request_is_larger_than_a_gateway_takes():
    """More indices than one request may have are split into several requests."""
    merge = Merge(np.zeros(MAX_ITEMS + 5, dtype="<u4"), None, patience=3)
    assert len(merge.ask()) == MAX_ITEMS


def test_progress_is_told():
    """An item that came, and one that is given up, is progress; one that may still come is not."""
    merge = Merge(np.arange(4, dtype="<u4"), None, patience=2)
    assert not merge.accept(merge.ask(), Received())
    assert not merge.accept(merge.ask(), Received(failures={0: ItemFailure(0, ORIGIN_ERROR)}))
    assert merge.accept(merge.ask(), Received(failures={0: ItemFailure(0, ORIGIN_ERROR)}))
    assert merge.accept(merge.ask(), Received(failures={0: ItemFailure(1, NOT_RESIDENT)}))
    assert merge.accept(merge.ask(), Received(failures={0: ItemFailure(2, ORIGIN_ERROR)}), final=True)
    assert merge.accept(merge.ask(), Received([0], [memoryview(b"")], [0]))
    assert merge.done()
