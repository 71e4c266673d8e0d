"""When to stop using the cache disk, and when to try it again.

    NORMAL ──failure, slow write──▶ UNSTABLE ──``failures`` within ``window``──▶ DOWN
       ▲                               │  ▲                                       │
       └── an Ok after ``calm`` quiet ─┘  └──────────── probe succeeded ──────────┘

NORMAL and UNSTABLE use the disk; UNSTABLE only remembers that it misbehaved, so that operators see it and the next
failures count. A failure that no repetition can cure (read-only, directory gone, index corrupt), or that lasted as long as the
store waits (index locked, disk hung), goes straight to DOWN. While DOWN nothing touches the disk except one probe at a time:
first after ``first_probe`` seconds, then at doubling intervals up to ``longest_probe``. A probe that succeeds leads to UNSTABLE
and not to NORMAL, because a disk that accepts one small file may still refuse the next large one; the interval is reset only by
reaching NORMAL.

The pattern is the circuit breaker of Nygard, *Release It!* (2007), chapter 5, with the half-open state played by the probe.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import StrEnum


class BreakerState(StrEnum):
    """State of the disk's breaker."""

    NORMAL = "normal"
    UNSTABLE = "unstable"
    DOWN = "down"


class FailureKind(StrEnum):
    """A kind of disk failure."""

    NO_SPACE = "no-space"
    READ_ONLY = "read-only"
    IO = "io"
    GONE = "gone"
    """The cache directory, or a file that must be in it, is no longer there."""
    CORRUPT = "corrupt"
    """The index is corrupt."""
    NEWER = "newer"
    """A newer version of Larder wrote the index."""
    BUSY = "busy"
    """The index stayed locked for longer than the patience of the store."""
    HUNG = "hung"
    """A call on the disk did not return within the store's patience."""
    EXHAUSTED = "exhausted"
    """The process is out of descriptors or memory, which says nothing about the disk."""
    SLOW = "slow"
    """A write succeeded but took longer than ``slow_write``."""


class Step(StrEnum):
    """The decision on the next call."""

    USE = "use"
    BYPASS = "bypass"
    PROBE = "probe"
    """Bypass, and start the one probe that is now due."""


@dataclass(frozen=True, slots=True)
class Ok:
    """A disk operation succeeded."""


@dataclass(frozen=True, slots=True)
class Failed:
    """A disk operation failed; ``total`` when it cannot be used at all, as after a failed start."""

    kind: FailureKind
    total: bool = False


@dataclass(frozen=True, slots=True)
class Wrote:
    """A write took ``seconds``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Probed:
    """The probe that was started has ended."""

    succeeded: bool


Event = Ok | Failed | Wrote | Probed


@dataclass(frozen=True, slots=True)
class BreakerParams:
    """Thresholds; times in seconds."""

    failures: int = 5
    window: float = 10.0
    calm: float = 10.0
    slow_write: float = 2.0
    first_probe: float = 1.0
    longest_probe: float = 30.0


INCURABLE = frozenset(
    set(FailureKind) - {FailureKind.NO_SPACE, FailureKind.IO, FailureKind.SLOW, FailureKind.EXHAUSTED}
)
"""Failures that every further call would meet as well. For BUSY and HUNG, each call would also wait until it times out."""


class Breaker:
    """The state machine above. ``now`` is in seconds of any clock that does not run backwards."""

    def __init__(self, params: BreakerParams | None = None) -> None:
        self._params = params or BreakerParams()
        self.slow_write = self._params.slow_write
        """Seconds; while NORMAL a faster write changes nothing."""
        self.state = BreakerState.NORMAL
        self.cause: FailureKind | None = None
        """The last failure; ``None`` while NORMAL."""
        self._recent: deque[float] = deque(maxlen=self._params.failures)
        self._interval = self._params.first_probe
        self._probe_at = 0.0
        self._probing = False

    def decide(self, now: float) -> Step:
        """Decide on the next call. PROBE is returned once; the next probe is due after a ``Probed`` event."""
        if self.state is not BreakerState.DOWN:
            return Step.USE
        if self._probing or now < self._probe_at:
            return Step.BYPASS
        self._probing = True
        return Step.PROBE

    def handle(self, event: Event, now: float) -> BreakerState:
        """Take note of an outcome; returns the new state."""
        match event:
            case Wrote(seconds) if seconds > self.slow_write:
                self._fail(FailureKind.SLOW, now)
            case Ok() | Wrote():
                if self.state is BreakerState.UNSTABLE:
                    self._calm_down(now)
            case Failed(FailureKind.EXHAUSTED, total=False):
                pass
            case Failed(kind, total):
                self._fail(kind, now, total=total)
            case Probed(succeeded):
                self._end_probe(succeeded, now)
        return self.state

    def _calm_down(self, now: float) -> None:
        quiet = not self._recent or now - self._recent[-1] >= self._params.calm
        if quiet:
            self.state = BreakerState.NORMAL
            self.cause = None
            self._interval = self._params.first_probe
            self._recent.clear()

    def _fail(self, kind: FailureKind, now: float, *, total: bool = False) -> None:
        if self.state is BreakerState.DOWN:
            return
        self.cause = kind
        self._recent.append(now)
        many = len(self._recent) == self._params.failures and now - self._recent[0] <= self._params.window
        if total or kind in INCURABLE or many:
            self.state = BreakerState.DOWN
            self._probe_at = now + self._interval
        else:
            self.state = BreakerState.UNSTABLE

    def _end_probe(self, succeeded: bool, now: float) -> None:
        if not self._probing:
            return
        self._probing = False
        self._interval = min(2 * self._interval, self._params.longest_probe)
        if succeeded:
            self.state = BreakerState.UNSTABLE
            self._recent.clear()
            self._recent.append(now)
        else:
            self._probe_at = now + self._interval
