"""Sends the reads of all workers of a node to the keeper.

Four times a second a worker takes its recorded reads (``accesses.ObservedReads``) and sends them to the keeper: one
datagram per 128 reads, on a Unix socket beside the table of generations, never on the cache disk (docs/decisions/0019). The
kernel bounds the queue. Nothing waits: reads that find the queue full, or no receiver, are dropped and counted, like those
beyond 512 between two hand-overs. So observation takes a bounded share of a core, and streams may be seen only in part:
recognition expects that (gateway/policies/streams).

The receiver binds under another name and renames its socket to the name that senders use. So a new keeper takes over the name,
however the previous keeper ended. If another program removes the name, the receiver binds again.

Every user may create files beside the table. The datagrams contain keys and access keys, so they are sent only to a socket that
this user owns, which no other user can replace. If another user has taken the name, only the keeper's own reads count, and the
log says so.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
from collections.abc import Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey

log = logging.getLogger("larder.store")

_PAGE = 128
"""Reads in one datagram: some 15 KB with keys of usual length, of the 200 KB that a socket can queue."""
_LONGEST = 1 << 18
"""Maximum bytes of a datagram: more than Linux lets a socket send by default."""


class ReadChannel:
    """The socket between the workers of a node.

    Args:
        path: of the socket, in memory; ``None`` on a machine without such a place, where each worker reaches only itself.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._receiver: socket.socket | None = None
        self._bound: tuple[int, int] | None = None
        self._warned = False
        self._sender = _socket()

    @property
    def receives(self) -> bool:
        """Whether this worker receives the other workers' reads."""
        return self._receiver is not None

    def open(self) -> None:
        """Direct the other workers' reads to this worker; no effect where that is impossible."""
        if self._path is None or (self._receiver is not None and _socket_at(self._path) == self._bound):
            return
        receiver, draft = _socket(), self._path.with_name(f"{self._path.name}.{os.getpid()}.{os.urandom(4).hex()}")
        try:
            os.fchmod(receiver.fileno(), 0o600)
            receiver.bind(str(draft))
            self._bound = _socket_at(draft)
            draft.replace(self._path)
        except OSError as error:
            draft.unlink(missing_ok=True)
            receiver.close()
            self._complain(error)
            return
        self.stop_receiving()
        self._receiver, self._warned = receiver, False

    def _complain(self, error: OSError) -> None:
        if not self._warned:
            self._warned = True
            log.warning(
                "reads of the other workers are not observed: %(path)s cannot be a socket of this gateway (%(error)s); remove it",
                {"path": str(self._path), "error": error.strerror},
            )

    def send(self, reads: Sequence[ObjectRead]) -> int:
        """Send reads to the keeper; returns how many were accepted."""
        taken = 0
        if self._path is not None and _socket_at(self._path) is not None:
            for start in range(0, len(reads), _PAGE):
                page = reads[start : start + _PAGE]
                with suppress(OSError):  # no receiver, or the queue is full
                    self._sender.sendto(encode_reads(page), str(self._path))
                    taken += len(page)
        return taken

    def receive(self, most: int) -> list[ObjectRead]:
        """Reads sent by other workers, in whole datagrams: at least ``most``, or all that have arrived."""
        reads: list[ObjectRead] = []
        with suppress(OSError):  # the queue is empty
            while self._receiver is not None and len(reads) < most:
                reads += decode_reads(self._receiver.recv(_LONGEST))
        return reads

    def stop_receiving(self) -> None:
        """Stop receiving; another worker takes over the name."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def close(self) -> None:
        """Close the sockets. The name stays, because another worker may have taken it over; it is removed with the table."""
        self.stop_receiving()
        self._sender.close()


def _socket_at(path: Path) -> tuple[int, int] | None:
    """Identifies the socket of this user at a path; ``None`` if there is none."""
    try:
        status = path.lstat()
    except OSError:
        return None
    own = stat.S_ISSOCK(status.st_mode) and status.st_uid == os.geteuid()
    return (status.st_dev, status.st_ino) if own else None


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def encode_reads(reads: Sequence[ObjectRead]) -> bytes:
    """Encode reads as a datagram."""
    return json.dumps(reads, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decode_reads(datagram: bytes) -> list[ObjectRead]:
    """Decode a datagram; empty if another version or another program sent it."""
    try:
        reads = [ObjectRead(ObjectKey(*key), *rest) for key, *rest in json.loads(datagram)]
    except (ValueError, TypeError, RecursionError):
        return []
    return reads if all(map(_is_read, reads)) else []


def _is_read(read: ObjectRead) -> bool:
    """Whether all fields have the types of a read, and the numbers are finite and not negative."""
    sizes = read.start, read.stop, read.size, read.client
    seconds = read.time, read.waited
    return (
        all(type(text) is str for text in (*read.key, read.principal))
        and all(type(number) is int and number >= 0 for number in sizes)
        and all(type(number) in (int, float) and isfinite(number) and number >= 0 for number in seconds)
        and read.start <= read.stop <= read.size
        and type(read.hit) is bool
    )
