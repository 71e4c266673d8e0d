"""Connections to Redis: few, with short time-outs, and without implicit retries."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.maint_notifications import MaintNotificationsConfig

from gateway.base.shortages import SHORTAGES

PAGE = 200
"""The most hashes that one request reads."""
NOT_REACHABLE = "Redis is not reachable"
_DRIVER = DriverInfo()
"""Name and version that connections report; redis-py would read its package's metadata for each of them."""


@cache
def _lost_when_closed(kind: type[Any]) -> type[Any]:
    """The connection class ``kind``, adapted to transports of uvloop.

    uvloop raises RuntimeError on a write to a transport that the peer has closed; asyncio's own transports drop the data.
    redis-py expects neither, and callers do not treat a RuntimeError as a failure of Redis.
    """

    class LostWhenClosed(kind):  # type: ignore[misc]
        async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super().send_packed_command(*args, **kwargs)
            except RuntimeError as error:
                raise RedisConnectionError(f"the connection was closed: {error}") from error

    return LostWhenClosed


def single(url: str, timeout: float, **options: Any) -> Any:
    """One unconnected connection. ``timeout`` is for connecting, in seconds."""
    pool: Any = ConnectionPool.from_url(
        url, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0), driver_info=_DRIVER, **options
    )
    pool.connection_class = _lost_when_closed(pool.connection_class)
    return pool.make_connection()


def commands(url: str, timeout: float) -> Redis:
    """A client whose commands, including the wait for a connection, fail after about ``timeout`` seconds.

    A pooled connection that Redis has closed is replaced before use. redis-py skips that for pools that listen for maintenance
    notifications, its default, so these are off.
    """
    pool: Any = BlockingConnectionPool.from_url(
        url,
        max_connections=8,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
        driver_info=_DRIVER,
        maint_notifications_config=MaintNotificationsConfig(enabled=False),
    )
    pool.connection_class = _lost_when_closed(pool.connection_class)
    return Redis.from_pool(pool)


async def hashes(redis: Redis, names: Sequence[str]) -> list[dict[bytes, bytes]]:
    """Hashes by their names, page by page: one request for thousands would block Redis."""
    rows: list[dict[bytes, bytes]] = []
    for start in range(0, len(names), PAGE):
        pipeline = redis.pipeline(transaction=False)
        for name in names[start : start + PAGE]:
            pipeline.hgetall(name)
        rows += await pipeline.execute()
    return rows


def pairs(flat: Sequence[bytes]) -> dict[bytes, bytes]:
    """A hash from the flat list that a script returns."""
    return dict(zip(flat[::2], flat[1::2], strict=True))


def text_of(value: bytes | str) -> str:
    """A reply as text: redis-py's types allow bytes and text, whatever the connection returns."""
    return value.decode() if isinstance(value, bytes) else value


def why_down(error: Exception) -> str:
    """A failure of Redis in words for operators; ``error`` was raised by a command or a connection."""
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return "Redis refuses the password, or the user, of redis.url"
    if isinstance(error, NoPermissionError):
        return "Redis denies the user of redis.url a required permission"
    if wanting := SHORTAGES.record(error, "connecting to Redis"):
        return f"Redis is not asked: the gateway is out of {wanting}"
    return NOT_REACHABLE
