"""The request of a node without Redis that another node announce its writes: ``POST`` to ``ANNOUNCE``.

The body is a JSON array of ``[origin, bucket, key]``, or ``null`` for everything. The answer is 204 once every worker of the
fleet has forgotten the objects, or is known to check reads with the origin; 503 if the node does not reach Redis either.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from gateway.model.keys import ObjectKey

ANNOUNCE = "/-/peer/v1/announce"
ANNOUNCED = 204
LONGEST = 8 * 1024**2
"""The most bytes of the body: a thousand keys of a kilobyte, with every byte escaped."""


def written(keys: Sequence[ObjectKey] | None) -> bytes:
    """Encode the body; ``None``: everything."""
    return json.dumps(keys).encode()


def read_written(body: bytes) -> list[ObjectKey] | None:
    """Parse the result of ``written``.

    Raises:
        ValueError: the body is malformed.
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
