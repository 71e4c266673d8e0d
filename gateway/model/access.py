"""The event of a read: which block of what was read, by whom, when, and whether the cache had it."""

from __future__ import annotations

from typing import NamedTuple

from gateway.model.keys import ObjectKey, OriginIdentity


class Access(NamedTuple):
    """One block of an object, or one item of a dataset, read once.

    Attributes:
        key: the object, or the id of the dataset.
        block: number of the block in the object, or of the item in the dataset.
        blob: digest of the blob that is ranked anew; empty for a miss, and for a hit that changes no rank.
        hit: whether the cache had it.
        time: seconds since the epoch.
        client: the keys that its reader reads the origin with.
    """

    key: ObjectKey | str
    block: int
    blob: bytes
    hit: bool
    time: float
    client: OriginIdentity
