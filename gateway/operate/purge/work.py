"""Forgets one object, or all below a prefix, on every node of the fleet: objects that were changed at the origin directly.

Every node forgets by its own index, and fences fills in progress. A node that has become home of an object takes it
over from its previous home, which may not have forgotten it yet. So all nodes are asked twice: in the second round only nodes
that took objects over during the first can still have old bytes. Nothing is changed at the origin. Items of datasets are not
affected: their digest identifies them.

A node may be down during a purge: dead, hung or cut off, with a cache that comes back. So a purge becomes a row of the
catalog before any node is asked, and each node records the purges that it has applied (``store/purged.py``). It applies missed
ones when it follows the catalog again; after a start, before it serves requests. A node that missed more purges than the catalog
keeps forgets all objects.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from gateway.base.metrics import FORGOTTEN
from gateway.engine.base.homes import PREFIX, Node, PeerNodes
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey
from gateway.store.index.objects import PrefixTotals
from gateway.store.purged import Applied
from gateway.store.store import Store

FORGET = f"{PREFIX}/forget"
"""The address where nodes are asked to forget."""
LONGEST = 16 * 1024
"""The most bytes of a request, and of its answer."""
_LONGEST_ID = 64

log = logging.getLogger("larder.engine")


@dataclass(frozen=True, slots=True)
class Purge:
    """A prefix to forget. ``dry_run`` only counts. ``id`` is the catalog's name of the purge; empty if it has none.

    ``exact``: forget only the object whose key is ``prefix``. Nodes of version 0.1 ignore it and forget all below: more than was
    asked, and nothing less.
    """

    bucket: str
    prefix: str
    dry_run: bool = False
    id: str = ""
    exact: bool = False

    def covers(self, other: Purge) -> bool:
        """Whether this purge forgets everything that the other one does."""
        return not self.exact and self.bucket == other.bucket and other.prefix.startswith(self.prefix)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Purge:
        """Parse the result of ``asdict``. Not by pydantic, which refuses the lone surrogates that a prefix may have.

        Raises:
            ValueError, KeyError, TypeError: the document is malformed.
        """
        if not isinstance(document["bucket"], str) or not isinstance(document["prefix"], str):
            raise TypeError("bucket and prefix must be strings")
        name = document.get("id", "")
        if not isinstance(name, str) or len(name) > _LONGEST_ID:
            raise TypeError("id must be a short string")
        exact = bool(document.get("exact"))
        return cls(document["bucket"], document["prefix"], bool(document["dry_run"]), name, exact)


@dataclass(frozen=True, slots=True)
class Purged:
    """The result of a purge on one node; ``failure`` is the reason why it failed, empty if it did not."""

    held: PrefixTotals = field(default_factory=PrefixTotals)
    failure: str = ""


class Unseen(NamedTuple):
    """Purges that a node has not applied, in the catalog's order; ``more``: there may have been others, no longer kept."""

    purges: Sequence[Purge]
    more: bool = False


