"""A program that registers one dataset after the other: ``python -m tests.store.registering DIRECTORY FILES BOOT``.

It prints a line for each of them.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from pathlib import Path

from gateway.store.datasets.registry import Registry


async def register(directory: Path, files: list[Path], boot: int) -> None:
    """Two names take turns, and so do the files."""
    registry = Registry(directory, boot)
    for number in itertools.count(1):
        await registry.register("tenant a", f"d{number % 2}", files[number % len(files)], "auto")
        print(number, flush=True)


if __name__ == "__main__":
    asyncio.run(register(Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir()), int(sys.argv[3])))
