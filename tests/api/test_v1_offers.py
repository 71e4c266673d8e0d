"""Offers of a real gateway: which items a job is offered, what answers say of other jobs, and what is refused."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rig.batches import Stock, bytes_of, decoded, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.v1 import GWA, Key, Reply, ask

OTHER: Key = ("GWB", "gateway-secret-b")
LIMITED: Key = ("LIMITED", "gateway-secret-l")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": OTHER[0], "secret_access_key": OTHER[1], "tenant": "b"},
    {"access_key_id": LIMITED[0], "secret_access_key": LIMITED[1], "tenant": "a", "allow": ["data/*/00000[0-4]*"]},
)
names = itertools.count()


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway."""
    home = tmp_path_factory.mktemp("offers")
    with gateway(Settings(origin.endpoint, home / "cache", credentials=CREDENTIALS), home) as started:
        yield started


@pytest.fixture
def data(running: Running, origin: FakeOrigin, tmp_path: Path) -> Stock:
    """A static dataset of twenty items that nobody has read."""
    name = f"offers-{next(names)}"
    made = stock(origin, tmp_path, name, bytes_of(20, 100, name))
    made.register(running, "static")
    return made


def offers(running: Running, data: Stock, query: str, key: Key = GWA) -> Reply:
    """A request for offers."""
    return ask(running, "GET", f"/v1/datasets/{data.id}/offers?{query}", key=key)


def indices(reply: Reply) -> list[int]:
    """The offered items."""
    assert reply.status == 200, reply.body
    return np.frombuffer(reply.body, "<u4").tolist()


def test_a_job_is_offered_what_another_one_has_consumed(running: Running, data: Stock) -> None:
    """Rule: cached items that the other job has had in its epoch, until this job has had them too."""
    data.read(running, [3, 8, 5], "mode=exact&job=one&epoch=0")
    assert sorted(indices(offers(running, data, "job=two&epoch=0"))) == [3, 5, 8]
    data.read(running, [8], "mode=exact&job=two&epoch=0")
    assert sorted(indices(offers(running, data, "job=two&epoch=0"))) == [3, 5]
    assert sorted(indices(offers(running, data, "job=one&epoch=0"))) == []
    assert len(indices(offers(running, data, "job=two&epoch=0&most=1"))) == 1


def test_a_new_epoch_makes_all_of_it_new(running: Running, data: Stock) -> None:
    """Rule: in its next epoch a job is offered again what it has had, and offers nothing of the epoch before."""
    data.read(running, [1, 2], "mode=exact&job=one&epoch=0")
    data.read(running, [1, 2], "mode=exact&job=two&epoch=0")
    assert sorted(indices(offers(running, data, "job=one&epoch=1"))) == [1, 2]
    assert indices(offers(running, data, "job=two&epoch=0")) == []


def test_answers_say_how_many_others_read_the_dataset(running: Running, data: Stock) -> None:
    """Rule: each answer has the number of other active jobs; a look-up, which is for no job, counts all."""
    told = [
        data.ask(running, [1], query).headers["x-larder-sharing"]
        for query in ("mode=exact&job=one&epoch=0", "mode=exact&job=two&epoch=0", "mode=substitute&take=1&offers=0", "")
    ]
    assert told == ["0", "1", "2", "2"]
    assert data.ask(running, [1], what="lookup").headers["x-larder-sharing"] == "2"
    assert offers(running, data, "job=one&epoch=0").headers["x-larder-sharing"] == "1"


def test_other_modes_offer_nothing(running: Running, data: Stock) -> None:
    """Rule: only in mode static do jobs share by offers."""
    data.register(running, "full")
    data.read(running, [1, 2], "mode=exact&job=one&epoch=0")
    reply = offers(running, data, "job=two&epoch=0")
    assert (indices(reply), reply.headers["x-larder-sharing"]) == ([], "0")


def test_jobs_of_two_tenants_share_the_bytes_that_both_have_registered(running: Running, data: Stock) -> None:
    """Rule: equal names are two jobs, and a reader with an allow-list is offered only what it covers."""
    data.register(running, "static", OTHER)
    data.read(running, [1, 7], "mode=exact&job=one&epoch=0", OTHER)
    assert sorted(indices(offers(running, data, "job=one&epoch=0"))) == [1, 7]
    assert indices(offers(running, data, "job=one&epoch=0", LIMITED)) == [1]


def test_a_batch_takes_its_own_order_and_then_offers(running: Running, data: Stock) -> None:
    """Rule: with ``offers``, other cached candidates are not taken while what is missing can be loaded."""
    data.read(running, [4, 5, 6, 7, 8], "mode=exact&job=one&epoch=0")
    candidates = [4, 0, 8, 5, 6, 7]
    reply = data.ask(running, candidates, "mode=substitute&take=2&offers=1&job=two&epoch=0")
    assert sorted(candidates[position] for position in decoded(candidates, reply.body).positions) == [4, 8]
    candidates = [0, 1, 5, 6, 7]
    reply = data.ask(running, candidates, "mode=substitute&take=2&offers=0&job=two&epoch=0")
    assert sorted(candidates[position] for position in decoded(candidates, reply.body).positions) == [0, 1]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", "job and epoch"),
        ("job=one", "job and epoch"),
        ("epoch=1", "job and epoch"),
        ("job=one&epoch=x", "epoch"),
        ("job=one&epoch=0&most=0", "most"),
        ("job=one&epoch=0&most=65537", "most"),
        ("job=one&epoch=0&take=1", "take"),
        (f"job={'x' * 129}&epoch=0", "job"),
    ],
)
def test_wrong_requests_are_refused_with_the_parameter(running: Running, data: Stock, query: str, names: str) -> None:
    """Rule: a refusal names what is wrong."""
    reply = offers(running, data, query)
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert names in reply.json["detail"]


def test_offers_belong_to_substitutable_batches(running: Running, data: Stock) -> None:
    """Rule: other modes have no choice that offers could guide."""
    reply = data.ask(running, [1], "mode=exact&offers=1")
    assert (reply.status, reply.code) == (400, "InvalidRequest")
    assert "offers" in reply.json["detail"]


def test_offers_are_asked_for_by_get_and_only_with_a_key(running: Running, data: Stock) -> None:
    """Rule: the same authentication as for batches; other methods are refused with the allowed one."""
    path = f"/v1/datasets/{data.id}/offers?job=one&epoch=0"
    reply = ask(running, "POST", path)
    assert (reply.status, reply.headers["allow"]) == (405, "GET")
    assert ask(running, "GET", path, key=None).status == 403
    assert ask(running, "GET", f"/v1/datasets/{'0' * 64}/offers?job=one&epoch=0").code == "UnknownDataset"


def test_more_offers_than_candidates_are_no_mistake(running: Running, data: Stock) -> None:
    """Rule: the last batch of an epoch has few candidates."""
    reply = data.ask(running, [1, 2], "mode=substitute&take=8&offers=9&job=one&epoch=0")
    assert sorted(decoded([1, 2], reply.body).positions) == [0, 1]


def test_a_reader_that_says_nothing_of_offers_reads_as_before(running: Running, data: Stock) -> None:
    """Rule: an older client gets cached candidates first."""
    data.read(running, [15, 16])
    reply = data.ask(running, [0, 1, 15, 16], "mode=substitute&take=2&job=one&epoch=0")
    assert sorted(decoded([0, 1, 15, 16], reply.body).positions) == [2, 3]
