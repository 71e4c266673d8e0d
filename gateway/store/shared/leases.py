"""One fill per block among the workers of a node.

Within a worker, fills are coalesced in memory. Between workers, the worker that fills a block locks one byte of a shared file.
The byte's position is a hash of object, generation and block number, so a read that begins after a write never waits for a fill
of the old object. The kernel releases a worker's locks when it dies, so a lease needs no time limit or cleanup. (POSIX record
locks belong to the process: the file is opened once and stays open as long as the store, because closing any descriptor of it
would release them all. fcntl(2).) The workers of a gateway share the file that the gateway holds open, whatever happens to its
name (table_file.py).
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from hashlib import blake2b
from pathlib import Path

from gateway.model.keys import ObjectKey
from gateway.store.shared import table_file
from gateway.store.shared.own_files import open_own

_POSITIONS = 2**62
_SHORTEST_PAUSE, _LONGEST_PAUSE = 0.002, 0.05
"""Seconds between two attempts to get a lease held by another worker."""


class FillLeases:
    """The leases of one worker.

    Args:
        path: the shared file; ``None`` for a single worker, which gets every lease.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._fd = -1
        self.shared = False
        """Whether other workers may hold leases; if not, every lease is granted at once."""
        self._held: dict[int, int] = {}
        if path is not None:
            try:
                held = table_file.held(path)
                self._fd = open_own(path, os.O_RDWR | os.O_CREAT) if held is None else os.dup(held)
            except OSError:
                return  # no means of coordination: duplicate fills are harmless
            self.shared = True

    def acquire(self, key: ObjectKey, number: int, generation: int) -> bool:
        """Whether this worker may fill block ``number`` of this generation now; ``False`` while another worker does.

        Acquisitions are counted: release equally often.
        """
        if self._fd < 0:
            return True
        position = _position(key, number, generation)
        if position not in self._held:
            try:
                fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, position)
            except (BlockingIOError, PermissionError):
                return False
            except OSError:
                return True  # no locks on this file system: duplicate fills are harmless
        self._held[position] = self._held.get(position, 0) + 1
        return True

    async def take(self, key: ObjectKey, number: int, generation: int, within: float) -> bool:
        """Like ``acquire``, but waits at most ``within`` seconds for another worker; returns whether it succeeded."""
        pause = _SHORTEST_PAUSE
        while not self.acquire(key, number, generation):
            if within <= 0:
                return False
            await asyncio.sleep(pause)
            within -= pause
            pause = min(2 * pause, _LONGEST_PAUSE)
        return True

    def release(self, key: ObjectKey, number: int, generation: int) -> None:
        """Allow others to fill the block or find it in the index."""
        if self._fd < 0:
            return
        position = _position(key, number, generation)
        count = self._held.get(position, 0) - 1
        if count > 0:
            self._held[position] = count
        elif count == 0:
            del self._held[position]
            fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, position)

    def close(self) -> None:
        """Release all leases."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd, self.shared = -1, False
            self._held.clear()


def _position(key: ObjectKey, number: int, generation: int) -> int:
    text = f"{key.origin}\0{key.bucket}\0{key.key}\0{number}\0{generation}".encode("utf-8", "surrogatepass")
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") % _POSITIONS
