"""Which samples of a node are kept for long, and which node is forgotten when there are too many."""

from __future__ import annotations

from collections.abc import Mapping

MINUTE = 60.0
"""Seconds between two samples that are kept for long."""


def minute_begins(last: float | None, now: float) -> bool:
    """Whether to keep a sample for long; ``last``: the time of the last one kept, in the future if a clock was set back."""
    return last is None or not 0 <= now - last < MINUTE


def surplus(heard: Mapping[str, float], most: int) -> str | None:
    """The node to forget: the one heard least recently, if there are more than ``most``."""
    return min(heard, key=lambda node: (heard[node], node)) if len(heard) > most else None
