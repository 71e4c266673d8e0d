"""A request as it arrived on the wire, before anything has rewritten it: what signatures are verified over."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gateway.model.query import Query

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
    fields: dict[bytes, bytes] = field(init=False, repr=False)
    """The value of each header, by lower-case name; several lines of one name are joined by "," (RFC 9110, 5.3)."""
    _parameters: Query | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        fields = dict(self.headers)
        self.fields = fields if len(fields) == len(self.headers) else _combined(self.headers)

    @property
    def parameters(self) -> Query:
        """The query, decoded.

        Raises:
            S3Error: as ``Query.read``.
        """
        if self._parameters is None:
            self._parameters = Query.read(self.query)
        return self._parameters

    def header(self, name: bytes) -> bytes | None:
        """The value of a header (lower-case name), or ``None``."""
        return self.fields.get(name)


def _combined(headers: Iterable[RawHeader]) -> dict[bytes, bytes]:
    fields: dict[bytes, bytes] = {}
    for name, value in headers:
        fields[name] = fields[name].strip() + b"," + value.strip() if name in fields else value
    return fields
