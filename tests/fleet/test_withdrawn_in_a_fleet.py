"""Withdrawn rights and changed objects take effect in every worker of every node."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from rig.clients import Client
from rig.world import MIB, content, credentials, eventually
from tests.fleet.nodes import COUNT, Nodes, nodes

WORKERS = 2
SPREAD = range(2 * WORKERS)
"""Connections to one node, enough that each of its workers is likely to answer one."""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes of two workers; a rule shares grants, and one says that nothing changes."""
    rules = (
        {"match": "bucket/shared/**", "authorization": "prefix"},
        {"match": "bucket/fixed/**", "freshness": "immutable"},
    )
    home = tmp_path_factory.mktemp("fleet")
    with nodes(home, rules=rules, credentials=credentials("a", "b"), workers=WORKERS) as made:
        yield made


@pytest.mark.parametrize(
    ("method", "what"),
    [
        ("PUT", "?policy"),
        ("DELETE", "?policy"),
        ("PUT", "?acl"),
        ("PUT", "?publicAccessBlock"),
        ("DELETE", "?ownershipControls"),
        ("PUT", "?tagging"),
        ("PUT", ""),
    ],
)
def test_rights_withdrawn_through_one_node_end_at_all(fleet: Nodes, method: str, what: str) -> None:
    """Rule: once a change of a bucket's rights is answered, no worker of any node serves the bucket's objects to a reader who has
    lost the right, and each of these reads costs the store one request; readers who still have it get the bytes."""
    name = f"{method}{what.strip('?')}"
    paths = [fleet.path(home, f"{kind}/{name}") for home in range(COUNT) for kind in ("shared", "each")]
    for path in paths:
        fleet.origin.put(path, b"secret")
        for number in range(COUNT):
            eventually(
                lambda number=number, path=path: fleet.get(number, path).cache, lambda told: told == "HIT", "a hit"
            )
    seen = len(fleet.origin.s3.seen)
    fleet.origin.s3.deny("origin-key-a", f"bucket/*{name}*")
    with Client(fleet.running[0].endpoint) as client:
        assert client.ask(method, f"/bucket{what}", body=b"{}" if method == "PUT" else b"").status in (200, 204)
    answers = [fleet.get(number, path) for number in range(COUNT) for path in paths for _ in SPREAD]
    assert {got.status for got in answers} == {403}
    assert len([each for each in fleet.origin.s3.seen[seen:] if each.status == 403]) == len(answers)
    fleet.origin.s3.allow_again()
    assert {fleet.get(number, path).body for number in range(COUNT) for path in paths} == {b"secret"}


@pytest.mark.parametrize("kind", ["fixed", "each"])
@pytest.mark.parametrize("home", range(COUNT))
def test_an_object_that_changed_in_the_middle_of_a_body_is_forgotten(fleet: Nodes, kind: str, home: int) -> None:
    """Rule: if a partly cached object is overwritten behind the gateway, at most one read breaks off; all others, through any
    node, get the new object."""
    path = fleet.path(home, f"{kind}/half")
    old, new = content(4 * MIB, "old"), content(4 * MIB, "new")
    fleet.origin.put(path, old)
    assert fleet.get(0, path, range="bytes=0-99").body == old[:100]
    eventually(
        lambda: fleet.get(0, path, range="bytes=0-99").cache, lambda told: told == "HIT", "the first block to be kept"
    )
    fleet.origin.put(path, new)
    answers = [fleet.get(number, path) for _ in range(3) for number in range(COUNT)]
    broken = [got for got in answers if not got.whole]
    # None where a busy machine had the first read answered elsewhere; one node holds the part, so there cannot be two.
    assert len(broken) <= 1
    assert all(old.startswith(got.body) for got in broken)
    assert {got.body for got in answers if got.whole} == {new}
