"""Suspicion of nodes that do not answer, or refuse. Tests send heartbeats explicitly."""

from __future__ import annotations

import pytest

from gateway.fleet.nodes import membership as module
from gateway.fleet.redis.embedded import EmbeddedRedis
from gateway.model.fleet import NodeState
from tests.fleet.test_membership import nodes


async def test_a_suspect_is_left_out_and_tried_again(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: for two seconds its keys are at home elsewhere, for this worker only; heartbeats do not bring it back earlier."""
    monkeypatch.setattr(module, "_SUSPECTED", 3600.0)
    async with nodes(redis_server.url, "a", "b", "c") as [a, b, _]:
        whole = a.ring
        a.suspect("b")
        assert a.ring.ids == ("a", "c")
        await a.beat()
        assert a.ring.ids == ("a", "c")
        assert a.nodes["b"].state is NodeState.READY
        assert b.ring.ids == ("a", "b", "c")
        a.suspect("c")
        assert a.alone
        monkeypatch.setattr(module, "_SUSPECTED", 0.0)
        a.suspect("b")
        a.suspect("c")
        assert a.ring.ids == whole.ids


async def test_a_node_that_never_answers_is_complained_of_once(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: it is tried again every two seconds, and that is not logged each time."""
    monkeypatch.setattr(module, "_SUSPECTED", 0.0)
    monkeypatch.setattr(module, "_COMPLAIN", 3600.0)
    async with nodes(redis_server.url, "a", "b") as [a, _]:
        for _ in range(3):
            a.suspect("b")
            assert a.ring.ids == ("a", "b")
            await a.beat()
            await a.beat()
    assert [record.message for record in caplog.records if "does not answer" in record.message] == [
        "node b does not answer; out of the ring for 0 s at a time"
    ]


async def test_of_a_node_that_drains_nobody_warns(
    redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: a leaving node that does not answer causes no warning, whether it announced its leave before or after the call."""
    caplog.set_level("INFO", "larder.fleet")
    async with nodes(redis_server.url, "a", "b", "c") as [a, b, c]:
        a.suspect("b")
        await a.beat()
        await b.leave()
        await c.leave()
        await a.beat()
        a.suspect("c")
        await a.beat()
        await a.beat()
    assert [record.message for record in caplog.records if "did not answer a call" in record.message] == [
        "node b did not answer a call; out of the ring for 2 s"
    ]
    assert not [record.message for record in caplog.records if "does not answer" in record.message]


@pytest.mark.parametrize(
    ("reason", "remedy"), [("signature", "fleet.secret"), ("date", "clocks"), ("protocol", "version"), ("body", "")]
)
async def test_a_node_that_refuses_is_told_with_the_remedy(
    redis_server: EmbeddedRedis, caplog: pytest.LogCaptureFixture, reason: str, remedy: str
) -> None:
    """Rule: a refusal is distinct from silence: it is logged once a minute, and reported as a problem while it lasts."""
    async with nodes(redis_server.url, "a", "b") as [a, b]:
        for _ in range(3):
            a.suspect("b", reason)
        assert a.ring.ids == ("a",)
        await a.beat()
        await a.beat()
        assert f"node b refuses the calls of this node: {reason}" in a.isolation_reason
        assert remedy in a.isolation_reason
        assert b.isolation_reason == ""
        await b.leave()
        await b.stop()
        await a.beat()
    assert len([record for record in caplog.records if "node b refuses" in record.message]) == 1
    assert not [record for record in caplog.records if "answer" in record.message]


async def test_a_refusal_is_a_problem_for_a_minute(
    redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a refusal that has ended is soon no problem any more, without another start."""
    monkeypatch.setattr(module, "_COMPLAIN", 0.0)
    async with nodes(redis_server.url, "a", "b") as [a, _]:
        a.suspect("b", "date")
        assert a.isolation_reason == ""


async def test_only_other_nodes_are_suspected(redis_server: EmbeddedRedis) -> None:
    """Rule: only other, present nodes are suspected."""
    async with nodes(redis_server.url, "a", "b") as [a, _]:
        a.suspect("a")
        a.suspect("gone")
        assert a.ring.ids == ("a", "b")
