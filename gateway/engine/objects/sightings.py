"""Answers that pass the gateway and show that the store and the cache have different versions of an object.

A client that lists and then reads would combine the new version's size and ETag with the old version's bytes. So an entry that
differs from the passing answer is no longer fresh: the next read checks it with the origin. Its grants and bytes stay, because a
listing says nothing about readers, and may be older than the cache.

An object's entry is at its home. Each home is notified before the answer ends, within ``_WITHIN`` at most: a node that does not
answer in time keeps its entries for the rule's time, as if the answer had not passed.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from functools import partial

from pydantic import TypeAdapter

from gateway.base.tasks import for_each
from gateway.engine.base.homes import PREFIX
from gateway.engine.base.services import Services
from gateway.engine.objects.entries import EntryCache
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.errors import LarderError
from gateway.model.fleet import Node
from gateway.model.keys import ObjectKey
from gateway.model.s3.listings import SeenVersion
from gateway.policies.fleet.ring import path_key
from gateway.policies.reads.rules import IMMUTABLE
from gateway.policies.reads.sightings import differs

SEEN = f"{PREFIX}/seen"
"""The address where nodes send each other sightings."""
MOST = 1000
"""Objects sent in one request."""
LONGEST = 8 * 1024**2
"""Bytes of a message: its keys may be escaped."""
_WITHIN = 1.0
_AT_ONCE = 16

_MESSAGE = TypeAdapter(tuple[str, str, list[SeenVersion]])

log = logging.getLogger("larder.engine")


class Sightings:
    """Compares passing answers with cached objects, here and at their homes."""

    def __init__(self, services: Services, entries: EntryCache) -> None:
        self._services = services
        self._entries = entries

    async def note(self, origin: str, bucket: str, seen: Sequence[SeenVersion]) -> None:
        """Have entries that differ from these sightings checked at their next read, in the whole fleet."""
        for start in range(0, len(seen), MOST):
            page = self._cached(bucket, seen[start : start + MOST])
            if not page:
                continue
            await self.note_here(origin, bucket, page)
            fleet = self._services.fleet
            if fleet is not None and not fleet.members.alone:
                homes: dict[Node, list[SeenVersion]] = {}
                for sighting in page:
                    home = fleet.members.home(path_key(bucket, sighting.key))
                    if home is not None:
                        homes.setdefault(home, []).append(sighting)
                await for_each(homes.items(), partial(self._send, origin, bucket), _AT_ONCE)

    def _cached(self, bucket: str, seen: Sequence[SeenVersion]) -> list[SeenVersion]:
        rules = self._services.rules
        ruled = [(sighting, rules.for_path(f"{bucket}/{sighting.key}")) for sighting in seen]
        return [sighting for sighting, rule in ruled if rule.cache and rule.freshness != IMMUTABLE]

    async def note_here(self, origin: str, bucket: str, seen: Sequence[SeenVersion]) -> None:
        """Like ``note``, on this node only."""
        sightings = {ObjectKey(origin, bucket, sighting.key): sighting for sighting in seen}
        stale = []
        for key, meta in (await self._services.store.versions(list(sightings))).items():
            if differs(meta, sightings[key]):
                stale.append(key)
        for key, sighting in sightings.items():
            entry = self._entries.get(key)
            if entry is not None and differs(entry.record.meta, sighting) and key not in stale:
                stale.append(key)
        for key in stale:
            self._entries.pop(key, None)
        if stale:
            await self._services.store.expire(stale)

    async def _send(self, origin: str, bucket: str, part: tuple[Node, list[SeenVersion]]) -> None:
        node, seen = part
        fleet = self._services.fleet
        assert fleet is not None
        body = encoded(origin, bucket, seen)
        try:
            async with asyncio.timeout(_WITHIN):
                response = await fleet.peers.request(node, "POST", SEEN, [], body=body)
                response.release()
        except (PeerUnavailable, LarderError, TimeoutError) as failure:
            log.info(
                "node %(node)s was not told of newer objects: %(error)s", {"node": node.id, "error": repr(failure)}
            )


def encoded(origin: str, bucket: str, seen: Sequence[SeenVersion]) -> bytes:
    """The body of a message between nodes."""
    return json.dumps([origin, bucket, seen]).encode()


def decoded(body: bytes) -> tuple[str, str, list[SeenVersion]]:
    """Parse the result of ``encoded``.

    Raises:
        ValueError: it is malformed.
    """
    try:
        origin, bucket, seen = _MESSAGE.validate_json(body)
        for sighting in seen:
            sighting.key.encode()
    except ValueError as error:
        raise ValueError("the body must be an origin, a bucket and the objects seen") from error
    if len(seen) > MOST:
        raise ValueError(f"a message has at most {MOST} objects")
    return origin, bucket, seen
