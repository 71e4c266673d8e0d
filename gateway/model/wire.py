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
    _fields: dict[bytes, bytes] | None = field(default=None, repr=False)

    @property
    def fields(self) -> dict[bytes, bytes]:
        """The first value of each header, by lower-case name."""
        if self._fields is None:
            self._fields = dict(reversed(self.headers))
        return self._fields

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header (lower-case name), or ``None``."""
        return self.fields.get(name)
