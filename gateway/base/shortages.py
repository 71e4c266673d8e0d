"""Recognises and records errors caused by a lack of descriptors, memory or threads.

Such an error says nothing about the disk, the origin or Redis that the process wanted to use. So it is recognised where errors
are interpreted, and reported as a shortage: in the log, in ``/-/readyz`` and in the list of problems.

Sources: errno(3); "Result and Error Codes", https://www.sqlite.org/rescode.html. getaddrinfo(3) and SQLite do not pass on the
errno of a failed open, so one is tried.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import socket
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass

LASTS = 60.0
"""Seconds for which a shortage is reported after its last error."""
_ERRNO = {
    errno.EMFILE: "file descriptors",
    errno.ENFILE: "file descriptors of the system",
    errno.ENOMEM: "memory or address space",
    errno.ENOBUFS: "memory for sockets",
}
_THREADS = "can't start new thread"
_NAMELESS = (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_IOERR)
log = logging.getLogger("larder.app")


@dataclass(slots=True)
class _Shortage:
    at: float
    logged_at: float
    where: str


class Shortages:
    """The shortages of this process, by resource."""

    def __init__(self) -> None:
        self._seen: dict[str, _Shortage] = {}

    def record(self, error: BaseException, where: str) -> str:
        """Record and log the resource that an error shows to be exhausted; returns it, or an empty text for another cause.

        Args:
            error: any error; its causes are examined too.
            where: the attempted action, for the log: "connecting to the origin".
        """
        wanting = shortage_of(error)
        if wanting:
            self._log(wanting, where, time.monotonic())
        return wanting

    def _log(self, wanting: str, where: str, now: float) -> None:
        seen = self._seen.setdefault(wanting, _Shortage(now, float("-inf"), where))
        seen.at, seen.where = now, where
        if now - seen.logged_at >= LASTS:
            seen.logged_at = now
            log.error(
                "out of %(error)s%(limit)s, while %(task)s",
                {"error": wanting, "task": where, "limit": limit_of(wanting)},
            )

    def problems(self) -> list[str]:
        """The resources exhausted now, in words for operators."""
        since = time.monotonic() - LASTS
        return [
            f"this process is out of {wanting}{limit_of(wanting)}, last while {seen.where}"
            for wanting, seen in self._seen.items()
            if seen.at >= since
        ]


SHORTAGES = Shortages()


def shortage_of(error: BaseException) -> str:
    """The resource that an error shows to be exhausted; empty if the error has another cause."""
    for cause in _chain(error):
        if isinstance(cause, MemoryError):
            return _ERRNO[errno.ENOMEM]
        if isinstance(cause, RuntimeError) and str(cause) == _THREADS:
            return "threads or memory"
        if isinstance(cause, sqlite3.Error):
            code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_NOMEM:
                return _ERRNO[errno.ENOMEM]
            if code in _NAMELESS:
                return _descriptors()
        elif isinstance(cause, socket.gaierror):
            return _ERRNO[errno.ENOMEM] if cause.errno == socket.EAI_MEMORY else _descriptors()
        elif isinstance(cause, OSError) and cause.errno in _ERRNO:
            return _ERRNO[cause.errno]
    return ""


def limit_of(wanting: str) -> str:
    """The process's limit of the exhausted resource, as a clause; empty without a limit."""
    kind = {_ERRNO[errno.EMFILE]: resource.RLIMIT_NOFILE, _ERRNO[errno.ENOMEM]: resource.RLIMIT_AS}.get(wanting)
    if kind is None:
        return ""
    limit = resource.getrlimit(kind)[0]
    return "" if limit == resource.RLIM_INFINITY else f" (its limit is {limit})"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """An error, its causes, and the errors inside them."""
    waiting: list[BaseException | None] = [error]
    seen: set[int] = set()
    while waiting:
        cause = waiting.pop()
        if cause is None or id(cause) in seen:
            continue
        seen.add(id(cause))
        yield cause
        inner = getattr(cause, "orig", None)  # SQLAlchemy's
        waiting += [cause.__cause__, cause.__context__, inner if isinstance(inner, BaseException) else None]
        if isinstance(cause, BaseExceptionGroup):
            waiting += cause.exceptions


def _descriptors() -> str:
    """``file descriptors`` if none are left now."""
    try:
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    except OSError as error:
        return _ERRNO.get(error.errno or 0, "")
    return ""
