"""One Redis subscription that reports its end.

redis-py's PubSub reconnects and subscribes again by itself; messages published in between are lost without a trace.
Here a subscription is one connection: it delivers every message published after ``opened`` returned, in Redis's
order, or raises. It never loses messages silently.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.fleet.redis.connection import single

Message = tuple[str, bytes]


class Subscription:
    """Messages of some channels, as (channel, payload)."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    async def next(self, timeout: float) -> Message:
        """The next message.

        Raises:
            RedisError, OSError: the connection is lost, and with it perhaps messages.
            TimeoutError: nothing came for ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            while True:
                kind, channel, payload = await self._connection.read_response()
                if kind == b"message":
                    return channel.decode(), payload

    async def confirm(self, channels: int) -> None:
        """Wait until Redis has confirmed ``channels`` subscriptions."""
        while channels:
            kind = (await self._connection.read_response())[0]
            if kind != b"subscribe":
                raise RedisConnectionError(f"expected a confirmation, got {kind!r}")
            channels -= 1


@asynccontextmanager
async def opened(url: str, channels: Sequence[str], timeout: float) -> AsyncIterator[Subscription]:
    """A subscription that is in force; its connection is closed at the end.

    Raises:
        RedisError, OSError: Redis cannot be reached or refuses.
        TimeoutError: it did not confirm within ``timeout`` seconds.
    """
    # Protocol 2: there, messages are ordinary replies, which redis-py does not handle itself.
    connection = single(url, timeout, protocol=2)
    try:
        async with asyncio.timeout(timeout):
            await connection.connect()
            await connection.send_command("SUBSCRIBE", *channels)
            subscription = Subscription(connection)
            await subscription.confirm(len(channels))
        yield subscription
    finally:
        await connection.disconnect(nowait=True)
