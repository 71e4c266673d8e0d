"""Requests items from other nodes that are their homes: one request for all items wanted at the same moment.

The items that a gateway's batches want from one home within a turn of the event loop go into one batch. Each item is passed on
as soon as it is complete, so a home that dies half-way has delivered its complete items. The caller requests the rest again from
another home, because the ring treats the dead one as suspect by then. A silent home may be waiting for its origin, so the caller
waits for it (gateway/fleet/nodes/peers.py).

Received items are in memory until the reader has taken them: at most ``MEMORY`` bytes per worker. While that is full, nothing
more is read and the home waits, as for any slow reader. But an answer waits only briefly: the reader of one item may be waiting
for another item, and stalled readers must not block the rest. An item that is too large, or has no room, is streamed from its
home when its turn comes.
"""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass, field, replace
from urllib.parse import quote
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from gateway.base.tasks import Tasks
from gateway.engine.base.homes import PREFIX, AtHome, Node, PeerNodes
from gateway.engine.base.memory import MemoryBudget, MemoryLease
from gateway.engine.items.peer_answer import AnswerReader, PeerAnswerBroken
from gateway.engine.items.wanted import (
    FailedItem,
    InMemoryItem,
    LargeItem,
    Outcome,
    PrefetchCounts,
    Wanted,
)
from gateway.model.errors import LarderError
from gateway.model.frames import FrameEntry, ItemFlag, ItemStatus
from gateway.model.keys import OriginIdentity
from gateway.model.peer.principal import principal_header
from gateway.model.reader import ORDER, REFUSED, SWEEPS, ReadingJob, reader_header
from gateway.policies.items.datasets import CachingMode
from gateway.policies.items.demand import JOBS
from gateway.store.datasets.opened import Registration

LARGEST = 8 * 1024**2
"""Maximum bytes of an item that is sent between nodes within a batch."""
MEMORY = 64 * 1024**2
MOST = 4096
"""The most items in one request."""
LOOKUP = 0.5
"""Seconds that a batch waits for other nodes' lists of resident items."""
_ROOM = 1.0
_PAUSE = 0.005
_LARGEST_JSON = 64 * 1024

log = logging.getLogger("larder.peers")

_Key = tuple[str, Registration, OriginIdentity, CachingMode, ReadingJob | None, bool, bool]


@dataclass(eq=False, slots=True)
class _Group:
    """Items requested from one home together.

    ``waiting`` has the pending items; ``patience`` is the seconds that the answer may still wait for room in memory.
    """

    home: Node
    example: Wanted
    waiting: dict[int, asyncio.Future[Outcome | None]] = field(default_factory=dict)
    readers: int = 0
    patience: float = 0.0
    task: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        """The dataset's address at the home."""
        return f"{PREFIX}/datasets/{self.example.registration.content.id}"

    @property
    def query(self) -> str:
        """The parameters for the home."""
        return f"{named(self.example.registration)}&caching={self.example.mode.value}&largest={LARGEST}"


