"""Repeated hits by compiled code (``_repeated.c``), if it was built and libcrypto is available.

``RepeatedReads`` decides every request of its connection. After it has sent an object from memory, or an object or a range from a
block's file, ``CompiledReads`` gives the compiled code all that it compared, as guards. From then on that code sends the object
again, or any range of the block, while all guards hold, and leaves every other request to ``RepeatedReads``. So both give the
same answers, and the Python code alone serves where nothing is compiled.

The answers are counted later, in bulk: when a few hundred have gathered, and before metrics are read.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from gateway.api.s3.answer import date_lines
from gateway.api.s3.hot import SentBlocks, SentObject
from gateway.engine.objects.hits import BlockFile, Hits
from gateway.model.guards import Guard
from gateway.model.keys import Principal
from gateway.server.channel import Channel
from gateway.server.template import DATE, RANGE, SIGNATURE, Patience, Template
from gateway.store.shared.accesses import Note

if TYPE_CHECKING:
    from gateway.api.s3 import _repeated

try:
    if os.environ.get("LARDER_PURE_PYTHON"):
        raise ImportError("not wanted")
    from gateway.api.s3 import _repeated
except ImportError:
    AVAILABLE = False
else:
    AVAILABLE = True

_CACHESTAT = 451
_NO_FILE = -1


def knows_pages(syscall: Callable[..., int]) -> bool:
    """Whether cachestat(2) exists (since Linux 6.5) and is allowed, which profiles of containers may not do.

    Args:
        syscall: of the C library; it sets ``ctypes.get_errno``.
    """
    return syscall(_CACHESTAT, _NO_FILE, None, None, 0) == -1 and ctypes.get_errno() == errno.EBADF


FILES = AVAILABLE and knows_pages(ctypes.CDLL(None, use_errno=True).syscall)
"""Whether compiled code may send files, as it sees that their pages are in memory."""
LARGEST = 1024 * 1024
"""Bytes that are sent from a file at once (``LARGEST`` of ``_repeated.c``)."""
_MOST_SLOTS = 8
_LAYOUT = Struct(f"{2 + 2 * _MOST_SLOTS + 3 + _MOST_SLOTS + 1}n")
"""The first members of ``State`` of ``_repeated.c``."""
_MOST_KINDS = 64
"""Kinds of readers whose objects are kept."""

Numbered = tuple[tuple[int, object, object, object], ...]
Object = tuple[SentObject | SentBlocks, bytes, object, int, int, float, float, Numbered]
"""An object that may be sent again; see ``READY`` of ``_repeated.c``."""
Answered = tuple[SentObject | SentBlocks, "CountedReads", float, float, int, int]
"""An answer to count: the object, the connection's reads, when in seconds since the epoch, the seconds that it took, the first
byte and the end."""
Second = tuple[bytes, bytes, tuple[bytes, ...], float, float]
"""What the signatures of one date share; see ``begin`` of ``_repeated.c``."""


class CountedReads(Protocol):
    """The repeated reads of a connection: of an access key, from an address."""

    reader: str
    client: tuple[str, int] | None
    patience: Patience

    def go_on(self, head: bytes, taken: int, serial: int, now: float, at: float, /) -> None:
        """Finish the answer to ``head`` from a file, and count it.

        Args:
            head: of the request.
            taken: bytes of the answer that the socket took; -1: it has failed.
            serial: the request's number.
            now: when it came, in seconds since the epoch.
            at: on the monotonic clock.
        """


class CompiledHits:
    """The objects of one worker that compiled code may send again, and the answers that it has sent.

    Args:
        hits: of the worker.
        note: records a client's read.
        most: objects of all kinds of readers.
    """

    def __init__(self, hits: Hits, note: Note, most: int) -> None:
        self.answered: list[Answered] = []
        self._hits = hits
        self._note = note
        self._most = most
        self._kept = 0
        self._objects: dict[tuple[Principal, bytes, bool, bool], dict[bytes, Object]] = {}

    def objects(self, principal: Principal, host: bytes, checked: bool, ranged: bool) -> dict[bytes, Object]:
        """The objects by path that one kind of readers may be sent: by caller, Host, whether answers have checksums, and whether
        they are ranges."""
        objects = self._objects.get((principal, host, checked, ranged))
        if objects is None:
            if len(self._objects) >= _MOST_KINDS:  # connections keep theirs
                self._objects.clear()
            objects = self._objects[principal, host, checked, ranged] = {}
        return objects

    def remember(
        self, objects: dict[bytes, Object], path: bytes, sent: SentObject | SentBlocks, *guards: Guard
    ) -> None:
        """From now on send an object, or ranges of it, at its path, while these guards and those of ``ready`` hold."""
        ready = sent.ready
        of_object = self._hits.guards(ready)
        if not of_object:
            return
        if path not in objects:
            if self._kept >= self._most:
                self._kept = 0
                for kind in self._objects.values():
                    kind.clear()
            if len(objects) >= self._most:  # of a kind that is not among these any more
                objects.clear()
            self._kept += 1
        every = numbered((*guards, *of_object))
        source = sent.ready.copy if isinstance(sent, SentObject) else sent.blocks
        objects[path] = (
            sent, sent.head, source, sent.size, ready.record.block_size, ready.since, ready.until, every,
        )  # fmt: skip

    def remember_block(self, sent: SentBlocks, number: int, file: BlockFile) -> None:
        """From now on send a block, or ranges of it, from its file, while the file's guards hold."""
        if len(sent.blocks) >= self._most:
            sent.blocks.clear()
        *facts, guards = file
        sent.blocks[number] = *facts, numbered(guards)

    def drain(self) -> None:
        """Count the answers that were sent since the last call."""
        if not self.answered:
            return
        answered, note = self.answered[:], self._note
        self.answered.clear()
        self._hits.count([(sent.ready, start, now) for sent, _, now, _, start, _ in answered])
        for sent, reads, now, seconds, start, stop in answered:
            note(sent.ready.entry.key, start, stop, sent.size, True, now, reads.reader, reads.client, 0.0)
            reads.patience.answered += 1
            sent.count(stop - start, seconds)


