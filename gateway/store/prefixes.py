"""The objects below a prefix, for operators; ``Store.forget_prefix`` forgets them."""

from __future__ import annotations

from functools import partial
from sqlite3 import Connection
from typing import NamedTuple

from gateway.store.disk import Disk
from gateway.store.failures import DiskFault

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class PrefixTotals(NamedTuple):
    """The number of objects, and their bytes in the cache; shared blobs count once per object."""

    objects: int = 0
    bytes: int = 0

    def plus(self, other: PrefixTotals) -> PrefixTotals:
        """Both together."""
        return PrefixTotals(self.objects + other.objects, self.bytes + other.bytes)


class Prefixes:
    """Look-ups by prefix in one node's index."""

    def __init__(self, disk: Disk) -> None:
        self._disk = disk

    async def held(self, origin: str, bucket: str, prefix: str) -> PrefixTotals:
        """The totals of a bucket's objects below a prefix; zero while the disk is down."""
        try:
            return await self._disk.read(partial(held, origin=origin, bucket=bucket, prefix=prefix))
        except DiskFault:
            return PrefixTotals()


def held(connection: Connection, origin: str, bucket: str, prefix: str) -> PrefixTotals:
    """``Prefixes.held``, on a connection."""
    statement = (
        "SELECT count(DISTINCT o.id), coalesce(sum(blobs.size), 0) FROM objects o "
        "JOIN object_blocks b ON b.object_id = o.id JOIN blobs ON blobs.digest = b.digest "
        "WHERE o.origin = ? AND o.bucket = ? AND o.key >= ?"
    )
    arguments = [origin, bucket, prefix]
    if (end := after(prefix)) is not None:
        statement += " AND o.key < ?"
        arguments.append(end)
    row = connection.execute(statement, arguments).fetchone()
    return PrefixTotals(int(row[0]), int(row[1]))


def after(prefix: str) -> str | None:
    """The smallest text greater than every text with this prefix, in UTF-8 order; ``None`` if there is none."""
    for place in range(len(prefix) - 1, -1, -1):
        following = ord(prefix[place]) + 1
        if following in _SURROGATES:
            following = _SURROGATES.stop
        if following <= _LAST:
            return prefix[:place] + chr(following)
    return None