class PeerItems:
    """The items that this worker requests from other nodes."""

    def __init__(self, fleet: PeerNodes) -> None:
        self._fleet = fleet
        self._groups: dict[_Key, _Group] = {}
        self._tasks = Tasks()
        self.memory = MemoryBudget()

    async def close(self) -> None:
        """Stop requesting items."""
        await self._tasks.stop()

    # --- bodies

    async def fetch(self, home: Node, wanted: Wanted) -> Outcome | None:
        """Fetch an item from its home; ``None`` if the home cannot serve it and the caller must try elsewhere."""
        group = self._group(home, wanted)
        future = group.waiting.get(wanted.index)
        first = future is None
        if future is None:
            future = group.waiting[wanted.index] = asyncio.get_running_loop().create_future()
        group.readers += 1
        try:
            outcome = await asyncio.shield(future)
        finally:
            group.readers -= 1
            if not group.readers and group.task is not None:
                group.task.cancel()
        if not first and isinstance(outcome, InMemoryItem) and not outcome.flags:
            return replace(outcome, flags=ItemFlag.JOINED)
        return outcome

    def _group(self, home: Node, wanted: Wanted) -> _Group:
        how = (wanted.refused, wanted.sweeps)
        key = (home.id, wanted.registration, wanted.identity, wanted.mode, wanted.reader, *how)
        group = self._groups.get(key)
        if group is None or len(group.waiting) >= MOST:
            group = self._groups[key] = _Group(home, wanted)
            asyncio.get_running_loop().call_soon(self._send, key, group)
        return group

    def _send(self, key: _Key, group: _Group) -> None:
        if self._groups.get(key) is group:
            del self._groups[key]
        if group.readers:
            group.task = self._tasks.start(self._run(group))

    async def _run(self, group: _Group) -> None:
        try:
            await self._ask(group)
        except (LarderError, OSError, TimeoutError) as failure:
            log.info("node %(node)s did not complete a batch: %(error)s", {"node": group.home.id, "error": failure})
            self._fleet.members.suspect(group.home.id)
        except Exception:
            log.exception("reading an answer of node %(node)s failed", {"node": group.home.id})
        finally:
            _end(group, None)

    async def _ask(self, group: _Group) -> None:
        indices = list(group.waiting)
        group.patience = _ROOM
        response = await self._fleet.peers.request(
            group.home,
            "POST",
            f"{group.path}/batch",
            query=group.query,
            headers=_on_behalf_of(group.example),
            body=np.array(indices, dtype="<u4").tobytes(),
        )
        try:
            if response.status != 200:
                log.info(
                    "node %(node)s answered %(status)d to a batch", {"node": group.home.id, "status": response.status}
                )
                return
            reader = AnswerReader(response.next_chunk, indices)
            await reader.begin()
            while (head := await reader.next()) is not None:
                entry, status = head
                outcome = await self._outcome(group, reader, entry, status)
                future = group.waiting.pop(entry.index, None)
                if future is not None and not future.done():
                    future.set_result(outcome)
                del outcome, future
            if reader.status is ItemStatus.ORIGIN_ERROR:
                _end(group, FailedItem(ItemStatus.ORIGIN_ERROR, "the origin fails repeatedly"))
        finally:
            response.release()

    async def _outcome(
        self, group: _Group, reader: AnswerReader, entry: FrameEntry, status: ItemStatus
    ) -> Outcome | None:
        if status is not ItemStatus.OK:
            if entry.length > _LARGEST_JSON:
                raise PeerAnswerBroken("a reason is too long")
            detail = _detail(await reader.take(entry.length))
            return LargeItem(0) if status is ItemStatus.NOT_RESIDENT else FailedItem(status, detail)
        if entry.length > LARGEST:
            raise PeerAnswerBroken(f"an item has {entry.length} bytes, more than the requested limit of {LARGEST}")
        streamed = ItemFlag.STREAMED in entry.flags
        if not await self._has_room(group, entry.length):
            await reader.skip(entry.length)
            if streamed:
                await reader.trailer()
            return LargeItem(entry.length)
        share = MemoryLease(self.memory, entry.length)
        data = await reader.take(entry.length)
        crc, verdict = await reader.trailer() if streamed else (entry.crc32, ItemStatus.OK)
        if verdict is not ItemStatus.OK:
            return FailedItem(verdict, "its bytes are not those of the digest file")
        if crc32(data) != crc:
            raise PeerAnswerBroken("the bytes of an item do not match their CRC")
        return InMemoryItem(data, crc, share, entry.flags & ~ItemFlag.STREAMED)

    async def _has_room(self, group: _Group, size: int) -> bool:
        while self.memory.used and self.memory.used + size > MEMORY:
            if group.patience <= 0:
                return False
            await asyncio.sleep(_PAUSE)
            group.patience -= _PAUSE
        return True

    # --- resident items

    async def resident(self, home: Node, wanted: Wanted, indices: NDArray[np.uint32]) -> AtHome:
        """What a home knows of items. A home that does not answer in time counts as having none and reading none."""
        nothing = AtHome(*np.zeros((2, len(indices)), dtype=bool))
        try:
            async with asyncio.timeout(LOOKUP):
                status, body = await self._call(home, wanted, "lookup", indices, "")
        except (LarderError, OSError, TimeoutError):
            return nothing
        return (read_at_home(body, len(indices)) if status == 200 else None) or nothing

    async def offers(self, home: Node, wanted: Wanted, most: int) -> NDArray[np.uint32]:
        """What a home offers to a job; nothing if it does not answer in time."""
        nobody = np.empty(0, dtype=np.uint32)
        try:
            async with asyncio.timeout(LOOKUP):
                status, body = await self._call(home, wanted, "offers", nobody, f"&most={most}", 4 * most)
        except (LarderError, OSError, TimeoutError):
            return nobody
        items = wanted.registration.content.items
        offered = np.frombuffer(body, "<u4") if status == 200 and len(body) % 4 == 0 else nobody
        return offered[offered < items]

    async def prefetch(self, home: Node, wanted: Wanted, indices: NDArray[np.uint32]) -> PrefetchCounts | None:
        """Let a home prefetch items; returns its counts, or ``None`` if it cannot."""
        try:
            status, body = await self._call(
                home, wanted, "batch", indices, f"&caching={wanted.mode.value}&mode=prefetch"
            )
            return (
                PrefetchCounts(**{name: int(count) for name, count in json.loads(body).items()})
                if status == 202
                else None
            )
        except (LarderError, OSError, TypeError, ValueError, AttributeError):
            return None

    async def _call(
        self, home: Node, wanted: Wanted, what: str, indices: NDArray[np.uint32], query: str, longest: int = 0
    ) -> tuple[int, bytes]:
        registration = wanted.registration
        response = await self._fleet.peers.request(
            home,
            "POST",
            f"{PREFIX}/datasets/{registration.content.id}/{what}",
            query=named(registration) + query,
            headers=_on_behalf_of(wanted),
            body=indices.astype("<u4").tobytes(),
        )
        return response.status, await response.read(_LARGEST_JSON + 2 * len(indices) + longest)


