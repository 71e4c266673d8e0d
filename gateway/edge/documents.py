"""Shared by all documents of the node's APIs: filling them from values, and times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Self

from pydantic import BaseModel


class ResponseModel(BaseModel):
    """An answer."""

    @classmethod
    def of(cls, source: object, **others: Any) -> Self:
        """The document of a value: fields are its attributes of the same names, and ``others``."""
        same = {name: getattr(source, name) for name in cls.model_fields.keys() - others if hasattr(source, name)}
        return cls(**same, **others)


def moment(seconds: float, timespec: str = "milliseconds") -> str:
    """A time in ISO 8601, from seconds since the epoch."""
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec=timespec).replace("+00:00", "Z")
