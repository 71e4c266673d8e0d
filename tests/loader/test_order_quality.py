"""Reading from a small cache leaves the order of the items as good as random: with a simulated cache, and with a real one."""

from pathlib import Path

import numpy as np
import pytest

from lab.benchmarks.closed_forms import gateway_places
from lab.benchmarks.order import (
    ORDER_SEED,
    SimulatedCache,
    class_mix,
    kolmogorov,
    quality,
    random_places,
    rank_correlations,
    simulate,
)
from larder.planner import Layout
from tests.loader.systems import system

ITEMS, EPOCHS, BATCH = 1000, 30, 8


@pytest.fixture(scope="module")
def rotated() -> np.ndarray:
    """Places of all items over 30 epochs: a cache of a fifth evicts what it loaded first, ten candidates per item."""
    layout = Layout(ITEMS, 10, 12, "shuffled", ORDER_SEED)
    cache = SimulatedCache(ITEMS, ITEMS // 5, rotating=True)
    places, _ = simulate(layout, cache, epochs=EPOCHS + 1, batch_size=BATCH, substitute=10)
    return places[1:]


def test_every_item_is_everywhere_over_thirty_epochs(rotated: np.ndarray) -> None:
    """Items' places are as far from uniform as those of other random epochs, on average over items and at most."""
    random = random_places(EPOCHS, ITEMS)
    assert kolmogorov(rotated).mean() < 1.05 * kolmogorov(random).mean()
    assert kolmogorov(rotated).max() < 1.15 * kolmogorov(random).max()


def test_an_epoch_says_nothing_of_the_next(rotated: np.ndarray) -> None:
    """The rank correlation of neighbouring epochs is below 0.05 in the mean, in size as well as with its sign."""
    found = quality(rotated)
    assert abs(found["correlation"]) < 0.05
    assert found["correlation_size"] < 0.06


def test_the_measures_tell_a_bad_order_from_a_good_one() -> None:
    """Epochs that repeat one order have correlation 1, and places as far from uniform as can be."""
    same = np.repeat(random_places(1, 100), EPOCHS, axis=0)
    assert rank_correlations(same) == pytest.approx(1.0)
    assert kolmogorov(same).mean() > 0.7


def sorted_classes() -> np.ndarray:
    """An epoch of 20,000 items in batches of 256, through a cache of a fifth."""
    layout = Layout(20_000, 10, 10, "shuffled", ORDER_SEED)
    cache = SimulatedCache(20_000, 4000, rotating=True)
    places, _ = simulate(layout, cache, epochs=2, batch_size=256, substitute=10)
    return np.argsort(places[-1]).astype(np.uint32)


def test_classes_of_sorted_data_are_mixed_as_by_chance() -> None:
    """Rule: of 10, 100 and 1,000 sorted classes a batch, and a tenth of the epoch, have as many as random items do."""
    sequence = sorted_classes()
    for classes in (10, 100, 1000):
        mix = class_mix(sequence, classes, 256)
        assert mix["batch_share"] == pytest.approx(1, abs=0.02), classes
        assert mix["tenth_share"] == pytest.approx(1, abs=0.03), classes


def test_the_class_mix_tells_a_bad_order_from_a_good_one() -> None:
    """Rule: tenths of a sorted dataset have 10 of 100 classes."""
    tenths = np.random.default_rng(1).permuted(np.arange(20_000).reshape(10, 2_000), axis=1)
    mix = class_mix(tenths.ravel(), 100, 256)
    assert mix["batch"] <= 20
    assert mix["batch_share"] < 0.25
    assert class_mix(np.random.default_rng(1).permutation(20_000), 100, 256)["batch_share"] == pytest.approx(
        1, abs=0.02
    )


def test_classes_through_a_gateway_are_mixed_as_by_chance(tmp_path: Path) -> None:
    """Rule: a real cache of a fifth, 100 sorted classes of ten items: in batches of 50, 40 % of the classes, as by chance."""
    with system(tmp_path, 0.2, items=1000, length=64) as there:
        loader = there.loader("classes", "part", batch_size=50, substitute=10)
        sequence = np.concatenate([batch.indices for _ in range(2) for batch in loader.epoch(1)][20:])
    mix = class_mix(sequence, 100, 50)
    assert mix["batch_share"] == pytest.approx(1, abs=0.1)
    assert mix["tenth_share"] == pytest.approx(1, abs=0.1)


def test_orders_through_a_gateway_are_permutations_without_memory(tmp_path: Path) -> None:
    """Real caches of a fifth: every item once per epoch, and no correlation beyond what chance gives to orders of 120 items."""
    with system(tmp_path, 0.2, items=120) as there:
        places = gateway_places(there, "part", 5, 10)
    assert all(len(np.unique(epoch)) == 120 for epoch in places)
    # The deviation of each of the four correlations is 0.09.
    assert abs(rank_correlations(places).mean()) < 0.25
    assert np.abs(places.mean(axis=0) - 0.5).mean() < 0.2
