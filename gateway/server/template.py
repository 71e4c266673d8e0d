"""The shape of a head that the parser has accepted: other heads of that shape need no parsing.

An SDK sends nearly the same head again and again: a GET of another key, signed at another second. Only the path, date and
signature differ, and the ids that some SDKs add. A template stores the rest as bytes and compares it, at a tenth of the cost of
parsing.

Why skipping the parser is safe. A template is made from a head that llhttp and ``RequestParser`` have accepted in one piece, as
a GET without framing headers (``RequestParser.feed`` defines those heads). It divides the bytes after the path into fixed pieces
and slots. A head matches if

* its fixed pieces equal those of the accepted head, byte for byte, and its slots are in the same places, with the same lengths.
  Only the value of Range may have another length;
* its path begins with a slash, and path and slots have only unreserved characters and slashes (RFC 3986, section 2.3);
* the value of Range has only digits and hyphens, after ``bytes=``.

No alphabet has a space, a tab, a colon, a carriage return or a line feed. So the lines of the head, their names and the ends of
their values are those of the accepted head, no line can appear, vanish or change its name, and the end of the head is the end of
the bytes. An alphabet's bytes are valid in a value and in a target, so llhttp accepts them too. Parsing would therefore give the
same method, version, names and values, except for the slots, which are returned. The path is already percent-decoded and
canonical, so nothing needs decoding, and "." and ".." stay parts of a key, as in S3.

Only the grammar check is skipped. The caller always checks the values: whether the date is valid and the signature right. A
template refuses nothing: a head that does not match, comes in two pieces, or is followed by another head goes to the parser.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct

from gateway.server.asgi_types import RawHeaders

LONGEST = 8 * 1024
"""Maximum bytes of a head that may have a template."""
_PLAIN = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/"
_IN_RANGES = b"0123456789-"
_BYTES = b"bytes="
RANGE = b"range"
SIGNATURE = b"authorization"
"""The slot of the signature, at the end of the value of Authorization."""
DATE = b"x-amz-date"
_DATE_LENGTH = 16
_SIGNATURE_LENGTH = 64
_PROVEN = 8
"""Heads that a template must answer to pay for itself; making one takes about as long as parsing five heads."""
_LONGEST_WAIT = 1024
_IDS = frozenset({b"amz-sdk-invocation-id", b"traceparent"})
"""Headers whose values differ between requests and mean nothing to this gateway."""


class Patience:
    """Decides when a connection replaces its template by one of another shape.

    A proxy may send the requests of many clients over one connection, so that heads of one shape seldom follow each other. Each
    template that did not pay for itself doubles the number of other heads that are parsed before the next template is made.

    Attributes:
        answered: heads that the present template matched, and so saved from parsing.
    """

    __slots__ = ("_others", "_wanted", "answered")

    def __init__(self) -> None:
        self.answered = self._others = 0
        self._wanted = 1

    def gives_way(self) -> bool:
        """Whether to make a template from a head that the present one does not match."""
        self._others += 1
        proven = self.answered >= _PROVEN
        if not proven and self._others < self._wanted:
            return False
        self._wanted = 1 if proven else min(2 * self._wanted, _LONGEST_WAIT)
        self.answered = self._others = 0
        return True


class Template:
    """The shape of one head.

    Attributes:
        names: of the slots' headers, in the order of ``match``.
        pieces: of the accepted head after its path, without the value of Range; every second one is a slot.
        range_at: where that value was; ``None`` if there is no Range.
    """

    __slots__ = ("_fixed", "_headers", "_size", "_unpack_from", "names", "pieces", "range_at")

    def __init__(
        self, pieces: list[bytes], names: tuple[bytes, ...], range_at: int | None, headers: list[tuple[bytes, bytes]]
    ) -> None:
        layout = Struct("".join(f"{len(piece)}s" for piece in pieces))
        self.names = names if range_at is None else (*names, RANGE)
        self.pieces = tuple(pieces)
        self._fixed = self.pieces[::2]
        self._unpack_from = layout.unpack_from
        self._size = layout.size
        self.range_at = range_at
        self._headers = headers

    @classmethod
    def of(cls, head: bytes) -> Template | None:
        """The template for a head that ``RequestParser`` has accepted as plain; ``None`` if it lacks a date or a signature."""
        rest = head[head.index(b" ", 4) :]
        slots: list[tuple[int, int, bytes]] = []
        span: tuple[int, int] | None = None
        headers: list[tuple[bytes, bytes]] = []
        at = rest.index(b"\r\n") + 2
        for line in rest[at:-4].split(b"\r\n"):
            sent, _, value = line.partition(b":")
            name, begin, end = sent.lower(), at + len(line) - len(value.lstrip(b" ")), at + len(line)
            at = end + 2
            headers.append((name, rest[begin:end]))
            if name == RANGE:
                span = begin, end
            elif name == DATE and end - begin == _DATE_LENGTH:
                slots.append((begin, end, name))
            elif name == SIGNATURE and value[:-_SIGNATURE_LENGTH].endswith(b"Signature="):
                slots.append((end - _SIGNATURE_LENGTH, end, SIGNATURE))
            elif name in _IDS and begin < end:
                slots.append((begin, end, name))
        if not {DATE, SIGNATURE} <= {name for _, _, name in slots}:
            return None
        return cls._divided(rest, slots, span, headers)

    @classmethod
    def _divided(
        cls, rest: bytes, slots: list[tuple[int, int, bytes]], span: tuple[int, int] | None, headers: RawHeaders
    ) -> Template:
        """A template without the value of Range, which may have any length."""
        range_at = None
        if span is not None:
            range_at, end = span
            rest = rest[:range_at] + rest[end:]
            slots = [
                (a, b, name) if a < range_at else (a - end + range_at, b - end + range_at, name) for a, b, name in slots
            ]
        pieces, at = [], 0
        for begin, stop, _ in slots:
            pieces += [rest[at:begin], rest[begin:stop]]
            at = stop
        return cls([*pieces, rest[at:]], tuple(name for _, _, name in slots), range_at, headers)

    def match(self, head: bytes) -> tuple[bytes, tuple[bytes, ...]] | None:
        """The path and the values of the slots, if the received bytes are exactly one head of this shape."""
        size, at = len(head), head.find(b" ", 5)
        if self.range_at is not None:
            return self._match_ranged(head, at)
        if size - at != self._size or at < 0 or size > LONGEST:
            return None
        pieces = self._unpack_from(head, at)
        if pieces[::2] != self._fixed or head[:5] != b"GET /":
            return None
        path, values = head[4:at], pieces[1::2]
        if b"".join((path, *values)).translate(None, _PLAIN):
            return None
        return path, values

    def _match_ranged(self, head: bytes, at: int) -> tuple[bytes, tuple[bytes, ...]] | None:
        """Like ``match``, for a head with Range; its path ends at ``at``."""
        assert self.range_at is not None
        path, rest = head[4:at], head[at:]
        end = rest.find(b"\r", self.range_at)
        wanted = rest[self.range_at : end]
        rest = rest[: self.range_at] + rest[end:]
        if wanted[:6] != _BYTES or wanted[6:].translate(None, _IN_RANGES):
            return None
        if len(rest) != self._size or len(head) > LONGEST:
            return None
        pieces = self._unpack_from(rest)
        if pieces[::2] != self._fixed or head[:5] != b"GET /":
            return None
        values = pieces[1::2]
        if b"".join((path, *values)).translate(None, _PLAIN):
            return None
        return path, (*values, wanted)

    def headers(self, values: tuple[bytes, ...]) -> RawHeaders:
        """The headers of a head with these values in its slots, as the parser would give them."""
        given: Mapping[bytes, bytes] = dict(zip(self.names, values, strict=True))
        return [
            (name, value[:-_SIGNATURE_LENGTH] + given[name] if name == SIGNATURE else given.get(name, value))
            for name, value in self._headers
        ]
