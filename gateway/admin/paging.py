"""Lists in pages: ``?limit=&cursor=`` gives ``{"items": [...], "next": cursor | null}``.

A cursor says after what the next page begins, not how many came before: what is added or removed meanwhile neither repeats
nor hides anything else.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Query
from pydantic import BaseModel, Field

from gateway.model.datasets import ApiError

Limit = Annotated[int, Query(ge=1, le=1000, description="most items in the answer")]
Cursor = Annotated[str, Query(max_length=2000, description="`next` of the page before; empty for the first")]
T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    """Some items of a list."""

    items: list[T]
    next: str | None = Field(description="`cursor` of the next page; null when this is the last", examples=[None])


def cursor_of(place: Any) -> str:
    """The cursor of what begins after ``place``, which JSON can hold."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def place_of(cursor: str, kind: type[T]) -> T | None:
    """The place that a cursor names, or ``None`` for the beginning.

    Raises:
        ApiError: InvalidRequest, it is none of ours.
    """
    if not cursor:
        return None
    try:
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        place = None
    if not isinstance(place, kind) or isinstance(place, bool):
        raise ApiError("InvalidRequest", "cursor: take it from `next` of the page before, as it is.")
    return place


def paged(items: Iterable[T], name: Callable[[T], str], limit: int, cursor: str) -> tuple[list[T], str | None]:
    """One page of items that are in memory, ordered by their names, and the cursor of the next.

    Raises:
        ApiError: InvalidRequest, the cursor is none of ours.
    """
    after = place_of(cursor, str)
    left = sorted((item for item in items if after is None or name(item) > after), key=name)
    return left[:limit], cursor_of(name(left[limit - 1])) if len(left) > limit else None
