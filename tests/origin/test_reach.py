"""Reachability of origins over connections that are dropped, refused or silent."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gateway.model.errors import OriginUnavailable
from rig.origin import FakeOrigin
from tests.engine.datasets import until
from tests.origin.raw_server import AS_ALICE, client_for, origin_at


@contextmanager
def full_backlog() -> Iterator[str]:
    """The address of a listener with a full backlog, where packets are dropped as by a firewall."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        try:
            for _ in range(8):
                each = socket.socket()
                each.setblocking(False)
                each.connect_ex(listener.getsockname())
                waiting.append(each)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            for each in waiting:
                each.close()


async def test_dropped_connections_are_silence() -> None:
    """Rule: an origin to which no connection comes about is lost after check_timeout, long before connect_timeout is over."""
    with full_backlog() as endpoint:
        client = await client_for(origin_at(endpoint, check_timeout=0.2, connect_timeout=60))
        reading = asyncio.create_task(client.send(AS_ALICE, "GET", "/b/k", "", ()))
        with pytest.raises(OriginUnavailable):
            async with asyncio.timeout(30):
                await client.reach(AS_ALICE).result(reading)
        assert client.reach(AS_ALICE).silent
        assert client.problem == "the origin 'default' does not answer this node"
        assert not reading.done()
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        await client.close()


async def test_a_refusal_is_no_silence() -> None:
    """Rule: an origin that refuses connections counts as lost but not silent; probes detect its return."""
    async with FakeOrigin() as origin:
        client = await client_for(origin_at(origin.endpoint, check_timeout=0.2))
        await origin.stop()
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        reach = client.reach(AS_ALICE)
        await until(lambda: reach.lost)
        assert not reach.silent
        await origin.start()
        await until(lambda: not reach.lost)
        assert client.problem == ""
        await client.close()


async def test_a_failure_right_after_a_probe_is_found_out_too() -> None:
    """Rule: one failed request leads to a probe, even right after another probe; probes keep their distance."""
    async with FakeOrigin() as origin:
        client = await client_for(origin_at(origin.endpoint, check_timeout=0.4))
        reach = client.reach(AS_ALICE)
        assert await reach.reached()
        await origin.stop()
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        await until(lambda: reach.lost)
        await client.close()
        await origin.start()


async def test_an_answered_request_ends_the_loss() -> None:
    """Rule: an answer to any request ends the loss, without a probe."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"body")
        client = await client_for(origin_at(origin.endpoint))
        await origin.stop()
        with pytest.raises(OriginUnavailable):
            await client.send(AS_ALICE, "GET", "/b/k", "", ())
        reach = client.reach(AS_ALICE)
        await until(lambda: reach.lost)
        await origin.start()
        (await client.send(AS_ALICE, "GET", "/b/k", "", ())).abort()
        assert not reach.lost
        await client.close()
