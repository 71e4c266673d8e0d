"""The register of nodes: who holds an id, and a node's entry after a heartbeat.

An id belongs to the node that holds it until its entry expires. Exceptions: a node that has left holds nothing; the workers of
a node share its start token; and a node that listens at the holder's address, on its host, and was started later succeeds it at
once, because two processes cannot listen there.

A node that one worker called READY stays READY when another worker says JOINING. An operator may drain a node: the decision names
one start of it, so a restarted node is not drained. The workers of a drained node say READY, and its entry says LEAVING.
They remember the decision in case Redis loses it. A node whose drain ends counts as ready from that moment: other nodes
were the home of its keys until then, and have what it lacks.

All times are milliseconds of Redis's clock (docs/decisions/0012).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.model.fleet import NodeState

NO_START = "-"
"""The start token of an entry that holds its id for no one."""
_FIELDS = 6
_DIGITS = 16
"""The most digits of a time in milliseconds."""
_DRIFT = 1000
"""Milliseconds by which the time since when a node is ready may move unnoticed: it is computed from the node's own clock."""


@dataclass(frozen=True, slots=True)
class RegisterEntry:
    """A node's entry. ``ready``: when the node became ready, 0 if it is not; ``boot``: the token of its start."""

    expires: int
    ready: int
    state: str
    boot: str
    place: str
    document: bytes

    @classmethod
    def from_text(cls, text: bytes) -> RegisterEntry | None:
        """Parse an entry; ``None`` if the text is not one."""
        parts = text.split(b" ", _FIELDS - 1)
        if len(parts) < _FIELDS or not all(part.isdigit() and len(part) <= _DIGITS for part in parts[:2]):
            return None
        state, boot, place = (part.decode("utf-8", "replace") for part in parts[2:5])
        return cls(int(parts[0]), int(parts[1]), state, boot, place, parts[5])

    def to_text(self) -> bytes:
        """The form kept in Redis."""
        words = f"{self.expires} {self.ready} {self.state} {self.boot} {self.place} "
        return words.encode() + self.document

    def differs(self, before: RegisterEntry) -> bool:
        """Whether other nodes would see a change. A later expiry and clock drift do not count as changes."""
        moved = abs(self.ready - before.ready) >= _DRIFT
        return moved or replace(self, expires=0, ready=0) != replace(before, expires=0, ready=0)

    def ready_for(self, now: int) -> int:
        """Milliseconds for which the node has been ready; -1 if it is not."""
        return now - self.ready if self.ready else -1


@dataclass(frozen=True, slots=True)
class NodeHeartbeat:
    """One worker's heartbeat.

    ``boot`` and ``place`` are those of its node, ``state`` the worker's view of it. ``ready_for`` is in milliseconds, -1 if
    unknown. ``last``: the worker stops; ``drained``: it believes that its node is drained; ``expire``: milliseconds for which the
    entry lasts.
    """

    boot: str
    place: str
    state: NodeState
    ready_for: int
    last: bool
    drained: bool
    expire: int
    document: bytes


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """The answer to a heartbeat.

    ``entry`` is the node's new entry as others see it, ``None`` if another node holds the id; ``state`` is the node's view of
    itself. ``drained``: an operator wants it to be home of nothing. ``decision`` is the new text of the operator's decision,
    empty to delete it, ``None`` to leave it.
    """

    entry: RegisterEntry | None
    state: NodeState
    drained: bool
    decision: str | None = None


def take_heartbeat(
    asked: NodeHeartbeat, holder: RegisterEntry | None, decided: str | None, now: int
) -> HeartbeatAnswer:
    """Take a heartbeat.

    Args:
        asked: the heartbeat.
        holder: the live entry of the id; ``None`` if there is none.
        decided: the operator's decision on the id, as ``drain_decision`` writes it; ``None`` for none.
        now: milliseconds of Redis's clock.
    """
    drained = asked.drained if decided is None else decided == drain_decision(asked.boot, True)
    own = holder if holder is not None and holder.boot == asked.boot else None
    if holder is not None and own is None and _holds(holder, asked):
        return HeartbeatAnswer(None, asked.state, drained)
    asked, since = _with_siblings(asked, own, drained)
    if asked.state is NodeState.READY:
        since = _ready_since(asked, own, since, now, back=asked.drained and not drained)
    decision = None
    if drained and decided is None:
        decision = drain_decision(asked.boot, True)
    elif decided is not None and not decided.startswith(f"{asked.boot} "):
        decision = ""
    shown = NodeState.LEAVING if drained and asked.state is NodeState.READY else asked.state
    token = NO_START if asked.last else asked.boot
    entry = RegisterEntry(now + asked.expire, since, shown.value, token, asked.place, asked.document)
    return HeartbeatAnswer(entry, asked.state, drained, decision)


def drain_decision(boot: str, drained: bool) -> str:
    """An operator's decision as text: the start that it is for, and 1 for drained."""
    return f"{boot} {int(drained)}"


def _holds(holder: RegisterEntry, asked: NodeHeartbeat) -> bool:
    """Whether another start holds the id, so that this one cannot have it."""
    return holder.boot != NO_START and not (holder.place == asked.place and holder.boot < asked.boot)


def _with_siblings(asked: NodeHeartbeat, own: RegisterEntry | None, drained: bool) -> tuple[NodeHeartbeat, int]:
    """The heartbeat combined with those of the node's other workers, and the time since which they report it ready."""
    if own is None:
        return asked, 0
    was_ready = own.state == NodeState.READY or (own.state == NodeState.LEAVING and own.ready > 0 and drained)
    if was_ready and asked.state is NodeState.JOINING:
        asked = replace(asked, state=NodeState.READY)
    if asked.last and own.state in NodeState.__members__ and own.state != NodeState.LEAVING:
        asked = replace(asked, last=False, state=NodeState(own.state))
    return asked, own.ready


def _ready_since(asked: NodeHeartbeat, own: RegisterEntry | None, since: int, now: int, *, back: bool) -> int:
    """When the node became READY; ``back`` if it was drained before."""
    if not since or (back and own is not None and own.state == NodeState.LEAVING):
        since = now
    return min(since, now - asked.ready_for) if asked.ready_for >= 0 and not back else since
