"""Maps OS and SQLite errors to ``DiskFault``, by the breaker's kinds.

Sources: errno(3); "Result and Error Codes", https://www.sqlite.org/rescode.html.
"""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from sqlalchemy.exc import DBAPIError

from gateway.base.shortages import SHORTAGES, shortage_of
from gateway.model.errors import DiskUnavailable
from gateway.policies.health.breaker import FailureKind

A = TypeVar("A")
D = TypeVar("D")
T = TypeVar("T")

_ERRNO = {
    errno.ENOSPC: FailureKind.NO_SPACE,
    errno.EDQUOT: FailureKind.NO_SPACE,
    errno.EROFS: FailureKind.READ_ONLY,
    errno.EACCES: FailureKind.READ_ONLY,
    errno.EPERM: FailureKind.READ_ONLY,
    errno.ENOENT: FailureKind.GONE,
    errno.ENOTDIR: FailureKind.GONE,
    errno.ESTALE: FailureKind.GONE,
}

# SQLITE_ERROR: every statement is valid on the current schema, so if one is refused, a table is missing. SQLITE_CONSTRAINT: rows
# are looked up before they are inserted, in the same transaction, so a conflict means that a tree and its table differ.
_SQLITE = {
    sqlite3.SQLITE_FULL: FailureKind.NO_SPACE,
    sqlite3.SQLITE_READONLY: FailureKind.READ_ONLY,
    sqlite3.SQLITE_PERM: FailureKind.READ_ONLY,
    sqlite3.SQLITE_CANTOPEN: FailureKind.GONE,
    sqlite3.SQLITE_CORRUPT: FailureKind.CORRUPT,
    sqlite3.SQLITE_NOTADB: FailureKind.CORRUPT,
    sqlite3.SQLITE_ERROR: FailureKind.CORRUPT,
    sqlite3.SQLITE_CONSTRAINT: FailureKind.CORRUPT,
    sqlite3.SQLITE_MISMATCH: FailureKind.CORRUPT,
    sqlite3.SQLITE_TOOBIG: FailureKind.CORRUPT,
    sqlite3.SQLITE_FORMAT: FailureKind.CORRUPT,
    sqlite3.SQLITE_INTERNAL: FailureKind.CORRUPT,
    sqlite3.SQLITE_BUSY: FailureKind.BUSY,
    sqlite3.SQLITE_LOCKED: FailureKind.BUSY,
}


class DiskFault(DiskUnavailable):
    """A ``DiskUnavailable`` with the kind of failure, for the breaker."""

    def __init__(self, kind: FailureKind, detail: str = "") -> None:
        self.kind = kind
        super().__init__("no-space" if kind is FailureKind.NO_SPACE else "disk", detail)


def disk_fault(error: BaseException) -> DiskFault | None:
    """The fault for ``error``, or ``None`` if it is not a failure of the disk."""
    if isinstance(error, DiskFault):
        return error
    if isinstance(error, (OSError, sqlite3.Error, DBAPIError, MemoryError)) and SHORTAGES.record(
        error, "using the cache disk"
    ):
        return DiskFault(FailureKind.EXHAUSTED, f"the gateway is out of {shortage_of(error)}")
    if isinstance(error, DBAPIError) and error.orig is not None:
        return disk_fault(error.orig)
    if isinstance(error, UnicodeDecodeError):
        # The driver decodes texts of the index, and SQLite's messages that quote them; nothing else decodes on the disk.
        return DiskFault(FailureKind.CORRUPT, f"index.db: a text is not UTF-8: {error}")
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", None)
        if code is None and isinstance(error, sqlite3.OperationalError):
            # Raised by the driver itself for a text that it could not decode.
            return DiskFault(FailureKind.CORRUPT, str(error))
        primary = (sqlite3.SQLITE_IOERR if code is None else code) & 0xFF
        return DiskFault(_SQLITE.get(primary, FailureKind.IO), str(error))
    if isinstance(error, OSError):
        return DiskFault(_ERRNO.get(error.errno or 0, FailureKind.IO), str(error))
    return None


async def attempt(work: Callable[[A], Awaitable[T]], argument: A, otherwise: D) -> T | D:
    """Do work on the disk; returns its result, or ``otherwise`` if the disk fails."""
    try:
        return await work(argument)
    except DiskFault:
        return otherwise


async def succeeds(work: Callable[[A], Awaitable[object]], argument: A) -> bool:
    """Do work on the disk; returns whether the disk accepted it."""
    try:
        await work(argument)
    except DiskFault:
        return False
    return True


class disk_faults:
    """Converts errors of the disk or the index inside to ``DiskFault``; a class, because it is entered for each write."""

    __slots__ = ()

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, (OSError, sqlite3.Error, DBAPIError, MemoryError, UnicodeDecodeError)):
            fault = disk_fault(error)
            if fault is not None:
                raise fault from error
