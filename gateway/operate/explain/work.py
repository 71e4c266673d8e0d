"""Explains why a read was not a hit, and predicts the next one: it asks the object's home, and never the origin.

The answer is what ``engine/objects/reads.py`` would decide now, from the same index and by the same policies, without fetching,
renewing or counting anything. ``Knowledge`` is sent between nodes as JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from gateway.engine.base.homes import PREFIX, Node, PeerNodes
from gateway.engine.engine import Engine
from gateway.engine.objects.entries import ObjectEntry
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import ObjectRecord
from gateway.model.outcomes import Outcome, Reason
from gateway.model.peer.principal import principal_header
from gateway.policies.fleet.ring import path_key
from gateway.policies.reads.freshness import EntryState, Verdict, decide
from gateway.policies.reads.granularity import PARTS
from gateway.policies.reads.owner import obeyed
from gateway.policies.reads.rules import Caching

EXPLAIN = f"{PREFIX}/explain"
"""The address where nodes explain objects to each other."""
IN_MEMORY = "x-larder-in-memory"
"""Header of an answer with ``Knowledge.in_memory``: earlier releases refuse a document with unknown fields."""
PARTS_KEPT = "x-larder-parts"
"""Header with a JSON list of ``Knowledge.parts``, ``part_bytes`` and ``first_parts``, for the same reason."""
LISTED = 64
"""Parts of an object that an explanation lists."""
LONGEST = 16 * 1024
_FOR_EVER = 1e15


@dataclass(frozen=True, slots=True)
class Knowledge:
    """One node's knowledge of an object, for one origin identity. Times are seconds since the epoch by that node's clock.

    ``node`` is its id; ``usable``: its disk is in use; ``channel``: it receives the fleet's invalidations.
    ``known``: its index has the object; then ``fresh_until`` and ``granted_until`` are the times until which it may be served
    without asking the origin (``None``: never asked, or never granted; far in the future: no limit), and ``resident``
    of ``blocks`` are on disk, or all of them as items of datasets. ``serves`` combines freshness, grant and channel at this
    moment. ``former`` are the previous homes, asked in this order before the origin. ``pool`` is charged with the first block.
    ``evicted``: no byte of it is resident any more. ``in_memory``: the worker that answered can send all of it from memory.
    ``parts`` counts the ranges stored as they were read, beside the blocks, and ``part_bytes`` their bytes; ``first_parts`` has
    first byte and length of the first ones.
    """

    node: str
    usable: bool = True
    channel: bool = True
    known: bool = False
    etag: str = ""
    size: int = 0
    confirmed_at: float | None = None
    fresh_until: float | None = None
    granted_until: float | None = None
    blocks: int = 0
    resident: int = 0
    serves: bool = False
    former: tuple[str, ...] = ()
    pool: str = ""
    evicted: bool = False
    in_memory: bool = False
    parts: int = 0
    part_bytes: int = 0
    first_parts: tuple[tuple[int, int], ...] = ()

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Knowledge:
        """Parse the result of ``to_json``; fields of later releases are ignored.

        Raises:
            TypeError: the document is malformed.
        """
        known = {name: document[name] for name in document.keys() & _FIELDS}
        return cls(**{**known, "former": tuple(known.get("former", ()))})


_FIELDS = {field.name for field in fields(Knowledge)}


@dataclass(frozen=True, slots=True)
class Expected:
    """The outcome of the next plain GET of the object, and its reason."""

    outcome: Outcome
    reason: Reason | None = None


def expected(rule: Caching, knowledge: Knowledge) -> Expected:
    """Predict the next plain GET, assuming that the object at the origin is unchanged."""
    if not rule.cache:
        return Expected(Outcome.BYPASS, Reason.RULE)
    if not knowledge.known:
        return Expected(Outcome.MISS, _absent(knowledge) if knowledge.usable else Reason.DISK)
    if knowledge.resident < knowledge.blocks:
        some = knowledge.resident or (knowledge.parts and knowledge.blocks > 1)  # the same words as in reads
        return Expected(Outcome.MISS, Reason.PARTIAL if some else _absent(knowledge))
    return Expected(Outcome.HIT, None if knowledge.serves else Reason.REVALIDATED)


def _absent(knowledge: Knowledge) -> Reason:
    return Reason.EVICTED if knowledge.evicted else Reason.COLD


class Explainer:
    """Looks up objects on this node, and at other nodes that are their homes."""

    def __init__(self, engine: Engine, me: str) -> None:
        self._engine = engine
        self._services = engine.services
        self._me = me
        self.now = self._services.now
        """The time, in seconds since the epoch, by this node's clock."""

    def home(self, bucket: str, key: str) -> Node | None:
        """The other node that is home of an object; ``None``: this one."""
        fleet = self._services.fleet
        return None if fleet is None else fleet.members.home(path_key(bucket, key))

    async def here(self, key: ObjectKey, identity: OriginIdentity) -> Knowledge:
        """This node's knowledge of an object."""
        services, store = self._services, self._services.store
        usable, since = store.usable, services.trusted_since()
        entry = await self._engine.known(key)
        evicted = key in store.generations.evicted
        record = None if entry is None else await self._stored(entry)
        if entry is None or record is None:
            return Knowledge(self._me, usable, since < math.inf, former=self._former(key), evicted=evicted)
        resident = await store.blocks(record.row_id, 0, record.block_count - 1)
        # Memory may name evicted blobs. Blobs that were just stored, and are not in the index yet, are open.
        resident |= {number: ref for number, ref in entry.blobs.items() if store.resident(ref) is not None}
        rule = obeyed(services.rules.for_path(key.path), record.meta.headers)
        granted = self._engine.granted(key, identity.name, rule, entry.grants.get(identity.name))
        standing = EntryState(record.confirmed_at, granted, since)
        complete = len(resident) == record.block_count
        in_items = not complete and await self._engine.blocks.runs.covers(record.row_id, 0, record.meta.size)
        parts = await store.blocks(record.row_id, PARTS, PARTS + record.meta.size)
        first = min(resident or parts, default=None)
        charged = None if first is None else await store.pools.of((resident or parts)[first].digest)
        return Knowledge(
            node=self._me,
            usable=usable,
            channel=since < math.inf,
            known=True,
            etag=record.meta.etag,
            size=record.meta.size,
            confirmed_at=record.confirmed_at,
            fresh_until=_bounded(record.confirmed_at + rule.freshness),
            granted_until=None if granted is None else _bounded(granted + rule.grant),
            blocks=record.block_count,
            resident=record.block_count if in_items else len(resident),
            serves=decide(standing, rule, services.now()) is Verdict.SERVE,
            pool="" if charged is None else charged.pool.name,
            evicted=evicted and not resident and not parts and not in_items,
            in_memory=bool(resident) and not in_items and all(ref.digest in store.memory for ref in resident.values()),
            parts=len(parts),
            part_bytes=sum(ref.size for ref in parts.values()),
            first_parts=tuple((number - PARTS, parts[number].size) for number in sorted(parts)[:LISTED]),
        )

    async def _stored(self, entry: ObjectEntry) -> ObjectRecord | None:
        """The row of an object, which another worker may have written; ``None`` if no byte is in the cache."""
        if entry.has_bytes:
            return entry.record
        row = await self._services.store.lookup(entry.key)
        return row if row is not None and entry.is_of(row.meta) else None

    def _former(self, key: ObjectKey) -> tuple[str, ...]:
        services = self._services
        if services.fleet is None or key in services.store.generations.forgotten:
            return ()
        return tuple(node.id for node in services.fleet.members.previous_owners(path_key(key.bucket, key.key)))

    async def anywhere(self, key: ObjectKey, tenant: str, identity: OriginIdentity) -> tuple[Knowledge, str]:
        """The knowledge of an object's home, and why this node was asked instead, empty if the home answered."""
        home, fleet = self.home(key.bucket, key.key), self._services.fleet
        if home is None or fleet is None:
            return await self.here(key, identity), ""
        try:
            return await _asked(fleet, home, key, principal_header(tenant, identity)), ""
        except LarderError as failure:
            return await self.here(key, identity), str(failure)


