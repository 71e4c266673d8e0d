"""Registrations of a fleet: known everywhere, replaced and removed everywhere, and safe from a Redis that forgets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.batches import Stock, bytes_of, decoded, stock
from rig.gateways import Running
from rig.processes import wait_until
from rig.v1 import GWA, Key, ask
from tests.fleet.digests import World, fleet_of

PAYS = {"x-amz-request-payer": "requester"}
GWB: Key = ("GWB", "gateway-secret-b")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {
        "access_key_id": GWB[0], "secret_access_key": GWB[1], "tenant": "b",
        "origin_access_key_id": "origin-key-b", "origin_secret_access_key": "origin-secret-b",
    },
)  # fmt: skip


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Three nodes, two tenants."""
    how = {"credentials": CREDENTIALS, "fleet": {"expire": "4s"}}
    with fleet_of(tmp_path_factory.mktemp("registrations"), **how) as made:
        yield made


def shown(node: Running, name: str, key: Key = GWA) -> str:
    """The id of a dataset in a gateway's answer, or the error code."""
    reply = ask(node, "GET", f"/v1/datasets/{name}", key=key)
    return reply.json["id"] if reply.status == 200 else reply.code


def eventually_shown(world: World, name: str, wanted: str, key: Key = GWA) -> None:
    """Wait until every gateway shows the same."""
    wait_until(lambda: {shown(node, name, key) for node in world.nodes} == {wanted}, 20, f"{name} to be {wanted}")


def replaced(world: World, made: Stock, bodies: list[bytes]) -> Stock:
    """Other items, to be registered under the name of an existing dataset."""
    return stock(world.origin, world.home / "replaced", made.name, bodies)


def test_what_one_gateway_knows_all_know_at_once(world: World) -> None:
    """Rule: right after a registration at one gateway, the first request at any other finds it, by name and by id."""
    made = world.dataset(bytes_of(20, 500, "known"))
    assert [shown(node, made.name) for node in world.nodes] == [made.id] * 3
    other = world.dataset(bytes_of(20, 500, "known by id"), at=1)
    assert all(other.read(node, range(20)) == other.expected(range(20)) for node in world.nodes)
    listed = [ask(node, "GET", "/v1/datasets").json["datasets"] for node in world.nodes]
    assert all({made.name, other.name} <= {each["name"] for each in each_list} for each_list in listed)


def test_a_copy_is_the_same_registration(world: World) -> None:
    """Rule: a copy answers like the original: items, their places, their mode, its time."""
    made = world.dataset(bytes_of(30, 500, "copied"), caching="part")
    shown_by = [ask(node, "GET", f"/v1/datasets/{made.name}").json for node in world.nodes]
    for document in shown_by:
        document.pop("resident")
    assert shown_by == [shown_by[0]] * 3
    items = [ask(node, "GET", f"/v1/datasets/{made.name}/items?start=3&count=20").body for node in world.nodes]
    assert items == [items[0]] * 3


def test_a_replaced_name_is_noticed_everywhere(world: World) -> None:
    """Rule: a name that is replaced at one gateway means the new dataset at all of them within about a second."""
    made = world.dataset(bytes_of(10, 500, "first"))
    eventually_shown(world, made.name, made.id)
    second = replaced(world, made, bytes_of(12, 500, "second"))
    second.register(world.nodes[2])
    eventually_shown(world, made.name, second.id)
    assert all(second.read(node, range(12)) == second.expected(range(12)) for node in world.nodes)


def test_a_removed_name_is_gone_everywhere(world: World) -> None:
    """Rule: a name removed at any gateway, even one that never had it, is unknown at all gateways from then on."""
    made = world.dataset(bytes_of(10, 500, "removed"))
    assert shown(world.nodes[0], made.name) == shown(world.nodes[1], made.name) == made.id
    assert ask(world.nodes[2], "DELETE", f"/v1/datasets/{made.name}").status == 204
    eventually_shown(world, made.name, "UnknownDataset")
    assert ask(world.nodes[0], "DELETE", f"/v1/datasets/{made.name}").status == 404


def test_tenants_stay_apart(world: World) -> None:
    """Rule: a tenant's name means nothing to another tenant, at any gateway, and both may use the same."""
    mine = world.dataset(bytes_of(10, 500, "mine"))
    assert [shown(node, mine.name, GWB) for node in world.nodes] == ["UnknownDataset"] * 3
    assert [shown(node, mine.id, GWB) for node in world.nodes] == ["UnknownDataset"] * 3
    theirs = replaced(world, mine, bytes_of(11, 500, "theirs"))
    theirs.register(world.nodes[1], key=GWB)
    assert [shown(node, mine.name) for node in world.nodes] == [mine.id] * 3
    assert [shown(node, mine.name, GWB) for node in world.nodes] == [theirs.id] * 3


