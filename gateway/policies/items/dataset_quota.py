"""Quotas of registrations of datasets on a node's cache disk.

The files made from a digest file stay on the disk until its registration is removed; they cannot be evicted for other data. So
each tenant has a quota in registrations, items and bytes, and all tenants together a share of the cache. Bytes are those on the
disk. A dataset that two tenants have registered counts for both, though it is stored once: no tenant's quota depends on another
tenant.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

FLOOR = 64 * 1024**2
"""Bytes that the registrations of datasets may take in the smallest of caches."""


class Limit(StrEnum):
    """The limits of a registration, by their settings."""

    REGISTRATIONS = "datasets.tenant_registrations"
    ITEMS = "datasets.tenant_items"
    BYTES = "datasets.tenant_bytes"
    CAPACITY = "cache.capacity"


@dataclass(frozen=True, slots=True)
class Quota:
    """The limits of one tenant on a node; ``all_bytes`` is the limit of all tenants together."""

    registrations: int
    items: int
    bytes: int
    all_bytes: int


@dataclass(frozen=True, slots=True)
class Usage:
    """The use by one tenant on a node; ``all_bytes`` is the use by all tenants together."""

    registrations: int = 0
    items: int = 0
    bytes: int = 0
    all_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Allowance:
    """The size that one more registration may have, and the limit that binds its bytes."""

    items: int
    bytes: int
    bound_by: Limit


def quota_of(registrations: int, items: int, size: int, capacity: int) -> Quota:
    """The quota by the settings. If ``size`` is 0, a tenant gets a tenth of the cache's capacity; all tenants together get half
    of it."""
    return Quota(registrations, items, size or max(FLOOR, capacity // 10), max(FLOOR, capacity // 2))


def allowance(quota: Quota, used: Usage) -> Allowance:
    """The size that one more registration may have in addition to those that ``used`` counts."""
    own, common = quota.bytes - used.bytes, quota.all_bytes - used.all_bytes
    return Allowance(
        max(0, quota.items - used.items), max(0, min(own, common)), Limit.BYTES if own <= common else Limit.CAPACITY
    )


def is_near(quota: Quota, used: Usage) -> bool:
    """Whether more than half of any limit is used, so that unused registrations should expire."""
    return any(2 * getattr(used, limit) > most for limit, most in asdict(quota).items())


def exceeded(quota: Quota, used: Usage, items: int, size: int) -> Limit | None:
    """The limit that a registration of these items and bytes would exceed; ``None`` if there is none."""
    allowed = allowance(quota, used)
    if used.registrations + 1 > quota.registrations:
        return Limit.REGISTRATIONS
    if items > allowed.items:
        return Limit.ITEMS
    return allowed.bound_by if size > allowed.bytes else None


def refusal(limit: Limit, quota: Quota, used: Usage) -> str:
    """The message for the client: the limit, the use counted against it, and the remedy."""
    remedy = "Remove registrations that are no longer used, or ask the operator to raise the setting."
    if limit is Limit.CAPACITY:
        return (
            f"The datasets of all tenants may take {quota.all_bytes} bytes of this gateway's cache disk, half of cache.capacity, "
            f"and take {used.all_bytes} without this one. {remedy}"
        )
    most, now, what = {
        Limit.REGISTRATIONS: (quota.registrations, used.registrations, "registrations"),
        Limit.ITEMS: (quota.items, used.items, "items in all its datasets"),
        Limit.BYTES: (quota.bytes, used.bytes, "bytes of this gateway's cache disk for its datasets"),
    }[limit]
    return f"A tenant may have {most} {what} (setting {limit}); this one has {now} without this dataset. {remedy}"
