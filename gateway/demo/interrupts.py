"""Safe handling of Ctrl-C at any moment.

A signal between the start of a process and the line that records it would leave the process behind, and
one during the clean-up would leave the rest behind. So the first signal becomes KeyboardInterrupt
wherever the program is, except inside `uninterrupted`, which delays it; after the first one nothing interrupts the
clean-up.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """Turns the first of SIGINT, SIGTERM and SIGHUP into KeyboardInterrupt; installed by `with`, in the main thread."""

    def __init__(self) -> None:
        self._seen = False
        self._delayed = 0
        self._before = [signal.getsignal(number) for number in SIGNALS]

    def __enter__(self) -> Interrupts:
        for number in SIGNALS:
            signal.signal(number, self._receive)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in zip(SIGNALS, self._before, strict=True):
            signal.signal(number, handler)

    @contextmanager
    def uninterrupted(self) -> Iterator[None]:
        """Delay a signal until the end of the block."""
        self._delayed += 1
        try:
            yield
        finally:
            self._delayed -= 1
        if self._seen and not self._delayed:
            self._seen = False
            self._raise()

    def ignore(self) -> None:
        """Ignore all further signals: the clean-up follows."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        if self._delayed:
            self._seen = True
        else:
            self._raise()

    def _raise(self) -> None:
        self.ignore()
        raise KeyboardInterrupt
