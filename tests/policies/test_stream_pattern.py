"""Recognition of access patterns: the statistical tests agree with SciPy, and generated patterns are recognised."""

import numpy as np
import pytest
import scipy

from gateway.policies.streams.names import SiblingNames
from gateway.policies.streams.pattern import (
    Pattern,
    Recognition,
    Sighting,
    estimated_count,
    kolmogorov_threshold,
    most_repeats,
    recognise,
    spearman,
    triangular_statistic,
)
from gateway.policies.streams.tree import AccessStreamTree
from gateway.sim.streams.reads import (
    RANDOM_ORDERS,
    SEQUENTIAL_ORDERS,
    SKEWED_ORDERS,
    FleetView,
    seen_by_gateways,
)

ORDERS = {
    **{name: (order, Pattern.RANDOM) for name, order in RANDOM_ORDERS.items()},
    **{name: (order, Pattern.SKEWED) for name, order in SKEWED_ORDERS.items()},
    **{name: (order, Pattern.SEQUENTIAL) for name, order in SEQUENTIAL_ORDERS.items()},
}
VIEWS = [FleetView(), FleetView(clients=8), FleetView(gateways=3, workers=4), FleetView(8, 3, 2)]


def in_order(positions):
    """One client's reads, one per second."""
    return [Sighting(float(position), float(at), 0) for at, position in enumerate(positions)]


@pytest.mark.parametrize("items", [200, 10_000])
def test_the_statistic_is_that_of_kstest(items):
    """Rule: the closed form gives the statistic of scipy.stats.kstest, and the same decision at 0.01."""
    rng = np.random.default_rng(items)

    def expected(gaps):
        return np.clip(gaps * (2 * items - gaps - 1) / (items * (items - 1)), 0, 1)

    for shape in [1.0, 1.5, 2.0] * 20:
        gaps = np.abs(np.diff((rng.random(101) ** shape * items).astype(int))).astype(float)
        reference = scipy.stats.kstest(gaps, expected)
        statistic = triangular_statistic(gaps.tolist(), items)
        assert statistic == pytest.approx(reference.statistic, abs=1e-12)
        assert (statistic > kolmogorov_threshold(len(gaps))) == (reference.pvalue < 0.01)


@pytest.mark.parametrize("size", [10, 50, 99, 999])
def test_the_threshold_is_the_quantile_of_the_kolmogorov_distribution(size):
    """Rule: Stephens' approximation is within half a percent of the exact quantile."""
    assert kolmogorov_threshold(size) == pytest.approx(scipy.stats.kstwo.ppf(0.99, size), rel=0.005)


def test_rho_is_that_of_spearmanr():
    """Rule: rho agrees with scipy.stats.spearmanr, ties included."""
    rng = np.random.default_rng(3)
    for most in (3, 20, 10_000):
        values = rng.integers(0, most, 60).tolist()
        assert spearman(values) == pytest.approx(scipy.stats.spearmanr(values, range(60)).statistic)


def test_equal_values_have_no_trend():
    """Rule: a client that reads one item repeatedly is not a scan."""
    assert spearman([5.0] * 10) == 0.0


@pytest.mark.parametrize(("draws", "items"), [(100, 101), (100, 1000), (40, 300)])
def test_repeats_are_accepted_up_to_their_quantile(draws, items):
    """Rule: at most 1 in 200 windows of uniform draws has more repeats than accepted, and 1 in 200 has as many."""
    rng = np.random.default_rng(draws)
    repeats = np.array([draws - len(np.unique(rng.integers(0, items, draws))) for _ in range(20_000)])
    accepted = most_repeats(draws, items)
    assert np.mean(repeats > accepted) <= 0.0065
    assert np.mean(repeats >= accepted) >= 0.0035


@pytest.mark.parametrize("items", [150, 1000, 50_000])
def test_the_number_of_items_follows_from_the_repeats(items):
    """Rule: with a listing refused, the number is estimated from draws and different names, within a tenth."""
    rng = np.random.default_rng(items)
    seen = len(np.unique(rng.integers(0, items, 10_000)))
    assert estimated_count(10_000, seen) == pytest.approx(items, rel=0.1)


def test_without_repeats_the_number_of_items_is_large():
    """Rule: the first epoch of a permutation suggests no number."""
    assert most_repeats(100, estimated_count(500, 500)) == 0


