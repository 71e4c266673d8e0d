"""Sizes and durations in readable form: "10GB", "4MiB", "10m"."""

from __future__ import annotations

import re

_SIZES = {
    "": 1, "b": 1,
    "k": 1000, "kb": 1000, "m": 1000**2, "mb": 1000**2, "g": 1000**3, "gb": 1000**3, "t": 1000**4, "tb": 1000**4,
    "kib": 1024, "ki": 1024, "mib": 1024**2, "mi": 1024**2, "gib": 1024**3, "gi": 1024**3, "tib": 1024**4, "ti": 1024**4,
}  # fmt: skip
_SECONDS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST = 1e12
_NUMBER = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-zA-Z]*)\s*")


def _parse(text: str, units: dict[str, float] | dict[str, int], example: str) -> float:
    match = _NUMBER.fullmatch(text)
    if text.lstrip().startswith("-"):
        raise ValueError(f"{text!r} is negative; examples: {example}")
    if match is None or match[2].lower() not in units:
        raise ValueError(f"{text!r} is invalid; examples: {example}")
    return float(match[1]) * units[match[2].lower()]


def parse_size(text: str | int) -> int:
    """Bytes from "10GB" (decimal), "4MiB" (binary) or a plain number.

    Raises:
        ValueError: the text is not a size.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    return round(_parse(str(text), _SIZES, '"10GB" or "4MiB"'))


def parse_duration(text: str | float) -> float:
    """Seconds from "90s", "10m", "1h", "7d" or a plain number.

    Raises:
        ValueError: the text is not a duration.
    """
    if isinstance(text, (int, float)) and not isinstance(text, bool) and 0 <= text <= _LONGEST:
        return float(text)
    return _parse(str(text), _SECONDS, '"90s", "10m" or "1h"')


def format_size(size: float) -> str:
    """A readable size in decimal units: 1234567 gives "1.2 MB"."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"
