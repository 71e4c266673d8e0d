"""Which rule can never match, because one before it matches everything that it would.

Whether one glob covers another is decided only where that is plain: a rule without wildcards, one that appears twice, and
one whose fixed beginning lies under an earlier ``fixed/**``. What is reported is certain; what is not reported may still be so.
"""

from __future__ import annotations

from collections.abc import Sequence

from gateway.model.keys import glob_matches

_WILD = "*?["


def hidden_by(globs: Sequence[str]) -> dict[int, int]:
    """For each glob that can never be the first to match, by its place: the place of the earlier one that hides it."""
    hidden = {}
    for place, glob in enumerate(globs):
        earlier = next((before for before in range(place) if covers(globs[before], glob)), None)
        if earlier is not None:
            hidden[place] = earlier
    return hidden


def covers(wide: str, narrow: str) -> bool:
    """Whether it is plain that ``wide`` matches every path that ``narrow`` matches."""
    fixed = fixed_part(narrow)
    if wide == narrow or wide == "**" or (fixed == narrow and glob_matches(wide, narrow)):
        return True
    beginning = fixed_part(wide)
    return wide == beginning + "**" and fixed.startswith(beginning)


def fixed_part(glob: str) -> str:
    """The part of a glob before its first wildcard; every matching path begins with it."""
    return glob[: next((place for place, letter in enumerate(glob) if letter in _WILD), len(glob))]
