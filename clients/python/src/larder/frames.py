"""The statuses of a batch's items, for programs that test with ``larder.testing``; ``reading.frames`` has the format."""

from larder.reading.frames import (
    BUSY,
    CHANGED,
    CLAIMED,
    INVALID,
    LATER,
    MISSING,
    NOT_RESIDENT,
    OK,
    ORIGIN_ERROR,
    REFUSED,
    ItemFailure,
)

__all__ = [
    "BUSY",
    "CHANGED",
    "CLAIMED",
    "INVALID",
    "LATER",
    "MISSING",
    "NOT_RESIDENT",
    "OK",
    "ORIGIN_ERROR",
    "REFUSED",
    "ItemFailure",
]
