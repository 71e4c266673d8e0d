"""Printing: for people, or as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence


def line(text: str = "") -> None:
    """One line on standard output."""
    sys.stdout.write(text + "\n")


def note(text: str) -> None:
    """One line on standard error, which is not part of the result."""
    sys.stderr.write(text + "\n")


def document(value: object) -> None:
    """A JSON document on one line."""
    line(json.dumps(value))


def table(rows: Sequence[Sequence[object]], indent: str = "") -> None:
    """Columns, each as wide as its widest cell; numbers to the right."""
    cells = [[f"{cell:,}" if isinstance(cell, int) else printable(str(cell)) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row, texts in zip(rows, cells, strict=True):
        shown = [
            text.rjust(width) if isinstance(cell, int) else text.ljust(width)
            for cell, text, width in zip(row, texts, widths, strict=True)
        ]
        line((indent + "  ".join(shown)).rstrip())


def facts(rows: Sequence[tuple[str, object]]) -> None:
    """Single facts, each after its name; those that are ``None`` are left out."""
    shown = [(name, printable(str(value))) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    for name, value in shown:
        line(f"{name.ljust(width)}  {value}")


def printable(key: str) -> str:
    """A key on one line of a terminal: unprintable characters are escaped."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in key)


def place(bucket: str, key: str, offset: int | None = None, length: int | None = None) -> str:
    """The location of an item: ``s3://bucket/key`` and, for a part, ``[offset:end]``."""
    address = f"s3://{bucket}/{printable(key)}"
    if not offset:
        return address
    return f"{address}[{offset}:{'' if length is None else offset + length}]"
