"""The application under ``/-/admin``: an ASGI gate that checks tokens and bounds bodies, and FastAPI behind it.

FastAPI reads a body before it checks who sent it. The gate never reads the body of a request without a valid token.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from contextlib import suppress

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute

from gateway import __version__
from gateway.admin.configuration import audit, credentials, origins, rules, rules_check, tenants
from gateway.admin.fleet import datasets, jobs, nodes, overview, pipelines, results, streams
from gateway.admin.http.documents import PROBLEMS
from gateway.admin.http.requests import AdminParts
from gateway.admin.http.tokens import ACTOR, Tokens
from gateway.admin.operations import explain, profile_endpoints, purge, verifications, warmup_endpoints
from gateway.edge.asgi import Edge, Headers
from gateway.edge.problems import handle_problems, include
from gateway.model.datasets import ApiError
from gateway.server.received import too_large, whole_body
from gateway.server.refusals import Message, Receive, Scope, Send
from gateway.server.strangers import authenticated

PREFIX = "/admin"
STALE = b"x-larder-stale"
"""Header of an answer that may be stale; its value names the unreachable service, the catalog or Redis."""
_OF_CATALOG = (["tenants"], ["credentials"], ["origins"], ["rules"])
LARGEST_BODY = 1024 * 1024
"""Most bytes of a request's body."""

log = logging.getLogger("larder.admin")
ROUTERS: tuple[APIRouter, ...] = (
    tenants.TENANTS.router,
    credentials.CREDENTIALS.router,
    origins.ORIGINS.router,
    rules.router,
    rules_check.router,
    audit.router,
    overview.router,
    nodes.router,
    datasets.router,
    jobs.router,
    pipelines.router,
    streams.router,
    results.router,
    warmup_endpoints.router,
    profile_endpoints.router,
    purge.router,
    verifications.router,
    explain.router,
)


class AdminApp(Edge):
    """Answers requests under ``/-/admin``.

    Args:
        tokens: authenticate callers.
        parts: the dependencies of the endpoints; ``None`` if they are only described.
    """

    def __init__(self, tokens: Tokens, parts: AdminParts | None) -> None:
        super().__init__(log)
        self._tokens = tokens
        self._parts = parts
        self.api = FastAPI(
            title="Larder: administration",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            servers=[{"url": "/-"}],
            # A redirect would leave "/-" and address a bucket.
            redirect_slashes=False,
            dependencies=[Depends(_known_parameters)],
            responses=PROBLEMS,
        )
        self.api.state.parts = parts
        handle_problems(self.api, log)
        for router in ROUTERS:
            include(self.api, router, PREFIX)

    @staticmethod
    def handles(path: str) -> bool:
        """Whether this application serves a path below ``/-``."""
        return path == PREFIX or path.startswith(PREFIX + "/")

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the head, read the body, and let FastAPI answer."""
        scope[ACTOR] = self._tokens.admit(scope)
        authenticated(scope)
        body = await _body_of(scope, receive)
        _refuse_doubles(body)
        await self.api(scope, _replay(body, receive), send)

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
            raise ApiError("InvalidRequest", f"{twice[:64]}: is given more than once.")

    # Invalid JSON is refused by the endpoint, if it takes a body.
    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=once)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


async def _known_parameters(request: Request) -> None:
    """Refuse unknown parameters: FastAPI ignores them, so a misspelt filter would have no effect."""
    route = request.scope.get("route")
    assert isinstance(route, APIRoute)
    known = [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            there = f"known: {', '.join(known)}" if known else "none is allowed"
            raise ApiError("InvalidRequest", f"Unknown parameter {name[:64]!r}; {there}.")
        if given.count(name) > 1:
            raise ApiError("InvalidRequest", f"The parameter {name} is given more than once.")
