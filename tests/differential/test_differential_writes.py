"""Writes through the gateway do what they do directly, and every read after them shows it."""

from __future__ import annotations

import random

from tests.differential.asks import Ask
from tests.differential.sides import Sides
from tests.differential.writes import KEYS, OPERATIONS, Twins


def test_random_writes_and_the_reads_after_them(sides: Sides, rng: random.Random) -> None:
    """Every write is answered as the origin answers it, and no read after it, warm or not, shows what was before."""
    twin = f"{sides.bucket}.twin"
    assert sides.direct.send(Ask("PUT", twin)).status == 200
    twins = Twins(sides, twin)
    for _ in range(150):
        key = rng.choice(KEYS)
        rng.choice(OPERATIONS)(rng, twins, key)
        for other in {key, rng.choice(KEYS)}:
            twins.look(rng, other)
    assert sides.ledger.compared > 1000
    assert sides.ledger.seen("HIT") > 200
