"""Parses requests: llhttp handles the grammar, this module adds the checks that a gateway needs.

* A head has at most ``MAX_HEAD`` bytes. llhttp buffers without limit, so bytes are counted while a head is unfinished; the same
  bound applies to the extensions and trailers of a chunked body.
* Trailers of a chunked body are dropped (RFC 9110 section 6.5.1): the verified headers did not include them.
* ``Upgrade`` is ignored, as RFC 9110 section 7.8 allows: curl offers h2c on every request. llhttp stops at such a request, so
  its head is parsed again without the offer; the headers passed on stay as sent.
* The request target is split, never normalised: signatures are verified over it.
* The answer does not depend on how the bytes were cut. llhttp refuses an unknown method at its first wrong byte, but the whole
  request line decides between 405 and 400, so a line is held until it is complete.
* A head that arrives whole, in the usual form of a GET without a body, costs one call instead of one per line (``_PlainHead``).
  llhttp checks it too; a head with anything unusual is parsed again in the general way.
* A request names one host, in exactly one Host header (which HTTP/1.0 may lack), and the same host in an absolute target (RFC
  9112, section 3.2). Routes, virtual buckets and signatures depend on it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any, Protocol

import httptools

from gateway.server.asgi_types import RawHeaders

MAX_HEAD = 64 * 1024
"""The most bytes of request line and headers; S3 itself allows 8 KiB of headers, but presigned URLs with policies are longer."""
_METHODS: dict[bytes, str] = {name.encode(): name for name in ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")}
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]\r\n")
_BEGIN_OF_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]")
_LONGEST_METHOD = 32
"""More bytes than llhttp takes to refuse a method."""
_EMPTY_LINES = re.compile(rb"[\r\n]*")
"""What may stand before a request (RFC 9112 section 2.2)."""
_CLIENT_HELLO = b"\x16"
"""First byte of a TLS connection: the type of a handshake record (RFC 8446 section 5.1)."""
_NO_REQUEST = "The request is not valid HTTP/1.1."
_VERSIONS = {"1.0": "1.0", "1.1": "1.1"}
_MAX_PLAIN = 8 * 1024
"""Maximum bytes of a head that is parsed in one call, because the names of such heads are remembered."""
_FRAMING = frozenset(b"connection content-length expect proxy-connection te trailer transfer-encoding upgrade".split())
"""Headers about the connection, or about a body."""


class BadRequest(Exception):
    """The input is not a valid request; ``code`` is a key of ``S3_CODES``, ``explain`` is appended to its sentence."""

    def __init__(self, code: str, explain: str = "") -> None:
        self.code = code
        self.explain = explain
        super().__init__(code)


class TlsClient(BadRequest):
    """The client speaks TLS to a plain address: it was configured with https:// instead of http://."""


class Listener(Protocol):
    """Receives the requests, in the order of their bytes."""

    def on_request(
        self,
        method: str,
        target: tuple[bytes, bytes],
        version: str,
        headers: RawHeaders,
        keep_alive: bool,
        expects: bool,
        ended: bool,
        /,
    ) -> None:
        """A head is complete.

        Args:
            method: of the request.
            target: path and query.
            version: of HTTP, such as "1.1".
            headers: names in lower case, everything else as sent.
            keep_alive: whether the client may send another request.
            expects: whether the client waits for 100 Continue.
            ended: whether the request has no body; otherwise ``on_end`` follows.
        """

    def on_piece(self, piece: bytes) -> None:
        """Take a piece of the last request's body."""

    def on_end(self) -> None:
        """Note that the last request is complete."""


