"""Validation errors as sentences: each names the field or parameter, and what to send instead.

The console and commands show them as they are. Pydantic's own words name types of Python and regular expressions.
A validator's message about a field continues the sentence ("must be ASCII"); one about several fields is a clause of its
own, which names them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

Mistake = Mapping[str, Any]

NAME = r"^[A-Za-z0-9_@+=][A-Za-z0-9._@+=-]*$"
"""The pattern of names that need no escaping in a URL."""

_FORMS = {
    NAME: 'may have only letters, digits and . _ @ + = -, and must begin with neither "." nor "-"',
    r"^[A-Za-z0-9._-]{1,128}$": "must have 1 to 128 letters, digits and . _ -",
    r"^[0-9a-f]{12,64}$": "must have 12 to 64 lower-case hex digits, as the list shows them",
    r"^[0-9a-f]{32}$": "must have 32 lower-case hex digits, as the list shows them",
    r"^([0-9a-f]{32})?$": "must be empty or have 32 lower-case hex digits, as the previous answer gives them",
    r"^([0-9a-f]{64})?$": "must be empty or have 64 lower-case hex digits",
    r"^results:[0-9a-f]{32}$": "must be results: and 32 lower-case hex digits, as the list shows them",
    r"^([1-5](xx|[0-9]{2}))?$": "must be a status such as 404, or a class of them such as 5xx",
    r"^s3://[^/]+/.+": "must be an address such as s3://bucket/key",
}
"""Patterns of fields, in words."""

_TYPES = {
    "string": "must be text",
    "int": "must be a whole number",
    "float": "must be a number",
    "bool": "must be true or false",
    "list": "must be a list",
    "dict": "must be an object of names and values",
    "tuple": "must be a list",
    "model": "must be an object of names and values",
    "model_attributes": "must be an object of names and values",
}
"""Types of fields by the first part of the kinds of errors about them, in words."""

_KINDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "missing": lambda _: "is required",
    "extra_forbidden": lambda _: "is unknown; leave it out, or correct its name",
    "none_required": lambda _: "must be null",
    "literal_error": lambda bounds: f"must be {_without_quotes(bounds['expected'])}",
    "enum": lambda bounds: f"must be {_without_quotes(bounds['expected'])}",
    "greater_than_equal": lambda bounds: f"must be at least {_number(bounds['ge'])}",
    "greater_than": lambda bounds: f"must be more than {_number(bounds['gt'])}",
    "less_than_equal": lambda bounds: f"must be at most {_number(bounds['le'])}",
    "less_than": lambda bounds: f"must be less than {_number(bounds['lt'])}",
    "finite_number": lambda _: "must be a finite number",
    "int_from_float": lambda _: "must be a whole number",
    "int_parsing_size": lambda _: "has too many digits",
    "string_unicode": lambda _: "must be UTF-8",
    "string_pattern_mismatch": lambda bounds: _FORMS.get(bounds["pattern"], "does not have the form of such a value"),
}
"""What is required of a field, by the kind of error and the bounds that the error names."""


_OF_A_NAME = "[key]"
"""The last part of the place of an error about a name in an object, not its value."""
_PREDICATES = ("must ", "may ", "is ", "has ", "does ", "cannot ")
"""How the messages of validators begin that continue a sentence about a field."""


def described(mistakes: Iterable[Mistake]) -> list[tuple[str, str]]:
    """Fields (``items.0.match``; "" for the body) and the sentences about them, each once."""
    return list(dict.fromkeys(map(_described, mistakes)))


def sentence(words: str) -> str:
    """Words as a sentence: with a capital and a full stop."""
    return f"{words[:1].upper()}{words[1:].rstrip('.')}."


def _described(mistake: Mistake) -> tuple[str, str]:
    where, *path = mistake["loc"] or ("",)
    if where not in ("query", "path", "header", "cookie", "body"):
        where, path = "body", list(mistake["loc"])
    if mistake["type"] == "json_invalid":
        return "", f"The body is not JSON{_from(path)}; correct it."
    place = ".".join(str(part) for part in path if part != _OF_A_NAME)
    return place, sentence(_about(where, place, mistake))


def _about(where: str, place: str, mistake: Mistake) -> str:
    """One mistake, without the value and links to pydantic's documentation."""
    if mistake["type"] == "value_error" and not _own_words(mistake).startswith(_PREDICATES):
        return f"In {place}, {_own_words(mistake)}" if place else _own_words(mistake)
    if not place:
        return f"The body {_requirement(mistake)}"
    return f"The {'field' if where == 'body' else 'parameter'} {place} {_requirement(mistake)}"


def _from(path: list[Any]) -> str:
    return f" from character {path[0]} on" if path and isinstance(path[0], int) else ""


def _requirement(mistake: Mistake) -> str:
    """What is required of a field, as a predicate."""
    kind, bounds = mistake["type"], mistake.get("ctx", {})
    if (words := _KINDS.get(kind)) is not None:
        return words(bounds)
    if kind in ("string_too_short", "string_too_long", "too_short", "too_long"):
        return _length(bounds, isinstance(mistake.get("input"), str) or kind.startswith("string"))
    stem, _, rest = kind.rpartition("_")
    if rest in ("type", "parsing") and stem in _TYPES:
        return _TYPES[stem]
    if kind in ("value_error", "contradiction"):
        return _own_words(mistake)
    return f"is invalid: {_own_words(mistake).removeprefix('Input ')}"


def _length(bounds: Mapping[str, Any], text: bool) -> str:
    """The length that is required: pydantic calls the characters of secrets "items"."""
    least, most = bounds.get("min_length"), bounds.get("max_length")
    if least == 1:
        return "must not be empty"
    bound, count = (f"at most {most}", most) if least is None else (f"at least {least}", least)
    unit = "character" if text else "entry"
    many = f"{unit}s" if text else "entries"
    return f"must have {bound} {unit if count == 1 else many}"


def _number(bound: float) -> str:
    return str(int(bound) if bound == int(bound) else bound)


def _own_words(mistake: Mistake) -> str:
    return str(mistake["msg"]).removeprefix("Value error, ")


def _without_quotes(expected: str) -> str:
    """Pydantic's list of values, such as ``'viewer', 'operator' or 'admin'``."""
    return expected.replace("'", "")
