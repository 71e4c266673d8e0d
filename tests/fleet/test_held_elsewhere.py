"""The items that the other nodes of a zone hold."""

from __future__ import annotations

from redis.asyncio import Redis

from gateway.fleet.nodes.held_elsewhere import HeldElsewhere
from gateway.fleet.nodes.reports import HELD_ITEMS, NodeReport, NodeReports
from tests.fleet.job_book import LONG


async def test_what_other_nodes_report_is_added(redis: Redis) -> None:
    """Rule: items of all nodes but this one, which counts its own; none while Redis is down."""
    reports = NodeReports(redis, "larder:z:", HELD_ITEMS, LONG)
    held = HeldElsewhere(reports, "me")
    assert await held.items() == {}
    for node, items in (("me", 100), ("n1", 7), ("n2", 5)):
        await reports.send(node, {"d": NodeReport(resident=items), "e": NodeReport()})
    assert await held.items() == {"d": 12, "e": 0}
    away = HeldElsewhere(NodeReports(Redis(port=1), "larder:z:", HELD_ITEMS, LONG), "me")
    assert await away.items() == {}