def payers(world: World, made: Stock) -> set[str]:
    """What the reads of a dataset's items said to the origin about their charges, so far; those reads are forgotten."""
    paths = {made.path(index) for index in range(len(made.rows))}
    reads = [seen for seen in world.origin.seen if seen.method == "GET" and seen.raw_path in paths]
    world.origin.seen = [seen for seen in world.origin.seen if seen not in reads]
    return {seen.header(name) for seen in reads for name in PAYS}


def test_who_registers_a_dataset_may_accept_its_charges(world: World) -> None:
    """Rule: reads of its items, and of its digest file at the origin, carry the payer on every node, prefetches too; so do they
    until it is registered without."""
    made = stock(world.origin, world.home / "files", "paid", bytes_of(60, 1000, "paid"))
    world.origin.put("data", "paid.parquet", made.file.read_bytes())
    source = b'{"source": "s3://data/paid.parquet"}'
    json = {"content-type": "application/json"}
    assert ask(world.nodes[0], "PUT", "/v1/datasets/paid?caching=full", source, headers=json | PAYS).status == 201
    assert world.origin.seen[-1].header("x-amz-request-payer") == "requester"
    assert made.read(world.nodes[1], range(20)) == made.expected(range(20))
    made.ask(world.nodes[2], range(20, 40), "mode=prefetch")
    wait_until(lambda: made.missing(world.nodes[1]) == list(range(40, 60)), 30, "the announced items")
    assert payers(world, made) == {"requester"}
    assert [ask(node, "GET", "/v1/datasets/paid").json["request_payer"] for node in world.nodes] == [True] * 3
    assert ask(world.nodes[1], "PUT", "/v1/datasets/paid?caching=full", source, headers=json).status == 200
    wait_until(
        lambda: not any(ask(node, "GET", "/v1/datasets/paid").json["request_payer"] for node in world.nodes),
        20,
        "the news that nobody pays",
    )
    made.read(world.nodes[2], range(40, 60))
    assert payers(world, made) == {""}


def test_a_reader_of_a_batch_may_accept_its_charges(world: World) -> None:
    """Rule: items of a batch whose request has the payer are read with it, by their homes too."""
    made = world.dataset(bytes_of(60, 1000, "paid by its reader"))
    reply = made.ask(world.nodes[1], range(60), headers=PAYS)
    assert len(decoded(range(60), reply.body).positions) == 60
    assert payers(world, made) == {"requester"}


def test_a_redis_that_forgets_contradicts_nothing(world: World) -> None:
    """Rule: after a flush every gateway keeps its registrations, and fills the table again for the others."""
    made = world.dataset(bytes_of(10, 500, "flushed"))
    assert shown(world.nodes[1], made.name) == made.id
    world.redis.flush()
    assert [shown(node, made.name) for node in world.nodes[:2]] == [made.id] * 2
    wait_until(lambda: shown(world.nodes[2], made.name) == made.id, 20, "the table to be filled again")
    eventually_shown(world, made.name, made.id)


def test_without_redis_what_is_known_goes_on(world: World) -> None:
    """Rule: with Redis down, a registration works at its gateway and is announced later; a removal is refused."""
    made = world.dataset(bytes_of(10, 500, "down"))
    eventually_shown(world, made.name, made.id)
    world.redis.kill()
    try:
        assert [shown(node, made.name) for node in world.nodes] == [made.id] * 3
        assert made.read(world.nodes[0], range(10)) == made.expected(range(10))
        news = world.dataset(bytes_of(10, 500, "news"), at=1)
        assert shown(world.nodes[1], news.name) == news.id
        assert ask(world.nodes[0], "DELETE", f"/v1/datasets/{made.name}").status == 503
    finally:
        world.redis.start()
    eventually_shown(world, news.name, news.id)
    eventually_shown(world, made.name, made.id)


def test_a_node_that_was_away_hears_what_it_missed(world: World) -> None:
    """Rule: a killed node's registrations on disk count only if the fleet's table still has them."""
    kept, gone, changed = (world.dataset(bytes_of(10, 500, name)) for name in ("kept", "gone", "changed"))
    for made in (kept, gone, changed):
        eventually_shown(world, made.name, made.id)
    world.kill(2)
    try:
        assert ask(world.nodes[0], "DELETE", f"/v1/datasets/{gone.name}").status == 204
        other = replaced(world, changed, bytes_of(11, 500, "changed again"))
        other.register(world.nodes[0])
    finally:
        world.revive(2)
    eventually_shown(world, kept.name, kept.id)
    eventually_shown(world, gone.name, "UnknownDataset")
    eventually_shown(world, changed.name, other.id)
