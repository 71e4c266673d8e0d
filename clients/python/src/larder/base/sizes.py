"""Readable sizes, in decimal units like those of the gateway's commands and console."""

from __future__ import annotations

import re

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgtp]?)(i?)b?", re.IGNORECASE)
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def format_size(amount: float) -> str:
    """Readable bytes: ``"1.5 MB"``."""
    for unit in _UNITS:
        if amount < 1000 or unit == _UNITS[-1]:
            break
        amount /= 1000
    return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"


def parse_size(text: str) -> int:
    """Bytes from ``"40GB"`` (decimal), ``"4MiB"`` (binary) or a plain number.

    Raises:
        ValueError: the text is not a size.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f'{text!r} is no size; examples: "40GB" or "4MiB"')
    power = " kmgtp".index(match[2].lower() or " ")
    unit = float(1024 if match[3] else 1000)
    return round(float(match[1]) * unit**power)
