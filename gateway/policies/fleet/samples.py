"""Which samples of a node are kept for long, which node is forgotten when there are too many, and when chunks are held."""

from __future__ import annotations

from collections.abc import Collection, Mapping

MINUTE = 60.0
"""Seconds between two samples that are kept for long."""


def minute_begins(last: float | None, now: float) -> bool:
    """Whether a sample is kept for long, too; ``last``: the time of the last one, which a clock set back leaves in the future."""
    return last is None or not 0 <= now - last < MINUTE


def held_changes(known: Collection[str], held: Collection[str]) -> tuple[list[str], list[str]]:
    """Chunks that are held now and were not, and those that were held and are not any more."""
    return sorted(set(held) - set(known)), sorted(set(known) - set(held))


def surplus(heard: Mapping[str, float], most: int) -> str | None:
    """The node to forget: the one heard least recently, if there are more than ``most``."""
    return min(heard, key=lambda node: (heard[node], node)) if len(heard) > most else None
