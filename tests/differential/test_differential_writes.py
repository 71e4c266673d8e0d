"""Writes through the gateway have the same effect as direct ones, and every later read shows it."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.client import HTTPException

from rig.gateways import Running
from tests.differential.asks import Ask
from tests.differential.generator import raw
from tests.differential.sides import Sides, gateway_door
from tests.differential.writes import KEYS, OPERATIONS, Twins


def test_random_writes_and_the_reads_after_them(sides: Sides, rng: random.Random) -> None:
    """Every write gets the origin's answer, and no read after it, warm or not, shows the older object."""
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


def test_writes_among_readers(sides: Sides, running: Running, rng: random.Random) -> None:
    """With readers constantly filling the cache, a read that begins after a write still gets the written bytes."""
    twin = f"{sides.bucket}.twin"
    assert sides.direct.send(Ask("PUT", twin)).status == 200
    twins = Twins(sides, twin)
    with _reading(running, [Ask("GET", sides.bucket, raw(key)) for key in KEYS[:2]]):
        for _ in range(80):
            key = rng.choice(KEYS[:2])
            rng.choice(OPERATIONS)(rng, twins, key)
            twins.look(rng, key)


@contextmanager
def _reading(running: Running, asks: list[Ask]) -> Iterator[None]:
    """Read in another thread until the block ends; assert that at least one read succeeded."""
    enough = threading.Event()
    seen: list[int] = []

    def read() -> None:
        with closing(gateway_door(running.endpoint)) as door:
            while not enough.is_set():
                for ask in asks:
                    try:
                        seen.append(door.send(ask).status)
                    except (OSError, HTTPException):
                        # An answer whose object is overwritten while it is sent may have to break off.
                        door.close()

    thread = threading.Thread(target=read, name="reader")
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join()
    assert {200} <= set(seen) <= {200, 404, 503}
