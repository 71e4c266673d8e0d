"""The demo's data: a small image dataset and one large object, the same bytes on every machine."""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Mapping
from importlib.metadata import distribution

import numpy
from PIL import Image

BUCKET = "demo"
LARGE_KEY = "large/weights.bin"
LARGE_SIZE = 64 * 1024**2
SIDE = 8
"""Pixels of a digit in a row, and rows."""
PALETTE = 255 / 16
ROW = 10
"""Consecutive images in scikit-learn's file that form a row; many rows have each digit once."""
PARTS = 3
"""One in this many rows is stored and learnt."""


def digits() -> dict[str, bytes]:
    """The 1,797 handwritten digits of scikit-learn, as PNG: ``digits/LABEL/NUMBER.png`` to bytes."""
    # Reads scikit-learn's file, because importing the package takes longer than all other imports of the demo together.
    file = distribution("scikit-learn").locate_file("sklearn/datasets/data/digits.csv.gz")
    table = numpy.loadtxt(str(file), delimiter=",")
    objects = {}
    for number, (*pixels, label) in enumerate(table):
        image = numpy.reshape(pixels, (SIDE, SIDE)) * PALETTE
        buffer = io.BytesIO()
        Image.fromarray(image.astype(numpy.uint8)).save(buffer, "PNG")
        objects[f"digits/{label:.0f}/{number:04}.png"] = buffer.getvalue()
    return objects


def learnt(images: Mapping[str, bytes]) -> dict[str, bytes]:
    """Images that are stored, and that a network learns; the others test it."""
    return {key: body for number, (key, body) in enumerate(images.items()) if number // ROW % PARTS == 1}


def large() -> dict[str, bytes]:
    """One object of 64 MiB that can be neither compressed nor deduplicated."""
    return {LARGE_KEY: random.Random(20).randbytes(LARGE_SIZE)}  # noqa: S311 - test data, not a secret


def unique_size(objects: Mapping[str, bytes]) -> int:
    """Bytes of the distinct objects."""
    return sum({hashlib.sha256(body).digest(): len(body) for body in objects.values()}.values())
