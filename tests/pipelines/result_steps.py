"""Functions of pipelines whose results are stored: in a module, since worker processes import them."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import larder
from larder.reading.source import Access, Item


class Noting:
    """Returns an item's bytes as an array, and writes a line to a file for every computed item.

    Args:
        file: takes the lines; each line is written in one call.
        factor: multiplies the array.
        seconds: duration of each call.
        fails: index of an item for which it raises.
    """

    def __init__(self, file: Path, factor: int = 1, seconds: float = 0.0, fails: int = -1) -> None:
        self.file = str(file)
        self.factor = factor
        self.seconds = seconds
        self.fails = fails

    def __call__(self, item: Item) -> dict[str, Any]:
        """The element."""
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(f"{item.index}\n")
        if self.seconds:
            time.sleep(self.seconds)
        if item.index == self.fails:
            raise ValueError("told to")
        return {"index": item.index, "data": self.factor * np.frombuffer(item.data, np.uint8).astype(np.int64)}

    def computed(self) -> Counter[int]:
        """The number of computations of each item."""
        if not os.path.exists(self.file):
            return Counter()
        return Counter(map(int, Path(self.file).read_text().split()))


class Drawing(Noting):
    """Like ``Noting``, with random numbers added to the array."""

    def __call__(self, item: Item) -> dict[str, Any]:
        """The element."""
        element = super().__call__(item)
        return {**element, "data": element["data"] + np.random.randint(1000, size=len(element["data"]))}


FACTOR = 1
"""Factor of ``scaled``: a global, separate in every process."""


def scaled(item: Item) -> dict[str, Any]:
    """The bytes of an item as an array, times ``FACTOR``."""
    return {"index": item.index, "data": FACTOR * np.frombuffer(item.data, np.uint8).astype(np.int64)}


def labelled(item: Item) -> tuple[str, int]:
    """The item's key, and its length."""
    return item.key, len(item.data)


def in_place(element: dict[str, Any]) -> dict[str, Any]:
    """The element, with its array overwritten: a stored one must not notice."""
    element["data"] += 1
    return element


def enlarged(element: dict[str, Any]) -> dict[str, Any]:
    """The element, with an array of 128 KiB."""
    return {**element, "more": np.zeros(1 << 17, np.uint8)}


def indices(element: dict[str, Any]) -> int:
    """The number of the element's item."""
    return int(element["index"])


def even(element: dict[str, Any]) -> bool:
    """True if the number of the element's item is even."""
    return int(element["index"]) % 2 == 0


def train(endpoint: str, name: str, step: Noting, access: Access, found: Any) -> None:
    """One epoch of a job with one worker, in a separate process: the sums of its elements come into the queue."""
    made = larder.pipeline(name, workers=1, cache=2, access=access, endpoint=endpoint).map(step).autocache()
    found.put(sorted((element["index"], int(element["data"].sum())) for element in made))
    made.close()
