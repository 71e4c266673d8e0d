"""The same pattern is recognised however the reads of a prefix are spread over clients and the gateways of a fleet."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count, islice
from typing import Any

import numpy as np
import pytest

from gateway.sim.streams.reads import SEQUENTIAL_ORDERS, ReadOrder, epochs, zipf_anywhere
from rig.clients import Client
from rig.gateways import Running, fleet
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.world import SOON, Origin
from tests.admin.asked import TOKEN, ask

BUCKET = "views"
ITEMS = 250
NODES = 3
ORDERS: dict[str, ReadOrder] = {"sequential": SEQUENTIAL_ORDERS["scan"], "random": epochs, "skewed": zipf_anywhere}
READS = {
    ("sequential", 1): 450,
    ("sequential", 8): 1200,
    ("random", 1): 600,
    ("random", 8): 600,
    ("skewed", 1): 1200,
    ("skewed", 8): 1200,
}
"""By all clients together, in one round. ``AccessStreamTree`` alone knows the pattern of each third after 300, 750, 330, 400, 920
and 890: a window each, where it takes the clients' trends or hysteresis more of them."""


@pytest.fixture(scope="module")
def nodes(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running]]:
    """Three gateways that are one cache."""
    home = tmp_path_factory.mktemp("views")
    with (
        RedisServer() as redis,
        fleet(origin.endpoint, redis.url, NODES, home, extra=f'[admin]\ntoken = "{TOKEN}"\n') as running,
    ):
        yield running


def read_spread(nodes: list[Running], keys: list[str]) -> None:
    """Read objects one after the other, as behind a balancer that hands each request to the next gateway."""
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(node.endpoint)) for node in nodes]
        for number, key in enumerate(keys):
            assert clients[number % len(clients)].get(f"/{BUCKET}/{key}").status == 200


def patterns(nodes: list[Running], name: str) -> list[Any]:
    """The pattern of a stream as each gateway shows it; ``None`` if unknown."""
    return [(ask(node, "GET", f"/streams/{name}")[1] or {}).get("pattern") for node in nodes]


@pytest.mark.parametrize(("pattern", "clients"), READS)
def test_every_gateway_of_a_fleet_recognises_the_pattern(
    origin: Origin, nodes: list[Running], pattern: str, clients: int
) -> None:
    """Rule: each of three gateways names the pattern of the clients' reads, though it sees a third of them."""
    prefix = f"{pattern}-{clients}"
    keys = [f"{prefix}/{number:04}.bin" for number in range(ITEMS)]
    for key in keys:
        origin.put(f"/{BUCKET}/{key}", key.encode().ljust(2048, b"."))

    def read(seed: int) -> None:
        first = seed % NODES
        places = ORDERS[pattern](np.random.default_rng(seed), ITEMS, READS[pattern, clients] // clients).tolist()
        read_spread(nodes[first:] + nodes[:first], [keys[place] for place in places])

    seeds = count()

    def recognised() -> bool:
        """Read on until all name it: how many reads that takes depends on how those of the clients interleave."""
        if patterns(nodes, f"{BUCKET}/{prefix}/") == [pattern] * NODES:
            return True
        list(pool.map(read, islice(seeds, clients)))
        return False

    with ThreadPoolExecutor(clients) as pool:
        wait_until(recognised, SOON, "recognition by all")
