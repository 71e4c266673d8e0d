"""Printing. Tables have lines and colours on a terminal; elsewhere they are plain columns for grep and awk, never truncated.

On a terminal only texts of several words wrap. If a table still does not fit, each row becomes a list of its cells.

Names are untrusted and may contain any character. They are printed on one line with unprintable characters escaped, so a key can
neither control the terminal nor forge a line.
"""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal, NamedTuple

from rich.box import SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from gateway.model.units import format_size

MISSING = "-"
PROGRAM = "larder-gateway"
STYLES: Mapping[str, str] = {
    "READY": "green",
    "JOINING": "yellow",
    "LEAVING": "yellow",
    "normal": "green",
    "unstable": "yellow",
    "down": "red",
    "lost": "red",
    "answers": "green",
    "refuses": "red",
    "silent": "red",
    "error": "bold red",
    "warning": "yellow",
    "revoked": "red",
    "disabled": "red",
    "in force": "green",
    "enabled": "green",
    "running": "cyan",
    "done": "green",
    "failed": "red",
    "refused": "red",
    "cancelled": "yellow",
    "HIT": "green",
    "MISS": "yellow",
    "BYPASS": "red",
}
"""Words that are coloured if they are the whole text of a cell."""


_PROSE = 20
"""Minimum width in characters of a text column whose texts are that long."""
_BYTES = frozenset({"size", "granted", "capacity", "bytes"})


