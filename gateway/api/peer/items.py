"""Items of datasets for other nodes: batches, look-ups, registrations and blobs whose home is this node.

The rules of ``/-/v1`` hold, except for the checks that the asking node has made: it has verified the client, checked its
allow-list, and decided how the dataset is cached. An item comes from this cache or from the origin, or is taken over from a
previous owner; no third node serves it.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import parse_qsl

import numpy as np

from gateway.api.peer.app import Address, OnBehalfOf, PeerRequest
from gateway.api.v1.batch import MOST_INDICES, MOST_OFFERS, parse_indices
from gateway.api.v1.batch_body import Framing, ItemTally, SendOptions, headers_of, send_frames, send_resident
from gateway.api.v1.blobs import MOST_DIGESTS, digests_in, send_blob
from gateway.base import metrics
from gateway.edge.asgi import send_json
from gateway.engine.items.answers import Arrival, Arriving, BatchAsk, Resident
from gateway.engine.items.batch import Batches
from gateway.engine.items.peer_items import at_home_bytes
from gateway.engine.items.registrations import Registrations
from gateway.model.datasets import ApiError, UnknownDataset
from gateway.model.frames import MEDIA_TYPE
from gateway.model.reader import ORDER, READER, REFUSED, SWEEPS, read_order, read_reader
from gateway.policies.items.batch import BatchMode
from gateway.policies.items.datasets import CachingMode
from gateway.server.asgi_types import Send
from gateway.server.send import send_pieces
from gateway.store.datasets.parcel import MEDIA_TYPE as MEDIA_TYPE_OF_PARCELS
from gateway.store.store import Store

_DIGEST = 32
_TALLY = ItemTally(metrics.PEER_ITEMS)


@dataclass(frozen=True, slots=True)
class _Query:
    name: str
    caching: CachingMode
    mode: BatchMode
    largest: int | None
    most: int = 1


class PeerItemsEdge:
    """Answers the addresses of items."""

    def __init__(self, registrations: Registrations, batches: Batches, store: Store) -> None:
        self._registrations = registrations
        self._batches = batches
        self._store = store

    def addresses(self) -> Mapping[str, Address]:
        """Addresses by the kind they are counted as."""
        return {
            "batch": Address(
                re.compile(r"datasets/([0-9a-f]{64})/batch"), ("POST",), self.batch, 4 * MOST_INDICES, changes=False
            ),
            "lookup": Address(
                re.compile(r"datasets/([0-9a-f]{64})/lookup"), ("POST",), self.lookup, 4 * MOST_INDICES, changes=False
            ),
            "offers": Address(re.compile(r"datasets/([0-9a-f]{64})/offers"), ("POST",), self.offers, changes=False),
            "dataset": Address(
                re.compile(r"datasets/([0-9a-f]{64})"), ("GET",), self.dataset, on_behalf_of=OnBehalfOf.TENANT
            ),
            "blob": Address(
                re.compile(r"blobs/([0-9a-f]{64})"), ("GET", "HEAD"), self.blob, on_behalf_of=OnBehalfOf.NODE
            ),
            "blobs": Address(
                re.compile(r"blobs/lookup"),
                ("POST",),
                self.blobs,
                _DIGEST * MOST_DIGESTS,
                OnBehalfOf.NODE,
                changes=False,
            ),
            "taken": Address(
                re.compile(r"blobs/taken"), ("POST",), self.taken, _DIGEST * MOST_DIGESTS, OnBehalfOf.NODE
            ),
        }

    async def batch(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/datasets/{id}/batch?name=N&caching=MODE[&largest=BYTES][&mode=prefetch]``.

        Raises:
            ApiError: the request is refused.
            BrokenBody: the answer that has begun cannot be completed.
        """
        query = _read(request, "name", "caching", "largest", "mode")
        ask = await self._ask(request, query)
        if query.mode is BatchMode.PREFETCH:
            await send_json(request.send, 202, await self._batches.prefetch(ask), [])
            return
        scope, send, options = request.scope, request.send, SendOptions(_TALLY, query.largest)
        answer = await self._batches.open(ask)
        headers = headers_of([("content-type", MEDIA_TYPE)])
        if isinstance(answer, Resident):
            if all(query.largest is None or file.size <= query.largest for file in answer.files):
                await send_resident(scope, send, ask, answer, headers, options)
                return
            answer = Arriving(_each(answer), answer)
        await send_frames(scope, send, ask, answer, Framing(self._batches.fetches, options), headers)

    async def lookup(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/datasets/{id}/lookup?name=N``: two bitmaps, the resident items, then those being fetched.

        For a job whose dataset is kept by demand, need and room follow (see ``at_home_bytes``).

        Raises:
            ApiError: the request is refused.
        """
        ask = await self._ask(request, _read(request, "name"))
        await _send_bytes(request.send, at_home_bytes(await self._batches.known.at_home(ask)))

    async def offers(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/datasets/{id}/offers?name=N&most=M``: items that are offered here to the job of the header.

        Raises:
            ApiError: the request is refused.
        """
        query = _read(request, "name", "most")
        offered = await self._batches.known.offers(await self._ask(request, query), query.most)
        await _send_bytes(request.send, offered.astype("<u4").tobytes())

    async def dataset(self, request: PeerRequest) -> None:
        """``GET /-/peer/v1/datasets/{id}?name=N``: the registration, for a node that does not know it.

        Raises:
            ApiError: UnknownDataset, or the request is refused.
            BrokenBody: the answer that has begun cannot be completed.
        """
        name, wanted = _read(request, "name").name, request.names[0]
        tenant = request.principal.tenant
        registry = self._registrations.registry
        registration = await registry.get(tenant, name, now=True)
        parcel = await registry.work.chore(partial(registry.parcel, tenant, name)) if registration else None
        if registration is None or parcel is None or registration.content.id != wanted:
            if parcel is not None:
                parcel.close()
            raise UnknownDataset(name[:140])
        try:
            headers = headers_of([("content-type", MEDIA_TYPE_OF_PARCELS), ("content-length", str(parcel.size))])
            await request.send({"type": "http.response.start", "status": 200, "headers": headers})
            await send_pieces(request.scope, request.send, parcel.pieces)
        finally:
            parcel.close()

    async def blob(self, request: PeerRequest) -> None:
        """``GET|HEAD /-/peer/v1/blobs/{digest}``, with ranges.

        Raises:
            ApiError: NotResident, InvalidRange.
            BrokenBody: the answer that has begun cannot be completed.
        """
        await send_blob(request.scope, request.send, self._store, request.names[0])

    async def blobs(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/blobs/lookup``: a bitmap of the digests in the body that are resident here.

        Raises:
            ApiError: InvalidRequest.
        """
        digests = digests_in(request.body)
        there = await self._store.items.among(digests)
        bits = np.packbits(np.array([digest in there for digest in digests], dtype=bool), bitorder="little")
        await _send_bytes(request.send, bits.tobytes())

    async def taken(self, request: PeerRequest) -> None:
        """``POST /-/peer/v1/blobs/taken``: the blobs with the digests in the body are now cached at their home; copies here are
        dropped.

        Raises:
            ApiError: InvalidRequest.
        """
        await self._batches.fetches.give_up(digests_in(request.body))
        await _send_bytes(request.send, b"")

    async def _ask(self, request: PeerRequest, query: _Query) -> BatchAsk:
        principal, wanted = request.principal, request.names[0]
        registration = await self._registrations.find(principal.tenant, query.name)
        if registration is None or registration.content.id != wanted:
            registration = await self._registrations.find(principal.tenant, wanted)
        if registration is None:
            raise UnknownDataset(query.name)
        indices = parse_indices(request.body, registration.content.items, distinct=False)
        headers = dict(request.scope["headers"])
        given = headers.get(READER.encode(), b"").decode("latin-1")
        order = read_order(headers.get(ORDER.encode(), b"").decode("latin-1"))
        reader = read_reader(principal.tenant, given, order) if given else None
        # Only datasets in this mode have readers, and a look-up does not name the mode.
        caching = query.caching if reader is None else CachingMode.PART
        return BatchAsk(
            registration,
            principal.identity,
            caching,
            query.mode,
            indices,
            len(indices),
            here=True,
            reader=reader,
            refused=REFUSED.encode() in headers,
            sweeps=SWEEPS.encode() in headers,
        )


def _read(request: PeerRequest, *known: str) -> _Query:
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    given = dict(pairs)
    wrong = [name for name in given if name not in known]
    if wrong or len(given) < len(pairs) or not given.get("name"):
        raise ApiError(
            "InvalidRequest", f"known parameters are {', '.join(known)}, each at most once; name is required"
        )
    largest, most = given.get("largest"), given.get("most", "1")
    if largest is not None and not (largest.isascii() and largest.isdigit() and len(largest) <= 18):
        raise ApiError("InvalidRequest", f"largest must be a number of bytes, not {largest[:40]!r}")
    if not (most.isascii() and most.isdigit() and len(most) <= 5 and 1 <= int(most) <= MOST_OFFERS):
        raise ApiError("InvalidRequest", f"most must be a number of items from 1 to {MOST_OFFERS}, not {most[:40]!r}")
    try:
        caching, mode = CachingMode(given.get("caching", "full")), BatchMode(given.get("mode", "exact"))
    except ValueError as mistake:
        raise ApiError("InvalidRequest", f"caching or mode: {mistake}") from None
    if mode is BatchMode.SUBSTITUTE or caching is CachingMode.NONE:
        raise ApiError("InvalidRequest", "mode must be exact or prefetch; an uncached dataset has no homes")
    return _Query(given["name"], caching, mode, None if largest is None else int(largest), int(most))


async def _each(opened: Resident) -> AsyncGenerator[Arrival]:
    while opened.files:
        yield opened.pop()


async def _send_bytes(send: Send, body: bytes) -> None:
    headers = headers_of([("content-type", "application/octet-stream"), ("content-length", str(len(body)))])
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
