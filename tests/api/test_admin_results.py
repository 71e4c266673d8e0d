"""Results of pipelines as operators see them, and what operators decide, at a real gateway."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from rig.batches import Stock, bytes_of, stock
from rig.gateways import Running, Settings, gateway
from rig.origin import FakeOrigin
from rig.processes import wait_until
from rig.v1 import Reply, ask
from tests.admin.asked import TOKEN
from tests.api.test_v1_results import put, read, stored

ITEMS, SIZE = 20, 200_000
SOON = 30.0
EXTRA = f"""
[fleet]
heartbeat = "100ms"
[results]
largest = "1MB"
[admin]
token = "{TOKEN}"
"""


@pytest.fixture(scope="module")
def alone(origin: FakeOrigin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose cache is larger than all elements of these tests."""
    home = tmp_path_factory.mktemp("results")
    with gateway(Settings(origin.endpoint, home / "cache", capacity="100MB", extra=EXTRA), home) as started:
        yield started


@pytest.fixture(scope="module")
def items(origin: FakeOrigin, alone: Running, tmp_path_factory: pytest.TempPathFactory) -> Stock:
    """A dataset."""
    made = stock(origin, tmp_path_factory.mktemp("files"), "items", bytes_of(ITEMS, 100, "items"))
    made.register(alone)
    return made


@pytest.fixture
def mark(request: pytest.FixtureRequest) -> str:
    """A fingerprint that no other test has."""
    return f"{abs(hash(request.node.name)):016x}".ljust(64, "0")


def elements(mark: str) -> dict[int, bytes]:
    """An element for each item, of bytes that no other test stores: equal ones are charged to the pool that had them first."""
    return dict(enumerate(bytes_of(ITEMS, SIZE, mark)))


def ask_admin(alone: Running, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    """The answer of an admin address."""
    sent = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json", **headers}
    text = b"" if body is None else json.dumps(body).encode()
    return ask(alone, method, f"/admin{path}", text, key=None, headers=sent)


def seen(alone: Running, mark: str) -> dict[str, Any]:
    """The results of a mark, as the list has them; empty while it has not."""
    found = ask_admin(alone, "GET", "/results").json["items"]
    return next((one for one in found if one["fingerprint"] == mark), {})


def planned(alone: Running, items: Stock, mark: str) -> str:
    """The pool of a mark whose first element is stored, once the plan gives it space."""
    assert stored(put(alone, items, mark, {0: elements(mark)[0]})) == ["stored"]
    wait_until(lambda: seen(alone, mark).get("target", 0) > 0, SOON, "the pool")
    return str(seen(alone, mark)["pool"])


def override(alone: Running, pool: str, **decision: Any) -> None:
    """Decide."""
    reply = ask_admin(alone, "PUT", f"/results/{pool}/override", decision)
    assert reply.status == 200, reply.body


def test_results_are_shown_with_elements_bytes_and_hits(alone: Running, items: Stock, mark: str) -> None:
    """Rule: list, detail and overview show the stored elements and bytes, the reads, and the target."""
    pool = planned(alone, items, mark)
    put(alone, items, mark, elements(mark))
    wait_until(lambda: seen(alone, mark)["bytes"] == ITEMS * SIZE, SOON, "the node's report")
    assert len(read(alone, items, mark, range(ITEMS))) == ITEMS
    wait_until(lambda: seen(alone, mark)["hits"] >= ITEMS, SOON, "the node's report")
    reply = ask_admin(alone, "GET", f"/results/{pool}")
    shown = reply.json
    assert (shown["blobs"], shown["bytes"], shown["items"]) == (ITEMS, ITEMS * SIZE, ITEMS)
    assert shown["target"] >= ITEMS * SIZE
    assert shown["override"] == {"mode": None, "quota": None, "changed_at": None, "etag": reply.headers["etag"]}
    (listed,) = [one for one in ask_admin(alone, "GET", "/overview").json["results"] if one["pool"] == pool]
    assert listed.items() <= shown.items()


def test_never_stores_none_and_auto_stores_again(alone: Running, items: Stock, mark: str) -> None:
    """Rule: an operator's override is in the next plan: with never results are refused, with null they are stored again."""
    pool = planned(alone, items, mark)
    override(alone, pool, mode="never")
    wait_until(lambda: seen(alone, mark)["target"] == 0, SOON, "the plan")
    assert seen(alone, mark)["why"] == "override"
    again = {1: elements(mark)[1]}
    wait_until(
        lambda: stored(put(alone, items, mark, again, more="&replace=1")) == ["full"], SOON, "the node to follow"
    )
    override(alone, pool, mode=None)
    wait_until(lambda: seen(alone, mark)["target"] > 0, SOON, "the plan")
    wait_until(
        lambda: set(stored(put(alone, items, mark, elements(mark)))) <= {"stored", "known"}, SOON, "the node to follow"
    )


def test_a_quota_bounds_results(alone: Running, items: Stock, mark: str) -> None:
    """Rule: the target is at most the quota, in any mode; a pinned pool shows that an operator decided."""
    pool = planned(alone, items, mark)
    override(alone, pool, mode="pin", quota=5 * SIZE)
    wait_until(lambda: seen(alone, mark)["target"] == 5 * SIZE, SOON, "the plan")
    assert seen(alone, mark)["why"] == "override"
    again = elements(mark)
    wait_until(lambda: "full" in stored(put(alone, items, mark, again, more="&replace=1")), SOON, "the node to follow")


def test_a_change_that_was_seen_by_nobody_is_refused(alone: Running, items: Stock, mark: str) -> None:
    """Rule: If-Match must be the tag of the current override; a pool that is not in use is unknown."""
    pool = planned(alone, items, mark)
    etag = ask_admin(alone, "GET", f"/results/{pool}").headers["etag"]
    assert ask_admin(alone, "PUT", f"/results/{pool}/override", {"mode": "pin"}, **{"If-Match": etag}).status == 200
    assert ask_admin(alone, "PUT", f"/results/{pool}/override", {"mode": None}, **{"If-Match": etag}).status == 412
    unknown = f"results:{'0' * 32}"
    assert ask_admin(alone, "GET", f"/results/{unknown}").status == 404
    assert ask_admin(alone, "PUT", f"/results/{unknown}/override", {"mode": "pin"}).status == 404
    assert ask_admin(alone, "PUT", f"/results/{pool}/override", {"mode": "always"}).status == 400
