"""Sends the reads of all workers of a node to the keeper's worker.

Four times a second a worker takes what it noted (``accesses.ObservedReads``) and sends it to the keeper's worker: one datagram
per 128 reads, on a Unix socket beside the table of generations, never on the cache disk (docs/decisions/0019). The kernel
bounds the queue. Nothing waits: what finds the queue full, or no receiver, is dropped and counted, as is what a worker reads
beyond 512 objects between two hand-overs. So observation takes a bounded share of a core, and views of streams may be thinned:
recognition expects that (gateway/policies/streams).

The receiver binds under another name and renames its socket to the one that senders use. A worker that becomes the keeper takes
the name over that way, whatever ended the one before.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey

_PAGE = 128
"""Reads in one datagram; with keys of usual length some 15 KB, of 200 KB that a socket may have queued."""
_LONGEST = 1 << 18
"""Bytes of a datagram at most: more than Linux lets a socket send by default."""


class ReadChannel:
    """The socket between the workers of a node.

    Args:
        path: of the socket, in memory; ``None`` on a machine without such a place, where a worker reaches only itself.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._receiver: socket.socket | None = None
        self._sender = _socket()

    @property
    def receives(self) -> bool:
        """Whether the other workers' reads come to this one."""
        return self._receiver is not None

    def open(self) -> None:
        """Have the other workers send to this one; without effect where that is impossible."""
        if self._receiver is not None or self._path is None:
            return
        receiver, draft = _socket(), self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            os.fchmod(receiver.fileno(), 0o600)
            draft.unlink(missing_ok=True)
            receiver.bind(str(draft))
            draft.replace(self._path)
        except OSError:
            receiver.close()
            return
        self._receiver = receiver

    def send(self, reads: Sequence[ObjectRead]) -> int:
        """Send reads to the keeper's worker; how many were taken."""
        taken = 0
        if self._path is not None:
            for start in range(0, len(reads), _PAGE):
                page = reads[start : start + _PAGE]
                with suppress(OSError):  # no receiver, or the queue is full
                    self._sender.sendto(encode_reads(page), str(self._path))
                    taken += len(page)
        return taken

    def receive(self, most: int) -> list[ObjectRead]:
        """Reads that other workers sent: those of as many datagrams as it takes to have ``most``."""
        reads: list[ObjectRead] = []
        with suppress(OSError):  # the queue is empty
            while self._receiver is not None and len(reads) < most:
                reads += decode_reads(self._receiver.recv(_LONGEST))
        return reads

    def stop_receiving(self) -> None:
        """Leave the name to another worker."""
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None

    def close(self) -> None:
        """Give up the sockets. The name stays, as it may be another worker's by now; it goes with the table."""
        self.stop_receiving()
        self._sender.close()


def _socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


def encode_reads(reads: Sequence[ObjectRead]) -> bytes:
    """A datagram of some reads."""
    return json.dumps(reads, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def decode_reads(datagram: bytes) -> list[ObjectRead]:
    """The reads of a datagram; none if another version sent it."""
    try:
        return [ObjectRead(ObjectKey(*key), *rest) for key, *rest in json.loads(datagram)]
    except (ValueError, TypeError):
        return []