def numbered(guards: Sequence[Guard]) -> Numbered:
    """Guards as the compiled code takes them."""
    return tuple((getattr(_repeated, kind.upper()), *rest) for kind, *rest in guards)


@dataclass
class CompiledReads:
    """What the compiled code needs of one connection (``HELD`` of ``_repeated.c``).

    ``guards`` are those of all requests of the connection; without any, compiled code answers none. ``general`` answers others.
    """

    objects: dict[bytes, Object]
    answered: list[Answered]
    drain: Callable[[], None]
    channel: Channel
    ids: Iterator[int]
    begin: Callable[[bytes], Second | None]
    general: Callable[[bytes], bool]
    reads: CountedReads
    guards: Numbered | None = None
    lines: Callable[[int], bytes] = date_lines

    def answer_of(self, template: Template, order: tuple[int, ...]) -> Callable[[bytes], bool] | None:
        """The compiled counterpart of ``general``.

        Args:
            template: the shape of the heads.
            order: the slots that are signed, except for date and path, by place in the canonical request.

        Returns:
            ``None`` if it takes no heads of this shape.
        """
        spans, at = [0] * (2 * _MOST_SLOTS), 0
        names = [name for name in template.names if name != RANGE]
        if len(names) > _MOST_SLOTS or len(order) > _MOST_SLOTS:
            return None
        for number, piece in enumerate(template.pieces):
            if number % 2:
                spans[number - 1 : number + 1] = at, at + len(piece)
            at += len(piece)
        ranged = -1 if template.range_at is None else template.range_at
        state = bytearray(_repeated.STATE)
        _LAYOUT.pack_into(
            state, 0, at, ranged, *spans, len(names), names.index(DATE), names.index(SIGNATURE),
            *order, *[0] * (_MOST_SLOTS - len(order)), len(order),
        )  # fmt: skip
        held = [
            self.objects, self.answered, self.drain, self.channel, self.ids, self.begin, self.lines, self.general, self,
            self.reads, b"".join(template.pieces), None, None,
        ]  # fmt: skip
        return partial(_repeated.answer, held, state)
