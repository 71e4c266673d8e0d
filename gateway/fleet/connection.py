"""Connections to Redis: few, with short time-outs, and without implicit retries."""

from __future__ import annotations

from functools import cache
from typing import Any

from redis.asyncio import BlockingConnectionPool, ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.driver_info import DriverInfo
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.maint_notifications import MaintNotificationsConfig

NOT_REACHABLE = "Redis is not reachable"
_DRIVER = DriverInfo()
"""How connections introduce themselves; redis-py would read its package's metadata for each of them."""


@cache
def _lost_when_closed(kind: type[Any]) -> type[Any]:
    """The connection class ``kind``, for transports of uvloop.

    uvloop raises RuntimeError when something is written to a transport that the peer has closed; asyncio's own transports drop
    it. redis-py knows neither, and a RuntimeError is no failure of Redis to any of its callers.
    """

    class LostWhenClosed(kind):  # type: ignore[misc]
        async def send_packed_command(self, *args: Any, **kwargs: Any) -> None:
            try:
                await super().send_packed_command(*args, **kwargs)
            except RuntimeError as error:
                raise RedisConnectionError(f"the connection was closed: {error}") from error

    return LostWhenClosed


def single(url: str, timeout: float, **options: Any) -> Any:
    """One connection, not connected yet. ``timeout`` is for connecting, in seconds."""
    pool: Any = ConnectionPool.from_url(
        url, socket_connect_timeout=timeout, retry=Retry(NoBackoff(), 0), driver_info=_DRIVER, **options
    )
    pool.connection_class = _lost_when_closed(pool.connection_class)
    return pool.make_connection()


def commands(url: str, timeout: float) -> Redis:
    """A client whose every command, waiting for a connection included, fails after about ``timeout`` seconds.

    A pooled connection that Redis has closed is replaced before it is used. redis-py leaves that out for pools that listen for
    maintenance notifications, which is the default, so these are off.
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


def text_of(value: bytes | str) -> str:
    """What a command answered, as text: its types allow both, whatever the connection gives."""
    return value.decode() if isinstance(value, bytes) else value


def why_down(error: Exception) -> str:
    """What is wrong with Redis, for people; ``error`` is what a command or a connection raised."""
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return "Redis refuses the password, or the user, of redis.url"
    if isinstance(error, NoPermissionError):
        return "Redis denies the user of redis.url a required permission"
    return NOT_REACHABLE
