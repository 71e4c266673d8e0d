"""Results of pipelines: read from their homes, computed once, and put to their homes.

A result's home is the home of its item, so a client that splits batches by home splits results in the same way. A node that is
asked for others' results asks their homes, one request each; a home asks nobody. If a home is gone, its results are too: the
client computes them.

*Claims.* A GET may claim missing results. The caller computes those that nobody else has claimed. It waits for the rest only if
it got nothing to compute: a waiting caller holds no claim, so no two callers wait for each other. After a claim is granted, the
result is looked up again, because it may have come in between; if so, the claim is void.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from gateway.base import metrics
from gateway.base.config_base import ResultSettings
from gateway.engine.base.homes import PREFIX, PeerNodes, split_of
from gateway.fleet.jobs.result_claims import ResultClaims
from gateway.fleet.jobs.results import ResultUses
from gateway.model.access import Access
from gateway.model.errors import LarderError
from gateway.model.fleet import Node
from gateway.model.frames import FrameEntry, ItemFlag, ItemStatus, index_head
from gateway.model.keys import OriginIdentity
from gateway.model.peer.principal import principal_header
from gateway.model.results import (
    LONGEST_BODY,
    MOST_BYTES,
    Collection,
    Element,
    MalformedResults,
    PutResult,
    ReceivedResult,
    collection_key,
    read_results,
)
from gateway.store.datasets.opened import Registration
from gateway.store.index.result_rows import StoredResult
from gateway.store.items import ItemFile, close_files
from gateway.store.store import Store

_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 0.25
"""Seconds between two looks at others' claims: the first pause, and the longest."""
_WITHIN = 20.0
"""Seconds that another home may take for its part of a request."""
_LONGEST_ANSWER = 1 << 17
"""Bytes of another home's answer to a PUT."""
_NOBODY = OriginIdentity("", "")
HomeParts = list[tuple[Node, NDArray[np.int64]]]
"""Other homes, each with the positions of its indices."""
_STAYS = frozenset({PutResult.STORED, PutResult.KNOWN})
"""Outcomes that end the claims of all; any other outcome ends the sender's claim."""


class ResultClaim(NamedTuple):
    """The claimant, the seconds of its claims, and the seconds to wait for results that others compute."""

    owner: str
    seconds: float
    wait: float = 0.0


class FilePart(NamedTuple):
    """An element in an open file: its first byte, its bytes, and their CRC-32."""

    file: ItemFile
    start: int
    size: int
    crc32: int


@dataclass(frozen=True, slots=True)
class ResultRequest:
    """Which results are read or put.

    Args:
        registration: of the dataset.
        fingerprint: of the functions.
        versions: results of an item. Result ``index + items * version`` is of the item at ``index``.
        forwarded: whether another node forwards the request, for results at home here.
        room: bytes that an answer may have.
        replace: whether elements of a PUT replace stored ones.
    """

    registration: Registration
    fingerprint: str
    forwarded: bool = False
    room: int = MOST_BYTES
    replace: bool = False
    versions: int = 1

    @property
    def numbers(self) -> int:
        """How many results there are."""
        return self.versions * self.registration.content.items

    def items_of(self, numbers: NDArray[np.uint32]) -> NDArray[np.uint32]:
        """The items of these results."""
        return numbers if self.versions == 1 else numbers % np.uint32(self.registration.content.items)

    def query(self, more: str = "") -> str:
        """The query with which it is forwarded to another home."""
        versions = f"&versions={self.versions}" if self.versions > 1 else ""
        return f"name={self.registration.name}{versions}{more}"


@dataclass(slots=True)
class FoundResults:
    """The available results, by index; all others have a status. Its holder closes it."""

    elements: dict[int, FilePart | Element] = field(default_factory=dict)
    statuses: dict[int, ItemStatus] = field(default_factory=dict)
    files: list[ItemFile] = field(default_factory=list)

    @property
    def missing(self) -> list[int]:
        """The results that are not stored."""
        return [index for index, status in self.statuses.items() if status is ItemStatus.NOT_RESIDENT]

    def add(self, elements: Mapping[int, FilePart | Element], indices: Iterable[int]) -> None:
        """Add elements. Those of ``indices`` without an element are not stored."""
        self.elements.update(elements)
        self.statuses.update((index, ItemStatus.NOT_RESIDENT) for index in indices if index not in elements)
        for index in elements:
            self.statuses.pop(index, None)

    def close(self) -> None:
        """Close the files."""
        close_files(self.files)
        self.files.clear()
        self.elements.clear()


class ResultsPut(BaseModel):
    """The outcome of each element of a PUT, in the order of its entries."""

    results: list[PutResult]


