"""The owner's word: the ``Cache-Control`` of an object shortens the times of its rule (RFC 9111, 5.2.2; RFC 5861, section 4).

``no-cache`` has every read checked. ``max-age`` and ``s-maxage`` end freshness; a shared cache prefers ``s-maxage``.
``must-revalidate``, ``proxy-revalidate``, ``s-maxage`` (RFC 9111, 5.2.2.10) and ``no-cache`` forbid stale bytes,
``stale-if-error`` bounds them. Forms that name header fields (``no-cache="set-cookie"``) count for the whole object. A value that
is not a number counts as expired. ``immutable`` (RFC 8246) promises no more than the rule gives. Grants follow the rule alone:
they concern readers. ``no-store`` and ``private`` are in ``admission.py``.

A rule that says immutable overrides all of this: its operator vouches for the objects.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from gateway.model.objects import Header
from gateway.model.s3.conditions import cache_directives, delta_seconds
from gateway.policies.reads.rules import ALWAYS, IMMUTABLE, Caching

_LONGEST_KEPT = 256
"""Characters of a header whose meaning is remembered."""
_NEVER_STALE = frozenset({"no-cache", "must-revalidate", "proxy-revalidate", "s-maxage"})


def obeyed(rule: Caching, headers: Iterable[Header]) -> Caching:
    """A rule as restricted by the owner of an object.

    Args:
        rule: the rule that holds for the object.
        headers: of the object.
    """
    value = ""
    for name, line in headers:
        if name.lower() == "cache-control":
            value = f"{value}, {line}" if value else line
    if not value or rule.freshness == IMMUTABLE:
        return rule
    return _obeyed(rule, value) if len(value) > _LONGEST_KEPT else _kept(rule, value)


@lru_cache(maxsize=1024)
def _kept(rule: Caching, value: str) -> Caching:
    return _obeyed(rule, value)


def _obeyed(rule: Caching, value: str) -> Caching:
    directives = cache_directives(value)
    freshness, stale = rule.freshness, rule.stale_if_error
    age = directives.get("s-maxage", directives.get("max-age"))
    if age is not None:
        freshness = min(freshness, delta_seconds(age))
    if "no-cache" in directives:
        freshness = ALWAYS
    if "stale-if-error" in directives:
        stale = min(stale, delta_seconds(directives["stale-if-error"]))
    if not _NEVER_STALE.isdisjoint(directives):
        stale = 0.0
    return replace(rule, freshness=freshness, stale_if_error=stale)
