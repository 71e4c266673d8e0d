"""JSON in Redis: each kind of document is declared once, with its types and bounds, and validated by pydantic.

Redis may contain documents of another version, or written by others. So an invalid document is not an error: it reads as
``None``, and readers ignore it.
"""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")


class Document(Generic[T]):
    """One kind of document.

    Args:
        kind: the type of its value: anything that pydantic understands.
    """

    def __init__(self, kind: Any) -> None:
        self._adapter: TypeAdapter[T] = TypeAdapter(kind)

    def read(self, text: bytes | str | None) -> T | None:
        """Parse a text; ``None`` for no text, and for an invalid one."""
        try:
            return None if text is None else self._adapter.validate_json(text)
        except ValidationError:
            return None

    def timed(self, text: bytes | str) -> tuple[float, T] | None:
        """The seconds and the value of a text that begins with milliseconds and a space."""
        at, _, document = (text.encode() if isinstance(text, str) else text).partition(b" ")
        value = self.read(document) if at.isdigit() and len(at) < _DIGITS else None
        return None if value is None else (int(at) / 1000, value)

    def text(self, value: T) -> str:
        """The value as JSON without spaces."""
        return self._adapter.dump_json(value).decode()


_DIGITS = 17
"""The most digits of a time in milliseconds."""
