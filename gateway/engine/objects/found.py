"""A read of an object, and what is found for it.

Each read gets one of three values, before any byte is sent:

* ``Found``: the object's metadata is known, fresh and granted; its bytes are in the cache or will be.
* ``Relay``: the origin has already answered this read, and its answer goes to the client as it is.
* ``Forward``: the read is not for the cache; the edge forwards the client's request unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from gateway.engine.objects.entries import ObjectEntry
from gateway.engine.objects.fill import Fill
from gateway.engine.objects.small_ranges import Part
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3.ranges import ByteRange
from gateway.net.exchange import StreamedResponse


class Ask(NamedTuple):
    """A plain read of one object.

    ``metadata_first`` says that the reader wants a range, a condition evaluated, or only the header, so that the size and ETag
    must be known before it is decided which bytes are needed. ``span`` is the range of a GET, unless ``If-Range`` decides on it.
    ``forced`` is a client's ``Cache-Control: no-cache``. ``hasty`` says that the reader has another way to the object, and waits
    for no origin that is lost (gateway/origin/reach.py).
    """

    key: ObjectKey
    identity: OriginIdentity
    head: bool = False
    metadata_first: bool = False
    span: ByteRange | None = None
    forced: bool = False
    hasty: bool = False


class Found(NamedTuple):
    """The object is known and may be read by this reader.

    ``part`` is the small range that told what the object is. ``fill`` came of the question to the origin: it is of the whole
    object, and has its first bytes, or failed before. ``whole`` has all of the object's bytes, if they came in one piece.
    """

    entry: ObjectEntry
    outcome: Outcome
    reason: Reason | None = None
    part: Part | None = None
    fill: Fill | None = None
    whole: bytes | memoryview | None = None


@dataclass(frozen=True, slots=True)
class Relay:
    """The origin's own answer to this very read."""

    response: StreamedResponse
    reason: Reason


@dataclass(frozen=True, slots=True)
class Forward:
    """The edge must forward the client's request; ``miss`` tells a miss from a bypass."""

    reason: Reason
    miss: bool = False