def at_home_bytes(answer: AtHome) -> bytes:
    """The body of an answer to a look-up: two bitmaps, then each item's need in a byte, and the room in 32-bit words."""
    parts = [np.packbits(bits, bitorder="little").tobytes() for bits in (answer.resident, answer.fetching)]
    if answer.need is not None and answer.room is not None:
        free, held = answer.room
        parts += [answer.need.tobytes(), np.clip([free, *held], 0, 2**32 - 1).astype("<u4").tobytes()]
    return b"".join(parts)


def read_at_home(body: bytes, count: int) -> AtHome | None:
    """Parse the result of ``at_home_bytes``; ``None`` if it is malformed. A body without need comes from a node that tracks none,
    or from an older version."""
    size = -(-count // 8)
    if len(body) < 2 * size:
        return None
    bits = np.unpackbits(np.frombuffer(body[: 2 * size], np.uint8), bitorder="little")
    resident, fetching = bits[:count].astype(bool), bits[8 * size : 8 * size + count].astype(bool)
    rest = body[2 * size :]
    if not rest:
        return AtHome(resident, fetching)
    if len(rest) != count + 4 * (JOBS + 2):
        return None
    free, *held = np.frombuffer(rest, "<u4", offset=count).tolist()
    return AtHome(resident, fetching, np.frombuffer(rest, np.uint8, count), (free, held))


def _on_behalf_of(wanted: Wanted) -> list[tuple[str, str]]:
    headers = [principal_header(wanted.registration.tenant, wanted.identity)]
    if wanted.refused:
        headers.append((REFUSED, "1"))
    if wanted.sweeps:
        headers.append((SWEEPS, "1"))
    if wanted.reader is None or wanted.mode is not CachingMode.PART:
        return headers
    if wanted.reader.order:
        headers.append((ORDER, wanted.reader.order))
    return [*headers, reader_header(wanted.reader)]


def named(registration: Registration) -> str:
    """The query parameter that names the tenant's dataset."""
    return f"name={quote(registration.name, safe='')}"


def _end(group: _Group, outcome: Outcome | None) -> None:
    """Resolve all pending waits."""
    for future in group.waiting.values():
        if not future.done():
            future.set_result(outcome)
    group.waiting.clear()


def _detail(body: bytes) -> str:
    try:
        return str(json.loads(body)["detail"])
    except (ValueError, KeyError, TypeError):
        return "the item's home gave no reason"
