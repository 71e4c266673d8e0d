"""Reading from a small cache leaves the order of the items as good as random: with a simulated cache, and with a real one."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.closed_forms import gateway_places, system
from benchmarks.order import ORDER_SEED, SimulatedCache, kolmogorov, quality, random_places, rank_correlations, simulate
from larder.planner import Layout

ITEMS, EPOCHS, BATCH = 1000, 30, 8


@pytest.fixture(scope="module")
def rotated() -> np.ndarray:
    """Places of all items over 30 epochs: chunks rotate through a cache of a fifth, ten candidates per item."""
    layout = Layout(ITEMS, 10, 12, "striped", ORDER_SEED)
    cache = SimulatedCache(ITEMS, ITEMS // 5, rotating=True)
    places, _ = simulate(layout, cache, epochs=EPOCHS + 1, batch_size=BATCH, substitute=10)
    return places[1:]


def test_every_item_is_everywhere_over_thirty_epochs(rotated: np.ndarray) -> None:
    """No item's places are further from uniform than those of truly random epochs are, on average over items and at most."""
    random = random_places(EPOCHS, ITEMS)
    assert kolmogorov(rotated).mean() < kolmogorov(random).mean()
    assert kolmogorov(rotated).max() < kolmogorov(random).max()


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


@pytest.mark.parametrize("caching", ["chunked", "static"])
def test_orders_through_a_gateway_are_permutations_without_memory(tmp_path: Path, caching: str) -> None:
    """Real caches of a fifth: every item once per epoch, and no correlation beyond what chance gives to orders of 120 items."""
    with system(tmp_path, 0.2, items=120) as there:
        places = gateway_places(there, caching, 5, 10)
    assert all(len(np.unique(epoch)) == 120 for epoch in places)
    # The deviation of each of the four correlations is 0.09.
    assert abs(rank_correlations(places).mean()) < 0.25
    assert np.abs(places.mean(axis=0) - 0.5).mean() < 0.2
