"""Which rules can never match, because an earlier rule matches everything that they would.

Whether one glob covers another is decided only where that is plain: a rule without wildcards, one that appears twice, and one
whose fixed beginning is under an earlier ``fixed/**``. Reports are certain; a covered rule may go unreported.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.model.keys import glob_matches

_WILD = "*?["


def hidden_by(globs: Sequence[str]) -> dict[int, int]:
    """For each glob that can never be the first to match, by its place: the place of the first glob that hides it.

    Each glob is compared with few earlier ones, because the event loop lists up to a thousand rules.
    """
    hidden: dict[int, int] = {}
    first: dict[str, int] = {}
    whole: dict[str, int] = {}
    """The fixed beginning of each ``fixed/**``."""
    lengths: set[int] = set()
    wild: list[tuple[int, str, str]] = []
    for place, glob in enumerate(globs):
        fixed = fixed_part(glob)
        earlier = [first.setdefault(glob, place), *(whole.get(fixed[:length], place) for length in lengths)]
        if fixed == glob:
            matching = (at for at, beginning, wide in wild if glob.startswith(beginning) and glob_matches(wide, glob))
            earlier.append(next(matching, place))
        elif glob == f"{fixed}**":
            whole.setdefault(fixed, place)
            lengths.add(len(fixed))
        else:
            wild.append((place, fixed, glob))
        if min(earlier) < place:
            hidden[place] = min(earlier)
    return hidden


def fixed_part(glob: str) -> str:
    """The part of a glob before its first wildcard; every matching path begins with it."""
    return glob[: next((place for place, letter in enumerate(glob) if letter in _WILD), len(glob))]


def ways(globs: Sequence[str], start: str) -> list[str]:
    """The folders directly below ``start``, with their last slash, that lead to what the globs match."""
    folders = (fixed[: fixed.rfind("/") + 1] for fixed in map(fixed_part, globs))
    below = (folder for folder in folders if folder.startswith(start) and folder != start)
    return sorted({folder[: folder.index("/", len(start)) + 1] for folder in below})
