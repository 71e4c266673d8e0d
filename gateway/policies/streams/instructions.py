"""The vocabulary of the read-ahead state machines: their instructions, and the replies.

``ahead.py`` loads ahead of scans, ``wholes.py`` loads random streams whole. The gateway and the simulator run both unchanged:
they report reads and turns, carry out instructions, and report how each ended. A machine waits for nothing, and knows the time
only from its turns.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from gateway.model.keys import ObjectKey, Principal
from gateway.policies.reads.rules import OFF, Rules
from gateway.policies.streams.groups import SCANS
from gateway.policies.streams.pattern import Pattern
from gateway.policies.streams.stream import Stream

Span = tuple[int, int] | None
"""First byte of an object, and end (exclusive); ``None`` for all of it."""
Asker = TypeVar("Asker")
_PATTERNS = {pattern.value: pattern for pattern in Pattern}


class ListPage(NamedTuple, Generic[Asker]):
    """Instruction: list a page of names with a reader's rights. ``listed`` or ``refused`` answers it.

    Attributes:
        after: the name after which it begins, relative to the prefix.
        deep: list all objects below the prefix, rather than its children.
        asker: what it is listed for.
        token: of the previous page; takes precedence over ``after``.
    """

    principal: Principal
    bucket: str
    prefix: str
    after: str
    deep: bool
    asker: Asker
    token: str = ""


class Load(NamedTuple, Generic[Asker]):
    """Instruction: load an object, or a span of it, with a reader's rights. ``ended`` answers it.

    Attributes:
        asker: what it is for.
        pool: the name of the pool that it enters; empty for that of its key.
    """

    principal: Principal
    key: ObjectKey
    span: Span
    asker: Asker
    pool: str = ""


class LogFailure(NamedTuple):
    """Instruction: log why a stream cannot be loaded ahead, or as a ``whole``."""

    stream: str
    why: str
    whole: bool = False


Instruction = ListPage[Any] | Load[Any] | LogFailure


class ListedSibling(NamedTuple):
    """A name of a listing, relative to its prefix: an object with its size in bytes, or a common prefix (``folder/``)."""

    name: str
    is_object: bool
    size: int


class ListedPage(NamedTuple):
    """A page of a listing. ``truncated``: more follow. ``token`` continues the listing, if the store gives one."""

    siblings: Sequence[ListedSibling]
    truncated: bool
    token: str = ""


@dataclass(slots=True)
class AheadBytes:
    """Bytes loaded ahead so far; of these, those that were read, and those that were not."""

    loaded: int = 0
    used: int = 0
    wasted: int = 0


@dataclass(frozen=True, slots=True)
class LoadRights:
    """What readers may have loaded; both are looked up again for each load.

    Attributes:
        principal: finds the principal of an access key; ``None`` for a key that is no longer known.
        rules: in force.
    """

    principal: Callable[[str], Principal | None]
    rules: Callable[[], Rules]

    def permit(self, principal: Principal, path: str, without: Collection[str] = (OFF,)) -> bool:
        """Whether a principal may read ``bucket/key`` and the rule permits loading it; ``without``: patterns that forbid it."""
        rule = self.rules().for_path(path)
        return principal.may_touch(path) and rule.cache and rule.pattern not in without


def block_span(block: int, size: int) -> Span:
    """The range of bytes of a block of ``size`` bytes."""
    return block * size, (block + 1) * size


def pattern_of(stream: Stream, rules: Rules) -> Pattern | None:
    """Pattern of a stream: set by the rule for its latest child, or else recognised."""
    bucket = stream.bucket.removeprefix(SCANS).rpartition(":")[2]
    latest = "" if stream.blocks else stream.latest
    return _PATTERNS.get(rules.for_path(f"{bucket}/{stream.prefix}{latest}").pattern, stream.pattern)
