"""The data paths under ``/-/v1``: batches, look-ups and blobs, as plain ASGI; FastAPI serves all other addresses.

Blob addresses are not logged: they contain digests, and knowing a digest is the right to read the blob.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Awaitable, Callable

from gateway.api.s3.accounting import Accounting
from gateway.api.s3.answer import SERVER, date_header
from gateway.api.s3.app import S3App
from gateway.api.s3.inner import InnerReads
from gateway.api.v1.accounting import AccountedCalls
from gateway.api.v1.batch import MOST_INDICES, BatchEndpoint
from gateway.api.v1.blobs import MOST_DIGESTS, send_blob
from gateway.api.v1.identity import Caller, Identities
from gateway.api.v1.many.endpoint import ManyEndpoint
from gateway.api.v1.many.entries import LONGEST_BODY
from gateway.api.v1.many.opening import OpenEndpoint
from gateway.api.v1.results import ResultCall, ResultsEndpoint, named
from gateway.edge.asgi import Edge, Headers
from gateway.engine.items.registrations import Registrations
from gateway.model.datasets import ApiError, UnknownDataset, is_dataset_id
from gateway.model.keys import Principal
from gateway.server.asgi_types import Receive, Scope, Send
from gateway.server.received import large_body, whole_body
from gateway.store.datasets.opened import Registration
from gateway.store.store import Store

log = logging.getLogger("larder.v1")
_DATASET = re.compile(r"/v1/datasets/([^/]+)/(batch|lookup|offers)")
_RESULTS = re.compile(r"/v1/datasets/([^/]+)/results/([^/]+?)(/batch)?")
_MANY = "/v1/batch"
_OPEN = "/v1/open"
_BLOB = re.compile(r"/v1/blobs/([^/]+)")
_BLOBS = "/v1/blobs/lookup"
AnswerItems = Callable[[Scope, Send, Principal, Registration, bytes], Awaitable[None]]
"""Answers a request about items of a dataset."""
_LONGEST_BODY = 4 * MOST_INDICES


class DataApp(Edge):
    """Answers the data paths."""

    def __init__(
        self,
        identities: Identities,
        registrations: Registrations,
        batches: BatchEndpoint,
        results: ResultsEndpoint,
        store: Store,
        limit: int,
    ) -> None:
        super().__init__(log, limit)
        self._identities = identities
        self._registrations = registrations
        self._batches = batches
        self._results = results
        self._store = store
        self._many: ManyEndpoint
        self._open: OpenEndpoint
        self._counted = AccountedCalls(self._answer_other, batches.accounting)

    def read_keys(self, edge: S3App, accounting: Accounting) -> None:
        """Answer batches of keys, and open objects, as ``edge`` answers GETs; ``accounting`` counts them."""
        reads = InnerReads(edge, accounting)
        self._many, self._open = ManyEndpoint(reads), OpenEndpoint(reads)

    @staticmethod
    def handles(path: str) -> bool:
        """Whether a path (without "/-") is one of the data paths."""
        if not path.startswith("/v1/"):
            return False
        return bool(
            path in (_MANY, _OPEN) or _DATASET.fullmatch(path) or _BLOB.fullmatch(path) or _RESULTS.fullmatch(path)
        )

    def headers(self, scope: Scope, status: int) -> Headers:
        """The headers that every answer has, including FastAPI's."""
        return date_header(int(time.time())), SERVER

    async def answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request. A batch counts its items or entries for its tenant; every other answer is counted here."""
        if scope["path"] in (_MANY, _OPEN):
            await self._of_keys(scope, receive, send)
            return
        asked = _DATASET.fullmatch(scope["path"])
        if asked is not None and asked[2] == "batch":
            await self._of_items(scope, receive, send, asked[1], self._batches.batch)
        else:
            await self._counted(scope, receive, send)

    async def _answer_other(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == _BLOBS:
            _allow(scope, "POST")
            caller = self._admit(scope)
            body = await whole_body(receive, 32 * MOST_DIGESTS)
            caller.confirm_body(body)
            await self._batches.blobs(send, body)
            return
        blob = _BLOB.fullmatch(scope["path"])
        if blob is not None:
            _allow(scope, "GET", "HEAD")
            self._admit(scope).confirm_body(await whole_body(receive, 0))
            await send_blob(scope, send, self._store, blob[1])
            return
        results = _RESULTS.fullmatch(scope["path"])
        if results is not None:
            await self._of_results(scope, receive, send, *results.groups())
            return
        asked = _DATASET.fullmatch(scope["path"])
        assert asked is not None
        if asked[2] == "offers":
            _allow(scope, "GET")
            caller = self._admit(scope)
            caller.confirm_body(await whole_body(receive, 0))
            registration = await self._registered(caller.principal, asked[1])
            await self._batches.offers(scope, send, caller.principal, registration)
            return
        await self._of_items(scope, receive, send, asked[1], self._batches.lookup)

    async def _of_items(self, scope: Scope, receive: Receive, send: Send, dataset: str, answer: AnswerItems) -> None:
        _allow(scope, "POST")
        caller = self._admit(scope)
        body = await whole_body(receive, _LONGEST_BODY)
        caller.confirm_body(body)
        registration = await self._registered(caller.principal, dataset)
        await answer(scope, send, caller.principal, registration, body)

    async def _of_keys(self, scope: Scope, receive: Receive, send: Send) -> None:
        _allow(scope, "POST")
        caller = self._admit(scope)
        body = await whole_body(receive, LONGEST_BODY)
        caller.confirm_body(body)
        endpoint = self._many if scope["path"] == _MANY else self._open
        await endpoint.answer(scope, receive, send, caller.principal, body)

    async def _of_results(
        self, scope: Scope, receive: Receive, send: Send, dataset: str, fingerprint: str, batch: str | None
    ) -> None:
        _allow(scope, "POST" if batch else "PUT")
        caller = self._admit(scope)
        async with self._results.room(scope):
            received = large_body if scope["method"] == "PUT" else whole_body
            body = await received(receive, self._results.longest(scope["method"]))
            caller.confirm_body(body)
            registration = await self._registered(caller.principal, named(scope["query_string"]) or dataset)
            if is_dataset_id(dataset) and registration.content.id != dataset:
                raise UnknownDataset(dataset)
            call = ResultCall(scope, send, caller.principal, registration, fingerprint, body)
            await (self._results.get(call) if batch else self._results.put(call))

    def _admit(self, scope: Scope) -> Caller:
        """Verify the head of a request, and take a place for its tenant. Raises what ``Identities.admit`` and ``admit`` raise."""
        caller = self._identities.admit(scope)
        self.admit(scope, caller.principal.tenant)
        return caller

    async def _registered(self, principal: Principal, name_or_id: str) -> Registration:
        registration = await self._registrations.find(principal.tenant, name_or_id)
        if registration is None:
            raise UnknownDataset(name_or_id)
        return registration


def _allow(scope: Scope, *methods: str) -> None:
    if scope["method"] not in methods:
        raise ApiError("MethodNotAllowed", headers={"Allow": ", ".join(methods)})
