"""Reasons in words: what each means to an operator, and what would make fewer of it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gateway.engine.operations.explain import Expected, Knowledge
from gateway.model.outcomes import Outcome, Reason
from gateway.policies.rules import Caching

_WARM = "Read it once, or warm its prefix up before it is needed."

MEANINGS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        Reason.COLD: ("No bytes of the object are in the cache.", _WARM),
        Reason.PARTIAL: ("Some of its blocks are not in the cache: they were never read, or evicted.", _WARM),
        Reason.JOINED: ("Another request was fetching it already, and they shared one read of the origin.", ""),
        Reason.MOVED: (
            "The bytes came from the cache of the node that was its home before; the origin was not asked.",
            "Nothing: nodes joined or left, and each object moves once, when it is wanted.",
        ),
        Reason.REVALIDATED: (
            "The bytes came from the cache after the origin had confirmed them, or had allowed this key to read them.",
            'Give the rule a longer freshness and grant, or authorization = "prefix"; "immutable" for what never changes.',
        ),
        Reason.CHANGED: ("The origin had a newer object than the cache.", "Nothing: it was changed."),
        Reason.NOT_FOUND: ("The origin has no such object.", "Look at who asks for what is not there."),
        Reason.REFUSED: (
            "The origin, or the allow-list of the access key, refuses this caller.",
            "Give the key the right, if it should have it.",
        ),
        Reason.INVALID: ("The request was malformed, or not allowed in this form.", "Look at the client's error."),
        Reason.ORIGIN_ERROR: ("The origin failed or could not be reached.", "Look at the origin."),
        Reason.STARTING: (
            "The gateway had not read its catalog of access keys yet, and answered nobody; the origin was not asked.",
            "Look at the database that database.url names.",
        ),
        Reason.ORIGIN_DOWN: (
            "It was served past its freshness, because the origin could not be reached.",
            "Look at the origin.",
        ),
        Reason.NOT_A_READ: ("It was no plain GET or HEAD of an object; only those are answered from the cache.", ""),
        Reason.SUBRESOURCE: (
            "A query parameter asked for something else than the plain object (versionId, acl, ...).",
            "Read without it, if the client can.",
        ),
        Reason.HEADER: (
            "A request header asked for something else than the plain object (SSE-C, request payer, ...).",
            "Read without it, if the client can.",
        ),
        Reason.RANGE_FORM: (
            "Several ranges, or no ranges of bytes: the origin answers these itself.",
            "Have the client ask for one range at a time.",
        ),
        Reason.ENCODING: (
            'The key is spelled in a way that stores read differently (a bare "+").',
            "Have the client percent-encode it.",
        ),
        Reason.RULE: ("A rule says cache = false.", "Change the rule that matches, if it should be cached."),
        Reason.CACHE_CONTROL: ("The object itself says no-store or private.", "Upload it with another Cache-Control."),
        Reason.NO_VALIDATOR: (
            "The origin gives no strong ETag or no length, so the bytes cannot be told from newer ones.",
            "Use an origin that gives both.",
        ),
        Reason.TOO_LARGE: ("The object is larger than half of the cache.", "Give the node more cache.capacity."),
        Reason.NO_SPACE: (
            "No room could be made in the cache.",
            "Give the node more cache.capacity, or free space on its file system.",
        ),
        Reason.DISK: ("The cache disk was failing; reads went straight to the origin.", "Look at the disk."),
        Reason.OVERLOAD: (
            "Too many fills at once; reads came first.",
            "Raise cache.max_fills if disk and origin can take more, or add nodes.",
        ),
        Reason.WRITE_RACE: ("It was written while it was being read, so what was read was not kept.", ""),
        "": ("The answer did not come from the cache, for no reason that has a name.", ""),
    }
)
"""By reason: what it means, and what would make fewer of it; empty if nothing should."""


def advice(found: Expected, knowledge: Knowledge, rule: Caching, *, covered: bool) -> tuple[str, str]:
    """Why the next read would be what it would be, and what to change.

    Args:
        found: what it would be.
        knowledge: what the home of the object knows.
        rule: that holds for it.
        covered: whether the reader's allow-list covers it.
    """
    if not covered:
        return (
            "The allow-list of the access key does not cover the object: the gateway refuses the read.",
            "Add a glob to `allow` of the credential.",
        )
    if found.outcome is Outcome.HIT and found.reason is None:
        return "The object is here, fresh, and granted: it is served from the cache.", ""
    if found.reason is Reason.REVALIDATED:
        return _asked_first(knowledge, rule)
    if found.reason is Reason.COLD and knowledge.former:
        return (
            "No bytes of the object are in the cache of its home. Who was home of it before, "
            f"{' and '.join(knowledge.former)}, is "
            'asked first: with the object there, it is a HIT with the reason "moved".',
            _WARM,
        )
    if found.reason is Reason.PARTIAL:
        return (
            f"{knowledge.resident} of {knowledge.blocks} blocks are in the cache; the others are read from the origin.",
            _WARM,
        )
    return MEANINGS[found.reason or ""]


def _asked_first(knowledge: Knowledge, rule: Caching) -> tuple[str, str]:
    """The bytes are here, but the origin is asked by a HEAD whether they still are right for this reader."""
    if knowledge.granted_until is None:
        why = (
            "The bytes are here, but the origin never said yes to the keys of this reader: it is asked once, by a HEAD."
        )
        return why, 'authorization = "prefix" in the rule makes one yes count for all that it matches.'
    if not knowledge.channel:
        why = "The bytes are here, but the node may have missed writes: while Redis is lost, every object is checked by a HEAD."
        return why, 'Bring Redis back; freshness = "immutable" would spare what never changes.'
    why = "The bytes are here, but freshness or grant have run out: the origin is asked by a HEAD first."
    if rule.freshness == 0:
        return why, 'The rule says freshness = "always"; a time would spare the HEAD.'
    return why, "A longer freshness and grant in the rule would spare the HEAD."
