"""Drawn pictures in ten classes, for the evaluation ``convnet``: no download, and the same every time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from lab.evaluation.origin import Data

Plane = NDArray[np.float64]
"""A value for each pixel."""
Pixels = NDArray[np.uint8]
_NOISE = 20.0
"""Standard deviation of the noise of a pixel, of 255."""
_CONTRAST = (50.0, 110.0)
"""The smallest and the largest difference between a figure and its ground, per colour."""
_THIN = 0.35
"""Thickness of lines, in multiples of a figure's radius."""


def _periodic(place: Plane) -> Plane:
    return np.sin(2.5 * np.pi * place)


FIGURES: dict[str, Callable[[Plane, Plane], Plane]] = {
    "disc": lambda x, y: 1 - np.hypot(x, y),
    "ring": lambda x, y: _THIN / 2 - abs(np.hypot(x, y) - 1 + _THIN / 2),
    "square": lambda x, y: 0.9 - np.maximum(abs(x), abs(y)),
    "frame": lambda x, y: _THIN / 2 - abs(np.maximum(abs(x), abs(y)) - 0.9 + _THIN / 2),
    "triangle": lambda x, y: np.minimum(0.6 - y, y + 1.1 - 1.7 * abs(x)),
    "cross": lambda x, y: np.minimum(_THIN - np.minimum(abs(x), abs(y)), 1 - np.maximum(abs(x), abs(y))),
    "bars": lambda x, y: np.minimum(_periodic(x), 1 - np.hypot(x, y)),
    "layers": lambda x, y: np.minimum(_periodic(y), 1 - np.hypot(x, y)),
    "chequers": lambda x, y: np.minimum(_periodic(x) * _periodic(y), 1 - np.hypot(x, y)),
    "waves": lambda x, y: np.minimum(_periodic(np.hypot(x, y)), 1 - np.hypot(x, y)),
}
"""A class's figure: positive inside, for coordinates from its centre in multiples of its radius."""
CLASSES = len(FIGURES)


class Shapes(Data):
    """A figure at a random place in each picture, turned a little, in random colours under noise; the name is the seed."""

    @cached_property
    def side(self) -> int:
        """Pixels of a side."""
        return math.isqrt(self.length // 3)

    def contents(self) -> Iterator[bytes]:
        """The pictures' pixels: three bytes each, row by row."""
        generator = np.random.default_rng(list(self.name.encode()))
        for number in range(self.items):
            yield _drawn(label(number), self.side, generator).tobytes()


def label(number: int) -> int:
    """The class of a picture."""
    return number % CLASSES


def pixels(item: bytes | memoryview, side: int) -> Pixels:
    """An item as an array of rows, columns and colours."""
    return np.frombuffer(item, np.uint8).reshape(side, side, 3)


def _drawn(kind: int, side: int, generator: np.random.Generator) -> Pixels:
    radius = generator.uniform(0.28, 0.4)
    across, down = generator.uniform(radius, 1 - radius, 2)
    turn = generator.uniform(-0.2, 0.2)
    rows, columns = np.mgrid[:side, :side] / side
    x, y = (columns - across) / radius, (rows - down) / radius
    figure = list(FIGURES.values())[kind]
    inside = figure(x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)) > 0
    contrast = generator.uniform(*_CONTRAST, 3) * generator.choice((-1, 1), 3)
    picture = generator.uniform(100, 155, 3) + inside[..., None] * contrast
    noisy: Plane = picture + generator.normal(0, _NOISE, picture.shape)
    return noisy.clip(0, 255).astype(np.uint8)
