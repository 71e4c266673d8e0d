"""The objects for the benchmarks."""

from __future__ import annotations

import os
from pathlib import Path

from lab.benchmarks.servers import BUCKET

SIZES = {"4 KiB": 4096, "110 KiB": 110 * 1024, "1 MiB": 1024**2, "8 MiB": 8 * 1024**2}
_HOW_MANY = {"4 KiB": 64, "110 KiB": 64, "1 MiB": 16, "8 MiB": 4}


def make_objects(root: Path) -> dict[str, list[str]]:
    """Random files of every size under the bucket; their keys by size."""
    (root / BUCKET).mkdir(parents=True)
    keys: dict[str, list[str]] = {}
    for size, length in SIZES.items():
        keys[size] = [f"{size.replace(' ', '')}-{number:03}" for number in range(_HOW_MANY[size])]
        for key in keys[size]:
            (root / BUCKET / key).write_bytes(os.urandom(length))
    return keys


def make_many(root: Path, prefix: str, count: int, length: int) -> list[str]:
    """``count`` different random files of one size; their keys."""
    (root / BUCKET).mkdir(parents=True, exist_ok=True)
    keys = [f"{prefix}-{number:05}" for number in range(count)]
    for key in keys:
        (root / BUCKET / key).write_bytes(os.urandom(length))
    return keys
