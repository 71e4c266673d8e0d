"""``/-/admin/explain``: why a read is not a hit, and what to change; and the misses of each node by reason."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from gateway.admin.catalog.fields import Bucket
from gateway.admin.http.requests import Reader
from gateway.admin.state.documents import PatternName, Savings
from gateway.admin.state.operations import Operations, principal_of
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import savings_of
from gateway.edge.documents import ResponseModel, moment
from gateway.edge.endpoints import of_state
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.operate.explain.items import ItemFinder, ObjectItems
from gateway.operate.explain.work import Expected, Explainer, Knowledge, expected
from gateway.policies.pools import DEFAULT, STREAM, dataset_pool, stream_pools
from gateway.policies.reads.rules import ALWAYS, IMMUTABLE, Caching
from gateway.policies.streams.zone import zone_streams

router = APIRouter(tags=["explain"])
Service = Annotated[Explainer, Depends(of_state("explainer"))]
Finder = Annotated[ItemFinder, Depends(of_state("item_finder"))]
_FAR = 4e9
"""Seconds since the epoch after which a time means "unlimited"."""
_AT = "2026-03-02T14:30:00.000Z"


class RuleShown(ResponseModel):
    """The rule that applies."""

    match: str = Field(
        description='its glob; "**" with the defaults when no rule matches', examples=["training-data/**"]
    )
    freshness: float | Literal["always", "immutable"] = Field(description="seconds", examples=[600.0])
    grant_seconds: float = Field(examples=[600.0])
    by_prefix: bool = Field(description="whether a grant covers everything that the rule matches", examples=[False])
    cache: bool = Field(examples=[True])


class PartShown(ResponseModel):
    """A large range of an object that is stored as it was read, beside the blocks."""

    start: int = Field(description="first byte", examples=[7_340_032])
    bytes: int = Field(examples=[3_000_000])


class ItemsShown(ResponseModel):
    """The items of a dataset that lie in an object."""

    dataset: str = Field(examples=["imagenet-train"])
    items: int = Field(examples=[1])
    resident: int = Field(description="of them, in the fleet's caches: batches get these as hits", examples=[1])


class Explanation(ResponseModel):
    """The expected result of the next plain GET of an object."""

    bucket: str = Field(examples=["training-data"])
    key: str = Field(examples=["imagenet/val/0001.jpg"])
    tenant: str = Field(description="of the access key", examples=["vision"])
    rule: RuleShown
    home: str = Field(description="the node that owns the object", examples=["gw-2"])
    asked: str = Field(description="the node that answered: the owner if it is reachable", examples=["gw-2"])
    unreachable: str = Field(description="why the owner could not be asked; empty if it could", examples=[""])
    known: bool = Field(description="whether its index has the object", examples=[True])
    etag: str = Field(examples=['"9b2cf535f27731c974343645a3985328"'])
    size: int = Field(examples=[110_592])
    confirmed_at: str | None = Field(description="when the origin last confirmed it, ISO 8601", examples=[_AT])
    fresh_until: str | None = Field(description="null: unknown, or unlimited", examples=[_AT])
    granted_until: str | None = Field(
        description="end of the origin's grant to this key; null: it was never asked, or refused",
        examples=[_AT],
    )
    blocks: int = Field(examples=[1])
    resident_blocks: int = Field(description="of them, in the cache, as blocks or as items of datasets", examples=[1])
    parts: int = Field(description="ranges of it that are stored as they were read, beside the blocks", examples=[1])
    part_bytes: int = Field(description="of all parts", examples=[3_000_000])
    first_parts: list[PartShown] = Field(description="at most 64, by their first byte")
    in_memory: bool = Field(
        description="whether the worker that answered has all of them in memory (cache.memory)", examples=[True]
    )
    stream: str | None = Field(
        description="the access stream that its reads belong to; null: none is known",
        examples=["datasets/imagenet/train/"],
    )
    pattern: PatternName | None = Field(description="of the stream", examples=["random"])
    pool: str = Field(
        description="part of the cache's space that it is charged to, or would be",
        examples=["stream:datasets/imagenet/train/"],
    )
    items: list[ItemsShown] = Field(
        description="the reader's datasets of which it is an item, or has some, as far as they were found within five seconds"
    )
    saves: Savings | None = Field(
        description="by the space of the dataset that it is an item of; null: no price is set, or its pool is no dataset's"
    )
    channel: bool = Field(description="whether the node receives the fleet's invalidations", examples=[True])
    outcome: Outcome = Field(description="of the next read, if the origin has not changed", examples=["HIT"])
    reason: Reason | None = Field(description="why it is not a plain hit", examples=[None])
    explanation: str = Field(examples=["The object is here, fresh, and granted: it is served from the cache."])
    change: str = Field(description="what would make it a hit; empty if it is one", examples=[""])


class MissCount(ResponseModel):
    """A count of answers."""

    node: str = Field(examples=["gw-1"])
    outcome: Outcome = Field(examples=["MISS"])
    reason: str = Field(description="as in x-larder-cache", examples=["cold"])
    count: int = Field(description="since the node started", examples=[1042])
    meaning: str = Field(examples=["No bytes of the object were in the cache."])
    change: str = Field(description="how to get fewer of them", examples=["Warm it up, or read it twice."])


class Misses(ResponseModel):
    """Answers that were not plain hits."""

    items: list[MissCount] = Field(description="the most frequent first")


@router.get("/explain", summary="Explain the next read of an object")
async def explain_object(
    _caller: Reader,
    operations: Ops,
    explainer: Service,
    finder: Finder,
    bucket: Annotated[Bucket, Query(description="of the object")],
    key: Annotated[str, Query(min_length=1, max_length=1024, description="of the object")],
    access_key_id: Annotated[str, Query(min_length=1, max_length=256, description="access key of the reader")],
) -> Explanation:
    """Whether a plain GET of the object by this access key would be a hit now, and if not, why and what to change. No origin is
    asked."""
    principal = principal_of(operations, access_key_id)
    rule = operations.rules().for_path(f"{bucket}/{key}")
    place = ObjectKey(principal.identity.origin, bucket, key)
    home = explainer.home(bucket, key)
    knowledge, unreachable = await explainer.anywhere(place, principal.tenant, principal.identity)
    covered = principal.may_touch(place.path)
    prospect = expected(rule, knowledge) if covered else Expected(Outcome.BYPASS, Reason.REFUSED)
    items = await finder.of(principal, bucket, key) if covered else []
    why, change = _advice(prospect, knowledge, rule, items if covered else None)
    me = operations.fleet.sources.membership.me
    return Explanation.of(
        knowledge,
        bucket=bucket,
        key=key,
        tenant=principal.tenant,
        rule=_rule(rule),
        home=me if home is None else home.id,
        asked=knowledge.node,
        unreachable=unreachable,
        **_times(knowledge),
        resident_blocks=knowledge.resident,
        first_parts=[PartShown(start=start, bytes=length) for start, length in knowledge.first_parts],
        in_memory=knowledge.in_memory,
        items=[ItemsShown.of(part) for part in items],
        **space_of(await operations.fleet.look(), place, knowledge, items),
        outcome=prospect.outcome,
        reason=prospect.reason,
        explanation=why,
        change=change,
    )


@router.get("/explain/misses", summary="Count answers that were not hits")
async def count_misses(
    _caller: Reader,
    operations: Ops,
    node: Annotated[str, Query(max_length=64, description="only of this node")] = "",
) -> Misses:
    """Answers of every node that were not plain hits, by reason, and how to get fewer of them."""
    return Misses(
        items=sorted(await _misses(operations, node), key=lambda count: (-count.count, count.node, count.reason))
    )


async def _misses(operations: Operations, node: str) -> list[MissCount]:
    reading = await operations.fleet.look()
    counts = []
    for name in sorted(reading.nodes):
        for words, count in reading.status(name).get("reasons", {}).items():
            outcome, _, reason = str(words).partition(" ")
            if node in ("", name) and outcome in set(Outcome):
                known = Reason.of(reason)
                counts.append(
                    MissCount(
                        node=name,
                        outcome=Outcome(outcome),
                        reason=reason,
                        count=int(count),
                        meaning=known.meaning if known else "",
                        change=known.change if known else "",
                    )
                )
    return counts


def _rule(rule: Caching) -> RuleShown:
    words: dict[float, Literal["always", "immutable"]] = {ALWAYS: "always", IMMUTABLE: "immutable"}
    return RuleShown(
        match=rule.match,
        freshness=words.get(rule.freshness, rule.freshness),
        grant_seconds=rule.grant,
        by_prefix=rule.by_prefix,
        cache=rule.cache,
    )


def space_of(
    reading: FleetReading, key: ObjectKey, knowledge: Knowledge, items: Sequence[ObjectItems]
) -> dict[str, Any]:
    """The most specific stream of an object, its pool, and the money that a dataset's pool saves.

    Bytes that only loaders have read are items alone, charged to their dataset.
    """
    known, names = zone_streams(reading.streams), stream_pools(key)
    streams = (known[name] for pool in names if (name := pool.removeprefix(STREAM)) in known)
    stream = next((stream for stream in streams if stream.seen.pattern is not None), None)
    pools = [dataset_pool(part.id) for part in items if part.id in reading.plan.datasets]
    pools += [name for name in names if name in reading.plan.pools]
    pool = knowledge.pool or next(iter(pools), DEFAULT)
    return {
        "stream": None if stream is None else stream.name,
        "pattern": None if stream is None or stream.seen.pattern is None else stream.seen.pattern.value,
        "pool": pool,
        "saves": savings_of(reading.plan, [name for name in reading.plan.datasets if dataset_pool(name) == pool]),
    }


def _times(knowledge: Knowledge) -> dict[str, str | None]:
    def told(seconds: float | None) -> str | None:
        return None if seconds is None or seconds > _FAR else moment(seconds)

    return {
        "confirmed_at": told(knowledge.confirmed_at),
        "fresh_until": told(knowledge.fresh_until),
        "granted_until": told(knowledge.granted_until),
    }


def _advice(
    prospect: Expected, knowledge: Knowledge, rule: Caching, items: Sequence[ObjectItems] | None
) -> tuple[str, str]:
    """The reason for the outcome of the next read, and the change that makes it a hit.

    Args:
        prospect: the outcome of the next read.
        knowledge: of the object's home.
        rule: the rule of the object.
        items: of datasets in the object; ``None`` if the reader's allow-list does not cover it.
    """
    if items is None:
        return (
            "The allow-list of the access key does not cover the object: the gateway refuses the read.",
            "Add a glob to `allow` of the credential.",
        )
    if prospect.outcome is Outcome.HIT and prospect.reason is None:
        where = "memory" if knowledge.in_memory else "the cache"
        return f"The object is here, fresh, and granted: it is served from {where}.", ""
    if prospect.reason is Reason.REVALIDATED:
        return _asked_first(knowledge, rule)
    if prospect.reason in (Reason.COLD, Reason.EVICTED) and any(part.resident for part in items):
        return (
            f"Loaders find it in the cache: {_held(items)}. Readers of the object by its name do not: the first of them reads it "
            "from the origin.",
            "Warm it up, or read it once by its name, if it is read so at all.",
        )
    if prospect.reason in (Reason.COLD, Reason.EVICTED) and knowledge.former:
        return (
            "No bytes of the object are in the cache of its home. The previous owner, "
            f"{' and '.join(knowledge.former)}, is "
            'asked first: if it has the object, the read is a HIT with the reason "moved".',
            Reason.COLD.change,
        )
    if prospect.reason is Reason.PARTIAL:
        parts = f", and {knowledge.parts} parts, which serve reads from their first bytes" if knowledge.parts else ""
        here = f"{knowledge.resident} of {knowledge.blocks} blocks are in the cache{parts}"
        return (
            f"{here}; the other blocks are read from the origin.",
            Reason.COLD.change,
        )
    if prospect.reason is None:
        return "The answer did not come from the cache.", ""
    return prospect.reason.meaning, prospect.reason.change


def _held(items: Sequence[ObjectItems]) -> str:
    return ", ".join(f"{part.resident} of its {part.items} items in {part.dataset}" for part in items if part.resident)


def _asked_first(knowledge: Knowledge, rule: Caching) -> tuple[str, str]:
    """Why a cached object needs a request at the origin first, and what would avoid it."""
    if knowledge.granted_until is None:
        why = "The bytes are here, but the origin has not granted this reader's keys yet: it is asked once, without the bytes."
        return why, 'authorization = "prefix" in the rule makes one grant cover everything that it matches.'
    if not knowledge.channel:
        why = "The bytes are here, but the node may have missed writes: while Redis is lost, every object is checked by a HEAD."
        return why, 'Bring Redis back; freshness = "immutable" would spare what never changes.'
    why = "The bytes are here, but freshness or grant have run out: the origin is asked by a HEAD first."
    if rule.freshness == 0:
        return why, 'The rule says freshness = "always"; a time would spare the HEAD.'
    return why, "A longer freshness and grant in the rule would spare the HEAD."
