"""Demand in a fleet: consumption is known where items are at home, whichever gateway is asked."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gateway.store.datasets.demand import NAME
from gateway.store.shared.table_file import TWINS, table_of
from rig.batches import Stock, bytes_of
from rig.gateways import Running
from rig.v1 import Reply, ask
from tests.fleet.conftest import until
from tests.fleet.digests import NODES, World, fleet_of


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Returns a fleet whose members do not expire."""
    with fleet_of(tmp_path_factory.mktemp("demand"), fleet={"expire": "60s"}) as made:
        yield made


def offers(node: Running, made: Stock, query: str) -> Reply:
    """A request for offers."""
    reply = ask(node, "GET", f"/v1/datasets/{made.id}/offers?{query}")
    assert reply.status == 200, reply.body
    return reply


def items(reply: Reply) -> list[int]:
    """The offered items, in ascending order."""
    return sorted(np.frombuffer(reply.body, "<u4").tolist())


def test_every_gateway_offers_what_all_homes_have(world: World) -> None:
    """Rule: what a job read through one gateway is offered to another job by all; what that one then reads, by none."""
    made = world.dataset(bytes_of(60, 500, "offers"), caching="part")
    world.known(made)
    made.read(world.nodes[0], range(60), "mode=exact&job=one&epoch=0")
    for node in world.nodes:
        assert items(offers(node, made, "job=two&epoch=0")) == list(range(60))
    made.read(world.nodes[1], range(30), "mode=exact&job=two&epoch=0")
    for node in world.nodes:
        assert items(offers(node, made, "job=two&epoch=0")) == list(range(30, 60))


def test_homes_count_the_jobs_that_read_through_other_gateways(world: World) -> None:
    """Rule: ``x-larder-sharing`` is the same number wherever a job's items are at home."""
    made = world.dataset(bytes_of(60, 500, "sharing"), caching="part")
    world.known(made)
    made.read(world.nodes[0], range(60), "mode=exact&job=one&epoch=0")
    made.read(world.nodes[1], range(60), "mode=exact&job=two&epoch=0")
    reply = made.ask(world.nodes[2], range(60), "mode=substitute&take=5&offers=0&job=three&epoch=0")
    assert reply.headers["x-larder-sharing"] == "2"


async def test_homes_learn_the_order_that_a_job_follows(world: World) -> None:
    """Rule: whichever gateway is asked, every home computes the order: it is beside the table of what jobs have consumed."""
    made = world.dataset(bytes_of(60, 500, "orders"), caching="part")
    world.known(made)
    tables = [table_of(world.home / node / "cache") for node in NODES]

    def orders() -> int:
        return sum(len(list(table.parent.glob(f"{table.name}{TWINS}*{NAME}-*"))) for table in tables)

    for header, homes in (("unit:7", 0), ("shuffled:7", 3)):
        reply = made.ask(world.nodes[0], range(60), "mode=exact&job=one&epoch=0", headers={"x-larder-order": header})
        assert reply.status == 200
        await until(lambda: orders() == homes)  # noqa: B023


def test_offers_come_from_the_nodes_that_are_left(world: World) -> None:
    """Rule: a gateway that does not answer has nothing to offer; the others' offers come all the same."""
    made = world.dataset(bytes_of(60, 500, "left"), caching="part")
    world.known(made)
    made.read(world.nodes[0], range(60), "mode=exact&job=one&epoch=0")
    homes = world.homes(made)
    world.kill(2)
    left = [index for index, home in enumerate(homes) if home != "node-2"]
    assert items(offers(world.nodes[0], made, "job=two&epoch=0")) == left
