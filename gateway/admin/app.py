"""The application under ``/-/admin``: an ASGI gate that checks tokens and bounds bodies, and FastAPI behind it.

FastAPI reads a body before it checks who sent it. The gate never reads the body of a request without a valid token.

The endpoints (``endpoints.py``) are imported after the start, in a thread: they take half as long as the data path, and a gateway
without admin tokens never needs them.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING

from gateway.admin.http.parts import AdminParts
from gateway.admin.http.roles import PREFIX
from gateway.admin.http.tokens import ACTOR, Tokens
from gateway.base.imports import imported
from gateway.edge.asgi import Edge, Headers, LateApp
from gateway.edge.problems import refused_field
from gateway.feature import Feature
from gateway.model.datasets import ApiError
from gateway.model.holders import HOLDER, OWN
from gateway.server.asgi_types import Message, Receive, Scope, Send
from gateway.server.callers import authenticated
from gateway.server.received import too_large, whole_body

if TYPE_CHECKING:
    from fastapi import FastAPI

ENDPOINTS = "gateway.admin.endpoints"
STALE = b"x-larder-stale"
"""Header of an answer that may be stale; its value names the unreachable service, the catalog or Redis."""
_OF_CATALOG = (["tenants"], ["credentials"], ["origins"], ["rules"], ["tokens"])
LARGEST_BODY = 1024 * 1024
"""The most bytes of a request's body."""

log = logging.getLogger("larder.admin")


class AdminApp(Edge):
    """Answers requests under ``/-/admin``.

    Args:
        tokens: authenticate callers.
        parts: the dependencies of the endpoints; ``None`` to only describe the endpoints.
        features: they add endpoints.
    """

    def __init__(self, tokens: Tokens, parts: AdminParts | None, features: tuple[Feature, ...]) -> None:
        super().__init__(log)
        self._tokens = tokens
        self._parts = parts
        self.state = SimpleNamespace()
        """The dependencies of the endpoints; complete before the first request."""
        self.state.parts = parts
        if parts is not None:
            parts.catalog.follow(tokens.use_catalog)
        self._endpoints = LateApp(lambda: imported(ENDPOINTS).api_of(self.state, PREFIX, features))

    @property
    def api(self) -> FastAPI:
        """The endpoints. Blocks for about a second at the first use."""
        return self._endpoints.app

    async def load(self) -> None:
        """Import the endpoints in a thread."""
        await self._endpoints.load()

    @staticmethod
    def handles(path: str) -> bool:
        """Whether this application serves a path below ``/-``."""
        return path == PREFIX or path.startswith(PREFIX + "/")

    def may_read(self, scope: Scope) -> bool:
        """Whether a request for another address has a token that may read here."""
        try:
            self._tokens.admit({**scope, "method": "GET", "path": PREFIX})
        except ApiError:
            return False
        return True

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the head, read the body, and let FastAPI answer."""
        scope[ACTOR] = self._tokens.admit(scope)
        authenticated(scope, OWN)
        HOLDER.set(OWN)
        body = await _body_of(scope, receive)
        _refuse_doubles(body)
        await self._endpoints(scope, _replay(body, receive), send)

    def headers(self, scope: Scope, status: int) -> Headers:
        """The request's id, as in the audit log, the role of the token, and whether the answer may be stale."""
        if ACTOR not in scope:
            return
        yield b"x-larder-request-id", scope[ACTOR].request_id.encode()
        yield b"x-larder-role", scope[ACTOR].role.encode()
        yield b"cache-control", b"no-store"
        of_catalog = scope["path"].split("/")[2:3] in _OF_CATALOG
        if of_catalog and status < 300 and self._parts is not None and self._parts.catalog.away:
            yield STALE, b"catalog"


async def _body_of(scope: Message, receive: Receive) -> bytes:
    """The whole body. Nothing is read if Content-Length exceeds the limit.

    Raises:
        ApiError: TooLarge.
        ClientGone: the client left before its request was complete.
    """
    announced = dict(scope["headers"]).get(b"content-length", b"")
    if announced.isdigit() and int(announced) > LARGEST_BODY:
        raise too_large(LARGEST_BODY)
    return await whole_body(receive, LARGEST_BODY)


def _refuse_doubles(body: bytes) -> None:
    """Refuse a repeated name: parsers disagree on which value counts (RFC 8259, section 4).

    Raises:
        ApiError: InvalidRequest.
    """

    def once(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise refused_field(twice[:64], f"The field {twice[:64]} is given more than once; send it once.")

    # Invalid JSON is refused by the endpoint, if it takes a body.
    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=once)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again
