"""The batch answer as a TAR archive, for people and for tools that read archives.

TAR has no marker for a complete archive: one that was cut at the end of a member looks whole. So the last member is
``_manifest.json``, which lists every position and its result; an archive without it was truncated.
"""

from __future__ import annotations

import tarfile
from typing import Any

from pydantic_core import to_json

from gateway.api.v1.batch_body import Framing, Outgoing, as_ready, described, suffix_of
from gateway.engine.items.answers import Arrival, Arriving, BatchAsk, Resident
from gateway.engine.items.wanted import FailedItem, ItemStream, LargeItem, Wanted
from gateway.model.errors import BrokenBody, LarderError
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.server.asgi_types import RawHeaders, Scope, Send

MEDIA_TYPE = "application/x-tar"
MANIFEST = "_manifest.json"
_END = bytes(2 * tarfile.BLOCKSIZE)


async def send_tar(
    scope: Scope, send: Send, ask: BatchAsk, answer: Resident | Arriving, framing: Framing, headers: RawHeaders
) -> None:
    """Send members as items arrive, and the manifest last.

    Raises:
        BrokenBody: an item that had begun could not be completed; the connection must be broken.
    """
    archive = _Archive(ask, framing, Outgoing(scope, send))
    try:
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if isinstance(answer, Resident):
            answer.positions.reverse()
            answer.files.reverse()
            while answer.files:
                await archive.add(answer.pop())
        else:
            async for arrival in as_ready(answer.arrivals, archive.outgoing):
                await archive.add(arrival)
        status = ItemStatus.OK if isinstance(answer, Resident) else answer.status
        await archive.finish(status)
    except LarderError as failure:
        raise BrokenBody(str(failure)) from failure
    finally:
        archive.outgoing.close()
        if isinstance(answer, Resident):
            answer.close()
        else:
            await answer.aclose()


class _Archive:
    def __init__(self, ask: BatchAsk, framing: Framing, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self._ask = ask
        self._fetches = framing.fetches
        self._tally = framing.options.tally
        self._entries: list[dict[str, Any]] = []
        self._delivered = 0

    async def add(self, arrival: Arrival) -> None:
        """Add a member and its manifest entry; for an item that is not delivered, only the entry."""
        index = int(self._ask.indices[arrival.position])
        location = self._ask.registration.locations.of(index)
        content = arrival.content
        entry: dict[str, Any] = {"position": arrival.position, "index": index}
        entry |= {"bucket": location.bucket, "key": location.key}
        self._entries.append(entry)
        stream = None
        if isinstance(content, LargeItem):
            await self.outgoing.flush()
            opened = await self._fetches.stream(
                Wanted(self._ask.registration, index, self._ask.identity, self._ask.caching)
            )
            stream, content = (opened, content) if isinstance(opened, ItemStream) else (None, opened)
        if isinstance(content, FailedItem):
            entry |= {"status": content.status.name.lower(), "detail": content.detail}
            self._tally.item(ItemFlag.NONE, content.status, 0)
            return
        entry["name"] = name = f"{arrival.position:08d}-{index}{suffix_of(location.key)}"
        if stream is not None:
            await self._stream(name, stream, entry)
            return
        assert not isinstance(content, LargeItem)
        flags, size, crc = described(content)
        entry |= {"status": "ok", "length": size, "crc32": crc}
        await self.outgoing.add_item(_head(name, size), content)
        self.outgoing.add(_padding(size))
        self._tally.item(flags, ItemStatus.OK, size)
        self._delivered += 1
        await self.outgoing.flush_if_full()

    async def _stream(self, name: str, stream: ItemStream, entry: dict[str, Any]) -> None:
        try:
            self.outgoing.add(_head(name, stream.length))
            async for piece in stream.pieces():
                self.outgoing.add(piece)
                await self.outgoing.flush_if_full()
        finally:
            stream.close()
        self.outgoing.add(_padding(stream.length))
        crc, status = stream.verdict()
        entry |= {"status": status.name.lower(), "length": stream.length, "crc32": crc}
        self._tally.item(ItemFlag.NONE, status, stream.length)
        self._delivered += status is ItemStatus.OK

    async def finish(self, status: ItemStatus) -> None:
        """Add the manifest and the archive's end."""
        manifest = {
            "status": "complete" if status is ItemStatus.OK else status.name.lower(),
            "delivered": self._delivered,
            "missing": len(self._entries) - self._delivered,
            "items": self._entries,
        }
        body = to_json(manifest, indent=1)
        self.outgoing.add(_head(MANIFEST, len(body)) + body + _padding(len(body)) + _END)
        await self.outgoing.flush(more=False)


def _head(name: str, size: int) -> bytes:
    member = tarfile.TarInfo(name)
    member.size = size
    return member.tobuf(tarfile.PAX_FORMAT)


def _padding(size: int) -> bytes:
    return bytes(-size % tarfile.BLOCKSIZE)
