"""The address of operators' pages: a separate listener that serves no objects.

The pages hold an admin token. An object that a browser shows at the same origin could read it, so pages and objects have
different ports (docs/decisions/0040-operators-pages-have-an-origin-of-their-own.md). Programs, which send the token themselves,
may use ``/-/admin`` at either.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from gateway.edge.asgi import Edge
from gateway.model.datasets import ApiError
from gateway.server.asgi_types import Application, Receive, Scope, Send

log = logging.getLogger("larder.admin")
_EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104  # nothing is bound here
_PAGES = ("/", "/docs", "/runbook")
_STATIC = "/static/"
_ALIVE = "/healthz"
_ELSEWHERE = ("/v1", "/peer")
_OF_CLIENTS = ("/v1/",)
_NOT_HERE = (
    "This address has operators' pages and /-/admin only; S3, /-/v1 and /-/peer are at server.host and server.port."
)
_FOR_OPERATORS = "This is for operators: it is served at admin.address only, because of admin.exclusive."
_NO_ADDRESS = "The console has no address at this gateway: set admin.address to a free HOST:PORT."


@dataclass(frozen=True, slots=True)
class OperatorAddress:
    """Where operators' pages are.

    ``shared`` says that clients' listener has the same host, or that this one listens everywhere: a browser reaches both under
    the same names.
    """

    scheme: str
    host: str
    port: int
    shared: bool

    @classmethod
    def between(cls, operators: str, clients: str) -> OperatorAddress | None:
        """The address from the URLs of both listeners; ``None`` if ``operators`` is empty."""
        if not operators:
            return None
        url = urlsplit(operators)
        assert url.hostname is not None
        assert url.port is not None
        shared = url.hostname in (*_EVERYWHERE, urlsplit(clients).hostname)
        return cls(url.scheme, url.hostname, url.port, shared)

    def accepted(self, server: tuple[str, int] | None) -> bool:
        """Whether a connection came in at this address; ``server`` is the address of our end."""
        return server is not None and server[1] == self.port and (server[0] == self.host or self.host in _EVERYWHERE)

    def url(self, named: str) -> str:
        """The operators' URL for a browser that sent the Host header ``named`` to the clients' address."""
        host = _host_of(named) if self.shared else ""
        if not host:
            host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class OperatorPages(Edge):
    """Answers requests at the operators' address.

    Args:
        choose: the application of a path below ``/-``.
    """

    def __init__(self, choose: Callable[[str], Application]) -> None:
        super().__init__(log)
        self._choose = choose

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        raw_path, path = scope["raw_path"], scope["path"][2:]
        if raw_path in (b"/", b"/-"):
            await _redirect(send, "/-/")
            return
        if not raw_path.startswith(b"/-/") or any(
            path == prefix or path.startswith(f"{prefix}/") for prefix in _ELSEWHERE
        ):
            raise ApiError("NotFound", _NOT_HERE)
        await self._choose(path)({**scope, "path": path}, receive, send)


class PagesElsewhere(Edge):
    """Answers requests for operators' pages at the clients' address: it redirects browsers to the operators' address.

    Args:
        address: of operators; ``None`` without one.
        exclusive: operators' pages and API are not served at the clients' address (``admin.exclusive``).
    """

    def __init__(self, address: OperatorAddress | None, *, exclusive: bool) -> None:
        super().__init__(log)
        self._address = address
        self._exclusive = exclusive

    def handles(self, path: str) -> bool:
        """Whether a path (without "/-") is not served here."""
        if self._exclusive:
            return path != _ALIVE and not path.startswith(_OF_CLIENTS)
        return _is_page(path)

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if not _is_page(scope["path"]):
            raise ApiError("NotFound", _FOR_OPERATORS)
        if self._address is None:
            raise ApiError("NotFound", _NO_ADDRESS)
        named = dict(scope["headers"]).get(b"host", b"").decode("latin-1")
        query = scope["query_string"].decode("ascii", "replace")
        path = scope["raw_path"].decode("ascii", "replace")
        where = f"{self._address.url(named)}{'/-/' if path == '/-' else path}"
        await _redirect(send, f"{where}?{query}" if query else where)


def _is_page(path: str) -> bool:
    return path in _PAGES or path.startswith(_STATIC)


async def _redirect(send: Send, where: str) -> None:
    headers = [(b"location", where.encode("latin-1")), (b"content-length", b"0"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": 307, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def _host_of(named: str) -> str:
    """The host in a Host header, as a URL has it; empty if it cannot be one."""
    try:
        host = urlsplit(f"//{named}").hostname or ""
    except ValueError:
        return ""
    if ":" in host:
        return f"[{host}]"
    return host if host and all(char.isascii() and (char.isalnum() or char in "._-") for char in host) else ""
