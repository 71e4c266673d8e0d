"""Profiles, for operators: started, stopped, shown, deleted, and read for a warm-up."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from sqlalchemy import delete, func, insert, select, update

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.fields import Bucket, Name, Prefix, RequestModel, Text
from gateway.admin.catalog.profiles import ProfileRow, add_part, read_parts, rows_of
from gateway.admin.catalog.schema import profile_parts, profiles
from gateway.admin.http.parts import check_if_match, etag_of
from gateway.model.datasets import ApiError
from gateway.model.keys import Principal
from gateway.policies.streams.profile import Profile, ProfileRead, merged

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

MOST = 32
"""The most profiles of one tenant."""
AT_ONCE = 8
"""The most profiles recorded at once, of all tenants: each takes a gateway some 15 MB."""
LONGEST = 7 * 24 * 3600
"""Longest recording, in seconds."""


class ProfileRequest(RequestModel):
    """A recording: the reads of one access key below a prefix."""

    name: Name = Field(description="unique among all tenants", examples=["imagenet-eval"])
    access_key_id: Annotated[Text, Field(min_length=1, max_length=256)] = Field(
        description="whose reads are recorded; the profile belongs to its tenant", examples=["GWVISION"]
    )
    bucket: Bucket = Field(examples=["training-data"])
    prefix: Prefix = Field("", description='prefix of the keys; "" for the whole bucket', examples=["imagenet/val/"])
    seconds: int = Field(3600, ge=1, le=LONGEST, description="duration of the recording", examples=[3600])


class Profiles:
    """The profiles of a catalog. Every method raises CatalogUnavailable when the database cannot be reached.

    Args:
        catalog: stores them.
        block_size: granularity of merged reads, in bytes.
    """

    def __init__(self, catalog: Catalog, block_size: int) -> None:
        self._catalog = catalog
        self._block_size = block_size

    def recording(self, row: ProfileRow) -> bool:
        """Whether a profile still accepts reads."""
        return self._catalog.now() < row.until and not row.full

    async def add(self, change: CatalogChange, request: ProfileRequest, principal: Principal) -> ProfileRow:
        """Start recording; gateways follow within a second.

        Raises:
            ApiError: Conflict if the name is taken, or there are too many.
        """
        connection, now = change.connection, self._catalog.now()
        if await connection.scalar(select(profiles.c.id).where(profiles.c.name == request.name)) is not None:
            raise ApiError(
                "Conflict", f"There is a profile {request.name!r} already: delete it, or choose another name."
            )
        counted = select(func.count()).select_from(profiles)
        if int(await connection.scalar(counted.where(profiles.c.tenant == principal.tenant)) or 0) >= MOST:
            raise ApiError(
                "Conflict", f"The tenant {principal.tenant} has {MOST} profiles, the most there may be: delete one."
            )
        if int(await connection.scalar(counted.where(profiles.c.until > now)) or 0) >= AT_ONCE:
            raise ApiError(
                "Conflict",
                f"At most {AT_ONCE} profiles are recorded at once, and as many are being recorded: stop one.",
            )
        new = ProfileRow(
            uuid.uuid4().hex,
            request.name,
            principal.tenant,
            principal.identity.origin,
            request.access_key_id,
            request.bucket,
            request.prefix,
            now,
            now + request.seconds,
            change.revision,
        )
        columns = {column.name: getattr(new, column.name) for column in profiles.c}
        # As JSON: PostgreSQL's texts have no U+0000, and keys may have it.
        await connection.execute(insert(profiles).values(**{**columns, "prefix": json.dumps(new.prefix)}))
        change.target, change.after = new.name, request.model_dump()
        return new

    async def stop(self, change: CatalogChange, name: str, if_match: str | None) -> ProfileRow:
        """End a recording.

        Raises:
            ApiError: NotFound; PreconditionFailed; Conflict, it has ended.
        """
        profile = await self._editable(change, name, if_match)
        if profile.until <= (now := self._catalog.now()):
            raise ApiError("Conflict", "The profile is no longer being recorded.")
        values = {"until": now, "revision": change.revision}
        await change.connection.execute(update(profiles).where(profiles.c.id == profile.id).values(**values))
        change.before, change.after = {"until": profile.until}, {"until": now}
        return replace(profile, until=now, revision=change.revision)

    async def delete(self, change: CatalogChange, name: str, if_match: str | None) -> None:
        """Delete a profile; a warm-up that replays it fails.

        Raises:
            ApiError: NotFound; PreconditionFailed.
        """
        profile = await self._editable(change, name, if_match)
        await change.connection.execute(delete(profiles).where(profiles.c.id == profile.id))
        await change.connection.execute(delete(profile_parts).where(profile_parts.c.profile == profile.id))
        change.before = {"name": profile.name, "tenant": profile.tenant, "reads": profile.reads}

    async def show(self, name: str) -> ProfileRow:
        """One profile.

        Raises:
            ApiError: NotFound.
        """
        async with self._catalog.database.reading() as connection:
            return _there(await _find(connection, name))

    async def all(self) -> list[ProfileRow]:
        """Every profile."""
        async with self._catalog.database.reading() as connection:
            return [ProfileRow.from_row(row) for row in (await connection.execute(rows_of())).mappings()]

    async def find(self, name: str) -> Profile | None:
        """A profile with its reads, for a warm-up; ``None`` if the name is unknown."""
        async with self._catalog.database.reading() as connection:
            row = await _find(connection, name)
            parts = [] if row is None else await read_parts(connection, row.id)
        if row is None:
            return None
        reads = await asyncio.to_thread(merged, parts, self._block_size)
        return Profile(row.name, row.tenant, row.origin, self.recording(row), tuple(reads))

    async def save(self, profile: str, reads: Sequence[ProfileRead]) -> bool:
        """Add reads to the profile of an id; ``False`` if it takes no more."""
        async with self._catalog.database.writing() as connection:
            return await add_part(connection, profile, reads)

    async def _editable(self, change: CatalogChange, name: str, if_match: str | None) -> ProfileRow:
        profile = _there(await _find(change.connection, name))
        check_if_match(if_match, etag_of(profile.revision))
        return profile


async def _find(connection: AsyncConnection, name: str) -> ProfileRow | None:
    row = (await connection.execute(rows_of().where(profiles.c.name == name))).mappings().one_or_none()
    return None if row is None else ProfileRow.from_row(row)


def _there(profile: ProfileRow | None) -> ProfileRow:
    if profile is None:
        raise ApiError("NotFound", "There is no such profile; larder-gateway profiles lists them.")
    return profile
