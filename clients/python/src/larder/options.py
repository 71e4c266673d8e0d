"""Checks of options and arguments of public functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex


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


def whole_number(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """The value as an ``int``, if it is a whole number within bounds; those of numpy are, too.

    Args:
        name: of the option, for the message.
        value: as given.
        least: smallest value; ``None``: no bound.
        most: largest value; ``None``: no bound.

    Raises:
        ValueError: it is another number, or none.
    """
    number = None if isinstance(value, bool) or not isinstance(value, SupportsIndex) else _as_index(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        bounds = f" from {least} to {most}" if most is not None else "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} must be a whole number{bounds}, not {value!r}")
    return number


def _as_index(value: SupportsIndex) -> int | None:
    """The ``int`` of a value; ``None`` if it has none, as arrays and tensors that are no single whole number."""
    try:
        number = operator.index(value)
    except TypeError:
        return None
    return None if type(value).__name__ in ("bool", "bool_") else number
