"""The path of a repeated hit: only the checks that need no waiting.

GETs of resident objects, or of ranges of them, are most of the load of training jobs, and every microsecond counts in a
comparison with nginx (docs/decisions/0003). This path takes a request only if nothing about it is special, by checks of one
dictionary look-up each. It leaves every other request to ``ObjectReads``, which can answer all requests, with the same answers.
The memo gets an address after that long path has parsed and checked it.

Everything that may change between two requests is checked in each: the signature, the generation of the key, freshness, grant,
and the files of the blobs. An object's home changes with the ring, so a new ring clears the memo: a copy from when this node was
home, or could not reach the home, is valid by itself, but the home may know a newer version.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from gateway.api.s3.answer import RemoteHit
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call
from gateway.api.s3.objects import part_head, whole_head
from gateway.engine.engine import Engine
from gateway.engine.objects.hits import Ready, ReadyObject
from gateway.fleet.nodes.membership import Membership
from gateway.model.guards import Guard
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.objects import ObjectMeta
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer.objects import ASKED
from gateway.model.s3.navigation import accepts_pages
from gateway.model.s3.ranges import ByteRange, parse_range
from gateway.model.s3.sigv4 import WireRequest
from gateway.policies.fleet.ring import Ring
from gateway.server.files import FileSpan
from gateway.store.files.blobs import OpenBlob

_HARMLESS = frozenset(
    {
        b"host", b"authorization", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-security-token", b"user-agent",
        b"accept-encoding", b"accept-language", b"connection", b"content-length", b"content-type", b"amz-sdk-invocation-id",
        b"amz-sdk-request", b"x-amz-user-agent", b"x-amz-api-version", b"x-amz-checksum-mode", b"traceparent", b"tracestate",
        b"x-amz-cf-id",
    }
)  # fmt: skip
"""Headers that a plain read of a whole object may have. None of them changes the answer or forbids one from the cache."""
_RANGE = frozenset({b"range"})
_LOOKED_AT = _HARMLESS | _RANGE | {b"accept"}
"""Headers that a read of an object or of a part of it may have with these values."""
_OF_READS = frozenset({*ASKED, b"cache-control"}) - _RANGE
"""Headers by which another node asks for something other than the present object or a range of it."""
_LONGEST_HOST = 255
"""The most bytes of a Host: without virtual hosting a client may send any Host, and the memo keeps each."""

_CHECKSUM_MODE = b"x-amz-checksum-mode"

Address = tuple[str, bytes, bytes]


class Unresolved(Enum):
    """Why a request was not answered by the short path."""

    PLAIN = "plain"
    """It may be a plain read of a whole object by a principal without an allow-list, with nothing else special about it."""
    OTHER = "other"


@dataclass(slots=True)
class Hit:
    """An object, or a range of it, ready to be sent.

    ``status`` is 200 or 206, ``head`` has the header lines, ``files`` a span of each part. ``length`` and ``span``, like all
    fields that accounting reads, are those of ``Answer``. The hit keeps the descriptors open through ``blobs``, which own them.
    If the bytes are in ``memory``, there are no files.
    """

    outcome: ClassVar[Outcome] = Outcome.HIT
    reason: ClassVar[Reason | None] = None
    code: ClassVar[str] = ""
    key: ObjectKey
    status: int
    head: bytes
    length: int
    span: tuple[int, int, int]
    files: Sequence[FileSpan]
    blobs: Sequence[OpenBlob]
    memory: bytes | memoryview | None = None


@dataclass(slots=True, eq=False)
class SentObject:
    """A whole object that was sent from memory, in the form for sending it again (``repeated.py``).

    ``principal`` is the reader. ``head`` is the answer up to the request's number; ``checked`` says whether it has checksums.
    ``count`` counts an answer, given its bytes and seconds.
    """

    principal: Principal
    checked: bool
    head: bytes
    size: int
    ready: ReadyObject
    count: Callable[[int, float], None]


@dataclass(slots=True, eq=False)
class SentBlocks:
    """An object that was sent from files, whole or by ranges, in the form for sending the same blocks again (``compiled.py``).

    ``head`` is the answer up to the request's number, or up to the lines that name a range; ``blocks`` has the files by the
    block's number.
    """

    head: bytes
    size: int
    ready: Ready
    count: Callable[[int, float], None]
    blocks: dict[int, tuple[object, ...]]


@dataclass(slots=True)
class KnownAddress:
    """The key of an address, and the rendered heads for ``meta``: of the whole with checksums and without, and of its parts.

    The head of a part lacks the two lines that name the part. ``remote`` is set if the home is another node. ``sent`` is the
    object as last sent.
    """

    key: ObjectKey
    meta: ObjectMeta | None = None
    heads: dict[bool | None, bytes] = field(default_factory=dict)
    remote: RemoteHit | None = None
    sent: SentObject | None = None


class HotReads:
    """Serves hits without waiting, for objects whose home is this node; to clients, and to other nodes for their clients."""

    def __init__(self, engine: Engine, membership: Membership) -> None:
        self.engine = engine
        self._membership = membership
        self._ring = membership.ring
        self._addresses: OrderedDict[Address, KnownAddress] = OrderedDict()
        # An address is useful only while the engine has an entry of its object.
        self._most = engine.entries_kept

    def find(self, request: WireRequest, auth: Authenticated, now: float) -> Hit | RemoteHit | Unresolved:
        """Find a hit, or a remote object whose home may have a hit; otherwise the reason why the long path must decide.

        Args:
            request: with a verified signature.
            auth: the result of the verification.
            now: seconds since the epoch.
        """
        fields, principal = request.fields, auth.principal
        if request.query or request.method != "GET" or principal.allow:
            return Unresolved.OTHER
        wanted: ByteRange | None = None
        otherwise = Unresolved.PLAIN
        if not fields.keys() <= _HARMLESS:
            if not fields.keys() <= _LOOKED_AT or accepts_pages(fields):
                return Unresolved.OTHER
            value = fields.get(b"range")
            if value is not None:
                otherwise = Unresolved.OTHER
                wanted = parse_range(value.decode("latin-1"))
                if wanted is None:
                    return otherwise
        if self._membership.ring is not self._ring:
            self._forget()
        known = self._addresses.get((principal.identity.origin, fields.get(b"host", b""), request.raw_path))
        if known is None:
            return otherwise
        checked = _CHECKSUM_MODE in fields
        if known.remote is not None:
            return otherwise if checked or wanted is not None else known.remote
        return self.render(known, principal.identity, now, wanted, checked and wants_checksum(fields)) or otherwise

    def known(self, origin: str, host: bytes, raw_path: bytes) -> KnownAddress | None:
        """The address of an object that may be here: the long path has answered a plain read of it."""
        if self._membership.ring is not self._ring:
            return None
        known = self._addresses.get((origin, host, raw_path))
        return known if known is not None and known.remote is None else None

    def ring_guard(self) -> Guard:
        """The guard that holds while no object's home has changed."""
        return "is", self._membership, "ring", self._ring

    def find_whole_for_node(self, raw_path: bytes, principal: Principal) -> Hit | None:
        """A hit for another node that requests a whole object by its address alone."""
        known = self._addresses.get((principal.identity.origin, b"", raw_path))
        return None if known is None else self.render(known, principal.identity, self.engine.services.now())

    def find_for_node(self, request: WireRequest, principal: Principal) -> Hit | None:
        """A hit for another node, which asks on behalf of ``principal``; ``None`` if the long path must decide."""
        fields, identity = request.fields, principal.identity
        known = self._addresses.get((identity.origin, b"", request.raw_path))
        if known is None or request.method != "GET" or not _OF_READS.isdisjoint(fields):
            return None
        value = fields.get(b"range")
        wanted = None if value is None else parse_range(value.decode("latin-1"))
        if value is not None and wanted is None:
            return None
        return self.render(known, identity, self.engine.services.now(), wanted, wants_checksum(fields))

    def render(
        self,
        known: KnownAddress,
        identity: OriginIdentity,
        now: float,
        wanted: ByteRange | None = None,
        checked: bool = False,
        /,
    ) -> Hit | None:
        """The hit of a whole object or a range of it, if it can be sent at once."""
        found = self.engine.hot(known.key, identity, now, wanted)
        if found is None:
            return None
        entry, blobs, files, start, stop, memory = found
        meta = entry.record.meta
        if known.meta is not meta:
            known.meta, known.heads = meta, {}
        size = meta.size
        if wanted is None:
            head = known.heads.get(checked)
            if head is None:
                head = known.heads[checked] = whole_head(meta, checked=checked)
            return Hit(known.key, 200, head, size, (0, size, size), files, blobs, memory)
        if None not in known.heads:
            known.heads[None] = part_head(meta)
        head = b"%bcontent-length: %d\r\ncontent-range: bytes %d-%d/%d\r\n" % (
            known.heads[None], stop - start, start, stop - 1, size,
        )  # fmt: skip
        return Hit(known.key, 206, head, stop - start, (start, stop, size), files, blobs, memory)

    def _forget(self) -> None:
        self._addresses.clear()
        self._ring = self._membership.ring

    def learn(self, call: S3Call, ring: Ring, remote: RemoteHit | None = None) -> None:
        """Remember the address of a plain read that the long path answered, under ``ring``: from this node, or as ``remote``."""
        request, key = call.request, call.key
        host = request.fields.get(b"host", b"")
        if ring is self._ring and key is not None and not request.query and len(host) <= _LONGEST_HOST:
            self._addresses[key.origin, host, request.raw_path] = KnownAddress(key, remote=remote)
            if len(self._addresses) > self._most:
                self._addresses.popitem(last=False)

    def learn_for_node(self, request: WireRequest, key: ObjectKey) -> None:
        """Remember the address by which another node asked for an object that the long path answered."""
        self._addresses[key.origin, b"", request.raw_path] = KnownAddress(key)
        if len(self._addresses) > self._most:
            self._addresses.popitem(last=False)


def wants_checksum(fields: Mapping[bytes, bytes]) -> bool:
    """Whether a request asks for the checksums of the object."""
    return fields.get(_CHECKSUM_MODE, b"").upper() == b"ENABLED"
