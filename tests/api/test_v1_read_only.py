"""Read-only keys under /-/v1: they read, and change nothing that another key of their tenant made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.v1 import GWA, Key, Reply, ask, register

READER: Key = ("READER", "gateway-secret-r")
CREDENTIALS = (
    {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
    {"access_key_id": READER[0], "secret_access_key": READER[1], "tenant": "a", "read_only": True},
)
BEAT = {"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, "phases": {}}


@pytest.fixture(scope="module")
def running(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with a key that writes and one that reads."""
    home = tmp_path_factory.mktemp("read-only")
    with gateway(Settings(origin.endpoint, home / "cache", credentials=CREDENTIALS), home) as started:
        yield started


@pytest.fixture
def stocks(origin: FakeOrigin, running: Running, tmp_path: Path, request: pytest.FixtureRequest) -> list[Stock]:
    """Two datasets that no other test has, of which the first is registered by the key that writes."""
    name = f"ro-{abs(hash(request.node.name))}"
    made = [stock(origin, tmp_path, f"{name}-{kind}", bytes_of(4, 100, f"{name}{kind}")) for kind in "ab"]
    made[0].register(running, key=GWA)
    return made


def post(running: Running, path: str, document: object, key: Key) -> Reply:
    """Send a document."""
    return ask(running, "POST", path, json.dumps(document).encode(), key)


def job(running: Running, of: Stock, name: str, key: Key) -> Reply:
    """Register a job."""
    document = {"job": name, "dataset": of.id, "gpus": 1, "batch_size": 2, "ranks": 1}
    return post(running, "/v1/jobs", document, key)


def test_a_registration_stays(running: Running, stocks: list[Stock]) -> None:
    """Rule: a read-only key removes no dataset, and puts no other one in its place."""
    mine, other = stocks
    assert ask(running, "DELETE", f"/v1/datasets/{mine.name}", key=READER).code == "AccessDenied"
    assert register(running, mine.name, other.file.read_bytes(), READER).code == "AccessDenied"
    assert register(running, mine.name, other.file.read_bytes(), READER, "?caching=none").code == "AccessDenied"
    kept = ask(running, "GET", f"/v1/datasets/{mine.name}", key=READER).json
    assert register(running, mine.name, mine.file.read_bytes(), READER, "?caching=none").status == 200
    assert (kept["id"], ask(running, "GET", f"/v1/datasets/{mine.name}").json) == (mine.id, kept)


def test_a_new_name_is_registered(running: Running, stocks: list[Stock]) -> None:
    """Rule: to read, a read-only key registers a dataset under a name that nobody has, and again without effect."""
    new = stocks[1]
    assert register(running, new.name, new.file.read_bytes(), READER).status == 201
    assert register(running, new.name, new.file.read_bytes(), READER).status == 200


def test_another_keys_job_stays(running: Running, stocks: list[Stock]) -> None:
    """Rule: a read-only key neither joins, reports for, orders, scores nor removes the job of another key."""
    data, name = stocks[0], stocks[0].name
    assert job(running, data, name, GWA).status == 201
    shown = ask(running, "GET", f"/v1/jobs/{name}").json
    replies = [
        job(running, data, name, READER),
        post(running, f"/v1/jobs/{name}/heartbeat", BEAT, READER),
        post(running, f"/v1/jobs/{name}/epochs/0", {"order": [0, 1]}, READER),
        ask(running, "PUT", f"/v1/jobs/{name}/importance?dataset={data.id}", b"", READER),
        ask(running, "DELETE", f"/v1/jobs/{name}", key=READER),
    ]
    assert [(reply.status, reply.code) for reply in replies] == [(403, "AccessDenied")] * 5
    now = ask(running, "GET", f"/v1/jobs/{name}").json
    assert {**now, "silent": 0} == {**shown, "silent": 0}


def test_a_job_of_its_own_is_its_own(running: Running, stocks: list[Stock]) -> None:
    """Rule: a training run with a read-only key registers, reports and ends."""
    data, name = stocks[0], f"{stocks[0].name}-own"
    assert job(running, data, name, READER).status == 201
    assert job(running, data, name, READER).status == 200
    assert post(running, f"/v1/jobs/{name}/heartbeat", BEAT, READER).status == 200
    assert ask(running, "DELETE", f"/v1/jobs/{name}", key=READER).status == 204
