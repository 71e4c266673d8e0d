"""Chooses the caching rule of an object: the first one in the file that matches."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gateway.model.keys import covers_prefix, glob_matches
from gateway.policies.reads import hedging

IMMUTABLE = inf
ALWAYS = 0.0
_SPECIAL = re.compile(r"[*?\[]")
AUTO, OFF = "auto", "off"
"""Values of ``Caching.pattern``: recognise the pattern; no streams."""


@dataclass(frozen=True, slots=True)
class Caching:
    """Caching of the objects of one rule. Times are seconds; ``freshness`` may be ``IMMUTABLE`` or ``ALWAYS``.

    ``pattern`` of its streams: ``AUTO``, ``OFF``, or a value of ``policies.streams.pattern.Pattern``. ``hedge``: ``"off"``, or
    the quantile of the waiting times after which a read of the store is sent again (``hedging.QUANTILES``). ``listing``: whether
    listings under the rule are recorded.
    """

    match: str = "**"
    freshness: float = 600.0
    grant: float = 600.0
    by_prefix: bool = False
    cache: bool = True
    warm_on_write: bool = False
    stale_if_error: float = 3600.0
    pattern: str = AUTO
    hedge: str = hedging.OFF
    listing: bool = False

    def may_match_below(self, prefix: str) -> bool:
        """Whether an object whose ``bucket/key`` begins with ``prefix`` may match."""
        stem = _SPECIAL.split(self.match, maxsplit=1)[0]
        return stem.startswith(prefix) or prefix.startswith(stem)


class Rules:
    """An ordered, immutable set of rules with a bounded memo of the rule for each path."""

    _MEMO = 8192

    def __init__(self, rules: Sequence[Caching] = ()) -> None:
        self._rules = (*rules, Caching())
        self.only = self._rules[0] if self._rules[0].match == "**" else None
        """The rule that holds for every object, if there is one."""
        self.hedging = any(rule.hedge != hedging.OFF for rule in self._rules)
        """Whether any rule sends late reads again."""
        self.listings = tuple(rule.match for rule in self._rules if rule.listing)
        """The globs of the rules that record listings."""
        self._memo: dict[str, Caching] = {}

    def for_path(self, path: str) -> Caching:
        """The rule for ``bucket/key``; the defaults when none matches."""
        if self.only is not None:
            return self.only
        known = self._memo.get(path)
        if known is None:
            known = next(rule for rule in self._rules if glob_matches(rule.match, path))
            if len(self._memo) >= self._MEMO:
                self._memo.clear()
            self._memo[path] = known
        return known

    def listing(self, prefix: str) -> Caching | None:
        """The rule by which listings of ``bucket/prefix`` are recorded: the first that may match an object there.

        ``None`` if it does not record listings, or if other rules may match objects there too.
        """
        if not self.listings:
            return None
        rule = next(rule for rule in self._rules if rule.may_match_below(prefix))
        return rule if rule.listing and covers_prefix(rule.match, prefix) else None

    def grant_below(self, prefix: str) -> float | None:
        """The shortest grant for objects of ``bucket/prefix``; ``None`` if a rule keeps none of some of them."""
        shortest = inf
        for rule in self._rules:
            if not rule.may_match_below(prefix):
                continue
            if not rule.cache or rule.freshness == ALWAYS:
                return None
            shortest = min(shortest, rule.grant)
            if covers_prefix(rule.match, prefix):
                break
        return shortest

    def listed(self, path: str) -> list[str]:
        """The globs of the rules that may have recorded listings with ``bucket/key``."""
        return [match for match in self.listings if glob_matches(match, path)]
