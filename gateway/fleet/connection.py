"""Connections for single commands to Redis: few, short-tempered, and never repeated behind the caller's back."""

from __future__ import annotations

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, AuthorizationError, NoPermissionError

NOT_REACHABLE = "Redis is not reachable"


def commands(url: str, timeout: float) -> Redis:
    """A client whose every command, waiting for a connection included, fails after about ``timeout`` seconds."""
    pool = BlockingConnectionPool.from_url(
        url,
        max_connections=8,
        timeout=timeout,
        socket_timeout=timeout,
        socket_connect_timeout=timeout,
        retry=Retry(NoBackoff(), 0),
    )
    return Redis.from_pool(pool)


def text_of(value: bytes | str) -> str:
    """What a command answered, as text: its types allow both, whatever the connection gives."""
    return value.decode() if isinstance(value, bytes) else value


def why_down(error: Exception) -> str:
    """What is wrong with Redis, for people; ``error`` is what a command or a connection raised."""
    if isinstance(error, (AuthenticationError, AuthorizationError)):
        return "Redis refuses the password, or the user, of redis.url"
    if isinstance(error, NoPermissionError):
        return "Redis does not permit the user of redis.url what is needed"
    return NOT_REACHABLE
