"""The choice of the pool that gives the next blob."""

from gateway.policies.pools import PAUSED, Balance, Overdrafts


def test_a_paused_pool_gives_before_all_others():
    """Rule: a paused pool gives first, however far others are over their targets; then they give as before."""
    book = Overdrafts([Balance(1, 900, 100), Balance(2, 200, PAUSED), Balance(3, 500, 400)])
    given = []
    while (pool := book.furthest()) is not None and len(given) < 12:
        assert book.take(100)
        given.append(pool)
    assert given[:3] == [2, 2, 1]
    assert given.count(3) >= 1
