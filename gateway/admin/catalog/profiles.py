"""Profiles in the catalog: current recordings, and completed ones.

They are in the catalog, not in a cache directory, because gateways share it: a profile combines the reads of several gateways,
survives each of them, and is replayed through any. Gateways add parts to it: pages of reads, compressed. Parts are not changes of
the catalog, so recording neither wakes other gateways nor fills the audit log. ``until`` alone tells whether a profile is being
recorded; stopping it sets ``until`` to now. So a gateway that cannot reach the catalog stops in time too.

A deleted or full profile accepts no more parts.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import RowMapping, Select, func, insert, select

from gateway.admin.catalog.schema import profile_parts, profiles
from gateway.policies.streams.profile import MOST_BLOCKS, ProfileRead, ProfileRecording

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

LARGEST = 4 * 1024**2
"""The most bytes of the parts of a profile, compressed."""
_RECENT = 64
"""The most recordings that gateways load: more than may run at once."""


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """A profile; ``reads`` and ``span`` are the sums over its parts, which may name a block twice. Times as in the schema."""

    id: str
    name: str
    tenant: str
    origin: str
    access_key_id: str
    bucket: str
    prefix: str
    created_at: float
    until: float
    revision: int
    reads: int = 0
    span: int = 0
    held: int = 0

    @property
    def full(self) -> bool:
        """Whether it accepts no more reads."""
        return self.reads >= MOST_BLOCKS or self.held >= LARGEST

    @classmethod
    def from_row(cls, row: RowMapping) -> ProfileRow:
        """Parse a row of ``rows_of``."""
        return cls(**{**row, "prefix": json.loads(row["prefix"])})


def rows_of() -> Select[tuple[object, ...]]:
    """Profiles with the sums of their parts."""
    sums = [
        func.coalesce(func.sum(profile_parts.c.reads), 0).label("reads"),
        func.coalesce(func.sum(profile_parts.c.span), 0).label("span"),
        func.coalesce(func.sum(func.length(profile_parts.c.body)), 0).label("held"),
    ]
    joined = profiles.outerjoin(profile_parts, profile_parts.c.profile == profiles.c.id)
    return select(*profiles.c, *sums).select_from(joined).group_by(*profiles.c)


async def read_recordings(connection: AsyncConnection) -> tuple[ProfileRecording, ...]:
    """The recordings that end last, including ended ones."""
    rows = await connection.execute(select(profiles).order_by(profiles.c.until.desc()).limit(_RECENT))
    return tuple(
        ProfileRecording(row.id, row.access_key_id, row.bucket, json.loads(row.prefix), row.until) for row in rows
    )


async def add_part(connection: AsyncConnection, profile: str, reads: Sequence[ProfileRead]) -> bool:
    """Add reads to a profile; ``False`` if it accepts no more."""
    row = (await connection.execute(rows_of().where(profiles.c.id == profile))).mappings().one_or_none()
    if row is None or ProfileRow.from_row(row).full:
        return False
    body = zlib.compress(json.dumps(reads, separators=(",", ":")).encode())
    span = sum(read.stop - read.start for read in reads)
    values = {"profile": profile, "reads": len(reads), "span": span, "body": body}
    await connection.execute(insert(profile_parts).values(**values))
    return True


async def read_parts(connection: AsyncConnection, profile: str) -> list[list[ProfileRead]]:
    """The parts of a profile."""
    query = select(profile_parts.c.body).where(profile_parts.c.profile == profile).order_by(profile_parts.c.id)
    return [
        [ProfileRead(*read) for read in json.loads(zlib.decompress(row.body))]
        for row in await connection.execute(query)
    ]
