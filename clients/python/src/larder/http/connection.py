"""Signed HTTP/1.1 requests to one endpoint, over connections that are kept alive.

Idle connections are in a deque, whose ``pop`` and ``append`` are atomic: a request takes one out for its thread, and returns it
once the answer is read to its end. There is no lock that a fork could leave held. Every connection records the process that
opened it: a child closes inherited ones (which the parent does not notice) and opens its own. So one object serves any number of
threads, survives fork, and is pickled without its connections.
"""

from __future__ import annotations

import hashlib
import os
import ssl
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import BinaryIO
from urllib.parse import SplitResult, urlsplit

from larder.http.credentials import Credentials, CredentialSource, source_of
from larder.http.local import LocalConnection, LocalSocket
from larder.http.signing import EMPTY_SHA256, sign
from larder.http.silence import SILENCE, Hung, Silence, TlsConnection
from larder.http.tcp import TcpConnection

Body = bytes | BinaryIO | None
TRANSIENT = (OSError, HTTPException)
"""Errors of a connection that a retry may fix."""

# Errors of using a connection that the server closed while it was idle.
_STALE = (ConnectionResetError, BrokenPipeError, ConnectionAbortedError)
_Watched = LocalConnection | TcpConnection | TlsConnection
_Idle = deque[tuple[_Watched, int]]
_DEFAULT_PORTS = {"http": 80, "https": 443}
_UPLOAD_BLOCK = 1 << 18
"""Bytes that an upload reads from its file at a time."""
_BYTES_FOR = 60.0
"""Seconds for which bytes are requested after a request for open files failed, as the files may be the reason."""


def check_endpoint(endpoint: str) -> SplitResult:
    """The parts of an endpoint's address.

    Raises:
        ValueError: not an http or https address, or one with a path, query or user.
    """
    try:
        parts = urlsplit(endpoint)
        legal = parts.scheme in _DEFAULT_PORTS and parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        legal = False
    if not legal or parts.path.strip("/") or parts.query or parts.fragment or parts.username is not None:
        raise ValueError(f'endpoint must look like "http://127.0.0.1:9000", not {endpoint!r}')
    return parts


