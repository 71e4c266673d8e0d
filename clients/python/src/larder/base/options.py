"""Checks of options and arguments of public functions."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import SupportsIndex


def refuse_unknown(options: Iterable[str], *known: str) -> None:
    """Refuse options that do not exist.

    Args:
        options: names of the given options.
        known: names of all options.

    Raises:
        TypeError: an option is unknown; the message lists the known ones.
    """
    if unknown := sorted(set(options).difference(known)):
        raise TypeError(f"unknown option {', '.join(unknown)}; the options are {', '.join(known)}")


def whole_number(name: str, value: object, least: int | None = None, most: int | None = None) -> int:
    """The value as an ``int``, if it is a whole number within bounds, including numpy's integers.

    Args:
        name: of the option, for the message.
        value: as given.
        least: smallest value; ``None``: no bound.
        most: largest value; ``None``: no bound.

    Raises:
        ValueError: it is not a whole number, or is out of bounds.
    """
    number = as_whole_number(value)
    if number is None or (least is not None and number < least) or (most is not None and number > most):
        bounds = f" from {least} to {most}" if most is not None else "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} must be a whole number{bounds}, not {value!r}")
    return number


def as_whole_number(value: object) -> int | None:
    """The value as an ``int``, also from numpy and from tensors of one element; ``None`` for booleans and anything else."""
    kind = str(getattr(value, "dtype", type(value).__name__))
    if kind.endswith("bool") or not isinstance(value, SupportsIndex):
        return None
    try:
        return operator.index(value)
    except TypeError:  # an array or tensor that is not a single whole number
        return None
