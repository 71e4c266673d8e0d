"""Conditional requests, in the order of RFC 9110 section 13.2.2, and the directives of Cache-Control.

If-Match, if present, decides alone, else If-Unmodified-Since; then If-None-Match, if present, decides alone, else
If-Modified-Since. S3's two documented combinations follow from that order: If-Match true with If-Unmodified-Since
false answers 200, If-None-Match false with If-Modified-Since true answers 304 ("GetObject" in the S3 API reference).

Like S3, this is lenient in two ways: entity tags may lack their quotes, and an invalid date counts as absent (as in
RFC 9110). If-Range is stricter than both: only an equal strong entity tag lets the range apply, because a date proves too
little about bytes that may change twice in a second, and a whole object is always a correct answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from enum import Enum
from functools import lru_cache


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

    @classmethod
    def read(cls, header: Callable[[bytes], bytes | None]) -> Conditions | None:
        """The conditions among a request's headers, looked up by lower-case name; ``None`` if there are none."""
        values = [header(name) for name in _NAMES]
        if values == _NOTHING:
            return None
        return cls(*(None if value is None else value.decode("latin-1") for value in values))

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


_NAMES = (b"if-match", b"if-unmodified-since", b"if-none-match", b"if-modified-since")
_NOTHING = [None] * len(_NAMES)


def _later(modified: float | None, limit: str | None) -> bool:
    until = http_date(limit)
    return until is not None and modified is not None and modified > until


def tag_listed(header: str, etag: str, *, weak: bool) -> bool:
    """Whether an If-Match or If-None-Match value covers ``etag``: a list of entity tags, or "*".

    ``weak`` chooses the comparison of RFC 9110 section 8.8.3.2: the weak one ignores "W/", the strong one requires strong tags.
    """
    if header.strip() == "*":
        return True
    wanted = etag.removeprefix("W/") if weak else etag
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


@lru_cache(maxsize=4096)
def http_date(text: str | None) -> float | None:
    """Seconds since the epoch of an HTTP date in any of its three forms; ``None`` if absent or invalid."""
    if not text:
        return None
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, TypeError, OverflowError, IndexError):
        return None


def range_applies(if_range: str | None, etag: str) -> bool:
    """Whether to apply a Range: no If-Range, or one with exactly this strong entity tag (RFC 9110, 13.1.5)."""
    return if_range is None or (if_range.strip() == etag and etag.startswith('"') and len(etag) > 2)


def cache_directives(value: str) -> dict[str, str]:
    """The directives of a Cache-Control header in lower case, with their arguments, unquoted (RFC 9111, 5.2)."""
    pieces = (piece.partition("=") for piece in value.lower().split(","))
    return {name.strip(): argument.strip().strip('"') for name, _, argument in pieces}
