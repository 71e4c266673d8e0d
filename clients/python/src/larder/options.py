"""Options of public functions, which are declared as a ``TypedDict`` each."""

from __future__ import annotations

from collections.abc import Iterable


def refuse_unknown(options: Iterable[str], *known: str) -> None:
    """Refuse options that do not exist.

    Args:
        options: names of those that were given.
        known: names of all that exist.

    Raises:
        TypeError: one is unknown; the message has all known ones.
    """
    if unknown := sorted(set(options).difference(known)):
        raise TypeError(f"unknown option {', '.join(unknown)}; the options are {', '.join(known)}")
