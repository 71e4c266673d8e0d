"""The open files that a batch of keys passes to a client on this machine, instead of bytes (SCM_RIGHTS, unix(7)).

The frame of an entry then says where its bytes are: in which file, from where on, how many. Files are numbered over the answer
in the order in which they leave. A file that serves several entries is passed once while it is among the last ones passed; those
are kept open here, because a closed file's inode may become another file's.

Each file is opened again, by /proc/self/fd: a descriptor shares position and mode with its copies, and a client could change
those of ours.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import AsyncGenerator
from contextlib import aclosing

from gateway.api.s3.inner import pieces_in
from gateway.api.v1.batch_body import PIECE, Outgoing
from gateway.api.v1.batch_files import passing_of, wanted_files
from gateway.base import metrics
from gateway.base.shortages import SHORTAGES
from gateway.model.frames import INLINE, files_record, place_record
from gateway.server.asgi_types import Scope, Send
from gateway.server.cycle import DESCRIPTORS
from gateway.server.local import Passing
from gateway.store.files.blobs import Span

_REMEMBERED = 64
"""The most files of one answer that are kept open, to be named again."""
_SMALLEST_PART = 16
"""The most places that are sent together: few at first, so that the client starts reading soon, then more."""


class Attaching(Outgoing):
    """Pieces waiting to be sent together, with the open files that they name.

    The client keeps the last N files that came, as many as its request says. Up to half of them may be new in one message, so
    its entries name new ones, or the last of the other half.

    Args:
        scope: of the request.
        send: of the request.
        passing: the files of its connection that are in flight, to which the answer was admitted.
        most: files that the client keeps, at least 2.
    """

    def __init__(self, scope: Scope, send: Send, passing: Passing, most: int) -> None:
        super().__init__(scope, send)
        self._send_message = send
        self._passing = passing
        self._most = min(most // 2, _REMEMBERED)
        self._known: OrderedDict[tuple[int, int], tuple[int, int]] = OrderedDict()
        """The number and our descriptor of the last files, by device and inode."""
        self._unsent: list[int] = []
        self._count = 0
        self._places = 0
        self._begun = 0
        """Bytes in waiting places of entries that are not complete."""
        self._part = min(_SMALLEST_PART, self._most)
        self._crowded = False

    async def places(self, spans: AsyncGenerator[Span | bytes], length: int) -> AsyncGenerator[bytes]:
        """The records that stand for the bytes of an entry of ``length`` bytes: their places in files, which leave with them
        unless the client has them; and the bytes that are in no file, or in one that cannot be passed.

        Raises:
            LarderError: the bytes are unavailable.
        """
        async with aclosing(spans):
            async for span in spans:
                await self.flush_if_full()  # not after the last record: files are announced only before one
                number = self._number(span.fd) if isinstance(span, Span) else None
                if number is not None and isinstance(span, Span):
                    self._places += 1
                    self._begun += 0 if span.count == length else span.count
                    yield place_record(number, span.offset, span.count)
                    continue
                async for piece in pieces_in(span):
                    await self.flush_if_full()
                    yield place_record(INLINE, 0, len(piece))
                    yield piece

    def _number(self, descriptor: int) -> int | None:
        status = os.fstat(descriptor)
        file = status.st_dev, status.st_ino
        if (known := self._known.get(file)) is not None:
            return known[0]
        if not self._passing.admit_another(len(self._unsent)):
            if not self._crowded:
                metrics.DESCRIPTORS_REFUSED.labels("in-flight").inc()
            self._crowded = True
            return None
        try:
            again = opened_again(descriptor)
        except OSError as error:
            SHORTAGES.record(error, "passing a file")
            return None
        if len(self._known) == self._most:
            os.close(self._known.popitem(last=False)[1][1])
        number, self._count = self._count, self._count + 1
        self._known[file] = number, again
        self._unsent.append(again)
        return number

    async def flush_if_full(self) -> None:
        """Send the waiting pieces once they, or the files that they name, are worth a write."""
        if self.size >= PIECE or self._places >= self._part or self._begun >= PIECE:
            await self.flush()

    async def flush(self, *, more: bool = True) -> None:
        """Send the waiting pieces, with the files.

        Raises:
            ClientGone: the connection was lost; the kernel closes descriptors that were not received.
        """
        if self._places:
            self._places, self._begun = 0, 0
            self._part = min(2 * self._part, self._most)
        files, self._unsent = self._unsent, []
        if files:
            record = files_record(self._count)
            await self._send_message({"type": DESCRIPTORS, "body": record, "files": files, "more_body": True})
            metrics.DESCRIPTORS.inc(len(files))
        await super().flush(more=more)

    def close_files(self) -> None:
        """Close the files; the client's stay open."""
        while self._known:
            os.close(self._known.popitem()[1][1])
        self._passing.sent()


def outgoing_of(scope: Scope, send: Send) -> tuple[Outgoing, str]:
    """What a batch of keys is sent through, with files if the client takes them; and otherwise the reason why not."""
    most = wanted_files(scope)
    passing = passing_of(scope)
    if most < 2:
        return Outgoing(scope, send), ""
    if passing is None:
        reason = "tcp" if scope.get("client") else "user"
    elif passing.admit(0):
        return Attaching(scope, send, passing, most), ""
    else:
        reason = "in-flight"
    metrics.DESCRIPTORS_REFUSED.labels(reason).inc()
    return Outgoing(scope, send), reason


def opened_again(descriptor: int) -> int:
    """A descriptor of the same file with a state of its own. Raises OSError."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
