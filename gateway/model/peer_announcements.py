"""How a node that cannot reach Redis has another one announce what was written: ``POST`` to ``ANNOUNCE``.

The body is a JSON array of ``[origin, bucket, key]``, or ``null`` for everything. It is answered 204 when every worker of the
fleet has forgotten, or is known to check with the origin; 503 when the asked node does not reach Redis either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gateway.model.keys import ObjectKey

ANNOUNCE = "/-/peer/v1/announce"
ANNOUNCED = 204
LONGEST = 8 * 1024**2
"""Bytes of such a body: a thousand keys of a kilobyte, each byte of which may be escaped."""


def written(keys: Sequence[ObjectKey] | None) -> bytes:
    """The body; ``None``: everything."""
    return json.dumps(keys).encode()


def read_written(body: bytes) -> list[ObjectKey] | None:
    """Read what ``written`` made.

    Raises:
        ValueError: it is something else.
    """
    try:
        names = json.loads(body)
    except RecursionError:
        names = 0
    if names is None:
        return None
    if not isinstance(names, list) or not all(_is_name(name) for name in names):
        raise ValueError("the body must be an array of [origin, bucket, key], or null")
    return [ObjectKey(*name) for name in names]


def _is_name(name: object) -> bool:
    return (
        isinstance(name, list) and len(name) == len(ObjectKey._fields) and all(isinstance(part, str) for part in name)
    )
