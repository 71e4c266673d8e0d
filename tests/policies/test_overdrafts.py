"""The choice of the pool that gives the next blob."""

from gateway.policies.pools import PAUSED, Balance, Overdrafts


def test_a_paused_pool_gives_before_all_others():
    """Rule: a paused pool gives first, however far others are over their targets; then they give as before."""
    book = Overdrafts([Balance(1, 900, 100), Balance(2, 200, PAUSED), Balance(3, 500, 400)])
    given = []
    while (pool := book.furthest()) is not None and len(given) < 12:
        assert book.debit(100)
        given.append(pool)
    assert given[:3] == [2, 2, 1]
    assert given.count(3) >= 1


def test_a_dataset_loses_nothing_to_a_stream_that_was_granted_more_than_it_has():
    """Rule: where room is needed although no pool exceeds its target, a stream far below its target gives before a dataset that
    holds nearly all that it was granted; a pool of results is kept like a dataset."""
    dataset, stream, results, default = (
        Balance(1, 950, 1000, whole=True),
        Balance(2, 700, 4700),
        Balance(3, 500, 500, whole=True),
        Balance(4, 100, 300),
    )
    assert gifts([dataset, stream, results, default], 8) == [4] * 1 + [2] * 7
    assert set(gifts([dataset, results], 4)) == {1, 3}


def test_a_dataset_gives_what_it_has_above_its_target():
    """Rule: a dataset over its target, or without one, gives before pools that keep to theirs."""
    assert gifts([Balance(1, 1200, 1000, whole=True), Balance(2, 900, 1000)], 3) == [1, 1, 2]
    assert gifts([Balance(1, 300, 0, whole=True), Balance(2, 900, 1000)], 4) == [1, 1, 1, 2]


def gifts(balances: list[Balance], blobs: int) -> list[int]:
    """The pools that give so many blobs of 100 bytes, one after the other."""
    book, given = Overdrafts(balances), []
    while len(given) < blobs and (pool := book.furthest()) is not None:
        if book.debit(100):
            given.append(pool)
        else:
            book.exhausted()
    return given
