"""One thread that works ahead while the training loop computes.

Not a `concurrent.futures` executor, because that makes the interpreter wait at its end for whatever still runs, and a request to
a gateway that has gone may run for a while.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

T = TypeVar("T")
_Task = tuple["Future[Any]", Callable[[], Any]]


class Background:
    """Runs what is submitted, one after the other, in a thread of its own that begins with the first task.

    A process that inherits this by fork, or receives it by pickling, has a thread of its own.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] | None = None
        self._process = 0

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Have the task run; its result or exception is in the future."""
        if self._tasks is None or self._process != os.getpid():
            self._tasks = SimpleQueue()
            self._process = os.getpid()
            threading.Thread(target=_work, args=(self._tasks,), name="larder-ahead", daemon=True).start()
            weakref.finalize(self, self._tasks.put, None).atexit = False
        future: Future[T] = Future()
        self._tasks.put((future, task))
        return future

    def __getstate__(self) -> dict[str, object]:
        return {"_tasks": None, "_process": 0}


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (task := tasks.get()) is not None:
        future, function = task
        if not future.set_running_or_notify_cancel():
            continue
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        # The thread waits for the next task without holding on to the last batch.
        del task, future, function
