"""Runs tasks in threads: a bounded number in flight, results in order of completion."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Outcome(Generic[T, R]):
    """The outcome of a task: its result, or the error that it raised."""

    task: T
    result: R | None = None
    error: Exception | None = None


class _End:
    pass


_END = _End()


def concurrently(function: Callable[[T], R], tasks: Iterable[T], jobs: int) -> Iterator[Outcome[T, R]]:
    """Call a function for every task in ``jobs`` threads, and yield each result as soon as it is known.

    At most ``2 * jobs`` tasks are taken ahead. The tasks are taken in the caller's thread. Threads are daemons, so a
    caller that stops early does not wait for a hanging request.

    Raises:
        BaseException: whatever the iterable of tasks raises.
    """
    waiting: queue.SimpleQueue[T | _End] = queue.SimpleQueue()
    finished: queue.SimpleQueue[Outcome[T, R]] = queue.SimpleQueue()
    threads = [
        threading.Thread(target=_work, args=(function, waiting, finished), daemon=True, name=f"larder-{number}")
        for number in range(jobs)
    ]
    for thread in threads:
        thread.start()
    under_way = 0
    try:
        for task in tasks:
            waiting.put(task)
            under_way += 1
            while under_way >= 2 * jobs or not finished.empty():
                yield finished.get()
                under_way -= 1
        while under_way:
            yield finished.get()
            under_way -= 1
    finally:
        if under_way:
            _drain(waiting)
        for _ in threads:
            waiting.put(_END)
    for thread in threads:
        thread.join()


def _work(
    function: Callable[[T], R], waiting: queue.SimpleQueue[T | _End], finished: queue.SimpleQueue[Outcome[T, R]]
) -> None:
    while not isinstance(task := waiting.get(), _End):
        try:
            outcome: Outcome[T, R] = Outcome(task, function(task))
        except Exception as error:
            outcome = Outcome(task, error=error)
        finished.put(outcome)


def _drain(waiting: queue.SimpleQueue[T | _End]) -> None:
    try:
        while True:
            waiting.get_nowait()
    except queue.Empty:
        pass


def ahead(items: Iterable[T], room: int) -> Iterator[T]:
    """The same items, taken by a thread that runs up to ``room`` items ahead of the caller.

    Raises:
        Exception: whatever the iterable raises, at that item's turn.
    """
    taken: queue.Queue[T | _End | Exception] = queue.Queue(room)
    stopped = threading.Event()
    threading.Thread(target=_feed, args=(items, taken, stopped), daemon=True, name="larder-ahead").start()
    try:
        while not isinstance(item := taken.get(), _End):
            if isinstance(item, Exception):
                raise item
            yield item
    finally:
        stopped.set()


def _feed(items: Iterable[T], taken: queue.Queue[T | _End | Exception], stopped: threading.Event) -> None:
    def put(item: T | _End | Exception) -> None:
        while not stopped.is_set():
            try:
                taken.put(item, timeout=1.0)
                return
            except queue.Full:
                continue

    try:
        for item in items:
            put(item)
            if stopped.is_set():
                return
    except Exception as error:
        put(error)
        return
    put(_END)
