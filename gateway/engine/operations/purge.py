"""Forgetting what is below a prefix, on every node of the fleet: for what was changed at the origin behind the gateway's back.

Every node forgets by its own index, and fences every fill that is under way. A node that has become home of an object takes it
over from its former home, which may not have forgotten it yet; so all nodes are asked twice: in the second round nobody has the
old bytes any more but whoever took them over during the first. Nothing is changed at the origin. Items of datasets are not
meant: they are what their digest says, wherever they came from.

A node may be away while a prefix is purged: dead, hung or cut off, with a cache that comes back. So a purge is a row of the
catalog before any node is asked, and each node notes which it has applied (``store/index/purged.py``). It applies those that it
has missed when it follows the catalog again, after a start before it answers a request. A node that missed more purges than
the catalog keeps forgets all objects.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from gateway.engine.items.homes import PREFIX, Node, PeerNodes
from gateway.engine.objects.recently_invalidated import RecentlyInvalidated
from gateway.metrics import FORGOTTEN
from gateway.model.errors import LarderError
from gateway.store.index.purged import Applied
from gateway.store.prefixes import PrefixTotals
from gateway.store.store import Store

FORGET = f"{PREFIX}/forget"
"""Where a node is asked to forget."""
LONGEST = 16 * 1024
"""Bytes of such a question, and of its answer."""
_LONGEST_ID = 64

log = logging.getLogger("larder.engine")


@dataclass(frozen=True, slots=True)
class Purge:
    """What is to be forgotten. ``dry_run`` only counts. ``id`` is the catalog's name of it; empty for one not in there."""

    bucket: str
    prefix: str
    dry_run: bool = False
    id: str = ""

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {"bucket": self.bucket, "prefix": self.prefix, "dry_run": self.dry_run, "id": self.id}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Purge:
        """Read what ``to_json`` made.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        if not isinstance(told["bucket"], str) or not isinstance(told["prefix"], str):
            raise TypeError("bucket and prefix are texts")
        name = told.get("id", "")
        if not isinstance(name, str) or len(name) > _LONGEST_ID:
            raise TypeError("id is a short text")
        return cls(told["bucket"], told["prefix"], bool(told["dry_run"]), name)


@dataclass(frozen=True, slots=True)
class Purged:
    """What became of it on one node; ``failure`` says why it was not done there, empty if it was."""

    held: PrefixTotals = field(default_factory=PrefixTotals)
    failure: str = ""


class Unseen(NamedTuple):
    """Purges that a node has not applied, in the catalog's order; ``more``: there may have been others, which are forgotten."""

    purges: Sequence[Purge]
    more: bool = False


class Forgetting:
    """Purges this node, once for each purge.

    Args:
        store: of the node.
        origins: the names of all origins that objects may have come from.
        forgotten: what nobody else's copy is believed of.
    """

    def __init__(self, store: Store, origins: Callable[[], Iterable[str]], forgotten: RecentlyInvalidated) -> None:
        self._store = store
        self._origins = origins
        self._forgotten = forgotten

    async def told(self, purge: Purge) -> Purged:
        """Forget on this node, whether or not it has done so before; what there was."""
        if purge.dry_run:
            return self._ended(await self._held(purge))
        async with self._store.purged.turn():
            held = await self._forget(purge)
            applied = await self._store.purged.read() if purge.id and self._store.usable else None
            if applied is not None and purge.id not in (applied.last, *applied.ahead):
                await self._store.purged.note(Applied(applied.last, (*applied.ahead, purge.id)))
        return self._ended(held)

    async def catch_up(self, newest: str, unseen: Callable[[str], Awaitable[Unseen]]) -> bool:
        """Apply what this node has missed; whether it has applied all then, which it has not while its disk is down.

        Args:
            newest: the catalog's last purge; empty for none.
            unseen: those after the one that is named; after an empty or unknown name, all.

        Raises:
            CatalogUnavailable: ``unseen`` did; nothing was noted.
        """
        purged = self._store.purged
        while newest:
            before = await purged.read()
            if before is None or before.last == newest:
                return before is not None
            found = await unseen(before.last)
            async with purged.turn():
                applied = await purged.read()
                if applied is None:
                    return False
                if applied.last == before.last:
                    if applied == Applied() and await purged.nothing_to_forget():
                        await self._forget_all()
                    else:
                        await self._apply(found, frozenset(applied.ahead))
                    names = [purge.id for purge in found.purges]
                    ahead = tuple(name for name in applied.ahead if name not in names)
                    return self._store.usable and await purged.note(Applied([newest, *names][-1], ahead))
        return True

    async def _apply(self, unseen: Unseen, ahead: frozenset[str]) -> None:
        if unseen.more:
            log.warning("this node has missed more purges than the catalog remembers: it forgets all objects")
            self._forgotten.note_all()
            await self._forget_all()
            return
        done: Purge | None = None
        for purge in sorted(unseen.purges, key=lambda each: (each.bucket, each.prefix)):
            if purge.id in ahead:
                continue
            if done is None or purge.bucket != done.bucket or not purge.prefix.startswith(done.prefix):
                await self._forget(purge)
                done = purge

    async def _forget_all(self) -> None:
        """Everything; of a new cache, which has nothing, the fills that are under way."""
        for origin in self._origins():
            FORGOTTEN.labels("purge").inc(await self._store.forget_origin(origin))

    async def _held(self, purge: Purge) -> PrefixTotals:
        there = PrefixTotals()
        for origin in self._origins():
            there = there.plus(await self._store.prefixes.held(origin, purge.bucket, purge.prefix))
        return there

    async def _forget(self, purge: Purge) -> PrefixTotals:
        self._forgotten.note_prefix(purge.bucket, purge.prefix)
        there = PrefixTotals()
        for origin in self._origins():
            held = await self._store.prefixes.held(origin, purge.bucket, purge.prefix)
            forgotten = await self._store.forget_prefix(origin, purge.bucket, purge.prefix)
            FORGOTTEN.labels("purge").inc(forgotten)
            there = there.plus(PrefixTotals(max(forgotten, held.objects), held.bytes))
        return there

    def _ended(self, held: PrefixTotals) -> Purged:
        return Purged(held, "" if self._store.usable else "its disk is down: everything that it holds is distrusted")


