"""An engine over a real store and a real HTTP origin, all in the test's own event loop."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.api.s3.call import S3Call
from gateway.base.config import CacheSettings, Credential, Origin
from gateway.engine.base.services import Services
from gateway.engine.engine import Engine
from gateway.engine.objects.body import Body
from gateway.engine.objects.found import Ask, Forward, Found, Relay
from gateway.fleet.nodes.invalidations import NullInvalidations
from gateway.fleet.nodes.membership import Membership
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.peer.objects import Accepted
from gateway.origin.client import OriginClient
from gateway.policies.reads.rules import Rules
from gateway.store.files.blobs import Span
from gateway.store.index.pool_rows import PoolRow
from gateway.store.store import Store
from rig.origin import ALICE, BOB, FakeOrigin

BLOCK = 64 * 1024


@dataclass
class Bench:
    """Everything that a test of the engine touches; ``now`` is its clock, in a list so that tests can turn it."""

    engine: Engine
    store: Store
    origin: FakeOrigin
    now: list[float]
    identity: OriginIdentity

    def ask(self, key: str, *, metadata_first: bool = False, forced: bool = False) -> Ask:
        """A plain GET."""
        return Ask(ObjectKey("default", "b", key), self.identity, metadata_first=metadata_first, forced=forced)

    async def open(self, key: str, start: int = 0, stop: int | None = None) -> Body:
        """Find an object, and a body of it that is ready to be read."""
        ranged = start > 0 or stop is not None
        within = (start, sys.maxsize if stop is None else stop) if ranged else None
        found = await self.engine.open(self.ask(key, metadata_first=ranged)._replace(within=within))
        assert isinstance(found, Found), found
        assert found.body is not None
        return found.body

    async def find(self, ask: Ask) -> Found | Relay | Forward:
        """The result of a read whose reader leaves before the first byte; or one of metadata alone, if that comes first."""
        found = await self.engine.open(ask._replace(head=ask.head or (ask.metadata_first and ask.span is None)))
        if isinstance(found, Found) and found.body is not None:
            found.body.close()
        return found

    async def body(self, ask: Ask, found: Found, start: int, stop: int) -> Body:
        """Bytes of an object that was found before."""
        body = (await self.engine.blocks.open(ask, found, start, stop)).body
        assert body is not None
        return body

    async def settle(self) -> None:
        """Wait until all background loads and fills are recorded in the index."""
        await self.engine.lane._tasks.join()
        await self.engine.blocks.tasks.join()

    async def read(self, key: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes of an object."""
        return await take(await self.open(key, start, stop))


class Homes:
    """This node is the home of every object."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def keeps(self, call: S3Call) -> bool:
        """See ``WarmsObjects``."""
        return True

    def warm(self, call: S3Call) -> None:
        """See ``WarmsObjects``."""
        assert call.key is not None
        self._bench.engine.warm(call.key, self._bench.identity)

    async def hand_over(self, call: S3Call, whole: bytes, accepted: Accepted) -> None:
        """There is nobody to hand it to."""
        raise AssertionError("this node keeps everything")


def alone() -> Membership:
    """A node that knows no other."""
    me = Node("me", "http://127.0.0.1:1", 1, "default", NodeState.READY)
    return Membership("redis://127.0.0.1:1", me, "larder:default:")


async def take(body: Body) -> bytes:
    """Every byte of a body, read as the server would send it."""
    # A span is good until the next one is asked for, so each is read as it comes.
    pieces = [
        os.pread(piece.fd, piece.count, piece.offset) if isinstance(piece, Span) else piece
        async for piece in body.pieces()
    ]
    body.close()
    return b"".join(pieces)


@asynccontextmanager
async def benched(
    cache: Path,
    capacity: int = 64 * 1024**2,
    check_timeout: float = 2.0,
    max_fills: int = 4,
    *,
    block_size: int = BLOCK,
    max_connections: int = 256,
) -> AsyncIterator[Bench]:
    """An engine over a cache directory; what an earlier one left there is found."""
    async with FakeOrigin() as origin:
        settings = CacheSettings(dir=str(cache), capacity=capacity, block_size=block_size, reserve=0)
        configured = Origin(
            endpoint=origin.endpoint,
            access_key_id=ALICE.access_key_id,
            secret_access_key=ALICE.secret_access_key,
            check_timeout=check_timeout,
            max_connections=max_connections,
        )
        other = Credential(
            access_key_id="GWB",
            secret_access_key="gateway-secret-b",
            origin_access_key_id=BOB.access_key_id,
            origin_secret_access_key=BOB.secret_access_key,
        )
        clock = [time.time()]
        store = await Store.open(settings, now=lambda: clock[0])
        await store.try_lock()
        client = OriginClient([configured], [other], now=time.time)
        services = Services(store, client, Rules(), settings.capacity, settings.block_size, now=lambda: clock[0])
        engine = Engine(services, NullInvalidations(), entries=1000, max_fills=max_fills)
        try:
            yield Bench(engine, store, origin, clock, OriginIdentity("default", ALICE.access_key_id))
        finally:
            origin.heal()
            await engine.close()
            await client.close()
            await store.close()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    """An engine that has read nothing so far."""
    async with benched(tmp_path / "cache") as opened:
        yield opened


def asked_of(store: Store, monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Grows with each reading of a store's pools from its index."""
    asked: list[None] = []
    usage = store.pools.usage

    async def noted() -> list[PoolRow]:
        asked.append(None)
        return await usage()

    monkeypatch.setattr(store.pools, "usage", noted)
    return asked
