"""The files in which workers share counters: prometheus_client's, with every page allocated before it is written.

prometheus_client makes its files longer without allocating them, and maps them. On a full file system the first write to such a
page kills the process (SIGBUS), and then every process that replaces it; /dev/shm is small in containers, and other programs
fill it. So pages are allocated first. A worker that gets no pages counts in its own memory: it serves as before, but its later
counts are missing in ``/-/metrics``, and the log says so.
"""

from __future__ import annotations

import logging
import mmap
import os
from pathlib import Path
from typing import Any

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

_FIRST = 1 << 16
"""Bytes of a new file, as in prometheus_client."""
_LONGEST_ENTRY = 64
"""Maximum bytes of an entry besides its key."""

log = logging.getLogger("larder.app")
_complained: list[int] = []
"""The process that has logged that counters are missing: once is enough."""


class AllocatedDict(MmapedDict):
    """One file of counters; or memory of this process alone, if the file system has no room."""

    _f: Any
    _m: Any
    _capacity: int
    _used: int

    def __init__(self, filename: str, read_mode: bool = False) -> None:
        try:
            _allocate(Path(filename))
            super().__init__(filename, read_mode)  # type: ignore[no-untyped-call]
        except OSError as error:
            _complain(filename, error)
            self._f, self._fname, self._positions = None, filename, {}
            self._m, self._capacity, self._used = mmap.mmap(-1, _FIRST), _FIRST, 8
            self._m[:4] = self._used.to_bytes(4, "little")

    def _init_value(self, key: str) -> None:
        while self._used + len(key.encode()) + _LONGEST_ENTRY > self._capacity:
            self._grow()
        super()._init_value(key)  # type: ignore[no-untyped-call]

    def _grow(self) -> None:
        size = 2 * self._capacity
        if self._f is not None:
            try:
                os.posix_fallocate(self._f.fileno(), 0, size)
                self._m, self._capacity = mmap.mmap(self._f.fileno(), size), size
                return
            except OSError as error:
                _complain(self._fname, error)
                self._f.close()
                self._f = None
        longer = mmap.mmap(-1, size)
        longer[: self._capacity] = self._m[:]
        self._m, self._capacity = longer, size


def _allocate(path: Path) -> None:
    """Create a file with all its pages, unless it exists. If a program has removed the folder, create it again."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.posix_fallocate(descriptor, 0, max(_FIRST, os.fstat(descriptor).st_size))
    except OSError:
        if not os.fstat(descriptor).st_size:
            path.unlink(missing_ok=True)  # readers of all files expect a header in each
        raise
    finally:
        os.close(descriptor)


def _complain(path: str, error: OSError) -> None:
    if os.getpid() not in _complained:
        _complained[:] = [os.getpid()]
        log.error(
            "what this worker counts is missing in /-/metrics from now on: %(path)s has no room (%(error)s); free memory in "
            "%(place)s and restart the gateway",
            {"path": path, "error": error.strerror, "place": str(Path(path).parent.parent)},
        )


values.MmapedDict = AllocatedDict  # type: ignore[attr-defined]
