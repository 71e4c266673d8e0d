"""Edits at the same time: who read a document that has changed since is told so, and overwrites nothing.

Source: RFC 9110, section 13.1.1. The comparison is the strong one.
"""

from __future__ import annotations

import re
from typing import Annotated

from fastapi import Header

from gateway.model.datasets import ApiError

IfMatch = Annotated[
    str | None,
    Header(
        alias="If-Match", max_length=1000, description="change it only while its etag is this one; missing: in any case"
    ),
]
_TAG = re.compile(r'\s*((?:W/)?"[^"]*")\s*(?:,|$)')


def etag_of(revision: int) -> str:
    """The entity tag of a document that was last changed by the catalog's change of this number."""
    return f'"{revision}"'


def check_if_match(wanted: str | None, etag: str) -> None:
    """Refuse a change of a document that is not the one that was read. ``wanted`` is the request's If-Match.

    Raises:
        ApiError: PreconditionFailed.
    """
    if wanted is None or wanted.strip() == "*" or etag in _TAG.findall(wanted):
        return
    raise ApiError(
        "PreconditionFailed", f"It was changed meanwhile: its etag is {etag} now. Read it again, then decide."
    )