class Results:
    """The results of pipelines, as accessed by one worker.

    Args:
        store: of the node.
        fleet: the other nodes; ``None`` outside a fleet.
        claims: of the zone.
        uses: record which results are in use.
        settings: limits of what is stored.
    """

    def __init__(
        self,
        store: Store,
        fleet: PeerNodes | None,
        claims: ResultClaims,
        uses: ResultUses,
        settings: ResultSettings,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._claims = claims
        self._uses = uses
        self._settings = settings
        self._contents: WeakKeyDictionary[Registration, str] = WeakKeyDictionary()

    async def collection(self, request: ResultRequest) -> Collection:
        """The collection that a request names."""
        registration = request.registration
        content = self._contents.get(registration)
        if content is None:
            # The locations of ten million items take a second to hash.
            digest = await asyncio.to_thread(registration.locations.digest)
            content = self._contents[registration] = f"{registration.content.tag}/{digest.hex()}"
        return Collection(registration.tenant, registration.content.id, request.fingerprint, content)

    # --- reading

    async def get(
        self, request: ResultRequest, indices: NDArray[np.uint32], claim: ResultClaim | None = None
    ) -> FoundResults:
        """Get the results of distinct items; a missing result has the reason. The caller closes the answer."""
        collection, found = await self.collection(request), FoundResults()
        try:
            await self._collect(request, collection.name, indices, found)
            if claim is not None:
                await self._claimed(request, collection.name, found, claim)
        except BaseException:
            found.close()
            raise
        count, size = _count(found)
        if not request.forwarded and self._settings.enabled:
            self._uses.note(collection, request.numbers, count, size)
        return found

    async def _collect(
        self, request: ResultRequest, collection: str, indices: NDArray[np.uint32], found: FoundResults
    ) -> None:
        """Add the stored results, here and at other homes."""
        mine, parts = self._by_home(request, indices)
        room = request.room // (1 + len(parts))
        answers = await asyncio.gather(
            self._here(collection, mine.tolist(), room),
            *(self._from(node, request, indices[positions], room) for node, positions in parts),
        )
        for answer in answers:
            found.files += answer.files
            found.add(answer.elements, ())
            found.statuses.update(answer.statuses)

    def _by_home(self, request: ResultRequest, indices: NDArray[np.uint32]) -> tuple[NDArray[np.uint32], HomeParts]:
        """The indices at home here; and for each other home, the positions of its own."""
        if self._fleet is None or request.forwarded:
            return indices, []
        split = split_of(self._fleet.members, request.registration.content, request.items_of(indices))
        return (indices, []) if split is None else (indices[~split.elsewhere], split.parts())

    async def _here(self, collection: str, indices: list[int], room: int) -> FoundResults:
        """The results that this node has; at least one, and as many as ``room`` bytes allow."""
        found = FoundResults()
        rows = await self._store.results.find(collection, indices)
        chosen: dict[int, StoredResult] = {}
        for index, row in rows.items():
            if chosen and row.part.length > room:
                found.statuses[index] = ItemStatus.LATER
            else:
                chosen[index] = row
                room -= row.part.length
        files = await self._store.results.open(chosen.values())
        found.files += files.values()
        elements = {
            index: FilePart(file, *row.part)
            for index, row in chosen.items()
            if (file := files.get(row.blob.digest)) is not None
        }
        found.add(elements, [index for index in indices if index not in found.statuses])
        now, key = time.time(), collection_key(collection)
        for index in indices:
            if found.statuses.get(index) is not ItemStatus.LATER:
                digest = rows[index].blob.digest if index in elements else b""
                self._store.accesses.record(Access(key, index, digest, bool(digest), now, _NOBODY))
        return found

    async def _from(self, node: Node, request: ResultRequest, indices: NDArray[np.uint32], room: int) -> FoundResults:
        """The results that another home has; none if it does not answer."""
        found = FoundResults()
        query = request.query(f"&room={room}")
        text = await self._ask(node, request, "POST", query, indices.astype("<u4").tobytes(), LONGEST_BODY)
        try:
            entries = read_results(text) if text is not None else []
        except MalformedResults:
            entries = []
        wanted = indices.tolist()
        for one in entries:
            if one.data is not None and one.position < len(wanted) and wanted[one.position] == one.index:
                found.elements[one.index] = Element(one.data, one.crc32)
            elif one.status is ItemStatus.LATER:
                found.statuses[one.index] = ItemStatus.LATER
        found.add(found.elements, [index for index in wanted if index not in found.statuses])
        return found

    async def _claimed(self, request: ResultRequest, collection: str, found: FoundResults, claim: ResultClaim) -> None:
        """Claim the missing results. If the caller gets none of them, wait for those that others compute."""
        loop = asyncio.get_running_loop()
        deadline, pause, open_ = loop.time() + claim.wait, _FIRST_PAUSE, found.missing
        while open_:
            tenant = request.registration.tenant
            granted = await self._claims.take(collection, open_, claim.owner, claim.seconds, tenant)
            if granted:
                # A result may have come between the look-up and the claim.
                await self._collect(request, collection, np.array(sorted(granted), np.uint32), found)
                await self._claims.end(collection, [index for index in granted if index in found.elements], claim.owner)
                missing = granted.intersection(found.missing)
                found.statuses.update((index, ItemStatus.CLAIMED) for index in missing)
            open_ = [index for index in open_ if index not in granted]
            found.statuses.update((index, ItemStatus.BUSY) for index in open_)
            if ItemStatus.CLAIMED in found.statuses.values() or loop.time() >= deadline:
                return
            await asyncio.sleep(min(pause, max(0.0, deadline - loop.time())))
            pause = min(2 * pause, _LONGEST_PAUSE)

    # --- writing

    async def put(self, request: ResultRequest, entries: Sequence[ReceivedResult], owner: str = "") -> list[PutResult]:
        """Store elements at their homes; returns the outcome of each, in order. Ends the claims of all of them."""
        named = await self.collection(request)
        collection = named.name
        done = {one.index: _refused(one) for one in entries}
        elements = {one.index: one for one in entries if one.data is not None}
        indices = np.array(list(elements), np.uint32)
        mine, parts = self._by_home(request, indices)
        here = {
            index: Element(one.data, one.crc32) for index in mine.tolist() if (one := elements[index]).data is not None
        }
        answers = await asyncio.gather(
            self._put_here(request, collection, here),
            *(self._to(node, request, [elements[index] for index in indices[at].tolist()]) for node, at in parts),
        )
        for answer in answers:
            done.update(answer)
        if not request.forwarded:
            if self._settings.enabled:
                size = sum(len(one.data or b"") for one in elements.values())
                self._uses.note(named, request.numbers, len(elements), size)
            await self._claims.end(collection, [index for index, result in done.items() if result in _STAYS])
            if owner:
                await self._claims.end(
                    collection, [index for index, result in done.items() if result not in _STAYS], owner
                )
        _count_put(done, elements)
        return [done[one.index] for one in entries]

    async def _put_here(
        self, request: ResultRequest, collection: str, elements: Mapping[int, Element]
    ) -> dict[int, PutResult]:
        if not self._settings.enabled:
            return dict.fromkeys(elements, PutResult.FULL)
        return await self._store.results.put(collection, elements, self._settings.largest, replace=request.replace)

    async def _to(self, node: Node, request: ResultRequest, entries: Sequence[ReceivedResult]) -> dict[int, PutResult]:
        """Send another home its elements."""
        head, end, _ = index_head(
            FrameEntry(position, one.index, len(one.data or b""), one.crc32, ItemFlag.NONE)
            for position, one in enumerate(entries)
        )
        body = b"".join([head, *(one.data or b"" for one in entries), end])
        query = request.query("&replace=1" if request.replace else "")
        text = await self._ask(node, request, "PUT", query, body, _LONGEST_ANSWER)
        try:
            results = ResultsPut.model_validate_json(text or b"").results
        except ValidationError:
            results = []
        if len(results) != len(entries):
            results = [PutResult.UNAVAILABLE] * len(entries)
        return {one.index: result for one, result in zip(entries, results, strict=True)}

    async def _ask(
        self, node: Node, request: ResultRequest, method: str, query: str, body: bytes, longest: int
    ) -> bytes | None:
        """The answer of another home; ``None`` if there is none."""
        assert self._fleet is not None
        path = f"{PREFIX}/datasets/{request.registration.content.id}/results/{request.fingerprint}"
        headers = (principal_header(request.registration.tenant, _NOBODY),)
        try:
            async with asyncio.timeout(_WITHIN):
                answer = await self._fleet.peers.request(node, method, path, headers, query=query, body=body)
                text = await answer.read(longest)
        except (LarderError, OSError, TimeoutError):
            return None
        return text if answer.status == 200 else None


def _refused(entry: ReceivedResult) -> PutResult:
    return PutResult.GIVEN_UP if entry.status is not ItemStatus.OK else PutResult.DAMAGED


def _count(found: FoundResults) -> tuple[int, int]:
    """Count the requested elements and their bytes."""
    sizes = [one.size if isinstance(one, FilePart) else len(one.data) for one in found.elements.values()]
    metrics.RESULTS.labels("read").inc(len(sizes))
    metrics.RESULT_BYTES.labels("read").inc(sum(sizes))
    statuses = list(found.statuses.values())
    metrics.RESULTS.labels("busy").inc(statuses.count(ItemStatus.BUSY))
    metrics.RESULTS.labels("missing").inc(statuses.count(ItemStatus.NOT_RESIDENT) + statuses.count(ItemStatus.CLAIMED))
    return len(sizes), sum(sizes)


def _count_put(done: Mapping[int, PutResult], elements: Mapping[int, ReceivedResult]) -> None:
    for index, one in elements.items():
        result = done[index]
        metrics.RESULTS.labels(result.value).inc()
        kept = "stored" if result is PutResult.STORED else "known" if result is PutResult.KNOWN else "refused"
        metrics.RESULT_BYTES.labels(kept).inc(len(one.data or b""))