def terminal() -> bool:
    """Whether standard output is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def console(stream: Any = None) -> Console:
    """The console for tables on a terminal; without colours if NO_COLOR is set (https://no-color.org)."""
    plain = bool(os.environ.get("NO_COLOR"))
    return Console(
        file=stream or sys.stdout, highlight=False, markup=False, emoji=False,
        color_system=None if plain else "auto",
    )  # fmt: skip


def document(value: object) -> None:
    """Print a JSON document, for ``--json``."""
    print(json.dumps(value, indent=2))


def line(text: str = "") -> None:
    """Print a line of the result."""
    print(text)


def note(text: str) -> None:
    """Print a line on standard error, beside the result."""
    print(text, file=sys.stderr, flush=True)


def heading(text: str, style: str = "bold") -> None:
    """Print the heading of the following lines."""
    if terminal():
        console().print(Text(printable(text), style))
    else:
        print(printable(text))


def table(columns: Sequence[Column], rows: Iterable[Mapping[str, Any]], empty: str = "") -> None:
    """Print a table of documents.

    Args:
        columns: define the cells.
        rows: the documents.
        empty: printed on standard error if there are none.
    """
    cells = [[column.cell(row) for column in columns] for row in rows]
    if not cells:
        note(empty)
    elif terminal():
        _drawn(columns, cells)
    else:
        _columns([[column.name.upper().replace(" ", "_") for column in columns], *cells], columns)


def facts(rows: Iterable[tuple[str, object]]) -> None:
    """Print single facts, each after its name; those that are ``None`` are left out."""
    shown = [(name, printable(str(value))) for name, value in rows if value is not None]
    width = max((len(name) for name, _ in shown), default=0)
    if not terminal():
        for name, value in shown:
            print(f"{name.ljust(width)}  {value}")
        return
    console().print(_grid(shown))


def _grid(shown: Iterable[tuple[str, str]]) -> Table:
    grid = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in shown:
        grid.add_row(Text(name, "bold"), Text(value, STYLES.get(value, ""), overflow="fold"))
    return grid


def _drawn(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    paper = console()
    drawn = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    least = 2 * (len(columns) - 1)
    for column, cells in zip(columns, zip(*rows, strict=True), strict=True):
        prose = not column.right and any(" " in cell for cell in cells)
        width = max(cell_len(text) for text in (column.name, *cells))
        least += min(width, max(_PROSE, cell_len(column.name))) if prose else width
        justify: Literal["left", "right"] = "right" if column.right else "left"
        drawn.add_column(Text(column.name), justify=justify, overflow="fold", no_wrap=not prose)
    for row in rows:
        drawn.add_row(*(Text(cell, STYLES.get(cell, "")) for cell in row))
    if least <= paper.width:
        paper.print(drawn)
        return
    for place, row in enumerate(rows):
        if place:
            paper.print()
        paper.print(_grid((column.name, cell) for column, cell in zip(columns, row, strict=True)))


def _columns(rows: Sequence[Sequence[str]], columns: Sequence[Column]) -> None:
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    for row in rows:
        padded = [
            cell.rjust(width) if column.right else cell.ljust(width)
            for cell, width, column in zip(row, widths, columns, strict=True)
        ]
        print("  ".join(padded).rstrip())


def printable(text: str) -> str:
    """A text on one line, with unprintable characters escaped."""
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def hint(*words: str) -> str:
    """A command line ready to be typed, with names quoted."""
    return shlex.join([PROGRAM, *words])


def size(amount: object) -> str | None:
    """Readable bytes; ``None`` if unknown."""
    return format_size(amount) if isinstance(amount, int | float) else None


def speed(amount: object) -> str | None:
    """Readable bytes per second."""
    return f"{format_size(amount)}/s" if isinstance(amount, int | float) else None


def saves(money: object) -> str | None:
    """Money saved, by hour and by day, from a document that has both and their currency; ``None`` without prices."""
    if not isinstance(money, Mapping):
        return None
    currency, hour, day = money["currency"], money["per_hour"], money["per_day"]
    return f"{currency} {hour:,.{_cents(hour)}f} an hour, {currency} {day:,.{_cents(day)}f} a day"


def _cents(amount: float) -> int:
    return 2 if abs(amount) >= 1 else 4


def number(amount: object, digits: int = 0) -> str | None:
    """A number with thousands separators."""
    return f"{amount:,.{digits}f}" if isinstance(amount, int | float) else None


def share(part: object) -> str | None:
    """A share of 1 as a percentage."""
    return f"{part:.1%}" if isinstance(part, int | float) else None


def milliseconds(seconds: object) -> str | None:
    """Seconds as milliseconds."""
    return f"{1000 * seconds:.1f} ms" if isinstance(seconds, int | float) else None


def age(seconds: object) -> str | None:
    """Readable seconds: ``"3 d 4 h"``, ``"12 min 5 s"``."""
    if not isinstance(seconds, int | float):
        return None
    left = int(seconds)
    parts: list[str] = []
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= length or (unit == "s" and not parts):
            parts.append(f"{left // length} {unit}")
            left %= length
    return " ".join(parts[:2])


def moment(text: object) -> str | None:
    """An ISO 8601 time in this machine's time zone, to the second."""
    if not isinstance(text, str) or not text:
        return None
    try:
        return datetime.fromisoformat(text).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    except ValueError:
        return text


def listed(values: object) -> str | None:
    """Several values in one cell."""
    return ", ".join(map(str, values)) or None if isinstance(values, list) else None


def named(values: Mapping[str, Any]) -> str | None:
    """``"size 1.2 MB, gain 8.8"``: the non-empty fields with their values."""
    fields = (f"{name} {worded(name, value)}" for name, value in values.items() if value not in (None, "", [], {}))
    return ", ".join(fields) or None


def worded(name: str, value: object) -> str:
    """A field's readable value. Fields in bytes are recognised by name; a rule is shown by its glob."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return " ".join(str(entry.get("match", entry)) if isinstance(entry, dict) else str(entry) for entry in value)
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if name in _BYTES:
        return size(value) or str(value)
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_NUMBERS = (size, speed, number, share, milliseconds, age)


class Column(NamedTuple):
    """A column of a table of documents.

    Args:
        name: its heading.
        value: the field to show, or a function of the document; the column's name by default.
        shown: formats the value.
        number: aligns it right; implied by the formatters ``size``, ``speed``, ``number``, ``share``, ``milliseconds``
            and ``age``.
    """

    name: str
    value: str | Callable[[Mapping[str, Any]], object] = ""
    shown: Callable[[Any], object] | None = None
    number: bool = False

    @property
    def right(self) -> bool:
        """Whether it is aligned right."""
        return self.number or self.shown in _NUMBERS

    def cell(self, row: Mapping[str, Any]) -> str:
        """The text for a document; a dash if it has no value."""
        value = self.value(row) if callable(self.value) else row.get(self.value or self.name.replace(" ", "_"))
        shown = value if self.shown is None else self.shown(value)
        return MISSING if shown in (None, "") else printable(str(shown))
