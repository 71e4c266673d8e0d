"""Checks of options and arguments of public functions."""

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


def whole_number(name: str, value: object, least: int) -> int:
    """The value, if it is a whole number of at least ``least``.

    Args:
        name: of the option, for the message.
        value: as given.
        least: smallest value.

    Raises:
        ValueError: it is another number, or none.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, not {value!r}")
    return value
