"""Conditional requests, in the order of RFC 9110 section 13.2.2, and the directives of Cache-Control.

If-Match, if present, decides alone, else If-Unmodified-Since; then If-None-Match, if present, decides alone, else
If-Modified-Since. S3's two documented combinations follow from that order: If-Match true with If-Unmodified-Since
false answers 200, If-None-Match false with If-Modified-Since true answers 304 ("GetObject" in the S3 API reference).

Like S3, this is lenient in two ways: entity tags may lack their quotes, and an invalid date counts as absent (as in
RFC 9110). If-Range is stricter than both: only an equal strong entity tag lets the range apply, because a date proves too
little about bytes that may change twice in a second, and a whole object is always a correct answer.

A condition may name a version that the cache does not know: the reader has seen a newer one, in a listing or at the store. A
cache that answered such a condition by itself could give an outdated answer (``Conditions.doubts``).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache

_LONGEST_DATE = 64
"""The most characters of a date; HTTP's dates have half as many. Dates are cached, and a header may have 64 KiB."""


class ConditionVerdict(Enum):
    """The result of the preconditions of a GET or HEAD."""

    PASS = "pass"  # noqa: S105
    NOT_MODIFIED = "not-modified"
    PRECONDITION_FAILED = "precondition-failed"


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditional headers of a request, unparsed, several lines joined by ","; ``None`` if absent."""

    if_match: str | None = None
    if_unmodified_since: str | None = None
    if_none_match: str | None = None
    if_modified_since: str | None = None
    if_range: str | None = None

    @classmethod
    def read(cls, header: Callable[[bytes], bytes | None]) -> Conditions | None:
        """The conditions among a request's headers, looked up by lower-case name; ``None`` if there are none."""
        values = [header(name) for name in _NAMES]
        if values == _NOTHING:
            return None
        return cls(*(None if value is None else value.decode("latin-1") for value in values))

    @property
    def lines(self) -> list[tuple[str, str]]:
        """The conditions as header lines, without those that servers would read differently."""
        values = (self.if_match, self.if_unmodified_since, self.if_none_match, self.if_modified_since, self.if_range)
        named = zip(_NAMES, values, strict=True)
        return [(name.decode(), value) for name, value in named if value is not None and value.isascii()]

    def doubts(self, etag: str, last_modified: str) -> bool:
        """Whether a condition that counts names a version other than this one, or a later time."""
        if self.if_match is not None:
            if _names_another(self.if_match, etag):
                return True
        elif _is_later(self.if_unmodified_since, last_modified):
            return True
        if self.if_none_match is not None:
            if _names_another(self.if_none_match, etag):
                return True
        elif _is_later(self.if_modified_since, last_modified):
            return True
        if self.if_range is None:
            return False
        if http_date(self.if_range) is not None:
            return _is_later(self.if_range, last_modified)
        return _names_another(self.if_range, etag)

    @property
    def may_apply_range(self) -> bool:
        """Whether ``range_applies`` may be true for some version."""
        return self.if_range is None or (is_strong(self.if_range.strip()) and http_date(self.if_range) is None)

    @property
    def deciding(self) -> str:
        """The header that decides whether a read fails with ``PRECONDITION_FAILED``."""
        return "If-Unmodified-Since" if self.if_match is None else "If-Match"

    def evaluate(self, etag: str, last_modified: str) -> ConditionVerdict:
        """The verdict for an object with this ETag (quoted) and Last-Modified (an HTTP date)."""
        modified = http_date(last_modified)
        if self.if_match is not None:
            if not tag_listed(self.if_match, etag, weak=False):
                return ConditionVerdict.PRECONDITION_FAILED
        elif _later(modified, self.if_unmodified_since):
            return ConditionVerdict.PRECONDITION_FAILED
        if self.if_none_match is not None:
            return (
                ConditionVerdict.NOT_MODIFIED
                if tag_listed(self.if_none_match, etag, weak=True)
                else ConditionVerdict.PASS
            )
        since = http_date(self.if_modified_since)
        if since is not None and modified is not None and modified <= since:
            return ConditionVerdict.NOT_MODIFIED
        return ConditionVerdict.PASS


_NAMES = (b"if-match", b"if-unmodified-since", b"if-none-match", b"if-modified-since", b"if-range")
_NOTHING = [None] * len(_NAMES)
_STRONG = re.compile(r'"[^"]+"?|[!#-+\--~]+')
"""A strong entity tag, with or without its quotes."""


