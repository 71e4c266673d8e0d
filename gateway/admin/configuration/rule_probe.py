"""Checks whether an origin has objects that a rule matches.

It reads one page of one listing per rule and origin, with the origin's access keys. So "nothing" is certain only if that page was
the last one; if more keys follow, the verdict is "unknown".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gateway.base.config import Origin
from gateway.model.errors import IdentityGone, OriginUnavailable
from gateway.model.keys import OriginIdentity, glob_matches, is_bucket_name
from gateway.origin.credentials import CHAIN_KEY
from gateway.origin.listing import ListingPage, ListingRefused, Listings, ListingUnreadable
from gateway.policies.reads.covering import fixed_part

Verdict = Literal["matches", "nothing", "unknown"]


@dataclass(frozen=True, slots=True)
class RuleMatch:
    """Whether an origin has objects that a rule matches; ``example`` is a ``bucket/key``."""

    verdict: Verdict
    why: str
    example: str = ""


async def probe_rule(listings: Listings, glob: str, origin: Origin) -> RuleMatch:
    """Whether an origin has objects that a rule's glob matches."""
    fixed = fixed_part(glob)
    bucket, slash, prefix = fixed.partition("/")
    if not slash and fixed == glob:
        return RuleMatch("nothing", f"it has no key part; to match a whole bucket write {f'{glob}/**'!r}")
    if not slash:
        return RuleMatch("unknown", "its bucket is a pattern; only globs with a fixed bucket can be checked")
    if not is_bucket_name(bucket):
        return RuleMatch("nothing", f"{bucket!r} is not a valid bucket name")
    identity = OriginIdentity(origin.name, origin.access_key_id or CHAIN_KEY)
    try:
        page = await listings.list_page(identity, bucket, prefix)
    except IdentityGone:
        return RuleMatch("unknown", f"the origin {origin.name!r} was changed during the check; check again")
    except OriginUnavailable as failure:
        return RuleMatch("unknown", f"origin {origin.name!r}: {failure.told}")
    except ListingUnreadable:
        return RuleMatch("unknown", f"the listing of the origin {origin.name!r} cannot be read")
    except ListingRefused as refusal:
        if refusal.status == 404:
            return RuleMatch("nothing", f"the origin {origin.name!r} has no bucket {bucket!r}")
        return RuleMatch("unknown", f"the origin {origin.name!r} answered {refusal.status} to a listing of {bucket!r}")
    return _judged(glob, bucket, prefix, page)


def _judged(glob: str, bucket: str, prefix: str, page: ListingPage) -> RuleMatch:
    for listed in page.objects:
        if glob_matches(glob, path := f"{bucket}/{listed.key}"):
            return RuleMatch("matches", "", path)
    where = f"below {bucket}/{prefix}" if prefix else f"in bucket {bucket!r}"
    if not page.objects:
        return RuleMatch("nothing", f"no key {where}")
    if page.truncated:
        return RuleMatch("unknown", f"none of the first {len(page.objects)} keys {where} matches")
    return RuleMatch("nothing", f"none of the {len(page.objects)} keys {where} matches")
