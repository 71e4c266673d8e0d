"""Shared by all warm-ups: progress, the position to resume from, and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from gateway.model.errors import LarderError
from gateway.model.keys import Principal

EXAMPLES = 20
"""Failures that are kept with their reason; further ones are only counted."""
_LONGEST_TEXT = 300


class WarmupRefused(LarderError):
    """The warm-up cannot succeed; the message has the reason and a remedy."""


class WarmupFailed(LarderError):
    """The warm-up cannot continue now; it can be resumed."""


class ProgressMark(NamedTuple):
    """The counts at a position to resume from, and the number of examples at that point."""

    done: int = 0
    done_bytes: int = 0
    there: int = 0
    failed: int = 0
    examples: int = 0


@dataclass(slots=True)
class WarmupProgress:
    """The progress of a warm-up.

    ``total`` objects or items of ``total_bytes`` are wanted; ``None`` while they are counted. ``done`` have been processed,
    ``done_bytes`` are in the cache now, ``there`` were cached before, ``failed`` could not be loaded, some of them with the
    reason in ``examples``. ``cursor`` is the position to resume from, with the counts ``marked``.
    """

    total: int | None = None
    total_bytes: int | None = None
    done: int = 0
    done_bytes: int = 0
    there: int = 0
    failed: int = 0
    examples: list[dict[str, str]] = field(default_factory=list)
    cursor: str = ""
    marked: ProgressMark = field(default_factory=ProgressMark)

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
        self.marked = ProgressMark(self.done, self.done_bytes, self.there, self.failed, len(self.examples))

    def rewind(self) -> None:
        """Return to the last mark; later units are processed again."""
        self.done, self.done_bytes, self.there, self.failed, examples = self.marked
        del self.examples[examples:]

    def restart(self) -> None:
        """Start over."""
        self.total = self.total_bytes = None
        self.cursor, self.marked = "", ProgressMark()
        self.rewind()

    def to_json(self) -> dict[str, Any]:
        """JSON types only."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> WarmupProgress:
        """Parse a document of ``to_json``; an empty one means that nothing was done yet.

        Raises:
            ValueError, TypeError, KeyError: the document is malformed.
        """
        if not document:
            return cls()
        own = {part.name: document[part.name] for part in fields(cls)}
        return cls(**own | {"marked": ProgressMark(*map(int, own["marked"]))})


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
