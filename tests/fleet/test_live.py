"""Live following of requests through a real Redis."""

from __future__ import annotations

import pytest
from redis.asyncio import Redis

from gateway.engine.operations.live import FOLLOWERS, LiveRequests
from gateway.fleet.nodes.live import MOST, LiveExchange
from gateway.model.live import LiveFilter, LiveRequest

REQUEST = LiveRequest(
    100.5, "gw-1", "ID", "", "vision", "KEY", "10.0.0.9", "GET", "data", "train/1", 200, "MISS", "cold", 10, 0.25
)
ME, OTHER = "a" * 32, "b" * 32


@pytest.mark.parametrize(
    ("wanted", "matches"),
    [
        (LiveFilter(), True),
        (LiveFilter(tenant="vision", bucket="data", prefix="train/", status="200", outcome="MISS", slower=0.25), True),
        (LiveFilter(status="2xx"), True),
        (LiveFilter(status="4xx"), False),
        (LiveFilter(status="404"), False),
        (LiveFilter(tenant="speech"), False),
        (LiveFilter(bucket="dat"), False),
        (LiveFilter(prefix="val/"), False),
        (LiveFilter(outcome="HIT"), False),
        (LiveFilter(slower=0.3), False),
    ],
)
def test_a_filter_matches_what_it_names(wanted: LiveFilter, matches: bool) -> None:
    """Rule: every named field must match; an empty one matches everything."""
    assert wanted.matches(REQUEST) is matches


async def test_a_follower_gets_what_workers_answered(redis: Redis) -> None:
    """Rule: each follower gets the matching requests of all workers once."""
    exchange = LiveExchange(redis, "larder:z:")
    await exchange.follow(ME, LiveFilter(status="2xx"))
    await exchange.follow(OTHER, LiveFilter(status="5xx"))
    for _ in range(2):
        worker = LiveRequests(exchange)
        worker.note(REQUEST)  # nobody was known to follow
        await worker.run_once()
        worker.note(REQUEST)
        await worker.run_once()
    assert await exchange.take_requests(ME) == ([REQUEST, REQUEST], 0)
    assert await exchange.take_requests(ME) == ([], 0)
    assert await exchange.take_requests(OTHER) == ([], 0)


async def test_what_is_too_much_is_dropped_and_counted(redis: Redis) -> None:
    """Rule: a worker's and a follower's backlogs are bounded; dropped requests are counted."""
    exchange = LiveExchange(redis, "larder:z:")
    await exchange.follow(ME, LiveFilter())
    worker = LiveRequests(exchange)
    await worker.run_once()
    noted = 0
    while noted < 2 * MOST:
        for _ in range(300):
            worker.note(REQUEST._replace(bytes=noted))
            noted += 1
        await worker.run_once()
    requests, dropped = await exchange.take_requests(ME)
    assert len(requests) == MOST
    assert len(requests) + dropped == noted


async def test_so_many_follow_at_once(redis: Redis) -> None:
    """Rule: a worker serves a fixed number of followers, however many there are."""
    exchange = LiveExchange(redis, "larder:z:")
    for number in range(FOLLOWERS + 3):
        await exchange.follow(f"{number:032x}", LiveFilter())
    worker = LiveRequests(exchange)
    await worker.run_once()
    assert len(worker.followers) == FOLLOWERS
