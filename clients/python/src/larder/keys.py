"""The bucket and key of every item, for transforms that need them (a label is often part of the key).

They are kept packed, in one run of bytes and one array, because a Python string for each of ten million items would cost
gigabytes in every worker, and be copied into each of them by counting references.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable

import numpy as np

from larder.dataset import ItemLocation


class Keys:
    """Bucket and key by item index.

    Args:
        locations: of all items, in order; taken one after the other, as they are too many to be in memory together.
    """

    def __init__(self, locations: Iterable[ItemLocation]) -> None:
        buckets: dict[str, int] = {}
        bucket_of, ends, text = array("I"), array("Q", [0]), bytearray()
        for location in locations:
            bucket_of.append(buckets.setdefault(location.bucket, len(buckets)))
            text += location.key.encode()
            ends.append(len(text))
        self._buckets = list(buckets)
        self._bucket_of = np.frombuffer(bucket_of, np.uint32)
        self._ends = np.frombuffer(ends, np.uint64)
        self._text = text

    def __len__(self) -> int:
        return len(self._bucket_of)

    def __getitem__(self, index: int) -> tuple[str, str]:
        start, end = int(self._ends[index]), int(self._ends[index + 1])
        return self._buckets[int(self._bucket_of[index])], self._text[start:end].decode()
