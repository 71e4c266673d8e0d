"""A single background thread, for requests that run while the training loop computes.

Not a `concurrent.futures` executor: the interpreter waits for an executor's tasks when it exits, and a request to a gateway that
is gone may run for minutes.
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


class BackgroundThread:
    """Runs submitted tasks one by one, in a thread that starts with the first task.

    Forked and unpickled copies start a thread of their own.
    """

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] | None = None
        self._process = 0

    def submit(self, task: Callable[[], T]) -> Future[T]:
        """Schedule the task; the future receives its result or exception."""
        if self._tasks is None or self._process != os.getpid():
            self._tasks = SimpleQueue()
            self._process = os.getpid()
            threading.Thread(target=_work, args=(self._tasks,), name="larder-background", daemon=True).start()
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
        # Release the last batch while waiting for the next task.
        del task, future, function
