"""Results of pipelines in a fleet: at the homes of their items, through any gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from larder.pipelines import pipeline as made_pipeline
from larder.reading.frames import OK, index_form
from rig.batches import Stock, bytes_of, decoded, packed, stock, taken
from rig.consistency import files_of
from rig.gateways import Running, fleet
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.redis_server import RedisServer
from rig.v1 import ask
from tests.pipelines.result_steps import Drawing, Noting
from tests.pipelines.test_pipeline_results import access, values

ITEMS = 60
MARK = "cd" * 32


@pytest.fixture
def two(origin: FakeOrigin, tmp_path: Path) -> Iterator[list[Running]]:
    """Two gateways of one fleet."""
    with RedisServer() as redis, fleet(origin.endpoint, redis.url, 2, tmp_path, fleet={"expire": "2s"}) as running:
        yield running


def elements_of(running: Running, dataset: Stock) -> dict[int, bytes]:
    """The results that one gateway finds for a client that reaches only it."""
    path = f"/v1/datasets/{dataset.id}/results/{MARK}/batch?name={dataset.name}"
    reply = ask(running, "POST", path, packed(range(ITEMS)))
    assert reply.status == 200, reply.body
    return taken(decoded(range(ITEMS), reply.body))


def cache_of(running: Running) -> int:
    """Files in a node's cache."""
    return len(files_of(running.config.parent / "cache"))


def test_results_are_at_their_homes_and_every_gateway_has_them(
    origin: FakeOrigin, two: list[Running], tmp_path: Path
) -> None:
    """Rule: results put through one gateway go to their items' homes, where every gateway reads them; replacements do too. When
    a node is killed, its part is missing, and the rest is read."""
    made = stock(origin, tmp_path / "files", "fleet", bytes_of(ITEMS, 300, "fleet"))
    made.register(two[0])
    elements = {index: b"result %d" % index * 50 for index in range(ITEMS)}
    body = index_form([(index, OK, [data]) for index, data in elements.items()])
    reply = ask(two[0], "PUT", f"/v1/datasets/{made.id}/results/{MARK}?name={made.name}", body)
    assert reply.json == {"results": ["stored"] * ITEMS}
    assert [cache_of(running) for running in two] == [1, 1]  # a page at each home
    assert elements_of(two[0], made) == elements_of(two[1], made) == elements
    elements = {index: b"other %d" % index * 50 for index in range(ITEMS)}
    body = index_form([(index, OK, [data]) for index, data in elements.items()])
    reply = ask(two[0], "PUT", f"/v1/datasets/{made.id}/results/{MARK}?name={made.name}&replace=1", body)
    assert reply.json == {"results": ["stored"] * ITEMS}
    assert elements_of(two[0], made) == elements_of(two[1], made) == elements
    two[1].kill()
    left = elements_of(two[0], made)
    assert 0 < len(left) < ITEMS
    assert left.items() <= elements.items()


def test_a_pipeline_splits_its_results_by_home(origin: FakeOrigin, two: list[Running], tmp_path: Path) -> None:
    """Rule: a client that reaches the nodes asks the homes; a killed node costs its part of the results, and no element."""
    made = stock(origin, tmp_path / "files", "split", bytes_of(ITEMS, 300, "split"))
    made.register(two[0])
    step = Noting(tmp_path / "computed")
    options = {"workers": 1, "cache": 2, "access": access(), "endpoint": two[0].endpoint, "seed": 3}
    epochs = made_pipeline(made.name, **options).map(step).autocache()
    whole = values(epochs)
    assert len(whole) == ITEMS
    direct = [running.metric("larder_peer_requests_served_total", what="results") for running in two]

    def split() -> bool:
        """True if an epoch read from the homes directly."""
        served = [running.metric("larder_peer_requests_served_total", what="results") for running in two]
        assert values(epochs) == whole
        return served == [running.metric("larder_peer_requests_served_total", what="results") for running in two]

    wait_until(split, 60, "the client to know the nodes")
    assert sum(direct) > 0
    assert set(step.computed().values()) == {1}
    two[1].kill()
    assert values(epochs) == whole
    assert 0 < sum(step.computed().values()) - ITEMS < ITEMS
    epochs.close()


def test_all_versions_of_an_item_are_at_its_home(origin: FakeOrigin, two: list[Running], tmp_path: Path) -> None:
    """Rule: the client asks the home of the item for any of its versions, and so does a gateway for a client that reaches only
    it: no version is computed twice, and no element changes."""
    made = stock(origin, tmp_path / "files", "versions", bytes_of(ITEMS, 300, "versions"))
    made.register(two[0])
    step = Drawing(tmp_path / "computed")
    options = {"workers": 1, "access": access(), "endpoint": two[0].endpoint, "seed": 3}
    computing = made_pipeline(made.name, **options).map(step).autocache(versions=2)
    expected = [values(computing) for _ in range(2)]
    computing.close()
    assert expected[0] != expected[1]
    before = step.computed()
    stored = made_pipeline(made.name, cache=2, **options).map(step).autocache(versions=2)

    def served() -> list[float]:
        """Requests that each node has answered for the other."""
        return [running.metric("larder_peer_requests_served_total", what="results") for running in two]

    def split() -> bool:
        """True if two epochs read from the homes directly."""
        direct = served()
        assert [values(stored) for _ in range(2)] == expected
        return served() == direct

    wait_until(split, 60, "the client to know the nodes")
    assert sum(served()) > 0
    assert set((step.computed() - before).values()) == {2}
    other = (
        made_pipeline(made.name, cache=2, **{**options, "endpoint": two[1].endpoint}).map(step).autocache(versions=2)
    )
    assert [values(other) for _ in range(2)] == expected
    assert set((step.computed() - before).values()) == {2}
    stored.close()
    other.close()
