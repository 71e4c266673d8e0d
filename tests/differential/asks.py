"""A request as data, and a door to send it through: the origin itself, or a gateway in front of it.

An ``Ask`` is a client's request in the client's spelling. A ``Door`` signs it with keys valid at its end and writes it to a
socket byte for byte, by ``http.client``, which changes nothing. So one ask gives two requests that differ only in host and
signature, and the two replies can be compared.
"""

from __future__ import annotations

import http.client
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote_to_bytes, urlsplit

from gateway.model.s3.sigv4 import WireRequest
from rig.signed_requests import ClientSigner

Header = tuple[str, str]
Keys = tuple[str, str]

_TIMEOUT = 60.0
_CODE = re.compile(rb"<Code>([^<]*)</Code>")


@dataclass(frozen=True)
class Ask:
    """One request of a client.

    ``key`` and ``query`` are percent-encoded and sent unchanged. ``form`` is the form of the signature: ``header``,
    ``presigned``, ``presigned-v2`` or ``anonymous``. ``style`` is ``path`` or ``host``. ``who`` selects the keys.
    """

    method: str
    bucket: str
    key: str = ""
    query: str = ""
    headers: tuple[Header, ...] = ()
    form: str = "header"
    style: str = "path"
    who: str = "a"
    body: bytes = field(default=b"", repr=False)

    def header(self, name: str) -> str:
        """The first value of a header (lower-case name), or ``""``."""
        return next((value for candidate, value in self.headers if candidate.lower() == name), "")

    @property
    def path(self) -> str:
        """The request target's path."""
        if self.style == "host":
            return f"/{self.key}"
        return f"/{self.bucket}/{self.key}" if self.bucket and self.key else f"/{self.bucket}"


@dataclass(frozen=True)
class Reply:
    """A reply. Header names are lower-case; ``code`` is the S3 code of an error document."""

    status: int
    headers: dict[str, str]
    body: bytes = field(repr=False)

    @property
    def code(self) -> str:
        """The code of an S3 error, or ``""``."""
        found = _CODE.search(self.body) if self.status >= 400 or self.body.startswith(b"<?xml") else None
        return found[1].decode() if found else ""

    @property
    def cache(self) -> str:
        """The gateway's cache status: ``HIT``, ``MISS; reason=cold``, ..."""
        return self.headers.get("x-larder-cache", "")


class Door:
    """One endpoint, with the keys that each ``Ask.who`` has there.

    Args:
        endpoint: ``http://127.0.0.1:port``.
        keys: by ``Ask.who``.
        domain: the suffix of virtual hosts; where it is empty, asks in host style are sent in path style.
        forms: the forms of signature understood here; other presigned asks are signed by a header.
    """

    def __init__(
        self, endpoint: str, keys: Mapping[str, Keys], *, domain: str = "", forms: tuple[str, ...] = ("presigned",)
    ) -> None:
        self._authority = urlsplit(endpoint).netloc
        self._signers = {who: ClientSigner(*pair) for who, pair in keys.items()}
        self._domain = domain
        self._forms = ("header", "anonymous", *forms)
        self._connection = http.client.HTTPConnection(self._authority, timeout=_TIMEOUT)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def send(self, ask: Ask) -> Reply:
        """Send one request and read its whole answer."""
        signed = self._signed(ask)
        connection = self._connection
        query = signed.query.decode()
        target = ask.path if self._hosted(ask) else _path_style(ask)
        connection.putrequest(
            ask.method, f"{target}?{query}" if query else target, skip_host=True, skip_accept_encoding=True
        )
        # A presigned request is signed without its body.
        signed_headers = [(name, value) for name, value in signed.headers if name != b"content-length"]
        names = {name for name, _ in signed_headers}
        for name, value in signed_headers:
            connection.putheader(name.decode(), value)
        for name, value in ask.headers:
            if name.lower().encode() not in names:
                connection.putheader(name, value.encode())
        if ask.body or ask.method not in ("GET", "HEAD"):
            connection.putheader("Content-Length", str(len(ask.body)))
        connection.endheaders(ask.body or None)
        response = connection.getresponse()
        headers: dict[str, str] = {}
        for name, value in response.getheaders():
            lowered = name.lower()
            headers[lowered] = f"{headers[lowered]}, {value}" if lowered in headers else value
        body = response.read()
        if ask.method == "HEAD" and ask.query:
            # radosgw sends a body after the header of "HEAD ?acl"; on this connection it would pass for the next answer.
            connection.close()
        return Reply(response.status, headers, body)

    def _hosted(self, ask: Ask) -> bool:
        return bool(ask.style == "host" and self._domain and ask.bucket)

    def _signed(self, ask: Ask) -> WireRequest:
        """The query and headers to send: those that the signature covers, in the form that this end understands.

        The path is signed in S3's canonical spelling, as the signature's definition requires, even if the ask's differs.
        """
        hosted = self._hosted(ask)
        host = f"{ask.bucket}.{self._domain}:{self._authority.rpartition(':')[2]}" if hosted else self._authority
        path = ask.path if hosted else _path_style(ask)
        form = ask.form if ask.form in self._forms else "header"
        if form == "anonymous":
            return WireRequest(ask.method, b"", ask.query.encode(), [(b"host", host.encode())])
        amz = {name: value for name, value in ask.headers if name.lower().startswith("x-amz-")}
        signer = self._signers[ask.who]
        url = f"http://{host}{path if form == 'presigned-v2' else _canonical(path)}"
        if form == "presigned-v2":
            full = f"{url}?{ask.query}" if ask.query else url
            return signer.presigned_v2(ask.method, full, amz, auth_path=_path_style(ask))
        canonical = _canonical_query(ask.query)
        full = f"{url}?{canonical}" if canonical else url
        if form == "presigned":
            return signer.presigned(ask.method, full, amz)
        signed = signer.header(ask.method, full, amz, body=ask.body)
        return WireRequest(ask.method, signed.raw_path, ask.query.encode(), signed.headers)


def _path_style(ask: Ask) -> str:
    return f"/{ask.bucket}/{ask.key}" if ask.bucket and (ask.key or ask.style == "host") else f"/{ask.bucket}"


def _canonical(text: str, safe: str = "/-_.~") -> str:
    return quote(unquote_to_bytes(text), safe=safe)


def _canonical_query(query: str) -> str:
    pairs = [piece.partition("=")[::2] for piece in query.split("&") if piece]
    return "&".join(f"{_canonical(name, '-_.~')}={_canonical(value, '-_.~')}" for name, value in pairs)
