"""Claims of node ids, and register entries after a heartbeat: hand-worked cases at second 1000 of Redis's clock."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.model.fleet import NodeState
from gateway.policies.fleet.membership import NO_START, NodeHeartbeat, RegisterEntry, drain_decision, take_heartbeat

NOW = 1_000_000
READY, JOINING, LEAVING = NodeState.READY, NodeState.JOINING, NodeState.LEAVING


def asked(state: NodeState = READY, boot: str = "2", place: str = "host:1", **rest: object) -> NodeHeartbeat:
    """A heartbeat of an entry that lasts ten seconds."""
    return replace(NodeHeartbeat(boot, place, state, -1, False, False, 10_000, b"{}"), **rest)  # type: ignore[arg-type]


def entry(state: str = READY, boot: str = "2", place: str = "host:1", ready: int = 900_000) -> RegisterEntry:
    """A register entry."""
    return RegisterEntry(NOW + 5_000, ready, state, boot, place, b"{}")


def test_an_entry_is_read_as_it_was_written() -> None:
    """Rule: an entry survives its text form."""
    one = replace(entry(), document=b'{"id": "a b",\n "x": "\xff"}')
    assert RegisterEntry.from_text(one.to_text()) == one


@pytest.mark.parametrize(
    "text", [b"", b"1 2 READY b", b"x 2 READY b p {}", b"1 -2 READY b p {}", b"9" * 5000 + b" 0 READY b p {}"]
)
def test_what_is_no_entry_is_none(text: bytes) -> None:
    """Rule: a text of another form counts as no entry and raises no error."""
    assert RegisterEntry.from_text(text) is None


def test_a_new_node_is_ready_from_now_on() -> None:
    """Rule: without an entry a node is ready since now, or since its own time; one that is not ready has no such time."""
    assert take_heartbeat(asked(), None, None, NOW).entry == RegisterEntry(
        NOW + 10_000, NOW, READY, "2", "host:1", b"{}"
    )
    known = take_heartbeat(asked(ready_for=7_000), None, None, NOW).entry
    assert known is not None
    assert known.ready == NOW - 7_000
    joining = take_heartbeat(asked(JOINING), None, None, NOW).entry
    assert joining is not None
    assert joining.ready_for(NOW) == -1


@pytest.mark.parametrize(
    ("holder", "held"),
    [
        (entry(boot="1", place="host:9"), True),
        (entry(boot="3"), True),
        (entry(boot="1"), False),
        (entry(boot=NO_START, place="host:9"), False),
        (entry(), False),
    ],
    ids=["elsewhere", "later start", "earlier start at the same address", "left", "sibling"],
)
def test_an_id_belongs_to_its_holder(holder: RegisterEntry, held: bool) -> None:
    """Rule: only siblings, a later start at the holder's address, and any node after the holder left may take an id."""
    assert (take_heartbeat(asked(), holder, None, NOW).entry is None) is held


def test_ready_stays_ready_when_a_sibling_joins() -> None:
    """Rule: a worker that is not ready yet makes a READY node neither JOINING nor newly ready."""
    answer = take_heartbeat(asked(JOINING), entry(), None, NOW)
    assert (answer.state, answer.entry and answer.entry.ready) == (READY, 900_000)


def test_the_last_worker_frees_the_id() -> None:
    """Rule: a worker that stops frees the id of a leaving node; while the node does not leave, its siblings speak for it."""
    left = take_heartbeat(asked(LEAVING, last=True), entry(LEAVING), None, NOW).entry
    stays = take_heartbeat(asked(LEAVING, last=True), entry(READY), None, NOW).entry
    assert left is not None
    assert stays is not None
    assert (left.boot, stays.boot, stays.state) == (NO_START, "2", READY)


def test_a_drained_node_is_shown_as_leaving() -> None:
    """Rule: to itself it is READY; the decision is written again into a Redis that lost it."""
    answer = take_heartbeat(asked(drained=True), None, None, NOW)
    assert answer.entry is not None
    assert (answer.entry.state, answer.state, answer.drained) == (LEAVING, READY, True)
    assert answer.decision == drain_decision("2", True) == "2 1"
    assert take_heartbeat(asked(), entry(), "2 1", NOW).drained


def test_a_decision_on_an_earlier_start_is_deleted() -> None:
    """Rule: a restarted node is not drained."""
    answer = take_heartbeat(asked(), None, "1 1", NOW)
    assert (answer.drained, answer.decision) == (False, "")


def test_a_node_that_is_drained_no_more_is_ready_since_now() -> None:
    """Rule: an undrained node counts as just joined, because its keys had other homes meanwhile."""
    answer = take_heartbeat(asked(drained=True, ready_for=50_000), entry(LEAVING), "2 0", NOW)
    assert answer.entry is not None
    assert (answer.entry.state, answer.entry.ready, answer.drained) == (READY, NOW, False)


def test_a_later_expiry_is_no_difference() -> None:
    """Rule: a change of state, start, place or content is announced to other nodes, one of the ready time from a second on."""
    one = entry()
    assert not replace(one, expires=one.expires + 1_000, ready=one.ready - 999).differs(one)
    for changed in (
        replace(one, state=LEAVING),
        replace(one, boot="3"),
        replace(one, place="host:2"),
        replace(one, document=b"[]"),
        replace(one, ready=one.ready - 1_000),
        replace(one, ready=0),
    ):
        assert changed.differs(one)
