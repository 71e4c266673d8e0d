"""Ctrl-C while workers are started and read: it reaches only the training loop, and loses nothing.

Python raises KeyboardInterrupt between any two steps of the main thread, even after half a message was read, or before a received
event is recorded. In a notebook the next epoch uses the same workers: it would take the other half for a message, or wait for a
worker whose end it missed.
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
    resource_tracker.ensure_running()  # otherwise it would be started inside, and unblock the signal
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