class Connection:
    """Requests to one endpoint. Safe to share between threads, to fork, to copy and to pickle.

    Args:
        endpoint: such as ``http://127.0.0.1:9000``. With https, certificates are checked against ``AWS_CA_BUNDLE`` if that
            is set, else against the system's authorities (``SSL_CERT_FILE``).
        credentials: access key to sign with; ``None`` searches the usual places at the first signed request.
        timeout: seconds of silence after which a request fails.

    Raises:
        ValueError: the endpoint is not an http or https address.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        credentials: Credentials | Callable[[], Credentials] | CredentialSource | None = None,
        timeout: float = 30.0,
    ) -> None:
        check_endpoint(endpoint)
        self.endpoint = endpoint.rstrip("/")
        self.credentials = source_of(credentials)
        self.timeout = timeout
        self._start()

    def _start(self) -> None:
        self._parts = check_endpoint(self.endpoint)
        self._idle: _Idle = deque()
        self._tls: ssl.SSLContext | None = None
        self.local: LocalSocket | None = None
        """The server's unix socket, used instead of its address; reset to ``None`` as soon as it cannot be reached."""
        self.bytes_until = 0.0
        """Monotonic time until which no open files are requested, after receiving some has failed."""
        self.by_tcp = ""
        """Why the address is used although the server has a unix socket: the socket is ``elsewhere``, or ``unreachable``."""
        weakref.finalize(self, _close_all, self._idle)

    def __getstate__(self) -> dict[str, object]:
        return {"endpoint": self.endpoint, "credentials": self.credentials, "timeout": self.timeout}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._start()

    def use_socket(self, named: object) -> None:
        """Use the unix socket that the server's fleet document names, if this machine has it."""
        self.local = LocalSocket.named(named)
        self.by_tcp = "elsewhere" if named and self.local is None else ""

    @property
    def takes_files(self) -> bool:
        """Whether to request open files: over the unix socket, unless receiving some has failed lately."""
        return self.local is not None and time.monotonic() >= self.bytes_until

    def avoid_files(self) -> None:
        """Request bytes for a while, after receiving open files has failed."""
        self.bytes_until = time.monotonic() + _BYTES_FOR

    def close(self) -> None:
        """Close idle connections; later requests open new ones."""
        _close_all(self._idle)

    @contextmanager
    def exchange(
        self,
        method: str,
        path: str,
        *,
        query: str = "",
        headers: Mapping[str, str] | None = None,
        body: Body = None,
        payload_hash: str | None = None,
        signed: bool = True,
    ) -> Iterator[HTTPResponse]:
        """Send a request; yields the answer, whose body the caller reads. A partly read answer closes its connection.

        If the server has closed an idle connection, or is alive but does not answer over it, the connection is replaced once,
        silently.

        Args:
            method: upper-case HTTP method.
            path: percent-encoded; sent and signed as it is.
            query: from ``signing.encode_query``.
            headers: in addition to those of every request; they are signed.
            body: bytes, or a file at its beginning (then ``headers`` has its Content-Length).
            payload_hash: hex SHA-256 of the body, or ``UNSIGNED-PAYLOAD``; needed for a file.
            signed: whether the request is signed.

        Raises:
            OSError: the connection failed, or the server was silent for too long.
            http.client.HTTPException: the answer is not HTTP, or broke off.
            CredentialsMissing: the request must be signed, and no access key was found.
        """
        fields = {"Host": _host(self._parts), **(headers or {})}
        if signed:
            if payload_hash is None:
                payload_hash = hashlib.sha256(body).hexdigest() if isinstance(body, bytes) else EMPTY_SHA256
            length = {name: fields.pop(name) for name in ("Content-Length",) if name in fields}
            fields = sign(self.credentials.current(), method, path, query, fields, payload_hash) | length
        fields["Accept-Encoding"] = "identity"
        fields |= _trace()
        connection, response = self._send(method, f"{path}?{query}" if query else path, fields, body)
        try:
            yield response
        finally:
            if response.isclosed() and connection.sock is not None:
                if isinstance(connection, LocalConnection):
                    connection.attached.close()
                self._idle.append((connection, os.getpid()))
            else:
                response.close()
                connection.close()

    def _send(self, method: str, target: str, headers: dict[str, str], body: Body) -> tuple[_Watched, HTTPResponse]:
        kept = self._kept() if body is None or isinstance(body, bytes) else None
        if kept is not None:
            kept.silence.kept = True
            kept.sock.settimeout(kept.silence.longest)  # reads shorten it, but sending may take longer
            with suppress(Hung, *_STALE):
                return kept, _answer(kept, method, target, headers, body)
        connection = self._new()
        return connection, _answer(connection, method, target, headers, body)

    def _alive(self) -> bool:
        """Whether the server answers over a new connection."""
        connection = self._new(min(SILENCE, self.timeout))
        try:
            connection.request("GET", "/-/healthz", headers={"Host": _host(self._parts), "Connection": "close"})
            connection.getresponse()
        except TRANSIENT:
            return False
        finally:
            connection.close()
        return True

    def _kept(self) -> _Watched | None:
        while True:
            try:
                connection, process = self._idle.pop()
            except IndexError:
                return None
            if process == os.getpid() and isinstance(connection, LocalConnection) == (self.local is not None):
                return connection
            connection.close()

    def _new(self, longest: float | None = None) -> _Watched:
        """A connection whose silence may last ``longest`` seconds."""
        # Weakly: the finalizer holds idle connections, which would otherwise keep this object, and the finalizer, forever.
        reference = weakref.ref(self)

        def alive() -> bool:
            return (server := reference()) is not None and server._alive()

        silence = Silence(alive, self.timeout if longest is None else longest)
        host, port = self._parts.hostname or "", self._parts.port
        if (local := self.local) is not None:
            near = LocalConnection(local, host, silence, blocksize=_UPLOAD_BLOCK)
            try:
                near.connect()
            except OSError:
                self.local, self.by_tcp = None, "unreachable"
            else:
                return near
        if self._parts.scheme == "http":
            return TcpConnection(host, port, silence, blocksize=_UPLOAD_BLOCK)
        if self._tls is None:
            self._tls = _tls_context()
        return TlsConnection(host, port, silence, blocksize=_UPLOAD_BLOCK, context=self._tls)


def _answer(connection: HTTPConnection, method: str, target: str, headers: dict[str, str], body: Body) -> HTTPResponse:
    """Send a request and read the answer's head; closes the connection if that fails."""
    try:
        try:
            connection.request(method, target, body, headers)
        except _STALE:
            if connection.sock is None:
                raise  # reset while connecting: there is no answer to read
            # A server may refuse an upload early and close; its answer is still readable.
            with suppress(*TRANSIENT):
                return connection.getresponse()
            raise
        return connection.getresponse()
    except BaseException:
        connection.close()
        raise


def _trace() -> dict[str, str]:
    """The headers that continue the current OpenTelemetry trace at the gateway (W3C Trace Context); none without
    OpenTelemetry."""
    headers: dict[str, str] = {}
    if (propagate := sys.modules.get("opentelemetry.propagate")) is not None:
        propagate.inject(headers)
    return headers


def _host(parts: SplitResult) -> str:
    """The Host header, with a port unless it is the scheme's default."""
    host = parts.hostname or ""
    host = f"[{host}]" if ":" in host else host
    return host if parts.port in (None, _DEFAULT_PORTS[parts.scheme]) else f"{host}:{parts.port}"


def _tls_context() -> ssl.SSLContext:
    bundle = os.environ.get("AWS_CA_BUNDLE")
    try:
        return ssl.create_default_context(cafile=bundle or None)
    except OSError as error:
        raise ValueError(f"AWS_CA_BUNDLE names {bundle!r}, which cannot be used: {error}") from error


def _close_all(idle: _Idle) -> None:
    with suppress(IndexError):
        while True:
            idle.pop()[0].close()
