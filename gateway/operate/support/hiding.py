r"""Hides secrets in the text of logs: values that are known, and whatever is written as secrets usually are.

Known values are replaced first, in every spelling (JSON, percent-encoding, shell quotes), because a pattern might take only a
part of one. A short value counts only where it stands alone. Then patterns take what has the name of a secret, whoever wrote it:

- ``NAME=value``, ``name: value``, ``"name": "value"``, ``('name', b'value')``, ``--name value`` and ``?name=value``, also inside
  JSON strings (``\"name\": \"value\"``), for names such as AWS_SECRET_ACCESS_KEY, token and x-amz-security-token;
- signatures, presigned or in a header; Authorization and cookies; ``Bearer`` and ``Basic`` anywhere;
- users and passwords of addresses; private keys.

When in doubt they take too much: a word after ``token:`` in a sentence is lost as well. Repetitions are bounded or end at the
line's end, so that the time is proportional to the log.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import quote, quote_plus

from gateway.base.config_secrets import HIDDEN

_SHORT = 8
"""Length below which a known value must stand alone."""
_SPACE = r"[ \t]{0,8}"
_NAME = (
    r"(?:secret|(?<!continuation)(?<!continuation[-_])token|passw(?:or)?d|passphrase|(?<=[_-])(?:pass|auth)|pgpass"
    r"|(?:private|encryption|api|customer)[_-]?key)(?:access)?(?:key)?s?[0-9]{0,4}(?:[_.-][\w.-]{0,60})?(?<!file)(?![\w.-])"
)
"""The end of a secret's name, from the word that tells; names of files are none."""
_SIGNATURE = r"signature(?![\w.-])"
_LOGIN = r"(?:authorization|cookie)(?![\w.-])"
_IS = rf"\\*(?:[\"']?{_SPACE}(?:=|:|%3D){_SPACE}|[\"']{_SPACE},{_SPACE})(?:b(?=[\"']))?"
"""What is between a name and its value."""
_QUOTED = (
    r"\\+(?P<quote>[\"'])[^\n]*?\\+(?P=quote)"
    r"|'[^'\n]*'(?:\\*\"'\\*\"'[^'\n]*')*"
    r"|\"(?:\\[^\n]|[^\"\\\n])*\""
)
"""A quoted value: within JSON, of a shell (with quotes of its own), or another."""
_NEW = r"(?![ \t]|b?\\*[\"']?\(hidden\)[,;)}\]]{0,8}(?:[\s\"'&<>\\@]|-----|\Z))"
"""Where a value begins that is not hidden yet as a whole."""
_VALUE = rf"{_NEW}(?P<value>{_QUOTED}|\[[^\]\n]*\]|[^\s\"']+)"
_PARAMETER = rf"{_NEW}(?P<value>[^\s&\"'<>]+)"


def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(text, re.IGNORECASE | re.MULTILINE)


_PATTERNS = (
    (
        "private keys",
        _pattern(rf"-----BEGIN [A-Z ]{{0,40}}PRIVATE KEY-----{_NEW}(?P<value>(?:[^-]|-(?!----)){{1,20000}})"),
    ),
    ("private keys", _pattern(r"\A(?P<value>(?:[a-z0-9+/=]{1,80}\r?\n)+)-----END [A-Z ]{0,40}PRIVATE KEY-----")),
    (
        "headers",
        _pattern(rf"{_LOGIN}{_IS}{_NEW}(?!\\*[\"']?(?:object|prefix)\b)(?P<value>{_QUOTED}|[^\n\"']+)"),
    ),
    ("headers", re.compile(rf"\b(?:Bearer|Basic) {{1,8}}{_NEW}(?P<value>[\w.~+/=-]{{6,}})")),
    ("signatures", _pattern(rf"[?&][\w.%-]{{0,60}}?{_SIGNATURE}(?:=|%3D){_PARAMETER}")),
    ("signatures", _pattern(rf"{_SIGNATURE}{_IS}{_VALUE}")),
    ("named values", _pattern(rf"^\w{{0,60}}?{_NAME}=(?![\"']){_NEW}(?P<value>[^\n]+)")),
    ("named values", _pattern(rf"[?&][\w.%-]{{0,60}}?{_NAME}(?:=|%3D){_PARAMETER}")),
    ("named values", _pattern(rf"{_NAME}{_IS}{_VALUE}")),
    ("named values", _pattern(rf"--[\w-]{{0,60}}?{_NAME}[ \t]{{1,8}}(?!-){_VALUE}")),
    ("logins of addresses", _pattern(rf"(?<=://){_NEW}(?P<value>[^\s/\"'?#]{{1,1024}})@")),
)


@dataclass(frozen=True, slots=True)
class Hidden:
    """A text without secrets, and how many of each kind were replaced in it."""

    text: bytes
    replaced: Mapping[str, int]


def hide(text: bytes, known: Iterable[str] = ()) -> Hidden:
    """Replace secrets by ``(hidden)``; bytes that are not UTF-8 stay as they are.

    Args:
        text: of a log, from the beginning of a line.
        known: values to hide wherever they are.
    """
    shown, replaced = text.decode(errors="surrogateescape"), Counter[str]()
    spellings = {spelling for value in known if value for spelling in _spellings(value)}
    if spellings:
        values = "|".join(map(_standing, sorted(spellings, key=len, reverse=True)))
        shown, replaced["known values"] = re.subn(values, HIDDEN, shown, flags=re.IGNORECASE)
    for kind, pattern in _PATTERNS:
        shown, count = pattern.subn(_without_value, shown)
        replaced[kind] += count
    return Hidden(shown.encode(errors="surrogateescape"), dict(+replaced))


def _without_value(match: re.Match[str]) -> str:
    start, end = (place - match.start() for place in match.span("value"))
    return f"{match[0][:start]}{HIDDEN}{match[0][end:]}"


def _spellings(value: str) -> set[str]:
    text, quoted = json.dumps(value, ensure_ascii=False)[1:-1], shlex.quote(value)
    return {
        value,
        text,
        json.dumps(value)[1:-1],
        json.dumps(text, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        quote(value, errors="surrogateescape"),
        quote(value, safe="", errors="surrogateescape"),
        quote_plus(value, errors="surrogateescape"),
        quoted,
        json.dumps(quoted, ensure_ascii=False)[1:-1],
    }


def _standing(value: str) -> str:
    escaped = re.escape(value)
    return escaped if len(value) >= _SHORT else rf"(?<![0-9A-Za-z]){escaped}(?![0-9A-Za-z])"
