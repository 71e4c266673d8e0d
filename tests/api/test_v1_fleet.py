"""``/-/v1/fleet`` of a real gateway that is alone, with two workers."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gateway.policies.fleet.ring import RING
from rig.gateways import Running, Settings, gateway
from rig.processes import wait_until
from rig.v1 import GWA, Key, ask

CAPACITY = 200_000_000
READER: Key = ("READER", "gateway-secret-r")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose origin is not there: nothing here needs it."""
    home = tmp_path_factory.mktemp("fleet")
    credentials = (
        {"access_key_id": GWA[0], "secret_access_key": GWA[1], "tenant": "a"},
        {"access_key_id": READER[0], "secret_access_key": READER[1], "read_only": True, "allow": ["b/x"]},
    )
    with gateway(Settings("http://127.0.0.1:9", home / "cache", workers=2, credentials=credentials), home) as started:
        yield started


def test_a_node_that_is_alone_is_the_whole_fleet(running: Running, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rule: it shows itself, READY once its disk is read, by the name in its cache and the address that it listens on."""

    documents = []

    def ready() -> bool:
        # The next answer may be of the other worker, which hears with its next heartbeat that the disk is read.
        documents.append(ask(running, "GET", "/v1/fleet").json)
        return [node["state"] for node in documents[-1]["nodes"]] == ["READY"]

    wait_until(ready, 60, "the node's readiness")
    document = documents[-1]
    name = (running.config.parent / "cache" / "node").read_text().strip()
    node = {"id": name, "address": running.endpoint, "capacity": CAPACITY, "state": "READY"}
    assert document == {
        "zone": "default",
        "ring": RING,
        "version": document["version"],
        "nodes": [node],
        "unix_socket": None,
    }
    assert document["version"] > 0


def test_any_key_of_the_gateway_may_see_it(running: Running) -> None:
    """Rule: every valid key may read the list of nodes."""
    assert ask(running, "GET", "/v1/fleet", key=READER).status == 200


def test_strangers_see_nothing(running: Running) -> None:
    """Rule: without a key of this gateway, or with a wrong secret, it is a refusal."""
    unsigned = ask(running, "GET", "/v1/fleet", key=None)
    assert (unsigned.status, unsigned.code) == (403, "AccessDenied")
    wrong = ask(running, "GET", "/v1/fleet", key=("GWA", "another secret"))
    assert (wrong.status, wrong.code) == (403, "SignatureDoesNotMatch")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_is_only_shown(running: Running, method: str) -> None:
    """Rule: other methods are refused, and Allow names the right one."""
    answer = ask(running, method, "/v1/fleet")
    assert (answer.status, answer.code, answer.headers["allow"]) == (405, "MethodNotAllowed", "GET")


def test_it_takes_nothing(running: Running) -> None:
    """Rule: parameters and bodies are refused as mistakes."""
    for answer in (ask(running, "GET", "/v1/fleet?zone=x"), ask(running, "GET", "/v1/fleet", b"body")):
        assert (answer.status, answer.code) == (400, "InvalidRequest")


def test_it_is_described(running: Running) -> None:
    """Rule: the API's description has the address with its schema."""
    described = ask(running, "GET", "/openapi.json", key=None).json
    assert "get" in described["paths"]["/v1/fleet"]
    assert set(described["components"]["schemas"]["FleetNode"]["properties"]) == {"id", "address", "capacity", "state"}


def test_a_node_that_is_alone_answers_no_other(running: Running) -> None:
    """Rule: without a secret a node has no addresses for other nodes."""
    assert ask(running, "GET", "/peer/v1/blobs/00", key=None).status == 404


def test_nothing_is_wrong_with_it(running: Running) -> None:
    """Rule: a node without a fleet reports no problem."""
    wait_until(lambda: ask(running, "GET", "/readyz", key=None).json["problems"] == {}, 60, "no problems")
