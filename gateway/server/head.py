"""Response heads: from ASGI headers to bytes on the wire, and the framing of the body.

Response splitting (CWE-113) is ruled out by one check of the whole head instead of one per header: a head with *n* headers
contains exactly *n* + 2 line feeds and as many carriage returns, so any extra one must be part of a name or a value. Names are
checked once and cached; there are few of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_PLAIN, _LENGTH, _ENCODING, _CONNECTION = range(4)
_SPECIAL = {b"content-length": _LENGTH, b"transfer-encoding": _ENCODING, b"connection": _CONNECTION}
_MOST_NAMES = 2048
_names: dict[bytes, int] = {}


def _status_line(status: int) -> bytes:
    phrase = HTTPStatus(status).phrase if status in HTTPStatus._value2member_map_ else ""
    return f"HTTP/1.1 {status} {phrase}\r\n".encode()


STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


@dataclass(slots=True)
class Head:
    """An encoded response head and the framing of the body after it.

    ``length`` is the announced number of body bytes; ``None`` if ``chunked`` framing or, for HTTP/1.0 clients, closing marks the
    end. ``bodiless``: no body may follow, whatever is announced (HEAD, 204, 304: RFC 9110 section 6.4.1). ``close``: the
    connection ends after this response.
    """

    data: bytes
    length: int | None
    chunked: bool
    bodiless: bool
    close: bool


def encode_head(
    status: int, headers: Iterable[tuple[bytes, bytes]], *, method: str, http_10: bool, keep_alive: bool
) -> Head:
    """Encode a response head (RFC 9112 sections 4 to 6); names keep their spelling.

    Raises:
        ValueError: a header name is not a token, a value contains CR, LF or NUL, or the framing contradicts itself.
    """
    pieces = [STATUS_LINES[status]]
    length: int | None = None
    chunked = close = False
    for name, value in headers:
        kind = _names.get(name)
        if kind is None:
            kind = _classify(name)
        if kind:
            if kind == _LENGTH and length is None and value.isdigit():
                length = int(value)
            elif kind == _ENCODING and value.lower() == b"chunked":
                chunked = True
            elif kind == _CONNECTION:
                close = close or b"close" in value.lower()
            else:
                raise ValueError(f"the response header {name!r}: {value!r} cannot be used for framing")
        pieces += (name, b": ", value, b"\r\n")
    given = len(pieces) // 4
    bodiless = method == "HEAD" or status in (204, 304) or status < 200
    if chunked and length is not None:
        raise ValueError("a response must not have both a content-length and a transfer-encoding")
    if length is None and not chunked and not bodiless:
        chunked = not http_10
        keep_alive = keep_alive and chunked
        if chunked:
            pieces.append(b"transfer-encoding: chunked\r\n")
            given += 1
    if not keep_alive and not close:
        pieces.append(b"connection: close\r\n")
        given += 1
        close = True
    pieces.append(b"\r\n")
    data = b"".join(pieces)
    if data.count(b"\n") != given + 2 or data.count(b"\r") != given + 2 or b"\0" in data:
        raise ValueError("a response header contains CR, LF or NUL")
    return Head(data, length, chunked, bodiless, close)


def encode_lines(headers: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Encode header lines for repeated use in ``larder.files`` messages.

    Raises:
        ValueError: like ``encode_head``.
    """
    head = encode_head(200, headers, method="GET", http_10=False, keep_alive=True)
    return head.data[len(STATUS_LINES[200]) : -2]


def _classify(name: bytes) -> int:
    if not _TOKEN.fullmatch(name):
        raise ValueError(f"{name!r} is not a header name")
    if len(_names) >= _MOST_NAMES:
        _names.clear()
    kind = _names[bytes(name)] = _SPECIAL.get(name.lower(), _PLAIN)
    return kind
