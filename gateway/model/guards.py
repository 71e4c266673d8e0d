"""Guards: comparisons written as data, which compiled code carries out before it repeats an answer (``api/s3/_repeated.c``)."""

from __future__ import annotations

from typing import Literal

Guard = tuple[Literal["is", "item", "at", "most", "until"], object, object, object]
"""One comparison: its kind and three operands.

- ``("is", object, name, value)``: the attribute is this object;
- ``("item", mapping, key, value)``: the item of a ``dict`` is this object;
- ``("at", sequence, index, number)``: the item of a sequence equals this number;
- ``("most", object, name, number)``: the attribute is at most this number;
- ``("until", object, name, None)``: the attribute, on the monotonic clock in seconds, has not come.
"""