class Forgetting:
    """Applies purges on this node, each at least once.

    Args:
        store: of the node.
        origins: the names of all origins that objects may have come from.
    """

    def __init__(self, store: Store, origins: Callable[[], Iterable[str]]) -> None:
        self._store = store
        self._origins = origins

    async def apply(self, purge: Purge) -> Purged:
        """Forget on this node, even if that was done before; returns the number of removed objects."""
        if purge.dry_run:
            return self._ended(await self._held(purge))
        async with self._store.purged.exclusively():
            held = await self._forget(purge)
            applied = await self._store.purged.read() if purge.id and self._store.usable else None
            if applied is not None and purge.id not in (applied.last, *applied.ahead):
                await self._store.purged.record(Applied(applied.last, (*applied.ahead, purge.id)))
        return self._ended(held)

    async def catch_up(self, newest: str, unseen: Callable[[str], Awaitable[Unseen]]) -> bool:
        """Apply missed purges; returns whether all are applied, which is false while the disk is down.

        Args:
            newest: the catalog's last purge; empty for none.
            unseen: returns the purges after the named one; all for an empty or unknown name.

        Raises:
            CatalogUnavailable: raised by ``unseen``; nothing was recorded.
        """
        purged = self._store.purged
        while newest:
            before = await purged.read()
            if before is None or before.last == newest:
                return before is not None
            missed = await unseen(before.last)
            async with purged.exclusively():
                applied = await purged.read()
                if applied is None:
                    return False
                if applied.last == before.last:
                    if applied == Applied() and await purged.nothing_to_forget():
                        await self._forget_all()
                    else:
                        await self._apply(missed, frozenset(applied.ahead))
                    names = [purge.id for purge in missed.purges]
                    ahead = tuple(name for name in applied.ahead if name not in names)
                    return self._store.usable and await purged.record(Applied([newest, *names][-1], ahead))
        return True

    async def _apply(self, unseen: Unseen, ahead: frozenset[str]) -> None:
        if unseen.more:
            log.warning("this node has missed more purges than the catalog keeps: forgetting all objects")
            self._store.generations.forgotten.note_all()
            await self._forget_all()
            return
        done: Purge | None = None  # the last prefix
        # A prefix precedes the keys and prefixes that it covers.
        for purge in sorted(unseen.purges, key=lambda place: (place.bucket, place.prefix, place.exact)):
            if purge.id in ahead:
                continue
            if done is None or not done.covers(purge):
                await self._forget(purge)
                done = done if purge.exact else purge

    async def _forget_all(self) -> None:
        """Forget everything. In a new cache, which is empty, it only fences fills in progress."""
        for origin in self._origins():
            FORGOTTEN.labels("purge").inc(await self._store.forget_origin(origin))

    async def _held(self, purge: Purge) -> PrefixTotals:
        there = PrefixTotals()
        for place in self._places(purge):
            there = there.plus(await self._store.held(place, exact=purge.exact))
        return there

    async def _forget(self, purge: Purge) -> PrefixTotals:
        if purge.exact:
            self._store.generations.forgotten.note_keys(self._places(purge))
        else:
            self._store.generations.forgotten.note_prefix(purge.bucket, purge.prefix)
        there = PrefixTotals()
        for place in self._places(purge):
            held = await self._store.held(place, exact=purge.exact)
            forgotten = await self._store.forget_prefix(place, exact=purge.exact)
            FORGOTTEN.labels("purge").inc(forgotten)
            there = there.plus(PrefixTotals(max(forgotten, held.objects), held.bytes))
        return there

    def _places(self, purge: Purge) -> list[ObjectKey]:
        return [ObjectKey(origin, purge.bucket, purge.prefix) for origin in self._origins()]

    def _ended(self, held: PrefixTotals) -> Purged:
        return Purged(held, "" if self._store.usable else "its disk is down: its cached objects are distrusted")


class Purges:
    """Purges this node and the others.

    Args:
        here: this node.
        fleet: the other nodes; ``None`` outside a fleet.
        me: this node's id.
    """

    def __init__(self, here: Forgetting, fleet: PeerNodes | None, me: str) -> None:
        self.here = here
        self._fleet = fleet
        self._me = me

    async def count(self, purge: Purge) -> dict[str, Purged]:
        """Count the objects that would be forgotten, by node. A node that cannot be asked is listed with the reason."""
        return await self._round(replace(purge, dry_run=True))

    async def everywhere(self, purge: Purge, counted: Mapping[str, Purged]) -> dict[str, Purged]:
        """Forget in the whole fleet; returns the results by node.

        Args:
            purge: the prefix.
            counted: the result of ``count``; nodes that have left since then are listed as failures.
        """
        done = await self._round(purge)
        if len(done) > 1:
            again = await self._round(purge)
            done = {name: _both(done.get(name), again.get(name)) for name in {**done, **again}}
        gone = {
            name: Purged(failure=outcome.failure or "it has left the fleet")
            for name, outcome in counted.items()
            if name not in done
        }
        # Nodes that follow the catalog may have applied the purge before the request.
        most = {
            name: replace(outcome, held=max(outcome.held, counted[name].held))
            if name in counted and not outcome.failure
            else outcome
            for name, outcome in done.items()
        }
        return {**most, **gone}

    async def _round(self, purge: Purge) -> dict[str, Purged]:
        fleet = self._fleet
        others = [] if fleet is None else [node for node in fleet.members.nodes.values() if node.id != self._me]
        here, *there = await asyncio.gather(self.here.apply(purge), *(self._at(node, purge) for node in others))
        return {self._me: here, **{node.id: outcome for node, outcome in zip(others, there, strict=True)}}

    async def _at(self, node: Node, purge: Purge) -> Purged:
        assert self._fleet is not None
        body = json.dumps(asdict(purge)).encode()
        try:
            answer = await self._fleet.peers.request(node, "POST", FORGET, body=body)
            document = json.loads(await answer.read(LONGEST))
            if answer.status != 200:
                return Purged(failure=f"it answered {answer.status}: {str(document.get('detail', ''))[:200]}")
            return Purged(PrefixTotals(int(document["objects"]), int(document["bytes"])), str(document["failure"]))
        except LarderError as failure:
            return Purged(failure=str(failure))
        except (ValueError, KeyError, TypeError, AttributeError):
            return Purged(failure="its answer is invalid")


def _both(first: Purged | None, second: Purged | None) -> Purged:
    """Combine two rounds at one node; if it answered in only one of them, that result counts."""
    if first is None or second is None:
        return second or first or Purged()
    return second if first.failure or second.failure else Purged(first.held.plus(second.held))
