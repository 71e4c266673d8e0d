"""Loads of warm-ups, within the reader's rights and the rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from gateway.base.tasks import for_each
from gateway.engine.operations.warm_objects import Span, WarmObjects
from gateway.model.keys import ObjectKey, Principal
from gateway.operate.warm.warming import WarmupProgress
from gateway.policies.reads.rules import Rules

_AT_ONCE = 16
"""Objects that one warm-up loads at once, on all nodes."""
_NOT_ALLOWED = "the allow-list of the access key does not cover it"
_RULED_OUT = "a rule says cache = false"


class PermittedLoads:
    """Loads and counts the objects of warm-ups, within the rights of their key and the rules.

    Args:
        objects: loads objects.
        rules: in force.
    """

    def __init__(self, objects: WarmObjects, rules: Callable[[], Rules]) -> None:
        self._objects = objects
        self._rules = rules

    def excluded(self, principal: Principal, path: str) -> str:
        """Why ``bucket/key`` is not loaded; empty if it is."""
        if not principal.may_touch(path):
            return _NOT_ALLOWED
        return "" if self._rules().for_path(path).cache else _RULED_OUT

    async def load(
        self, principal: Principal, wanted: Iterable[tuple[ObjectKey, Span]], progress: WarmupProgress
    ) -> None:
        """Load objects, or spans of them, a few at once, and count them."""

        async def load(part: tuple[ObjectKey, Span]) -> None:
            key, span = part
            if why := self.excluded(principal, key.path):
                progress.fail(key.key, why)
                return
            done = await self._objects.load(key, principal.tenant, principal.identity, span)
            if done.failure:
                progress.fail(key.key, done.failure)
            else:
                progress.loaded(done.size, done.there)

        await for_each(wanted, load, _AT_ONCE)
