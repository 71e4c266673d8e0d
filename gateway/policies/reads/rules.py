"""Which caching rule holds for which object: the first rule of the file that matches counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from gateway.model.keys import glob_matches
from gateway.policies.reads import hedging

IMMUTABLE = inf
ALWAYS = 0.0
AUTO, OFF = "auto", "off"
"""Of ``Caching.pattern``: recognise it; no streams."""


@dataclass(frozen=True, slots=True)
class Caching:
    """Caching of the objects of one rule. Times are seconds; ``freshness`` may be ``IMMUTABLE`` or ``ALWAYS``.

    ``pattern`` of the streams there: ``AUTO``, ``OFF``, or that of ``policies.streams.pattern.Pattern`` by which it is read.
    ``hedge``: ``"off"``, or after which quantile of the waiting times a read of the store is sent again (``hedging.QUANTILES``).
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


class Rules:
    """An ordered, immutable set of rules with a bounded memo of the rule for each path."""

    _MEMO = 8192

    def __init__(self, rules: Sequence[Caching] = ()) -> None:
        self._rules = (*rules, Caching())
        self.only = self._rules[0] if self._rules[0].match == "**" else None
        """The rule that holds for every object, if there is one."""
        self.hedging = any(rule.hedge != hedging.OFF for rule in self._rules)
        """Whether a rule has late reads sent again."""
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
