"""Operations that nodes request from each other: only nodes may, and invalid requests are refused."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from gateway.api.peer.app import PeerApp
from gateway.api.peer.loads import peer_loads
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.fleet.nodes.peer_gate import PeerGate
from gateway.model.keys import OriginIdentity
from gateway.model.peer.auth import PeerSigner
from gateway.model.peer.principal import principal_header
from gateway.model.s3.sigv4 import WireRequest
from gateway.operate.explain.peer import peer_explanations
from gateway.operate.explain.work import Explainer, Knowledge
from gateway.operate.purge.peer import peer_purges
from gateway.operate.purge.work import Forgetting
from gateway.policies.lane import LoadClass
from rig.origin import ALICE
from tests.engine.conftest import BLOCK, Bench, benched

SECRET = "what the nodes of this fleet share"
OBJECT = ["default", "b", "k"]


class Asked:
    """A node that is asked, in the test's own event loop."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        engine = bench.engine
        forget = peer_purges(Forgetting(bench.store, lambda: ["default"]))
        explain = peer_explanations(Explainer(engine, "me"))
        warm = peer_loads(WarmObjects(engine, None))
        gate = PeerGate(SECRET, now=lambda: bench.now[0])
        self.app = PeerApp(gate, engine.services.origin.has, {"forget": forget, "explain": explain, "warm": warm}, 100)

    async def ask(self, what: str, body: Any, secret: str = SECRET) -> tuple[int, Any]:
        """The status and the document of an answer."""
        content, path = json.dumps(body).encode(), f"/-/peer/v1/{what}"
        told = principal_header("t", OriginIdentity("default", ALICE.access_key_id))
        raw = [(name.encode(), value.encode()) for name, value in (told,)]
        request = WireRequest("POST", path.encode(), b"", raw)
        signed = PeerSigner(secret, "other").headers(request, content, self.bench.now[0])
        raw += [(name.encode(), value.encode()) for name, value in signed]
        scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "path": path, "query_string": b""}
        scope |= {"headers": raw, "scheme": "http", "extensions": {}}
        sent: list[MutableMapping[str, Any]] = []

        async def receive() -> MutableMapping[str, Any]:
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: MutableMapping[str, Any]) -> None:
            sent.append(dict(message))

        await self.app(scope, receive, send)
        return sent[0]["status"], json.loads(b"".join(message.get("body", b"") for message in sent[1:]))


@pytest.fixture
async def asked(tmp_path: Path) -> AsyncIterator[Asked]:
    """A node with one object at its origin."""
    async with benched(tmp_path) as bench:
        bench.origin.put("b", "k", b"x" * 100)
        yield Asked(bench)


async def test_a_node_loads_explains_and_forgets(asked: Asked) -> None:
    """Rule: each operation runs at the node that is asked, and its result is the answer."""
    assert (await asked.ask("explain", OBJECT))[1]["known"] is False
    assert await asked.ask("warm", OBJECT) == (200, {"size": 100, "there": False, "failure": ""})
    await asked.bench.settle()
    assert (await asked.ask("explain", OBJECT))[1]["resident"] == 1
    purge = {"bucket": "b", "prefix": "", "dry_run": True}
    wanted = {"objects": 1, "bytes": 100, "failure": ""}
    assert await asked.ask("forget", purge) == (200, wanted)
    assert await asked.ask("forget", {**purge, "dry_run": False}) == (200, wanted)
    assert (await asked.ask("explain", OBJECT))[1]["known"] is False


async def test_an_explanation_can_be_read_by_other_releases(asked: Asked) -> None:
    """Rule: a document has only the fields that earlier releases know; fields of later releases are ignored."""
    _, document = await asked.ask("explain", OBJECT)
    assert not {"in_memory", "parts", "part_bytes", "first_parts"} & document.keys()
    assert Knowledge.from_json(document).node == "me"
    assert Knowledge.from_json({**document, "of_a_later_release": 1}) == Knowledge.from_json(document)


async def test_a_node_loads_a_span(asked: Asked) -> None:
    """Rule: loading ahead may cover a part of an object; only that part's blocks are read."""
    asked.bench.origin.put("b", "large", bytes(5 * BLOCK))
    span = [BLOCK, 2 * BLOCK]
    loaded = {"size": BLOCK, "there": False, "failure": ""}
    assert await asked.ask("warm", ["default", "b", "large", span, LoadClass.STREAM]) == (200, loaded)
    ranges = [seen.header("range") for seen in asked.bench.origin.seen if seen.method == "GET"]
    assert ranges == [f"bytes={BLOCK}-{2 * BLOCK - 1}"]


@pytest.mark.parametrize(
    ("what", "body"),
    [
        ("forget", []),
        ("forget", {"bucket": "b"}),
        ("forget", {"bucket": 1, "prefix": "", "dry_run": True}),
        ("explain", {}),
        ("explain", ["default", "b"]),
        ("explain", ["default", "../b", "k"]),
        ("explain", ["another", "b", "k"]),
        ("warm", ["default", "b", ""]),
        ("warm", [1, 2, 3]),
        ("warm", [*OBJECT, [-1, 5], 2]),
        ("warm", [*OBJECT, None, 99]),
    ],
)
async def test_what_makes_no_sense_is_refused(asked: Asked, what: str, body: Any) -> None:
    """Rule: 400, naming the expected fields, and no change."""
    status, problem = await asked.ask(what, body)
    assert (status, problem["code"]) == (400, "InvalidRequest")
    assert asked.bench.origin.count() == 0


@pytest.mark.parametrize("what", ["forget", "explain", "warm"])
async def test_strangers_are_refused(asked: Asked, what: str) -> None:
    """Rule: a caller without the fleet's secret is refused."""
    status, _ = await asked.ask(what, OBJECT, secret="another secret than the fleet's")
    assert status == 403
    assert asked.bench.origin.count() == 0
