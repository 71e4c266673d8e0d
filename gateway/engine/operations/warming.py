"""Shared by all warm-ups: progress, the position to resume from, and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.model.errors import LarderError
from gateway.model.keys import Principal

EXAMPLES = 20
"""Failures that are kept with their reason; further ones are only counted."""
_LONGEST_TEXT = 300


class WarmupRefused(LarderError):
    """The warm-up cannot succeed; the message has the reason and a remedy."""


class WarmupFailed(LarderError):
    """The warm-up cannot continue now; it can be resumed."""


@dataclass(slots=True)
class WarmupProgress:
    """The progress of a warm-up.

    ``total`` objects or items of ``total_bytes`` are wanted; ``None`` while they are counted. ``done`` have been processed,
    ``done_bytes`` are in the cache now, ``there`` were cached before, ``failed`` could not be loaded, some of them with the
    reason in ``examples``. ``cursor`` is the position to resume from, with the counts of ``mark``.
    """

    total: int | None = None
    total_bytes: int | None = None
    done: int = 0
    done_bytes: int = 0
    there: int = 0
    failed: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)
    cursor: str = ""
    marked: tuple[int, int, int, int] = (0, 0, 0, 0)
    marked_examples: int = 0

    def loaded(self, size: int, there: bool) -> None:
        """Count a unit that is in the cache."""
        self.done += 1
        self.done_bytes += size
        self.there += there

    def fail(self, what: str, why: str) -> None:
        """Count a unit that could not be loaded."""
        self.done += 1
        self.failed += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append({"key": what[:_LONGEST_TEXT], "why": why[:_LONGEST_TEXT]})

    def mark(self, cursor: str) -> None:
        """Record that everything up to ``cursor`` was processed."""
        self.cursor = cursor
        self.marked = (self.done, self.done_bytes, self.there, self.failed)
        self.marked_examples = len(self.examples)

    def rewind(self) -> None:
        """Return to the last mark; later units are processed again."""
        self.done, self.done_bytes, self.there, self.failed = self.marked
        del self.examples[self.marked_examples :]

    def restart(self) -> None:
        """Start over."""
        self.total = self.total_bytes = None
        self.examples.clear()
        self.cursor, self.marked, self.marked_examples = "", (0, 0, 0, 0), 0
        self.rewind()

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return {
            "total": self.total,
            "total_bytes": self.total_bytes,
            "done": self.done,
            "done_bytes": self.done_bytes,
            "there": self.there,
            "failed": self.failed,
            "examples": list(self.examples),
            "cursor": self.cursor,
            "marked": [*self.marked, self.marked_examples],
        }

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> WarmupProgress:
        """Read ``to_json``; an empty mapping is the beginning.

        Raises:
            ValueError, TypeError, KeyError: the document is malformed.
        """
        if not told:
            return cls()
        done, size, there, failed, examples = map(int, told["marked"])
        own = {name: told[name] for name in ("total", "total_bytes", "done", "done_bytes", "there", "failed", "cursor")}
        known = [dict(example) for example in told["examples"]]
        return cls(**own, examples=known, marked=(done, size, there, failed), marked_examples=examples)


PrincipalSource = Callable[[], Principal | None]
"""Lists and reads for a warm-up; ``None`` once the access key has expired or was revoked."""
Capacity = Callable[[], int]


def require_valid(source: PrincipalSource) -> Principal:
    """The principal of a warm-up.

    Raises:
        WarmupFailed: its access key is no longer valid.
    """
    principal = source()
    if principal is None:
        raise WarmupFailed("the access key was revoked or has expired; start a warm-up with another one")
    return principal
