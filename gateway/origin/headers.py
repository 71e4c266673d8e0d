"""The headers of the origin's answers: those relayed to clients, and the object's metadata.

Everything except the headers of the origin's connection is relayed to the client (RFC 9110, section 7.6.1).
``model/s3/request_headers.py`` lists the headers sent to the origin; Accept, Accept-Encoding and User-Agent are the gateway's
own, as the stored bytes must not depend on the first reader.

Header values are text in which each character is one byte (ISO-8859-1), as in ASGI servers and WSGI: they can be relayed
unchanged, whatever their encoding was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gateway.model.objects import Header, ObjectMeta
from gateway.model.s3.ranges import parse_range
from gateway.net.connection import IncomingAnswer

HOP_BY_HOP = frozenset(
    {
        "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
        "transfer-encoding", "upgrade", "http2-settings",
    }
)  # fmt: skip

_NOT_OF_THE_OBJECT = HOP_BY_HOP | {
    "content-length", "content-range", "etag", "date", "server", "age", "via", "alt-svc", "set-cookie", "vary",
    "strict-transport-security", "x-amz-request-id", "x-amz-id-2", "x-amz-cf-id", "x-amz-cf-pop", "x-cache",
}  # fmt: skip
_CHECKSUM = "x-amz-checksum-"
LARDER = "x-larder-"


def relayable(headers: Iterable[Header]) -> list[Header]:
    """The origin's headers for the client, without those of the origin's connection (RFC 9110, 7.6.1), and without Larder's own
    if the origin is another Larder: the client gets those from the gateway it asked.
    """
    pairs = list(headers)
    dropped: frozenset[str] = HOP_BY_HOP
    for name, value in pairs:
        if name.lower() == "connection":
            dropped = dropped.union(_tokens(value))
    kept = []
    for pair in pairs:
        name = pair[0].lower()
        if name not in dropped and not name.startswith(LARDER):
            kept.append(pair)  # in Python 3.11 a comprehension is a call
    return kept


def entity_headers(headers: Sequence[Header], *, checksums_asked: bool = True) -> ObjectMeta:
    """The metadata of an object from the origin's answer to a GET or HEAD.

    Args:
        headers: of a 200 or a 206, in the origin's order.
        checksums_asked: whether the request carried ``x-amz-checksum-mode: ENABLED``; without it S3 sends no checksums. With a
            range it sends only whole objects' checksums, so a 206's are ignored.

    Returns:
        The metadata; ``size`` is -1 if the answer does not state the object's size, ``etag`` empty if it has none. Neither can
        be cached.
    """
    kept: list[Header] = []
    checksums: list[Header] = []
    by_name: dict[str, str] = {}
    nominated: set[str] = set()
    for pair in headers:
        name, value = pair
        lowered = name.lower()
        by_name.setdefault(lowered, value)
        if lowered in _NOT_OF_THE_OBJECT:
            if lowered == "connection" and value.lower() not in HOP_BY_HOP:
                nominated.update(_tokens(value))
        elif not lowered.startswith("x-"):
            kept.append(pair)
        elif lowered.startswith(_CHECKSUM):
            checksums.append(pair)
        elif not lowered.startswith(LARDER):
            kept.append(pair)
    if nominated:
        kept = [pair for pair in kept if pair[0].lower() not in nominated]
    states_checksums = checksums_asked and "content-range" not in by_name
    length = by_name.get("content-length", "")
    if "content-range" in by_name:
        exact = content_range(by_name["content-range"])
        size = exact[2] if exact else -1
    else:
        size = int(length) if length.isascii() and length.isdigit() else -1
    return ObjectMeta(
        etag=by_name.get("etag", ""),
        size=size,
        last_modified=by_name.get("last-modified", ""),
        headers=tuple(kept),
        checksums=tuple(checksums) if states_checksums else None,
    )


def content_range(value: str) -> tuple[int, int, int] | None:
    """First byte, last byte and total of a ``Content-Range`` (RFC 9110, 14.4), or ``None`` if it is not exact."""
    unit, _, rest = value.strip().partition(" ")
    span, _, total = rest.partition("/")
    first, _, last = span.partition("-")
    if unit.lower() != "bytes" or not all(part.isascii() and part.isdigit() for part in (first, last, total)):
        return None
    return int(first), int(last), int(total)


def has_what_was_asked(answer: IncomingAnswer, headers: Iterable[Header], query: str) -> bool:
    """Whether an answer to a GET is the whole, or the requested part; adapts its status to its bytes (RFC 9110, 15.3.7).

    ``rclone serve s3`` sends a range with 200 and a Content-Range; taken for the whole object, its bytes would be misplaced.
    Other stores may send the whole object with 206.
    """
    value = answer.fields.get("content-range")
    if answer.status != 206 and (answer.status != 200 or value is None):
        return True
    asked = next((text for name, text in headers if name.lower() == "range"), None)
    if asked is not None:
        # radosgw describes the whole object by a Content-Range if the header requests no range.
        answer.status = answer.status if parse_range(asked) is None else 206
        return True
    if "partNumber=" in query:
        return True
    span = content_range(value or "")
    if span is None or (span[0], span[1] + 1) != (0, span[2]):
        return False
    answer.status = 200
    answer.headers = [pair for pair in answer.headers if pair[0].lower() != "content-range"]
    answer.fields = {name: text for name, text in answer.fields.items() if name != "content-range"}
    return True


def _tokens(value: str) -> Iterable[str]:
    return map(str.strip, value.lower().split(","))