@pytest.mark.parametrize("start", [0, 60, 150])
def test_a_scan_that_begins_again_is_sequential(start):
    """Rule: the step from the last sibling to the first does not break a scan, at any position in the window."""
    positions = [(start + at) % 180 for at in range(100)]
    assert recognise(in_order(positions), 180)[0] is Pattern.SEQUENTIAL


@pytest.mark.parametrize("siblings", [30, 40, 83])
def test_a_scan_that_goes_around_several_times_is_sequential(siblings):
    """Rule: a window may have several epochs of a scan, as where a gateway of a fleet sees its share of a prefix only."""
    positions = [at % siblings for at in range(100)]
    assert recognise(in_order(positions), siblings)[0] is Pattern.SEQUENTIAL


@pytest.mark.parametrize("siblings", [30, 40, 83, 1000])
def test_permutations_never_seem_to_go_around(siblings):
    """Rule: several epochs of random permutations in a window are not a scan, even if their steps around the siblings add up."""
    draw = np.random.default_rng(3)
    for _ in range(200):
        epochs = np.concatenate([draw.permutation(siblings) for _ in range(1 + 100 // siblings)])
        assert recognise(in_order(epochs[:100]), siblings)[0] is not Pattern.SEQUENTIAL


def test_reads_at_one_time_in_any_order_of_folding():
    """Rule: reads are put in the order of their times before they are tested."""
    reads = in_order(range(100))
    assert recognise(reads[50:] + reads[:50], 1000)[0] is Pattern.SEQUENTIAL


def test_many_clients_with_few_reads_each_count_as_one():
    """Rule: if no client has enough reads for a trend, the trend of all clients together counts."""
    scan = [Sighting(float(at), float(at), at) for at in range(100)]
    assert recognise(scan, 1000)[0] is Pattern.SEQUENTIAL


def test_evidence_says_what_was_tested():
    """Rule: window, number of siblings, statistics and their thresholds are kept."""
    positions = np.random.default_rng(1).permutation(1000)[:100]
    pattern, evidence = recognise(in_order(positions), 1000)
    assert pattern is Pattern.RANDOM
    assert (evidence.window, evidence.count, evidence.listed, evidence.repeats) == (100, 1000, True, 0)
    assert 0 < evidence.statistic < evidence.threshold < 0.2
    assert evidence.most_repeats == most_repeats(100, 1000)


def test_the_first_window_decides_at_once():
    """Rule: a stream has no pattern before its first window, and its recognised one afterwards."""
    assert Recognition().after(Pattern.SKEWED).pattern is Pattern.SKEWED


def test_one_odd_window_changes_nothing():
    """Rule: a new pattern counts only after two consecutive windows."""
    believed = Recognition(Pattern.RANDOM).after(Pattern.SKEWED)
    assert believed.pattern is Pattern.RANDOM
    assert believed.after(Pattern.RANDOM).after(Pattern.SKEWED).pattern is Pattern.RANDOM
    assert believed.after(Pattern.SEQUENTIAL).pattern is Pattern.RANDOM
    assert believed.after(Pattern.SKEWED).pattern is Pattern.SKEWED


@pytest.mark.parametrize("view", VIEWS, ids=str)
@pytest.mark.parametrize("name", ORDERS)
def test_what_was_generated_is_recognised(name, view):
    """Rule: 95 of 100 windows are believed right, through several clients, workers and gateways; 90 each on their own."""
    order, truth = ORDERS[name]
    items = 2000
    listing = SiblingNames()
    listing.list_page(f"{at:05d}" for at in range(items))
    listing.end_listing()
    own = believed = windows = 0
    for reads in seen_by_gateways(order, np.random.default_rng(11), items, 6000, view):
        tree, looked = AccessStreamTree(), 0
        for read in reads:
            stream = tree.record("bucket", f"data/{read.position:05d}", 0, 1, read.time, read.client, False)
            if stream is None or stream.next_look == looked:
                continue
            if looked:
                windows += 1
                believed += stream.pattern is truth
                own += (stream.recognition.other or stream.pattern) is truth
            else:
                tree.siblings(stream.name, listing)
            looked = stream.next_look
    assert windows >= 40
    assert own / windows >= 0.9
    assert believed / windows >= 0.95
