"""Shared by all ASGI applications of the edges: the wrapper around each.

FastAPI with its endpoints and their documents would slow a start by a fifth of a second. Requests for data do not need it, so it
is imported after the start (``LateApp``).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable
from threading import Lock
from typing import TYPE_CHECKING

from pydantic_core import to_json

from gateway.base import metrics
from gateway.edge.problems import RETRY, send_problem
from gateway.model.datasets import ApiError
from gateway.model.errors import BrokenBody, ClientGone, LarderError
from gateway.model.holders import HOLDER, Holder
from gateway.policies.shares import Shares
from gateway.server.asgi_types import Message, Receive, Scope, Send, SendFiles
from gateway.server.place import PLACE, RequestPlace

if TYPE_CHECKING:
    from fastapi import FastAPI

Headers = Iterable[tuple[bytes, bytes]]


class Edge(ABC):
    """Counts requests in progress, sheds those beyond a limit, and answers failures.

    A failure before the answer has begun becomes a refusal. A later one breaks the connection, so that no client
    takes the answer for complete.

    Args:
        log: of the edge, for refusals that operators should see.
        limit: the most requests at once; each caller has a share of them (``admit``).
    """

    overloaded = "Too many requests at once; try again."
    breaks_off = False
    """Whether ``answer`` itself raises BrokenBody for failures after it has begun to send. If so, messages are not inspected."""

    def __init__(self, log: logging.Logger, limit: float = math.inf) -> None:
        self.places = Shares(limit)
        self.shed_at = -math.inf
        """When a request was last refused because no place was free, on the monotonic clock."""
        self._log = log

    @property
    def in_flight(self) -> int:
        """Requests being answered, not counting those that wait for their clients."""
        return int(self.places.used)

    @property
    def full(self) -> bool:
        """Whether every further request would be refused."""
        return self.places.used >= self.places.limit

    def admit(self, scope: Scope, holder: Holder) -> None:
        """Count a request as its verified caller's from now on; ``answer`` calls this before it waits for anything.

        Raises:
            ApiError: SlowDown, because the caller's share of the places is taken.
        """
        HOLDER.set(holder)
        if PLACE in scope:
            scope[PLACE].leave()  # of a form upload, whose signature is in its body
        if not self.places.claim(holder):
            raise self._shed()
        scope[PLACE] = RequestPlace(self.places, holder)

    def _shed(self) -> ApiError:
        metrics.SHED.labels("requests").inc()
        self.shed_at = time.monotonic()
        return ApiError("SlowDown", self.overloaded, headers=RETRY)

    def begin(self, scope: Scope, receive: Receive, send: Send, send_files: SendFiles) -> Awaitable[None] | None:
        """Answer one request at once if that needs no waiting, so that most hits need no task.

        Returns:
            The rest of the work to await; ``None`` if the request is answered.
        """
        return self(scope, receive, send)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        begun = False

        async def watched(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                message["headers"] = [*message.get("headers", ()), *self.headers(scope, message["status"])]
            await send(message)

        reply = send if self.breaks_off else watched
        try:
            if self.places.used >= self.places.limit and PLACE not in scope:
                raise self._shed()
            await self.answer(scope, receive, reply)
        except (ClientGone, BrokenBody):
            raise  # the client is gone
        except LarderError as failure:
            if begun:
                raise BrokenBody(str(failure)) from failure
            await self.refuse(scope, reply, failure)
        finally:
            if PLACE in scope:
                scope[PLACE].leave()

    @abstractmethod
    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or raise the LarderError that refuses it."""

    def headers(self, scope: Scope, status: int) -> Headers:
        """The headers that every answer gets, including refusals."""
        return ()

    async def refuse(self, scope: Scope, send: Send, failure: LarderError) -> None:
        """Answer with a problem document."""
        await send_problem(send, failure, self._log)


class LateApp:
    """An application of FastAPI that is imported and built at its first use.

    Args:
        build: imports and builds it, which takes up to a second.
    """

    def __init__(self, build: Callable[[], FastAPI]) -> None:
        self._build = build
        self._app: FastAPI | None = None
        self._building = Lock()

    @property
    def app(self) -> FastAPI:
        """The application. Blocks until it is built."""
        with self._building:
            if self._app is None:
                self._app = self._build()
                gc.freeze()  # it is permanent: garbage collections need not search it
            return self._app

    async def load(self) -> FastAPI:
        """The application, built in a thread."""
        return await asyncio.to_thread(lambda: self.app)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one request."""
        if self._app is None:
            return self._answer_later(scope, receive, send)
        return self._app(scope, receive, send)

    async def _answer_later(self, scope: Scope, receive: Receive, send: Send) -> None:
        app = await self.load()
        await app(scope, receive, send)


async def send_json(send: Send, status: int, document: object, headers: Headers = ()) -> None:
    """Send a small JSON document."""
    body = to_json(document)
    own = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, *own]})
    await send({"type": "http.response.body", "body": body})
