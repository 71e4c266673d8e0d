"""Ctrl-C while workers are started and read: it reaches the training loop alone, and nothing is lost by it.

Python raises KeyboardInterrupt between any two steps of the main thread, so also when half of a message has been read, or before
an event that was read is noted. In a notebook the next epoch uses the same workers: it would take the other half for a message,
or wait for a worker whose end it never saw.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """An interrupt inside is raised at the end; nothing inside may take long."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield  # KeyboardInterrupt is raised in the main thread only
        return
    came: list[Any] = []
    signal.signal(signal.SIGINT, lambda *signaled: came.append(signaled))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            before(*came[0])


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Processes started inside never get SIGINT: the mask is inherited. An interrupt in the meantime is delivered afterwards."""
    resource_tracker.ensure_running()  # it would be started inside otherwise, and unblocks the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
