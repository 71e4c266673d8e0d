"""``larder estimate``: estimates how much of the store's traffic a cache would save."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import asdict
from pathlib import Path

from larder.base.errors import LarderError
from larder.base.sizes import format_size
from larder.commands import output
from larder.commands.dataset import client_of
from larder.planner.expected import USABLE, expected_reads

_SHARES = (0.2, 0.5, 0.8, 1.0)
"""Shares of the dataset: the sizes of caches if none are given."""


def estimate(arguments: Namespace) -> int:
    """``larder estimate``."""
    items, size = _dataset(arguments)
    if not items or not size:
        raise ValueError(f"{arguments.dataset or 'the dataset'} is empty")
    caches = arguments.cache or [round(share * size / USABLE) for share in _SHARES]
    rows = [(cache, expected_reads(items, size, cache, arguments.jobs)) for cache in caches]
    if arguments.json:
        known = {"items": items, "bytes": size, "jobs": arguments.jobs}
        output.document({**known, "caches": [{"cache": cache, **asdict(expected)} for cache, expected in rows]})
        return 0
    mean = size / items
    output.line(f"{items:,} items, {format_size(size)}, {arguments.jobs} jobs; each epoch from the second on:")
    heading = ("CACHE", "HELD", "READS", "BYTES", "WITHOUT", *(("BY PATH",) if arguments.jobs == 1 else ()))
    output.table([
        heading,
        *(
            (
                format_size(cache),
                f"{expected.held:.1%}",
                round(expected.reads),
                format_size(expected.reads * mean),
                round(expected.uncached),
                *((round(expected.by_path),) if arguments.jobs == 1 else ()),
            )
            for cache, expected in rows
        ),
    ])  # fmt: skip
    return 0


def _dataset(arguments: Namespace) -> tuple[int, int]:
    """Items and bytes of the dataset."""
    if arguments.dataset is None:
        if arguments.items is None or arguments.bytes is None:
            raise ValueError("give a dataset, or --items and --bytes")
        return arguments.items, arguments.bytes
    if Path(arguments.dataset).is_file():
        try:
            from larder.digest.file import read
        except ImportError as error:
            raise LarderError("a digest file is read with pyarrow: pip install 'larder[digest]'") from error
        file = read(arguments.dataset)
        return len(file), file.size
    known = client_of(arguments).dataset(arguments.dataset)
    return known.items, known.bytes
