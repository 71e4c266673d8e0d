"""Says what is wrong with a configuration: by its source, field and remedy."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

from pydantic import ValidationError

from gateway.base.config_environment import Sections, variable


def explain(error: ValidationError, path: Path | None, given: Mapping[str, str], tables: Sections) -> str:
    """The mistakes by their source: the file, or the names of variables and flags, which are ``given`` by setting."""
    said: dict[str, dict[str, None]] = {}
    for problem in error.errors():
        field = ".".join(str(part) for part in problem["loc"] if part not in ("float", "literal['always','immutable']"))
        message, name = problem["msg"].removeprefix("Value error, "), given.get(field)
        if problem["type"] == "extra_forbidden":
            message = f"unknown setting{_nearest(problem['loc'], tables)}"
            name = name or next((given[place] for place in given if place.startswith(f"{field}.")), None)
        elif problem["type"] == "missing":
            message = f"is required, here or as {variable(field)}"
        where = f"{path or 'configuration'}: " if name is None else "" if name == field else f"{name}: "
        said.setdefault(where, {})[f"{field}: {message}" if field else message] = None
    return "; ".join(where + "; ".join(lines) for where, lines in said.items())


def _nearest(location: tuple[int | str, ...], tables: Sections) -> str:
    section = str(location[0])
    known = tables[section][1] if len(location) > 1 and section in tables else tuple(tables)
    close = get_close_matches(str(location[-1]), known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(known)}"
