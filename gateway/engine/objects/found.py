"""A read of an object, and its result.

Each read gets one of three values, before any byte is sent:

* ``Found``: the object's metadata is known, fresh and granted; the bytes of the answer are in the cache or will be.
* ``Relay``: the origin has already answered this read, and its answer goes to the client as it is.
* ``Forward``: the read is not for the cache; the edge forwards the client's request unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.engine.objects.body import Body
from gateway.engine.objects.entries import ObjectEntry
from gateway.engine.objects.fill import Fill
from gateway.engine.objects.small_ranges import Part
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import Header, ObjectMeta
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.conditions import Conditions, ConditionVerdict, range_applies
from gateway.model.s3.ranges import ByteRange
from gateway.net.exchange import StreamedResponse
from gateway.store.files.blobs import OpenBlob

NO_CACHE: Header = ("Cache-Control", "no-cache")
"""Makes an origin that is itself a cache ask its own origin."""


class Ask(NamedTuple):
    """A plain read of one object.

    ``metadata_first``: the reader wants a range or only the header, so the size and ETag must be known before the gateway
    decides which bytes are needed. ``span`` is the range of a GET. ``conditions`` may end the read without bytes, or name a
    version that the cache does not know. ``forced`` is a client's ``Cache-Control: no-cache``. ``hasty``: the reader has another
    way to the object, and does not wait for a lost origin (gateway/origin/reach.py). ``within`` limits a load of an object of
    unknown size to the bytes from the first to before the last.
    """

    key: ObjectKey
    identity: OriginIdentity
    head: bool = False
    metadata_first: bool = False
    span: ByteRange | None = None
    forced: bool = False
    hasty: bool = False
    conditions: Conditions | None = None
    within: tuple[int, int] | None = None

    def bounds(self, meta: ObjectMeta) -> tuple[int, int] | None:
        """The bytes of this version in the answer, from the first to before the last; ``None`` for one without bytes: for a
        HEAD, a condition or an unsatisfiable range.
        """
        conditions, size = self.conditions, meta.size
        if self.head or (
            conditions and conditions.evaluate(meta.etag, meta.last_modified) is not ConditionVerdict.PASS
        ):
            return None
        if self.within is not None:
            return min(self.within[0], size), min(self.within[1], size)
        return self.span.resolve(size) if self.span is not None and self.wants_part(meta) else (0, size)

    def wants_part(self, meta: ObjectMeta) -> bool:
        """Whether the answer is only a part of this version of the object."""
        conditions = self.conditions
        return self.span is not None and (conditions is None or range_applies(conditions.if_range, meta.etag))

    def doubts(self, meta: ObjectMeta) -> bool:
        """Whether the reader names a version other than this one."""
        return self.conditions is not None and self.conditions.doubts(meta.etag, meta.last_modified)

    @property
    def lines(self) -> list[Header]:
        """The header lines that make the origin answer this reader's request."""
        lines = [] if self.conditions is None else self.conditions.lines
        return [*lines, NO_CACHE] if self.forced else lines

    def settled(self) -> Ask:
        """The same read after the origin was asked, so neither force nor a condition requires another request."""
        return self._replace(forced=False, conditions=None)


class Found(NamedTuple):
    """The object is known and may be read by this reader.

    ``part`` is the small range whose answer had the object's metadata. ``fill`` is the fill that the request to the origin
    started: it covers the whole object, and has its first bytes, or failed before. ``whole`` has all bytes of its only block, if
    they came in one piece. ``body`` has the bytes of the answer, of which the first is available; its reader closes it.
    """

    entry: ObjectEntry
    outcome: Outcome
    reason: Reason | None = None
    part: Part | None = None
    fill: Fill | None = None
    whole: bytes | memoryview | None = None
    body: Body | None = None

    @property
    def blob(self) -> OpenBlob | None:
        """The file of the object's only block, whose bytes ``whole`` has; ``None`` if it was in the cache already."""
        return None if self.whole is None or self.fill is None else self.fill.blocks[0].blob


@dataclass(frozen=True, slots=True)
class Relay:
    """The origin's own answer to this very read.

    ``part`` is set if the origin sent more of the object than was asked for: the first byte that the reader wants, the end, the
    first byte of the answer, and the size of the object. ``document`` is the body, if it was read; any number of readers can
    share it.
    """

    response: StreamedResponse
    reason: Reason
    part: tuple[int, int, int, int] | None = None
    document: bytes | None = None


@dataclass(frozen=True, slots=True)
class Forward:
    """The edge must forward the client's request; ``miss`` distinguishes a miss from a bypass."""

    reason: Reason
    miss: bool = False