class _PlainHead:
    """The fields that llhttp reports of a head: the first value of each header, by name as sent, and the pieces of the target."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes] = {}
        self.target: list[bytes] = []
        self.on_header = self.values.setdefault
        self.on_url = self.target.append
        self.llhttp: Any = httptools.HttpRequestParser(self)


class RequestParser:
    """Parses the requests of one connection; ``in_head``: a head has begun but is incomplete."""

    def __init__(self, listener: Listener) -> None:
        self.in_head = False
        self._listener = listener
        self._target: list[bytes] = []
        self.on_url = self._target.append
        """A piece of the request target."""
        self._llhttp: Any = self._new()
        self._line = bytearray()
        """The bytes of an unfinished request line whose method llhttp has refused."""
        self._begun = b""
        """The bytes of an unfinished head, or its last three, which may begin the empty line after it."""
        self._unfinished = 0
        self._completed = 0
        """The messages that ended in the bytes being parsed."""
        self._had_body = False
        self._advanced = self._measure = False
        self._url = b""
        self._headers: RawHeaders = []
        self._upgrading = False
        self._as_sent: RawHeaders | None = None
        self._between = True
        self._plain = _PlainHead()
        self.plain: bytes | None = None
        """While the listener is notified of a request: its bytes, if they came alone, in one piece and in the usual form."""

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and notify the listener.

        Raises:
            BadRequest: not HTTP/1.1, or a head is too long; the rest of the connection is unusable.
        """
        if self._between and data.startswith(b"GET /") and self._feed_plain(data):
            return
        if self._line:
            self._line += data
            self._answer_line()
            return
        whole = data
        was_in_head = self.in_head
        size = self._unfinished + len(data)
        # A head that arrives in one short piece needs no measuring.
        self._measure = was_in_head or size > MAX_HEAD
        self._advanced, self._completed = False, 0
        try:
            while data:
                try:
                    self._llhttp.feed_data(data)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    data = data[upgrade.args[0] :]
                    self._parse_head_again()
        except httptools.HttpParserError as error:
            cause = error.__context__
            if isinstance(cause, BadRequest):
                raise cause from None
            if isinstance(error, httptools.HttpParserInvalidMethodError):
                self._refuse_method(whole, was_in_head)
                return
            raise BadRequest("InvalidRequest", _NO_REQUEST) from None
        if self.in_head:
            begun = self._begun + whole if was_in_head else whole
            if self._completed or not was_in_head:
                begun = begun[_begin_of_last(begun, self._completed, was_in_head) :]
            self._begun = begun if len(begun) < _LONGEST_METHOD else begun[-3:]
        if self._advanced or self.in_head != was_in_head:
            self._unfinished = 0
        else:
            self._unfinished = size
            if size > MAX_HEAD:
                raise BadRequest("RequestHeaderSectionTooLarge")

    def _refuse_method(self, data: bytes, in_head: bool) -> None:
        """Refuse the last message in the data, whose method does not exist, once its line is complete.

        Raises:
            BadRequest: the method is not allowed, or the line is not one of HTTP/1.1, or too long.
        """
        if self._had_body:  # where the message begins is not known
            raise BadRequest("InvalidRequest", _NO_REQUEST) from None
        data = self._begun + data if in_head else data
        self._line += data[_begin_of_last(data, self._completed, in_head) :]
        self.in_head = True
        self._answer_line()

    def _answer_line(self) -> None:
        line = self._line
        if b"\n" not in line and _BEGIN_OF_LINE.match(line):
            if len(line) > MAX_HEAD:
                raise BadRequest("RequestHeaderSectionTooLarge")
            return
        if _REQUEST_LINE.match(line):
            raise BadRequest("MethodNotAllowed") from None
        kind = TlsClient if line.startswith(_CLIENT_HELLO) else BadRequest
        raise kind("InvalidRequest", _NO_REQUEST) from None

    def _feed_plain(self, data: bytes) -> bool:
        """Parse bytes that are exactly one request of the usual form; returns whether they are. If not, the listener gets
        nothing.
        """
        plain = self._plain
        if len(data) > _MAX_PLAIN or not data.endswith(b"\r\n\r\n"):
            return False
        try:
            plain.llhttp.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._plain = _PlainHead()
            return False
        values, target = plain.values, b"".join(plain.target)
        names = _usual_names(tuple(values))
        # As many lines as names: no header is repeated, and nothing follows the head.
        if (
            names is None
            or data.count(b"\r\n") != len(names) + 2
            or b" \r\n" in data
            or b"\t" in data
            or not data.startswith(b"GET %b HTTP/1.1\r\n" % target)
        ):
            self._plain = _PlainHead()
            return False
        headers = list(zip(names, values.values(), strict=True))
        values.clear()
        plain.target.clear()
        raw_path, _, query = target.partition(b"?")
        self._unfinished = 0
        self.plain = data
        self._listener.on_request("GET", (raw_path, query), "1.1", headers, True, False, True)
        self.plain = None
        return True

    def close(self) -> None:
        """Note the end of the input."""
        self._llhttp = None

    def _new(self) -> Any:
        llhttp = httptools.HttpRequestParser(self)
        # A request may follow one that asked to close; it is parsed but never answered (RFC 9112 section 9.6).
        llhttp.set_dangerous_leniencies(lenient_data_after_close=True)
        return llhttp

    def _parse_head_again(self) -> None:
        method, version = self._llhttp.get_method(), self._llhttp.get_http_version()
        kept = b"".join(name + b": " + value + b"\r\n" for name, value in self._headers if name != b"upgrade")
        head = b"%b %b HTTP/%b\r\n%b\r\n" % (method, self._url, version.encode(), kept)
        self._as_sent, self._upgrading = self._headers, False
        self._llhttp = self._new()
        self._llhttp.feed_data(head)

    # Called by llhttp

    def on_message_begin(self) -> None:
        """Note that a request line begins."""
        self._target.clear()
        self._headers = []
        self._between = False
        self.in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Receive one header, or a trailer, which goes into an unread list."""
        # llhttp keeps white space after a value, which is not part of it (RFC 9110, section 5.5).
        self._headers.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        """Complete a head, unless it must be parsed again."""
        llhttp = self._llhttp
        self._url = url = b"".join(self._target)
        if self._measure:
            size = len(url)
            for header in self._headers:
                size += len(header[0]) + len(header[1]) + 4
            if size > MAX_HEAD:
                raise BadRequest("RequestHeaderSectionTooLarge")
        method = llhttp.get_method()
        if llhttp.should_upgrade():
            if method == b"CONNECT":
                raise BadRequest("MethodNotAllowed")
            self._upgrading = True
            return
        version = _VERSIONS.get(llhttp.get_http_version())
        if version is None:
            raise BadRequest("InvalidRequest", "This server speaks HTTP/1.1.")
        headers, self._headers = self._headers, []
        fields = dict(headers)
        host = fields.get(b"host")
        if (host is None and version == "1.1") or (len(fields) != len(headers) and _repeats_host(headers)):
            raise BadRequest("InvalidRequest", "A request must have one Host header.")
        if self._as_sent is not None:
            headers, self._as_sent = self._as_sent, None
        target = url if url.startswith(b"/") else _origin_form(url, host)
        raw_path, _, query = target.partition(b"?")
        name = _METHODS.get(method) or method.decode("ascii")
        keep_alive = version == "1.1" and llhttp.should_keep_alive()
        # HTTP/1.0 clients do not know 100 Continue (RFC 9110, section 10.1.1).
        expects = b"expect" in fields and fields[b"expect"].lower() == b"100-continue" and version == "1.1"
        self.in_head = False
        self._listener.on_request(name, (raw_path, query), version, headers, keep_alive, expects, False)

    def on_body(self, body: bytes) -> None:
        """Take a piece of a body."""
        self._advanced = self._had_body = True
        self._listener.on_piece(body)

    def on_message_complete(self) -> None:
        """The end of a request, or of the first pass over a request that offered an upgrade."""
        if not self._upgrading:
            self._advanced = self._between = True
            self._completed += 1
            self._listener.on_end()


def _begin_of_last(data: bytes, completed: int, in_head: bool) -> int:
    """The place of the message after so many without a body; with ``in_head`` the first of them began before the data."""
    at = 0
    for number in range(completed + 1):
        if number or not in_head:
            at = _EMPTY_LINES.match(data, at).end()  # type: ignore[union-attr]
        if number < completed:
            at = data.find(b"\r\n\r\n", at) + 4
    return at


@lru_cache(maxsize=256)
def _usual_names(names: tuple[bytes, ...]) -> tuple[bytes, ...] | None:
    """The names of a head's headers in lower case, if none is repeated, Host is present, and none affects framing."""
    lower = tuple([name.lower() for name in names])
    usual = b"host" in lower and len({*lower}) == len(lower) and _FRAMING.isdisjoint(lower)
    return lower if usual else None


def _repeats_host(headers: RawHeaders) -> bool:
    return sum(name == b"host" for name, _ in headers) > 1


def _origin_form(target: bytes, host: bytes | None) -> bytes:
    """The path and query of an absolute-form request target, as sent to a proxy (RFC 9112 section 3.2.2)."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise BadRequest("InvalidURI")
    authority_end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    if host is not None and host.lower() != rest[:authority_end].lower():
        raise BadRequest("InvalidRequest", "The request target and the Host header name different hosts.")
    path = rest[authority_end:]
    return path if path.startswith(b"/") else b"/" + path
