"""A request as it arrived on the wire, before anything has rewritten it: what signatures are verified over."""

from __future__ import annotations

from dataclasses import dataclass, field

RawHeader = tuple[bytes, bytes]


@dataclass(slots=True)
class WireRequest:
    """The raw parts of one HTTP request.

    ``raw_path`` and ``query`` are percent-encoded as sent, without "?"; header names are lower-cased, values untouched,
    order and repetitions kept. ``scheme`` is "http" or "https".
    """

    method: str
    raw_path: bytes
    query: bytes
    headers: list[RawHeader]
    scheme: str = "http"
    _first: dict[bytes, bytes] | None = field(default=None, repr=False)

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header (lower-case name), or ``None``."""
        if self._first is None:
            first: dict[bytes, bytes] = {}
            for key, value in self.headers:
                first.setdefault(key, value)
            self._first = first
        return self._first.get(name)
