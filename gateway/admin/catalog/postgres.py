"""PostgreSQL under the catalog. ``database.py`` imports this module, and with it the driver, for a catalog on a server only."""

from __future__ import annotations

import asyncpg
from sqlalchemy import URL
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

LOST = (asyncpg.PostgresError, asyncpg.InterfaceError)
"""The driver's errors, besides those of the operating system, when it cannot reach the server."""


def engine(url: URL, patience: float) -> AsyncEngine:
    """A small pool of connections, which are tested before use.

    Args:
        url: of the database.
        patience: seconds that a statement or a connection may take.
    """
    return create_async_engine(
        url,
        pool_size=2,
        max_overflow=4,
        pool_timeout=patience,
        pool_pre_ping=True,
        pool_recycle=600,
        connect_args={"timeout": patience, "command_timeout": patience},
    )
