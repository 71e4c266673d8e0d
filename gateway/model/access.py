"""The events of a read: the cache's result for one block, and a client's request for one object."""

from __future__ import annotations

from typing import NamedTuple

from gateway.model.keys import ObjectKey, OriginIdentity


class Access(NamedTuple):
    """One block of an object, or one item of a dataset, read once.

    Attributes:
        key: the object, or the id of the dataset.
        block: number of the block in the object, or of the item in the dataset.
        blob: digest of the blob whose rank to update; empty for a miss, and for a hit that changes no rank.
        hit: whether the cache had it.
        time: seconds since the epoch.
        client: the identity under which its reader reads the origin.
    """

    key: ObjectKey | str
    block: int
    blob: bytes
    hit: bool
    time: float
    client: OriginIdentity


class ObjectRead(NamedTuple):
    """One GET of an object, or of a range of it, recorded at the node that received it.

    Attributes:
        key: the object.
        start: first requested byte.
        stop: the byte after the last one.
        size: bytes of the object.
        hit: whether the cache had all of it.
        time: seconds since the epoch.
        principal: access key of the reader, empty for an anonymous one.
        client: hash of the reader and the address of its connection.
        waited: seconds until the answer began; 0 for a hit that is not measured.
    """

    key: ObjectKey
    start: int
    stop: int
    size: int
    hit: bool
    time: float
    principal: str
    client: int
    waited: float = 0.0
