"""The application under ``/-/admin``: a gate that judges heads and bounds bodies, and behind it FastAPI.

The gate is plain ASGI because FastAPI reads a body before it asks who sent it: a stranger's body is never read here.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from re import Pattern
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.dependencies.utils import get_flat_params
from fastapi.params import Query
from fastapi.routing import APIRoute
from starlette.routing import compile_path

from gateway import __version__
from gateway.admin.documents import PROBLEMS
from gateway.admin.parts import AdminParts
from gateway.admin.problems import answer, handle_problems
from gateway.admin.tokens import ACTOR, Tokens
from gateway.model.datasets import ApiError
from gateway.model.errors import ClientGone
from gateway.server.problems import send_document
from gateway.server.received import too_large, whole_body
from gateway.server.strangers import authenticated

PREFIX = "/admin"
STALE = b"x-larder-stale"
"""The header of an answer that is what was known last: of the catalog, or of Redis, which its value names."""
_OF_CATALOG = (["tenants"], ["credentials"], ["origins"], ["rules"])
LARGEST_BODY = 1024 * 1024
"""Bytes of a request's body."""

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AdminApp:
    """Answers what is under ``/-/admin``.

    Args:
        tokens: who may ask.
        parts: what the endpoints work with; ``None`` only where they are described and not asked.
    """

    def __init__(self, tokens: Tokens, parts: AdminParts | None) -> None:
        self._tokens = tokens
        self._parts = parts
        self.api = FastAPI(
            title="Larder: administration",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            openapi_url=None,
            servers=[{"url": "/-"}],
            # A redirect would lead out of "/-", to a bucket.
            redirect_slashes=False,
            dependencies=[Depends(_known_parameters)],
            responses=PROBLEMS,
        )
        self.api.state.parts = parts
        self._methods: list[tuple[Pattern[str], set[str]]] = []
        handle_problems(self.api, self._methods_of)

    def include(self, router: APIRouter) -> None:
        """Add endpoints; their paths begin below ``/-/admin``."""
        self.api.include_router(router, prefix=PREFIX)
        for route in router.routes:
            if isinstance(route, APIRoute):
                self._methods.append((compile_path(PREFIX + route.path)[0], set(route.methods or ())))

    @staticmethod
    def handles(path: str) -> bool:
        """Whether a path below ``/-`` is this application's."""
        return path == PREFIX or path.startswith(PREFIX + "/")

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Judge the head, take the body, and have the rest answered by FastAPI."""
        try:
            actor = self._tokens.admit(scope)
            authenticated(scope)
            body = await _body_of(scope, receive)
            _refuse_doubles(body)
        except ApiError as error:
            await send_document(send, answer(error))
            return
        except ClientGone:
            return
        scope[ACTOR] = actor
        await self.api(scope, _replay(body, receive), self._with_headers(scope["path"], send, actor.request_id))

    def _with_headers(self, path: str, send: Send, request_id: str) -> Send:
        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(b"x-larder-request-id", request_id.encode()), (b"cache-control", b"no-store")]
                of_catalog = path.split("/")[2:3] in _OF_CATALOG
                if of_catalog and message["status"] < 300 and self._parts is not None and self._parts.catalog.away:
                    own.append((STALE, b"catalog"))
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        return sending

    def _methods_of(self, path: str) -> set[str]:
        return {method for pattern, methods in self._methods if pattern.match(path) for method in methods}


async def _body_of(scope: Message, receive: Receive) -> bytes:
    """The whole body; one that is announced to be too large is not even read.

    Raises:
        ApiError: TooLarge.
        ClientGone: the client left before its request was complete.
    """
    announced = dict(scope["headers"]).get(b"content-length", b"")
    if announced.isdigit() and int(announced) > LARGEST_BODY:
        raise too_large(LARGEST_BODY)
    return await whole_body(receive, LARGEST_BODY)


def _refuse_doubles(body: bytes) -> None:
    """Refuse a name that is there twice: which one is meant, programs read differently (RFC 8259, section 4).

    Raises:
        ApiError: InvalidRequest.
    """

    def once(pairs: list[tuple[str, object]]) -> None:
        if len(dict(pairs)) != len(pairs):
            twice = Counter(name for name, _ in pairs).most_common(1)[0][0]
            raise ApiError("InvalidRequest", f"{twice[:64]}: is there more than once.")

    # What is no JSON, whoever reads it next refuses, if it wants any.
    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=once)


def _replay(body: bytes, receive: Receive) -> Receive:
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return pending.pop() if pending else await receive()

    return again


async def _known_parameters(request: Request) -> None:
    """Refuse parameters that the address does not have: a misspelt one would be ignored, and the answer be another's."""
    route = request.scope.get("route")
    assert isinstance(route, APIRoute)
    known = [field.alias for field in get_flat_params(route.dependant) if isinstance(field.field_info, Query)]
    given = [name for name, _ in request.query_params.multi_items()]
    for name in given:
        if name not in known:
            there = f"known: {', '.join(known)}" if known else "there are none"
            raise ApiError("InvalidRequest", f"There is no parameter {name[:64]!r} here; {there}.")
        if given.count(name) > 1:
            raise ApiError("InvalidRequest", f"The parameter {name} is there more than once.")