async def _asked(fleet: PeerNodes, home: Node, key: ObjectKey, principal: tuple[str, str]) -> Knowledge:
    body = json.dumps(list(key)).encode()
    answer = await fleet.peers.request(home, "POST", EXPLAIN, [principal], body=body)
    text = await answer.read(LONGEST)
    try:
        if answer.status != 200:
            raise LarderError(f"node {home.id} answered {answer.status}")
        knowledge = Knowledge.from_json(json.loads(text))
        parts, part_bytes, first = json.loads(answer.header(PARTS_KEPT) or "[0, 0, []]")
        known = {"parts": parts, "part_bytes": part_bytes, "first_parts": tuple((at, size) for at, size in first)}
        return replace(knowledge, in_memory=answer.header(IN_MEMORY) is not None, **known)
    except (ValueError, TypeError, AttributeError) as error:
        raise LarderError(f"node {home.id} sent an invalid explanation") from error


def to_json(knowledge: Knowledge) -> dict[str, Any]:
    """Convert to JSON types, without the values of ``headers``."""
    later = ("in_memory", "parts", "part_bytes", "first_parts")
    return {name: value for name, value in asdict(knowledge).items() if name not in later}


def headers(knowledge: Knowledge) -> list[tuple[bytes, bytes]]:
    """The headers of an answer with the fields that earlier releases do not know."""
    parts = json.dumps([knowledge.parts, knowledge.part_bytes, knowledge.first_parts], separators=(",", ":"))
    return [(IN_MEMORY.encode(), b"1")] * knowledge.in_memory + [(PARTS_KEPT.encode(), parts.encode())] * bool(
        knowledge.parts
    )


def _bounded(moment: float) -> float:
    return min(moment, _FOR_EVER)
