"""The order of an epoch's chunks, decided by hand-worked cases: no Redis, no clock."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policies.items.datasets import CachingMode
from gateway.policies.space.chunk_order import KEPT_ORDERS, Opened, Opening, OrderState, Place, late_under, open_epoch
from gateway.policies.space.orders import ChunkRotation, PoolOrder, WhyCaching

OURS, THEIRS = (0, 1, 2, 3, 4), (4, 2, 0, 3, 1)


def asked(epoch: int = 0, begin: int | None = -1, *, leads: bool = True) -> Opening:
    """A request of job ``a``."""
    return Opening("a", epoch, OURS, begin, leads)


def others(**left: int) -> OrderState:
    """Jobs with so many of five chunks left, in the sequence THEIRS."""
    return OrderState(places={job: Place(0, chunks, 5) for job, chunks in left.items()}, sequence=THEIRS)


def test_a_job_alone_sets_the_sequence() -> None:
    """Rule: with no others the proposal is the order and the new sequence."""
    assert open_epoch(asked(), others(a=3)) == Opened(OURS, True, False, OURS, (), Place(0, 5, 5))


@pytest.mark.parametrize(("begin", "order"), [(3, (3, 1, 4, 2, 0)), (-1, THEIRS), (9, THEIRS)])
def test_a_job_goes_on_with_others_in_the_middle(begin: int, order: tuple[int, ...]) -> None:
    """Rule: a job takes the others' sequence, rotated to the plan's chunk, or unrotated if the plan names none of its chunks."""
    opened = open_epoch(asked(begin=begin), others(b=1, c=3))
    assert (opened.order, opened.follows, opened.sequence) == (order, True, order)


@pytest.mark.parametrize(("begin", "order"), [(0, THEIRS), (4, THEIRS), (2, (2, 0, 3, 1, 4))])
def test_a_job_begins_with_others_that_have_just_begun(begin: int, order: tuple[int, ...]) -> None:
    """Rule: a job that joins others in their first chunk begins there, or at the second if the plan names that one."""
    assert open_epoch(asked(begin=begin), others(b=5, c=1)).order == order


@pytest.mark.parametrize("left", [0, 1, 2])
def test_jobs_at_their_end_are_not_followed(left: int) -> None:
    """Rule: others with at most two chunks left take the new sequence."""
    assert open_epoch(asked(), others(b=left)).sequence == OURS


def test_a_place_that_is_unknown_counts_as_the_middle() -> None:
    """Rule: a job that uses the dataset, of which no place is known, keeps the sequence."""
    state = OrderState(places={"b": None}, sequence=THEIRS)
    assert open_epoch(asked(begin=0), state).order == (0, 3, 1, 4, 2)


def test_chunks_used_last_come_last() -> None:
    """Rule: a job that follows others begins after the last two chunks of its previous epoch, if the plan names one of them."""
    state = OrderState({6: (0, 1, 2, 3, 4)}, {"b": Place(0, 3, 5)}, THEIRS)
    assert open_epoch(asked(7, begin=3), state).order == (1, 4, 2, 0, 3)
    assert open_epoch(asked(7, begin=4), state).order == (2, 0, 3, 1, 4)
    assert open_epoch(asked(7, begin=2), state).order == (2, 0, 3, 1, 4)


@pytest.mark.parametrize(
    ("opening", "state"),
    [
        (asked(begin=None), others(b=3)),
        (asked(), OrderState(places={"b": Place(0, 3, 4)}, sequence=(0, 1, 2, 3))),
        (asked(), OrderState(places={"b": Place(0, 3, 5)})),
        (asked(), OrderState(places={"b": Place(0, 3, 5)}, sequence=(0, 1, 2, 3, 3))),
    ],
    ids=["not rotated", "cut otherwise", "no sequence", "no permutation"],
)
def test_without_a_common_sequence_the_proposal_counts(opening: Opening, state: OrderState) -> None:
    """Rule: a sequence is followed only if the dataset is rotated and the sequence has the job's own chunks."""
    opened = open_epoch(opening, state)
    assert (opened.order, opened.follows) == (OURS, False)


def test_a_job_of_other_chunks_sets_no_sequence() -> None:
    """Rule: a job that does not lead leaves the sequence unchanged."""
    assert open_epoch(asked(leads=False), OrderState()).sequence is None


def test_an_epoch_keeps_its_order() -> None:
    """Rule: a later rank gets the order that the first got; the place changes only if it was in another epoch."""
    state = OrderState({0: THEIRS}, {"a": Place(0, 2, 5)}, THEIRS)
    assert open_epoch(asked(), state) == Opened(THEIRS)
    again = OrderState({0: THEIRS, 1: OURS}, {"a": Place(1, 2, 5)}, THEIRS)
    assert open_epoch(asked(), again) == Opened(THEIRS, place=Place(0, 5, 5))


def test_the_oldest_order_is_forgotten() -> None:
    """Rule: four epochs are kept; one older than all of them is that of a job that begins again, which forgets the others."""
    orders = dict.fromkeys(range(5, 5 + KEPT_ORDERS), OURS)
    assert open_epoch(asked(9), OrderState(orders)).forgotten == (5,)
    assert open_epoch(asked(3), OrderState(orders)).forgotten == (5, 6, 7, 8)


def test_a_late_heartbeat_moves_no_job_back() -> None:
    """Rule: a rank of the epoch before the opened one is late; any other epoch is believed."""
    place = Place(7, 5, 5)
    assert place.after(6, 1) == place
    assert place.after(7, 4) == Place(7, 4, 5)
    assert place.after(2, 1) == Place(2, 1, 5)
    assert late_under(6) == 7


def test_the_plan_says_where_to_begin() -> None:
    """Rule: a job begins at the active chunk, else at the one being loaded; without rotation the plan names none, and a job with
    another number of chunks does not lead."""

    def under(caching: CachingMode, chunks: ChunkRotation, units: int = 5) -> Opening:
        return Opening.under(PoolOrder(caching, 10, units, WhyCaching.BENEFIT, 0, chunks), "a", 0, OURS)

    assert under(CachingMode.CHUNKED, ChunkRotation(active=3, loading=1)).begin == 3
    assert under(CachingMode.CHUNKED, ChunkRotation(loading=1)).begin == 1
    assert under(CachingMode.FULL, ChunkRotation(active=3)).begin is None
    assert under(CachingMode.CHUNKED, ChunkRotation(), units=4).leads is False
    assert Opening.under(None, "a", 0, OURS).begin is None


places = st.one_of(st.none(), st.builds(Place, st.integers(0, 3), st.integers(0, 5), st.integers(4, 5)))
orders = st.dictionaries(st.integers(0, 9), st.permutations(OURS).map(tuple), max_size=KEPT_ORDERS)


@given(
    st.integers(0, 9),
    st.one_of(st.none(), st.integers(-1, 6)),
    st.booleans(),
    orders,
    st.dictionaries(st.sampled_from("abcd"), places),
    st.one_of(st.permutations(OURS).map(tuple), st.lists(st.integers(0, 5)).map(tuple)),
)
def test_an_order_has_each_chunk_once(epoch, begin, leads, orders, places, sequence) -> None:  # type: ignore[no-untyped-def]
    """Rule: each chunk of the proposal comes once, even if other jobs or versions have written different sequences."""
    opened = open_epoch(asked(epoch, begin, leads=leads), OrderState(orders, places, sequence))
    assert sorted(opened.order) == sorted(OURS)
    assert opened.opens is (epoch not in orders)
    assert opened.sequence is None or opened.sequence == opened.order
