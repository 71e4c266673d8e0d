"""Loads objects into the cache of their homes, for an operator, in the background lane.

The node that runs the warm-up asks an object's home to load it, as if a reader had requested it, with that reader's rights. The
home answers at once, and then every second while it loads, so that a large object does not look like a dead node.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from dataclasses import asdict, dataclass
from typing import Any

from gateway.engine.base.homes import PREFIX, Node, PeerNodes
from gateway.engine.engine import Engine
from gateway.engine.objects.found import Ask, Found
from gateway.engine.objects.ranged import ObjectChanged
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.errors import DiskUnavailable, LarderError, OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer.principal import principal_header
from gateway.policies.fleet.ring import path_key
from gateway.policies.lane import LoadClass

WARM = f"{PREFIX}/warm"
"""The address where a node is asked to load an object."""
Span = tuple[int, int] | None
"""First byte of an object, and end (exclusive); ``None`` for all of it."""
_ALIVE = 1.0
"""Seconds between two progress lines of a load."""
_ATTEMPTS = 3
_HOMES = 3
_LONGEST = 1 << 20


@dataclass(frozen=True, slots=True)
class Warmed:
    """The result of a load: ``size`` bytes are cached now (before the load too if ``there``), or ``failure`` says why not."""

    size: int = 0
    there: bool = False
    failure: str = ""


class WarmObjects:
    """Loads objects on this node, and asks other homes to load theirs.

    Args:
        engine: of this worker.
        fleet: the other nodes; ``None`` outside a fleet.
    """

    def __init__(self, engine: Engine, fleet: PeerNodes | None) -> None:
        self._engine = engine
        self._fleet = fleet

    async def load(
        self,
        key: ObjectKey,
        tenant: str,
        identity: OriginIdentity,
        span: Span = None,
        kind: LoadClass = LoadClass.WARMUP,
        pool: str = "",
    ) -> Warmed:
        """Load an object, or a span of it, at its home. Raises nothing but cancellation.

        ``pool`` is the one that it enters, empty for that of its key.

        If a home is unreachable, its successor is asked. A home that answers with an error stays home: its failure is the
        result, because readers would not look elsewhere.
        """
        if self._fleet is None:
            return await self.here(key, identity, span, kind, pool)
        # Nodes of an older version know neither a pool nor a class of warm-ups.
        asked: list[Any] = [*key] if kind is LoadClass.WARMUP else [*key, span, kind]
        body = json.dumps([*asked, pool] if pool else asked).encode()
        why = ""
        for _ in range(_HOMES):
            home = self._fleet.members.home(path_key(key.bucket, key.key))
            if home is None:
                return await self.here(key, identity, span, kind, pool)
            try:
                return await _loaded_at(self._fleet, home, body, principal_header(tenant, identity))
            except PeerUnavailable as failure:
                why = str(failure)
            except LarderError as failure:
                return Warmed(failure=str(failure))
        return Warmed(failure=why)

    async def here(
        self,
        key: ObjectKey,
        identity: OriginIdentity,
        span: Span = None,
        kind: LoadClass = LoadClass.WARMUP,
        pool: str = "",
    ) -> Warmed:
        """Load an object, or a span of it, into this node's cache. Raises nothing but cancellation."""

        async def load(key: ObjectKey) -> Warmed:
            try:
                done = await self._load(Ask(key, identity, metadata_first=span is not None, within=span))
                if pool and not (done.there or done.failure):
                    await self._engine.services.store.pools.charge_object(key, span, pool)
                return done
            except OriginUnavailable as failure:
                return Warmed(failure=failure.told)
            except DiskUnavailable as failure:
                return Warmed(failure=_phrase(Reason(failure.reason)))
            except LarderError as failure:
                return Warmed(failure=str(failure))

        return await self._engine.lane.one(kind, key, load)

    async def progress(
        self,
        key: ObjectKey,
        identity: OriginIdentity,
        span: Span = None,
        kind: LoadClass = LoadClass.WARMUP,
        pool: str = "",
    ) -> AsyncGenerator[bytes]:
        """Run ``here`` for another node: yields an empty line every second while loading, then a line with the result."""
        loading = asyncio.get_running_loop().create_task(self.here(key, identity, span, kind, pool))
        try:
            yield b"\n"
            while not (await asyncio.wait([loading], timeout=_ALIVE))[0]:
                yield b"\n"
            yield json.dumps(asdict(loading.result())).encode() + b"\n"
        finally:
            loading.cancel()

    async def _load(self, ask: Ask) -> Warmed:
        for _ in range(_ATTEMPTS):
            try:
                answer, missed = await self._engine.load(ask)
            except ObjectChanged:
                continue
            if not isinstance(answer, Found):
                return Warmed(failure=_phrase(answer.reason))
            if missed is None or answer.body is None:
                return Warmed(failure="the cache did not accept it")
            return Warmed(answer.body.stop - answer.body.start, answer.outcome is Outcome.HIT and not missed)
        return Warmed(failure=_phrase(Reason.WRITE_RACE))


def _phrase(reason: Reason) -> str:
    """A reason, worded as part of a sentence."""
    return reason.meaning[0].lower() + reason.meaning[1:].removesuffix(".")


async def _loaded_at(fleet: PeerNodes, home: Node, body: bytes, principal: tuple[str, str]) -> Warmed:
    answer = await fleet.peers.request(home, "POST", WARM, [principal], body=body)
    text = (await answer.read(_LONGEST)).strip()
    if answer.status != 200:
        raise LarderError(f"node {home.id} answered {answer.status}")
    try:
        document: dict[str, Any] = json.loads(text)
        return Warmed(int(document["size"]), bool(document["there"]), str(document["failure"]))
    except (ValueError, KeyError, TypeError) as error:
        raise LarderError(f"node {home.id} sent an invalid answer") from error