def quoted(etag: str) -> str:
    """An entity tag with its quotes, which some stores and clients leave out."""
    return etag if not etag or etag.startswith(('"', 'W/"')) else f'"{etag}"'


def is_strong(etag: str) -> bool:
    """Whether a store's entity tag names bytes exactly (RFC 9110, 8.8.1); its quotes may be missing."""
    return _STRONG.fullmatch(etag) is not None and not etag.startswith("W/")


def _names_another(header: str, etag: str) -> bool:
    known = quoted(etag).removeprefix("W/")
    return header.strip() != "*" and any(tag.removeprefix("W/") != known for tag in _tags(header))


def _is_later(date: str | None, last_modified: str) -> bool:
    named, modified = http_date(date), http_date(last_modified)
    return named is not None and modified is not None and named > modified


def _later(modified: float | None, limit: str | None) -> bool:
    until = http_date(limit)
    return until is not None and modified is not None and modified > until


def tag_listed(header: str, etag: str, *, weak: bool) -> bool:
    """Whether an If-Match or If-None-Match value covers ``etag``: a list of entity tags, or "*".

    ``weak`` chooses the comparison of RFC 9110 section 8.8.3.2: the weak one ignores "W/", the strong one requires strong tags.
    """
    if header.strip() == "*":
        return True
    wanted = quoted(etag).removeprefix("W/") if weak else quoted(etag)
    return any((tag.removeprefix("W/") if weak else tag) == wanted for tag in _tags(header))


def _tags(header: str) -> list[str]:
    tags, position = [], 0
    while position < len(header):
        if header[position] in " \t,":
            position += 1
            continue
        prefix = "W/" if header.startswith('W/"', position) else ""
        opening = position + len(prefix)
        if header[opening] == '"':
            end = header.find('"', opening + 1)
            end = len(header) if end < 0 else end + 1
            tags.append(header[position:end])
        else:
            end = header.find(",", opening)
            end = len(header) if end < 0 else end
            tags.append(f'"{header[position:end].strip()}"')
        position = end
    return tags


def http_date(text: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date in any of its three forms; ``None`` if absent or invalid."""
    return _http_date(text) if text and len(text) <= _LONGEST_DATE else None


@lru_cache(maxsize=4096)
def _http_date(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def range_applies(if_range: str | None, etag: str) -> bool:
    """Whether to apply a Range: no If-Range, or one with exactly this strong entity tag (RFC 9110, 13.1.5)."""
    return if_range is None or (if_range.strip() in (etag, quoted(etag)) and is_strong(etag))


def cache_directives(value: str) -> dict[str, str]:
    """The directives of a Cache-Control header in lower case, with their arguments, unquoted (RFC 9111, 5.2).

    If a directive is repeated with different numbers, the smallest counts (RFC 9111, 4.2.1, leaves the choice between the first
    one and none at all).
    """
    directives: dict[str, str] = {}
    for piece in _pieces(value.lower()):
        name, _, argument = piece.partition("=")
        name, argument = name.strip(), argument.strip()
        if argument.startswith('"'):
            argument = _ESCAPED.sub(r"\1", argument[1:].removesuffix('"')).strip()
        before = directives.get(name)
        if before is None or delta_seconds(argument) < delta_seconds(before):
            directives[name] = argument
    return directives


def delta_seconds(argument: str) -> float:
    """The seconds of a directive; 0 if it is not a number, so that its limit counts as passed (RFC 9111, 4.2.1)."""
    if not (argument.isascii() and argument.isdigit()):
        return 0.0
    return float(argument[:_MOST_DIGITS]) if len(argument) <= _MOST_DIGITS else _LONGEST


_MOST_DIGITS = 12
_LONGEST = 2.0**31
"""The seconds that replace a number that is too large (RFC 9111, 1.2.2)."""
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)


def _pieces(value: str) -> list[str]:
    """The directives of a value. A comma inside a quoted argument does not end a directive; an unclosed quote does not hide later
    ones."""
    pieces, start, position = [], 0, 0
    while position < len(value):
        if value[position] == '"':
            argument = _QUOTED.match(value, position)
            if argument is None:
                return value.split(",")
            position = argument.end()
            continue
        if value[position] == ",":
            pieces.append(value[start:position])
            start = position + 1
        position += 1
    return [*pieces, value[start:]]
