"""Forgetting what is below a prefix, on every node of the fleet: for what was changed at the origin behind the gateway's back.

Every node forgets by its own index, and fences every fill that is under way. A node that has become home of an object takes it
over from its former home, which may not have forgotten it yet; so all nodes are asked twice: in the second round nobody has the
old bytes any more but whoever took them over during the first. Nothing is changed at the origin. Items of datasets are not
meant: they are what their digest says, wherever they came from.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.engine.homes import PREFIX, Fleet, Node
from gateway.metrics import FORGOTTEN
from gateway.model.errors import LarderError
from gateway.store.prefixes import Held
from gateway.store.store import Store

FORGET = f"{PREFIX}/forget"
"""Where a node is asked to forget."""
LONGEST = 16 * 1024
"""Bytes of such a question, and of its answer."""


@dataclass(frozen=True, slots=True)
class Purge:
    """What is to be forgotten. ``dry_run`` only counts."""

    bucket: str
    prefix: str
    dry_run: bool = False

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {"bucket": self.bucket, "prefix": self.prefix, "dry_run": self.dry_run}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Purge:
        """Read what ``to_json`` made.

        Raises:
            ValueError, KeyError, TypeError: it is something else.
        """
        if not isinstance(told["bucket"], str) or not isinstance(told["prefix"], str):
            raise TypeError("bucket and prefix are texts")
        return cls(told["bucket"], told["prefix"], bool(told["dry_run"]))


@dataclass(frozen=True, slots=True)
class Purged:
    """What became of it on one node; ``failure`` says why it was not done there, empty if it was."""

    held: Held = field(default_factory=Held)
    failure: str = ""


class Purges:
    """Purges this node, and has the others purged.

    Args:
        store: of the node.
        origins: the names of all origins that objects may have come from.
        fleet: the other nodes; ``None`` for a node that is in no fleet.
        me: this node's id.
    """

    def __init__(self, store: Store, origins: Callable[[], Iterable[str]], fleet: Fleet | None, me: str) -> None:
        self._store = store
        self._origins = origins
        self._fleet = fleet
        self._me = me

    async def here(self, purge: Purge) -> Held:
        """Forget on this node; what there was."""
        there = Held()
        for origin in self._origins():
            held = await self._store.prefixes.held(origin, purge.bucket, purge.prefix)
            if not purge.dry_run:
                forgotten = await self._store.forget_prefix(origin, purge.bucket, purge.prefix)
                FORGOTTEN.labels("purge").inc(forgotten)
                held = Held(max(forgotten, held.objects), held.bytes)
            there = there.plus(held)
        return there

    async def everywhere(self, purge: Purge) -> dict[str, Purged]:
        """Forget in the whole fleet; by node, what there was. A node that cannot be asked is named with the reason."""
        done = await self._round(purge)
        if purge.dry_run or len(done) == 1:
            return done
        again = await self._round(purge)
        return {
            name: one if (before := done.get(name)) is None or one.failure else Purged(before.held.plus(one.held), "")
            for name, one in again.items()
        }

    async def _round(self, purge: Purge) -> dict[str, Purged]:
        fleet = self._fleet
        others = [] if fleet is None else [node for node in fleet.members.nodes.values() if node.id != self._me]
        here, *there = await asyncio.gather(self.told(purge), *(self._at(node, purge) for node in others))
        return {self._me: here, **{node.id: one for node, one in zip(others, there, strict=True)}}

    async def told(self, purge: Purge) -> Purged:
        """Forget on this node, as another one is told of it."""
        held = await self.here(purge)
        failure = "" if self._store.usable else "its disk is down: everything that it holds is distrusted"
        return Purged(held, failure)

    async def _at(self, node: Node, purge: Purge) -> Purged:
        assert self._fleet is not None
        body = json.dumps(purge.to_json()).encode()
        try:
            answer = await self._fleet.peers.request(node, "POST", FORGET, body=body)
            told = json.loads(await answer.read(LONGEST))
            if answer.status != 200:
                return Purged(failure=f"it answered {answer.status}: {str(told.get('detail', ''))[:200]}")
            return Purged(Held(int(told["objects"]), int(told["bytes"])), str(told["failure"]))
        except LarderError as failure:
            return Purged(failure=str(failure))
        except (ValueError, KeyError, TypeError, AttributeError):
            return Purged(failure="its answer could not be read")
