"""Functions of the pipelines under test, and their datasets: in a module, since worker processes import them."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import larder
from larder.pipelines import Pipeline
from larder.testing import MemorySource


def pipeline_of(items: int = 103, **options: Any) -> Pipeline:
    """A pipeline over items in memory, each its own number as text; by default in this process."""
    options = {"workers": 0, "source": MemorySource(items), **options}
    options = {name: value for name, value in options.items() if value is not None}
    return larder.pipeline("numbers", **options)


def number(item: Any) -> int:
    """The item's number."""
    return int(bytes(item.data))


def vector(item: Any) -> dict[str, Any]:
    """Four times the item's number, and a name."""
    return {"x": np.full(4, number(item)), "name": f"item {number(item)}"}


def noisy(value: int) -> tuple[int, float, float]:
    """The value with random numbers of two generators."""
    return value, random.random(), float(np.random.rand())


def even(value: int) -> bool:
    """True if a number is even."""
    return value % 2 == 0


def failing_at_7(item: Any) -> int:
    """The item's number; raises for item 7."""
    if number(item) == 7:
        raise ZeroDivisionError("seven")
    return number(item)


def unstorable_at_7(item: Any) -> Any:
    """The item's number; a lock for item 7."""
    return {"lock": [threading.Lock()]} if number(item) == 7 else number(item)


def dying_at_7(item: Any) -> int:
    """The item's number; ends the process for item 7."""
    if number(item) == 7:
        os.kill(os.getpid(), signal.SIGKILL)
    return number(item)


def hanging_at_7(item: Any) -> int:
    """The item's number; never returns for item 7."""
    while number(item) == 7:
        time.sleep(3600)
    return number(item)


def holding_the_lock(item: Any) -> int:
    """Prints the process, and keeps the interpreter's lock, as an extension module may; no thread of Python runs meanwhile."""
    print(os.getpid(), flush=True)
    return int(ctypes.PyDLL(None).sleep(60))


class Unsayable(Exception):
    """An exception whose message raises."""

    def __str__(self) -> str:
        raise RuntimeError("no message")


def unsayable_at_7(item: Any) -> int:
    """The item's number; raises what cannot be shown for item 7."""
    if number(item) == 7:
        raise Unsayable
    return number(item)


class DyingOnce:
    """The item's number; the first process that sees item 7 dies of it, after it has written a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __call__(self, item: Any) -> int:
        """The number."""
        if number(item) == 7 and not self.file.exists():
            self.file.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return number(item)


class Adding:
    """The item's number and more, which may change; and the process that added it."""

    def __init__(self, more: int) -> None:
        self.more = more

    def __call__(self, item: Any) -> tuple[int, int]:
        """The sum and the process."""
        return number(item) + self.more, os.getpid()


def with_process(item: Any) -> tuple[int, int]:
    """The item's number, and the process that computed it; slow enough for others to get a share."""
    time.sleep(0.002)
    return number(item), os.getpid()


def whole(items: int = 103) -> Counter[int]:
    """Every item once."""
    return Counter(range(items))


REMEMBERED: list[int] = []
HANGING, RELEASED = threading.Event(), threading.Event()


def remembering(item: Any) -> int:
    """The item's number, which a global remembers."""
    REMEMBERED.append(number(item))
    return number(item)


def waiting_for_release(item: Any) -> int:
    """The item's number, once a test allows it."""
    HANGING.set()
    RELEASED.wait(60)
    return number(item)
