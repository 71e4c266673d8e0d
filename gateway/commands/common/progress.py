"""Progress of long work, on standard error: a bar on a terminal, otherwise a line every ten seconds.

The fleet's work does not depend on this command: it survives a restart of the gateway, and Ctrl-C only stops watching.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeRemainingColumn

from gateway.commands.common.connection import Refused, Unreachable
from gateway.commands.common.output import console, note, number, size

EVERY = 0.5
"""Seconds between two requests."""
_LINE_EVERY = 10.0
"""Seconds between two lines."""
OUTAGE = 120.0
"""Seconds for which a gateway may be unreachable."""
State = Mapping[str, Any]
_PASSING = frozenset({502, 503, 504})


@dataclass(frozen=True, slots=True)
class ProgressStep:
    """The progress at one moment.

    Args:
        done: of ``total``.
        total: in the same unit; ``None`` while unknown.
        text: printed beside the bar.
    """

    done: float
    total: float | None
    text: str


class Teller(Protocol):
    """Prints progress."""

    def tell(self, step: ProgressStep) -> None:
        """Print the progress if that is due."""


@dataclass(frozen=True, slots=True)
class Time:
    """A monotonic clock in seconds, and a sleep function."""

    now: Callable[[], float] = time.monotonic
    pause: Callable[[float], None] = time.sleep


def watch(
    ask: Callable[[], State],
    step: Callable[[State], ProgressStep],
    ended: Callable[[State], bool],
    clock: Time | None = None,
) -> State:
    """Poll until the work has ended, and print progress; returns the last state.

    Args:
        ask: returns the current state.
        step: converts it to progress.
        ended: whether the work has ended.
        clock: replaces the machine's clock, for tests.

    Raises:
        Unreachable: there was no answer for two minutes.
        Refused: the gateway refused.
    """
    used = clock or Time()
    with _teller(used) as teller:
        while True:
            state = _patiently(ask, used)
            teller.tell(step(state))
            if ended(state):
                return state
            used.pause(EVERY)


def _patiently(ask: Callable[[], State], clock: Time) -> State:
    """Ask, and retry while the gateway may be restarting."""
    since = clock.now()
    while True:
        try:
            return ask()
        except (Unreachable, Refused) as error:
            passing = isinstance(error, Unreachable) or error.status in _PASSING
            if not passing or clock.now() - since > OUTAGE:
                raise
        clock.pause(EVERY)


@contextmanager
def _teller(clock: Time) -> Iterator[Teller]:
    if sys.stderr is None or not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield _Lines(clock)
        return
    columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=console(sys.stderr), transient=True) as progress:
        yield _Bar(progress, progress.add_task("", total=None))


class _Bar:
    """Redraws a bar."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress = progress
        self._task = task

    def tell(self, step: ProgressStep) -> None:
        """Redraw it."""
        self._progress.update(self._task, completed=step.done, total=step.total, description=step.text)
        self._progress.refresh()


class _Lines:
    """Writes a line at most every ten seconds, so that a log stays short."""

    def __init__(self, clock: Time) -> None:
        self._clock = clock
        self._next = clock.now() + _LINE_EVERY

    def tell(self, step: ProgressStep) -> None:
        """Write the line if it is due."""
        if self._clock.now() >= self._next:
            self._next = self._clock.now() + _LINE_EVERY
            part = f"{step.done / step.total:.0%}  " if step.total else ""
            note(f"{part}{step.text}")


def amounts(done: object, total: object, done_bytes: object, total_bytes: object, unit: str) -> str:
    """``"12 of 30 objects, 1.2 MB of 3.0 MB"``, without unknown parts."""
    counts = f"{number(done) or 0}{f' of {number(total)}' if total is not None else ''} {unit}"
    return f"{counts}, {size(done_bytes) or 0}{f' of {size(total_bytes)}' if total_bytes is not None else ''}"
