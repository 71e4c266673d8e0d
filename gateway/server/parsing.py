"""Parses requests: llhttp handles the grammar, this module adds the checks that a gateway needs.

* A head has at most ``MAX_HEAD`` bytes. llhttp buffers without limit, so bytes are counted while a head is unfinished; the
  same bound applies to the extensions and trailers of a chunked body.
* Trailers of a chunked body are dropped (RFC 9110 section 6.5.1): the verified headers did not include them.
* ``Upgrade`` is ignored, as RFC 9110 section 7.8 allows: curl offers h2c on every request. llhttp stops at such a request,
  so its head is parsed once more without the offer; the headers passed on stay as they were sent.
* The request target is split, never normalised: signatures are verified over it.
* A request names one host: in exactly one Host header, which HTTP/1.0 may lack, and the same in an absolute target (RFC 9112,
  section 3.2). Routes, virtual buckets and signatures depend on it.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import httptools

from gateway.server.asgi_types import RawHeaders

MAX_HEAD = 64 * 1024
"""Most bytes of request line and headers; S3 itself allows 8 KiB of headers, but presigned URLs with policies are longer."""
_METHODS: dict[bytes, str] = {name.encode(): name for name in ("GET", "HEAD", "PUT", "POST", "DELETE", "OPTIONS")}
_REQUEST_LINE = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+ [!-~]+ HTTP/1\.[01]\r\n")
_CLIENT_HELLO = re.compile(rb"\x16\x03[\x00-\x04]")
"""First bytes of a TLS connection: a handshake record and its version (RFC 8446 section 5.1)."""
_VERSIONS = {"1.0": "1.0", "1.1": "1.1"}


class BadRequest(Exception):
    """The input is not a valid request; ``code`` is a key of ``S3_CODES``, ``explain`` follows its sentence."""

    def __init__(self, code: str, explain: str = "") -> None:
        self.code = code
        self.explain = explain
        super().__init__(code)


class TlsClient(BadRequest):
    """The client speaks TLS to a plain address: it was given https:// instead of http://."""


class Listener(Protocol):
    """Receives the requests, in the order of the bytes."""

    def on_request(
        self,
        method: str,
        target: tuple[bytes, bytes],
        version: str,
        headers: RawHeaders,
        keep_alive: bool,
        expects: bool,
        /,
    ) -> None:
        """A head is complete.

        Args:
            method: of the request.
            target: path and query.
            version: of HTTP, such as "1.1".
            headers: names in lower case, everything else as sent.
            keep_alive: the client may send another request.
            expects: it waits for 100 Continue.
        """

    def on_piece(self, piece: bytes) -> None:
        """A piece of the body of the last request."""

    def on_end(self) -> None:
        """The last request is complete."""


class RequestParser:
    """Parses the requests of one connection; ``in_head``: a head has begun and is not complete."""

    def __init__(self, listener: Listener) -> None:
        self.in_head = False
        self._listener = listener
        self._target: list[bytes] = []
        self.on_url = self._target.append
        """A piece of the request target."""
        self._llhttp: Any = self._new()
        self._unfinished = 0
        self._advanced = self._measure = False
        self._url = b""
        self._headers: RawHeaders = []
        self._hosts: list[bytes] = []
        self._expects = self._upgrading = False
        self._as_sent: RawHeaders | None = None

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and notify the listener.

        Raises:
            Refused: not HTTP/1.1, or a head is too long; the rest of the connection is unusable.
        """
        was_in_head = self.in_head
        size = self._unfinished + len(data)
        # A head that arrives in one short piece needs no measuring.
        self._measure = was_in_head or size > MAX_HEAD
        self._advanced = False
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
            unknown = isinstance(error, httptools.HttpParserInvalidMethodError) and not (was_in_head or self._advanced)
            if unknown and _REQUEST_LINE.match(data):
                raise BadRequest("MethodNotAllowed") from None
            kind = TlsClient if unknown and _CLIENT_HELLO.match(data) else BadRequest
            raise kind("InvalidRequest", "The request is not valid HTTP/1.1.") from None
        if self._advanced or self.in_head != was_in_head:
            self._unfinished = 0
        else:
            self._unfinished = size
            if size > MAX_HEAD:
                raise BadRequest("RequestHeaderSectionTooLarge")

    def close(self) -> None:
        """End of input."""
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

    # What llhttp calls

    def on_message_begin(self) -> None:
        """A request line begins."""
        self._target.clear()
        self._headers = []
        self._hosts = []
        self._expects = False
        self.in_head = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if not self.in_head:
            return
        name = name.lower()
        # llhttp keeps white space after a value, which is not part of it (RFC 9110, section 5.5).
        value = value.rstrip(b" \t")
        if name == b"host":
            self._hosts.append(value.lower())
        elif name == b"expect":
            self._expects = value.lower() == b"100-continue"
        self._headers.append((name, value))

    def on_headers_complete(self) -> None:
        """A head is complete, unless it has to be parsed again."""
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
        headers = self._headers
        if self._as_sent is not None:
            headers, self._as_sent = self._as_sent, None
        if len(self._hosts) != 1 and (self._hosts or version == "1.1"):
            raise BadRequest("InvalidRequest", "A request must have one Host header.")
        target = url if url.startswith(b"/") else _origin_form(url, self._hosts)
        raw_path, _, query = target.partition(b"?")
        name = _METHODS.get(method) or method.decode("ascii")
        keep_alive = version == "1.1" and llhttp.should_keep_alive()
        # A client of HTTP/1.0 knows no 100 Continue (RFC 9110, section 10.1.1).
        expects = self._expects and version == "1.1"
        self.in_head = False
        self._listener.on_request(name, (raw_path, query), version, headers, keep_alive, expects)

    def on_body(self, body: bytes) -> None:
        """A piece of a body."""
        self._advanced = True
        self._listener.on_piece(body)

    def on_message_complete(self) -> None:
        """The end of a request, or of the first pass over one that offered an upgrade."""
        if not self._upgrading:
            self._advanced = True
            self._listener.on_end()


def _origin_form(target: bytes, hosts: list[bytes]) -> bytes:
    """The path and query of an absolute-form request target, as sent to a proxy (RFC 9112 section 3.2.2)."""
    scheme, separator, rest = target.partition(b"://")
    if not separator or scheme.lower() not in (b"http", b"https"):
        raise BadRequest("InvalidURI")
    authority_end = min((at for at in (rest.find(b"/"), rest.find(b"?")) if at >= 0), default=len(rest))
    if hosts and hosts[0] != rest[:authority_end].lower():
        raise BadRequest("InvalidRequest", "The request target and the Host header name different hosts.")
    path = rest[authority_end:]
    return path if path.startswith(b"/") else b"/" + path
