"""Reading objects into the cache of their homes, for an operator: nobody waits for the bytes, so readers come first.

An object is loaded by the node that is its home, as if a reader had asked for it, with that reader's rights; whoever runs the
warm-up only asks, and hears how it ended. A home answers at once that it has begun, and then says every second that it goes on,
so that a large object is not taken for a dead node. Loads yield to readers: while these have fills under way, only ``BESIDE``
of ours go on beside them, and none is begun while half of the places for fills are taken.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from gateway.engine.engine import Engine
from gateway.engine.homes import PREFIX, Fleet, Node
from gateway.engine.ranged import ObjectChanged
from gateway.engine.reads import Ask, Forward, Found, Relay
from gateway.model.errors import DiskUnavailable, IdentityGone, LarderError, OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer_principal import principal_header
from gateway.policies.ring import path_key

WARM = f"{PREFIX}/warm"
"""Where a node is asked to load an object."""
AT_ONCE = 16
BESIDE = 2
_LOOK = 0.05
_ALIVE = 1.0
_ATTEMPTS = 3
_HOMES = 3
_LONGEST = 1 << 20

_WHY = {
    Reason.RULE: "a rule says cache = false",
    Reason.CACHE_CONTROL: "the object itself says no-store or private",
    Reason.NO_VALIDATOR: "the origin gives no strong ETag or no length",
    Reason.TOO_LARGE: "it is larger than half of the cache",
    Reason.NO_SPACE: "no room could be made for it",
    Reason.DISK: "the cache disk is failing",
    Reason.NOT_FOUND: "the origin has no such object",
    Reason.REFUSED: "the origin refuses it to this credential",
    Reason.ORIGIN_ERROR: "the origin answered with an error",
    Reason.OVERLOAD: "too many fills at once",
    Reason.WRITE_RACE: "it was written meanwhile",
}


@dataclass(frozen=True, slots=True)
class Warmed:
    """How it ended: ``size`` bytes are in the cache now, and were before if ``there``; or why not (``failure``)."""

    size: int = 0
    there: bool = False
    failure: str = ""


class WarmObjects:
    """Loads objects on this node, and has the others load what is theirs.

    Args:
        engine: of this worker.
        fleet: the other nodes; ``None`` for a node that is in no fleet.
    """

    def __init__(self, engine: Engine, fleet: Fleet | None) -> None:
        self._engine = engine
        self._fleet = fleet
        self._loading: list[ObjectKey] = []
        self._places = asyncio.Semaphore(AT_ONCE)

    @property
    def running(self) -> int:
        """How many loads are under way here."""
        return len(self._loading)

    async def load(self, key: ObjectKey, tenant: str, identity: OriginIdentity) -> Warmed:
        """Have an object loaded at its home. Never raises but to be cancelled."""
        fleet, tried = self._fleet, None
        for _ in range(_HOMES if fleet is not None else 0):
            assert fleet is not None
            home = fleet.members.home(path_key(key.bucket, key.key))
            if home is None or home == tried:
                break
            try:
                return await _loaded_at(fleet, home, key, principal_header(tenant, identity))
            except LarderError:
                tried = home  # it is suspected now, and its successor is home
        return await self.here(key, identity)

    async def here(self, key: ObjectKey, identity: OriginIdentity) -> Warmed:
        """Load an object into this node's cache. Never raises but to be cancelled."""
        async with self._places:
            await self._turn()
            self._loading.append(key)
            try:
                return await self._load(Ask(key, identity))
            except IdentityGone:
                return Warmed(failure="the origin of the access key is not configured any more")
            except OriginUnavailable:
                return Warmed(failure="the origin cannot be reached")
            except DiskUnavailable as failure:
                return Warmed(failure=_WHY.get(Reason(failure.reason), str(failure)))
            except LarderError as failure:
                return Warmed(failure=str(failure))
            finally:
                self._loading.remove(key)

    async def progress(self, key: ObjectKey, identity: OriginIdentity) -> AsyncGenerator[bytes]:
        """``here`` as another node hears it: a line every second while it goes on, and at the end one with how it ended."""
        loading = asyncio.get_running_loop().create_task(self.here(key, identity))
        try:
            yield b"\n"
            while not (await asyncio.wait([loading], timeout=_ALIVE))[0]:
                yield b"\n"
            yield json.dumps(asdict(loading.result())).encode() + b"\n"
        finally:
            loading.cancel()

    async def _turn(self) -> None:
        """Wait until readers leave room for one more of ours."""
        blocks = self._engine.blocks
        while True:
            others = blocks.besides(self._loading)
            # A load has no fill yet while the origin is asked, and counts all the same.
            if self.running + others < blocks.half and (not others or self.running < BESIDE):
                return
            await asyncio.sleep(_LOOK)

    async def _load(self, ask: Ask) -> Warmed:
        for _ in range(_ATTEMPTS):
            found = await self._engine.find(ask)
            if isinstance(found, Relay):
                found.response.abort()
            if not isinstance(found, Found):
                return Warmed(failure=_because(found))
            try:
                return await self._read_through(ask, found)
            except ObjectChanged:
                continue
        return Warmed(failure=_WHY[Reason.WRITE_RACE])

    async def _read_through(self, ask: Ask, found: Found) -> Warmed:
        """Be a reader of the whole object, as for nobody a fill would stop where it becomes long."""
        size = found.entry.record.meta.size
        body = await self._engine.open(ask, found.entry, 0, size)
        there = found.outcome is Outcome.HIT and not body.missed
        try:
            async with aclosing(body.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, bytes):
                        return Warmed(failure="the cache did not take it")
        finally:
            body.close()
        return Warmed(size, there and not body.missed)


def _because(found: Relay | Forward) -> str:
    return _WHY.get(found.reason, found.reason.value)


async def _loaded_at(fleet: Fleet, home: Node, key: ObjectKey, principal: tuple[str, str]) -> Warmed:
    body = json.dumps(list(key)).encode()
    answer = await fleet.peers.request(home, "POST", WARM, [principal], body=body)
    text = (await answer.read(_LONGEST)).strip()
    if answer.status != 200:
        raise LarderError(f"node {home.id} answered {answer.status}")
    try:
        told: dict[str, Any] = json.loads(text)
        return Warmed(int(told["size"]), bool(told["there"]), str(told["failure"]))
    except (ValueError, KeyError, TypeError) as error:
        raise LarderError(f"node {home.id} answered what cannot be read") from error
