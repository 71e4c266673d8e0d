"""Which answers of the origin may be kept. A refusal has a reason, which the client sees in ``x-larder-cache``.

An object is kept only if versions can be told apart (a strong ETag), a truncated body is detectable (a length), its owner did not
forbid it (RFC 9111 section 5.2.2: no-store, private), and it leaves room for others.
"""

from __future__ import annotations

from collections.abc import Iterable

from gateway.model.objects import Header, ObjectMeta
from gateway.model.outcomes import Reason
from gateway.model.s3.conditions import cache_directives, is_strong
from gateway.policies.reads.rules import Caching

_PRIVATE_HEADERS = (
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-server-side-encryption-customer-key-md5",
    "x-amz-website-redirect-location",
)


def refusal(meta: ObjectMeta, rule: Caching, capacity: int) -> Reason | None:
    """Why an object must not be kept, or ``None`` when it may be.

    Args:
        meta: the origin's metadata of the object.
        rule: the rule that holds for it.
        capacity: bytes of the whole cache; one object may take half of it.
    """
    if not rule.cache:
        return Reason.RULE
    if not is_strong(meta.etag) or meta.size < 0:
        return Reason.NO_VALIDATOR
    if (reason := forbidden(meta.headers)) is not None:
        return reason
    if meta.size > capacity // 2:
        return Reason.TOO_LARGE
    return None


def forbidden(headers: Iterable[Header]) -> Reason | None:
    """Why an answer's headers forbid keeping it, or ``None``."""
    for name, value in headers:
        lower = name.lower()
        if lower == "cache-control":
            if cache_directives(value).keys() & {"no-store", "private"}:
                return Reason.CACHE_CONTROL
        elif lower in _PRIVATE_HEADERS:
            return Reason.HEADER
    return None
