"""Space for results of pipelines by need, within quotas and tenants' shares."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.model.results import PutResult, collection_key, earlier_key
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.results import judged
from gateway.policies.pools import RESULTS, pools_of_key, results_pool
from gateway.policies.space.benefit import JobFacts
from gateway.policies.space.manager import DatasetFacts, Facts, ManagerParams, decide
from gateway.policies.space.orders import WhyCaching
from gateway.policies.space.plan import Plan, node_pools
from gateway.policies.space.results_needs import SHARE, ResultsNeed, ResultsRoom, shared_orders
from gateway.policies.watermarks import turned

MB = 1 << 20


def targets(needs: dict[str, ResultsNeed], left: int, tenant: int = 1 << 40, **won: int) -> dict[str, int]:
    """The targets of pools."""
    return {name: order.target for name, order in shared_orders(needs, ResultsRoom(left, won, tenant)).items()}


def test_a_pool_gets_what_it_needs_while_there_is_room() -> None:
    """Rule: the size of an epoch's results, rounded up, so that a mean that moves a little changes no plan."""
    assert targets({"p": ResultsNeed("t", 10 * MB)}, 100 * MB) == {"p": 10 * MB}
    sizes = {targets({"p": ResultsNeed("t", size)}, 1 << 40)["p"] for size in range(1100 * MB, 1150 * MB, MB)}
    assert len(sizes) == 1
    assert 1150 * MB <= sizes.pop() <= 1300 * MB


def test_pools_share_half_of_what_is_left_by_need() -> None:
    """Rule: if the needs do not fit, all pools get the same fraction of theirs."""
    found = targets({"p": ResultsNeed("t", 100 * MB), "q": ResultsNeed("t", 300 * MB)}, 200 * MB)
    assert abs(3 * found["p"] - found["q"]) < 40 * MB
    assert 95 * MB < sum(found.values()) <= SHARE * 200 * MB


def test_operators_decide_first() -> None:
    """Rule: a pinned pool comes first and keeps a minimum; a forbidden one gets nothing; a quota bounds."""
    needs = {
        "never": ResultsNeed("t", 50 * MB, "never"),
        "pinned": ResultsNeed("t", 50 * MB, "pin"),
        "bounded": ResultsNeed("t", 50 * MB, quota=7 * MB),
        "other": ResultsNeed("t", 50 * MB),
    }
    orders = shared_orders(needs, ResultsRoom(120 * MB, {}, 1 << 40))
    assert orders["pinned"].target == orders["pinned"].minimum >= 50 * MB
    assert (orders["never"].caching, orders["never"].why) == (CachingMode.NONE, WhyCaching.OVERRIDE)
    assert 0 < orders["bounded"].target <= 7 * MB
    assert 0 < orders["other"].target < 50 * MB


def test_a_bid_that_was_won_counts_beside_the_share() -> None:
    """Rule: a pool keeps the space that its bid won, and gets a share of the remainder for the rest of its need."""
    assert targets({"p": ResultsNeed("t", 64 * MB)}, 20 * MB, p=40 * MB) == {"p": 50 * MB}


def test_a_pool_whose_size_is_unknown_keeps_what_it_won() -> None:
    """Rule: before an element is known, a pool has what its bid has won, as far as operator and tenant let it."""
    assert targets({"p": ResultsNeed("t", 0)}, 20 * MB, p=40 * MB) == {"p": 40 * MB}
    assert targets({"p": ResultsNeed("t", 0, "never")}, 20 * MB, p=40 * MB) == {"p": 0}
    assert targets({"p": ResultsNeed("t", 0, quota=9 * MB)}, 20 * MB, p=40 * MB) == {"p": 9 * MB}


def test_a_tenant_keeps_to_its_share() -> None:
    """Rule: the pools of one tenant together have at most the tenant's share, regardless of other tenants."""
    needs = {"p": ResultsNeed("t", 60 * MB), "q": ResultsNeed("t", 60 * MB), "r": ResultsNeed("u", 60 * MB)}
    found = targets(needs, 1 << 40, tenant=64 * MB)
    assert found["p"] + found["q"] <= 64 * MB
    assert found["r"] == 60 * MB
    assert targets(needs, 1 << 40, tenant=0) == {"p": 0, "q": 0, "r": 0}


@given(
    st.dictionaries(
        st.text("abc", min_size=1),
        st.builds(ResultsNeed, st.sampled_from("tu"), st.integers(0, 1 << 40), st.sampled_from(["", "pin", "never"])),
    ),
    st.integers(0, 1 << 41),
    st.integers(0, 1 << 41),
)
def test_no_more_is_given_than_there_is(needs: dict[str, ResultsNeed], left: int, tenant: int) -> None:
    """Rule: the targets add up to at most the share of the rest, and are never negative."""
    found = targets(needs, left, tenant)
    assert all(target >= 0 for target in found.values())
    assert sum(found.values()) <= SHARE * left + len(needs)


def test_datasets_come_first_and_the_rest_is_left_to_streams() -> None:
    """Rule: a dataset that gains gets its space before results do; a node defines the pool with the order `uniform`."""
    pool = results_pool("t", "d" * 64, "f" * 64)
    facts = Facts(
        1000 * MB,
        {"d" * 64: DatasetFacts(600 * MB, 10)},
        {"t/j": JobFacts("t", "j", "d" * 64, 1, wants="on")},
        need={pool: ResultsNeed("t", 900 * MB)},
    )
    plan = decide(Plan(), facts, 1000.0, ManagerParams())
    assert plan.of("d" * 64).target == 600 * MB
    assert plan.pools[pool].target == turned(200 * MB)
    (found,) = [each for each in node_pools(plan, 1, 1) if each.name == pool]
    assert (found.target, found.order) == (turned(200 * MB), "uniform")
    assert decide(plan, facts, 1001.0, ManagerParams()).version == plan.version
    gone = decide(plan, Facts(1000 * MB, facts.datasets, facts.jobs), 1002.0, ManagerParams())
    assert pool not in gone.pools


def test_results_enter_the_pool_of_their_fingerprint() -> None:
    """Rule: the pool follows from the key that a result is stored under, and differs between tenants."""
    name = results_pool("t", "d", "f")
    collection = f"{name.removeprefix(RESULTS)}/0123456789abcdef"
    assert pools_of_key(collection_key(collection)) == pools_of_key(earlier_key(collection, 7)) == (name,)
    assert name != results_pool("u", "d", "f")


def test_what_is_put_is_judged_in_order() -> None:
    """Rule: known ones stay, large ones and those beyond the room are refused, and smaller ones behind them may fit."""
    found = judged({1: 10, 2: 99, 3: 60, 4: 50, 5: 40}, {1}, 100, 90)
    assert [found[index] for index in range(1, 6)] == [
        PutResult.KNOWN,
        PutResult.TOO_LARGE,
        PutResult.STORED,
        PutResult.FULL,
        PutResult.STORED,
    ]


def test_a_replacement_needs_room_for_what_it_adds() -> None:
    """Rule: a result takes only what it has more than the one before it, and gives what it has less."""
    found = judged({1: 60, 2: 60, 3: 20, 4: 60}, (), 10, 90, freed={1: 40, 3: 50, 4: 60})
    assert [found[index] for index in range(1, 5)] == [
        PutResult.FULL,
        PutResult.FULL,
        PutResult.STORED,
        PutResult.STORED,
    ]
    assert set(judged({1: 60, 2: 60}, (), 20, 90, freed={1: 60, 2: 40}).values()) == {PutResult.STORED}
