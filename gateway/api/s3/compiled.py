"""Repeated hits from memory by compiled code (``_repeated.c``), if it was built and libcrypto is available.

``RepeatedReads`` decides every request of its connection. After it has sent an object from memory, ``CompiledReads`` gives the
compiled code all that it compared, as guards. From then on that code sends the object again while all guards hold, and leaves
every other request to ``RepeatedReads``. So both give the same answers, and the Python code alone serves where nothing is
compiled.

The answers are counted later, in bulk: when a few hundred have gathered, and before metrics are read.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from gateway.api.s3.answer import date_lines
from gateway.api.s3.hot import SentObject
from gateway.engine.objects.hits import Hits
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

_MOST_SLOTS = 8
_MOST_KINDS = 64
"""Kinds of readers whose objects are kept."""

Object = tuple[SentObject, bytes, object, int, float, float, tuple[tuple[int, object, object, object], ...]]
"""An object that may be sent again; see ``READY`` of ``_repeated.c``."""
Answered = tuple[SentObject, "CountedReads", float, float]
"""An answer to count: the object, the connection's reads, when in seconds since the epoch, and the seconds that it took."""
Second = tuple[bytes, bytes, tuple[bytes, ...], float, float]
"""What the signatures of one date share; see ``begin`` of ``_repeated.c``."""


class CountedReads(Protocol):
    """The repeated reads of a connection: of an access key, from an address."""

    reader: str
    client: tuple[str, int] | None
    patience: Patience


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
        self._objects: dict[tuple[Principal, bytes, bool], dict[bytes, Object]] = {}

    def objects(self, principal: Principal, host: bytes, checked: bool) -> dict[bytes, Object]:
        """The objects by path that one kind of readers may be sent: by caller, Host, and whether answers have checksums."""
        objects = self._objects.get((principal, host, checked))
        if objects is None:
            if len(self._objects) >= _MOST_KINDS:  # connections keep theirs
                self._objects.clear()
            objects = self._objects[principal, host, checked] = {}
        return objects

    def remember(self, objects: dict[bytes, Object], path: bytes, sent: SentObject, *guards: Guard) -> None:
        """From now on send an object again, at its path, while these guards and those of ``ready`` hold."""
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
        objects[path] = sent, sent.head, ready.copy, sent.size, ready.since, ready.until, every

    def drain(self) -> None:
        """Count the answers that were sent since the last call."""
        if not self.answered:
            return
        answered, note = self.answered[:], self._note
        self.answered.clear()
        self._hits.count([(sent.ready, now) for sent, _, now, _ in answered])
        for sent, reads, now, seconds in answered:
            size = sent.size
            note(sent.ready.entry.key, 0, size, size, True, now, reads.reader, reads.client, 0.0)
            reads.patience.answered += 1
            sent.count(size, seconds)


def numbered(guards: Sequence[Guard]) -> tuple[tuple[int, object, object, object], ...]:
    """Guards as the compiled code takes them."""
    return tuple((getattr(_repeated, kind.upper()), *rest) for kind, *rest in guards)


@dataclass
class CompiledReads:
    """What the compiled code needs of one connection, under the names that it knows (``HELD`` of ``_repeated.c``).

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
    guards: tuple[Any, ...] | None = None
    lines: Callable[[int], bytes] = date_lines

    def answer_of(self, template: Template, order: tuple[int, ...]) -> Callable[[bytes], bool] | None:
        """The compiled counterpart of ``general``.

        Args:
            template: the shape of the heads.
            order: the slots that are signed, except for date and path, by place in the canonical request.

        Returns:
            ``None`` if it takes no heads of this shape.
        """
        names = template.names
        if RANGE in names or len(names) > _MOST_SLOTS:
            return None
        spans, at = [], 0
        for number, piece in enumerate(template.pieces):
            if number % 2:
                spans.append((at, at + len(piece)))
            at += len(piece)
        shape = b"".join(template.pieces)
        heads = _repeated.Heads(self, shape, tuple(spans), order, names.index(DATE), names.index(SIGNATURE))
        return heads.answer
