"""The data paths under ``/-/v1``: batches, look-ups and blobs, as plain ASGI; all other addresses are FastAPI's.

Addresses of blobs contain digests, and a digest is a right to read: they are not logged.
"""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from typing import Any

from gateway import metrics
from gateway.api.s3.answer import Clock
from gateway.api.v1.batch import MOST_INDICES, BatchEndpoint
from gateway.api.v1.blobs import send_blob
from gateway.api.v1.identity import Identities
from gateway.api.v1.problems import send_problem
from gateway.engine.registrations import Registrations
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.errors import BrokenBody, ClientGone, LarderError
from gateway.server.received import Receive, whole_body
from gateway.server.refusals import Scope, Send
from gateway.store.store import Store

_DATASET = re.compile(r"/v1/datasets/([^/]+)/(batch|lookup)")
_BLOB = re.compile(r"/v1/blobs/([^/]+)")
_LONGEST_BODY = 4 * MOST_INDICES


class DataApp:
    """Answers the data paths; ``in_flight`` is how many requests it is answering."""

    def __init__(
        self, identities: Identities, registrations: Registrations, batches: BatchEndpoint, store: Store, limit: int
    ) -> None:
        self._identities = identities
        self._registrations = registrations
        self._batches = batches
        self._store = store
        self._limit = limit
        self._clock = Clock()
        self.in_flight = 0

    @staticmethod
    def handles(path: str) -> bool:
        """Whether a path (without "/-") is one of the data paths."""
        return path.startswith("/v1/") and bool(_DATASET.fullmatch(path) or _BLOB.fullmatch(path))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        started = False

        async def sending(message: MutableMapping[str, Any]) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = [*message["headers"], self._clock.date(), (b"server", b"Larder")]
            await send(message)

        self.in_flight += 1
        try:
            if self.in_flight > self._limit:
                metrics.SHED.inc()
                raise ApiError("SlowDown", "Too many requests at once; try again.", headers={"Retry-After": "1"})
            await self._route(scope, receive, sending)
        except (ClientGone, BrokenBody):
            raise
        except LarderError as failure:
            if started:
                raise BrokenBody(str(failure)) from failure
            await send_problem(sending, failure)
        finally:
            self.in_flight -= 1

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        blob = _BLOB.fullmatch(scope["path"])
        if blob is not None:
            _allow(scope, "GET", "HEAD")
            self._identities.admit(scope).confirm_body(await whole_body(receive, 0))
            await send_blob(scope, send, self._store, blob[1])
            return
        found = _DATASET.fullmatch(scope["path"])
        assert found is not None
        _allow(scope, "POST")
        caller = self._identities.admit(scope)
        body = await whole_body(receive, _LONGEST_BODY)
        caller.confirm_body(body)
        principal = caller.principal
        registration = await self._registrations.find(principal.tenant, found[1])
        if registration is None:
            raise UnknownDataset(found[1])
        answer = self._batches.batch if found[2] == "batch" else self._batches.lookup
        await answer(scope, send, principal, registration, body)


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise ApiError("MethodNotAllowed", headers={"Allow": ", ".join(methods)})
