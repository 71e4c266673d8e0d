"""Progress of long work: one redrawn line on a terminal, a line from time to time elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TextIO

from larder.base.sizes import format_size

_REDRAW_EVERY = 0.2
"""Seconds between updates on a terminal."""
_LINE_EVERY = 30.0
"""Seconds between lines in a log."""
_BAR = 24
"""Characters of the progress bar."""


@dataclass(slots=True)
class Counts:
    """Progress of the work.

    Args:
        objects: objects done, including those that did not have to be read.
        bytes: of those objects.
        of_objects: objects known so far in total.
        of_bytes: likewise.
        listing: whether the totals still grow.
        reused: objects done that were known before.
        read_bytes: bytes read from the store.
        unit: the counted unit, if not objects.
    """

    objects: int = 0
    bytes: int = 0
    of_objects: int = 0
    of_bytes: int = 0
    listing: bool = True
    reused: int = 0
    read_bytes: int = 0
    unit: str = "objects"


class BuildProgress(Protocol):
    """Receives every step. It is called often, and decides itself what to show."""

    def update(self, counts: Counts) -> None:
        """Something was done."""

    def finish(self, counts: Counts) -> None:
        """End the bar, after success or failure."""


class Silent:
    """Shows nothing."""

    def update(self, counts: Counts) -> None:
        """Do nothing."""

    def finish(self, counts: Counts) -> None:
        """Do nothing."""


class Written:
    """Writes to a stream, as a bar when that is a terminal.

    Args:
        stream: usually standard error.
        clock: returns monotonic seconds.
    """

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.monotonic) -> None:
        self._stream = stream
        self._clock = clock
        self._terminal = is_terminal(stream)
        self._began = self._shown = clock()
        self._width = 0

    def update(self, counts: Counts) -> None:
        """Show the progress if the last time was long enough ago."""
        now = self._clock()
        if now - self._shown < (_REDRAW_EVERY if self._terminal else _LINE_EVERY):
            return
        self._shown = now
        self._show(describe(counts, now - self._began))

    def finish(self, counts: Counts) -> None:
        """Show the last state and leave the line."""
        if self._terminal:
            self._show(describe(counts, self._clock() - self._began))
            self._stream.write("\n")
            self._stream.flush()

    def _show(self, line: str) -> None:
        if self._terminal:
            # Overwrite the rest of a longer previous line.
            self._stream.write("\r" + line.ljust(self._width))
            self._width = len(line)
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


def is_terminal(stream: TextIO | None) -> bool:
    """Whether the stream is a terminal, which can be redrawn."""
    return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def shown(progress: BuildProgress, counts: Counts, read_bytes: Callable[[], int]) -> Iterator[None]:
    """Report progress from a thread, because a large object may take minutes.

    Args:
        progress: called several times a second, and at the end.
        counts: passed to it; ``read_bytes`` is updated first.
        read_bytes: returns the bytes read so far.
    """
    ended = threading.Event()

    def tell() -> None:
        while not ended.wait(_REDRAW_EVERY):
            counts.read_bytes = read_bytes()
            progress.update(counts)

    teller = threading.Thread(target=tell, daemon=True, name="larder-progress")
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()
        counts.read_bytes = read_bytes()
        progress.finish(counts)


def describe(counts: Counts, seconds: float) -> str:
    """One line: share done, objects, bytes, reused objects, speed and time left."""
    more = "+" if counts.listing else ""
    parts = [
        f"{counts.objects:,}/{counts.of_objects:,}{more} {counts.unit}",
        f"{format_size(counts.bytes)}/{format_size(counts.of_bytes)}{more}",
    ]
    if counts.reused:
        parts.append(f"{counts.reused:,} unchanged")
    speed = counts.read_bytes / seconds if seconds > 0 else 0.0
    parts.append(f"{format_size(speed)}/s")
    share = counts.bytes / counts.of_bytes if counts.of_bytes else float(not counts.listing)
    if speed and not counts.listing and counts.bytes < counts.of_bytes:
        parts.append(f"{duration((counts.of_bytes - counts.bytes) / speed)} left")
    filled = int(share * _BAR)
    return f"[{'#' * filled}{'.' * (_BAR - filled)}] {share:4.0%}  {', '.join(parts)}"


def duration(seconds: float) -> str:
    """Readable seconds: ``"1:02:03"`` or ``"02:03"``."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes:02}:{rest:02}"