class Purges:
    """Purges this node, and has the others purged.

    Args:
        here: this node.
        fleet: the other nodes; ``None`` for a node that is in no fleet.
        me: this node's id.
    """

    def __init__(self, here: Forgetting, fleet: PeerNodes | None, me: str) -> None:
        self.here = here
        self._fleet = fleet
        self._me = me

    async def count(self, purge: Purge) -> dict[str, Purged]:
        """By node, what would be forgotten. A node that cannot be asked is named with the reason."""
        return await self._round(replace(purge, dry_run=True))

    async def everywhere(self, purge: Purge, counted: Mapping[str, Purged]) -> dict[str, Purged]:
        """Forget in the whole fleet; by node, what there was.

        Args:
            purge: what.
            counted: what ``count`` said; a node that has gone since then is named too, as one that has not forgotten.
        """
        done = await self._round(purge)
        if len(done) > 1:
            again = await self._round(purge)
            done = {name: _both(done.get(name), again.get(name)) for name in {**done, **again}}
        gone = {
            name: Purged(failure=one.failure or "it left meanwhile")
            for name, one in counted.items()
            if name not in done
        }
        # Who follows the catalog may have forgotten before it was asked.
        most = {
            name: replace(one, held=max(one.held, counted[name].held)) if name in counted and not one.failure else one
            for name, one in done.items()
        }
        return {**most, **gone}

    async def _round(self, purge: Purge) -> dict[str, Purged]:
        fleet = self._fleet
        others = [] if fleet is None else [node for node in fleet.members.nodes.values() if node.id != self._me]
        here, *there = await asyncio.gather(self.here.told(purge), *(self._at(node, purge) for node in others))
        return {self._me: here, **{node.id: one for node, one in zip(others, there, strict=True)}}

    async def _at(self, node: Node, purge: Purge) -> Purged:
        assert self._fleet is not None
        body = json.dumps(purge.to_json()).encode()
        try:
            answer = await self._fleet.peers.request(node, "POST", FORGET, body=body)
            told = json.loads(await answer.read(LONGEST))
            if answer.status != 200:
                return Purged(failure=f"it answered {answer.status}: {str(told.get('detail', ''))[:200]}")
            return Purged(PrefixTotals(int(told["objects"]), int(told["bytes"])), str(told["failure"]))
        except LarderError as failure:
            return Purged(failure=str(failure))
        except (ValueError, KeyError, TypeError, AttributeError):
            return Purged(failure="its answer could not be read")


def _both(first: Purged | None, second: Purged | None) -> Purged:
    """Two rounds at one node; one that was there in one of them only is what it said then."""
    if first is None or second is None:
        return second or first or Purged()
    return second if first.failure or second.failure else Purged(first.held.plus(second.held))
