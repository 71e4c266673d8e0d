"""Where the members of TAR archives are, for batches of keys: found by reading the archives' headers through the cache.

An archive's headers are read with the rights of the caller who wants a member, from where the last walk ended, until the member
is found. The members' places are kept in memory by the archive's ETag, and serve every caller with the right to read the
archive. The read of the member itself is checked like any other, and names the version (If-Match).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

from gateway.api.s3.answer import Answer
from gateway.api.s3.hot import Hit
from gateway.api.s3.inner import CallerReads, InnerRead, fields_of, pieces_of, release
from gateway.model.errors import OriginUnavailable, S3Error
from gateway.model.tar import NotTar, TarMembers
from gateway.origin.headers import content_range

MOST = 128 * 1024**2
"""Bytes of memory that a worker keeps of all archives together."""
MOST_OF_ONE = 64 * 1024**2
"""Bytes of memory for the members of one archive: some 250,000."""
_FIRST, _HEADER, _STRETCH = 64 * 1024, 8 * 1024, 1024 * 1024
"""Bytes per read: the first one, and later ones in an archive with large files, or with small files."""
_ARCHIVE = 2048
"""Approximate bytes of memory for an archive without members."""
_MOST_ARCHIVES = 4096
ATTEMPTS = 3
"""The most versions of an archive that are tried for one member."""
CHANGED = 412
"""The status of a read of a version that is not the current one."""
_Place = tuple[str, str, str]
"""Origin, bucket and key."""


class WalkRefused(Exception):
    """A read of an archive's headers was not answered with its bytes: its answer is the member's answer, too."""

    def __init__(self, read: InnerRead, answer: Answer | Hit) -> None:
        super().__init__(answer.status)
        self.read, self.answer = read, answer


class KnownArchive:
    """One version of an archive. One walk at a time continues to read it."""

    def __init__(self, etag: str, size: int) -> None:
        self.etag = etag
        self.members = TarMembers(size)
        self.walking = asyncio.Lock()


class Archives:
    """The archives whose members one worker knows."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Place, KnownArchive] = OrderedDict()

    async def locate(self, reads: CallerReads, bucket: str, key: str, member: str) -> tuple[int, int, str]:
        """First byte and size of a member, and the ETag of the version that has it there.

        Raises:
            WalkRefused: the archive cannot be read by this caller.
            S3Error: there is no such member, the object is not a TAR archive, or it keeps changing.
            LarderError: the archive broke off while it was read.
        """
        place = reads.principal.identity.origin, bucket, key
        for _attempt in range(ATTEMPTS):
            try:
                archive = self._known.get(place) or self._keep(place, await _begin(reads, place))
                self._known.move_to_end(place)
                async with archive.walking:
                    location = await self._walk(reads, place, archive, member)
                if location is not None:
                    return *location, archive.etag
                # Only callers who may read the archive as it is now learn that it has no such member.
                await _read(reads, place, (0, 1), archive.etag)
            except WalkRefused as refused:
                if refused.answer.status != CHANGED:
                    raise
                await release(refused.answer)
                self.forget(reads, bucket, key)
            else:
                raise S3Error("NoSuchKey", explain=f"The archive has no member {member!r}.")
        raise changing()

    async def _walk(
        self, reads: CallerReads, place: _Place, archive: KnownArchive, member: str
    ) -> tuple[int, int] | None:
        """Read headers until the member is found; ``None`` if the archive has none of this name."""
        members = archive.members
        while (location := members.places.get(member)) is None and not members.complete:
            stop = min(members.size, members.position + max(members.least, _window(members)))
            data, _, _ = await _read(reads, place, (members.position, stop), archive.etag)
            _feed(members, data)
            self._trim(place)
        return location

    def forget(self, reads: CallerReads, bucket: str, key: str) -> None:
        """Forget an archive that has changed."""
        self._known.pop((reads.principal.identity.origin, bucket, key), None)

    def _keep(self, place: _Place, archive: KnownArchive) -> KnownArchive:
        self._known[place] = archive
        if len(self._known) > _MOST_ARCHIVES:
            self._known.popitem(last=False)
        self._trim(place)
        return archive

    def _trim(self, place: _Place) -> None:
        """Forget the least recently used archives, except this one, until the rest fits the memory."""
        kept = sum(_ARCHIVE + archive.members.memory for archive in self._known.values())
        for other in [other for other in self._known if other != place]:
            if kept <= MOST:
                return
            kept -= _ARCHIVE + self._known.pop(other).members.memory


def changing() -> S3Error:
    """The refusal for an archive that changes with each read."""
    return S3Error("SlowDown", explain="The archive changed while it was being read. Please try again.")


def _feed(members: TarMembers, data: bytes) -> None:
    try:
        members.feed(data)
    except NotTar as error:
        raise S3Error("InvalidRequest", explain=f"The object has no members: {error}.") from None
    if members.memory > MOST_OF_ONE:
        explain = f"The archive has too many members, more than {len(members.places)}: make smaller ones."
        raise S3Error("InvalidRequest", explain=explain)


def _window(members: TarMembers) -> int:
    if not members.places:
        return _FIRST
    return _STRETCH if members.position // len(members.places) < _STRETCH else _HEADER


async def _begin(reads: CallerReads, place: _Place) -> KnownArchive:
    """An archive as it is now, with its first members."""
    data, etag, size = await _read(reads, place, (0, _FIRST), "")
    archive = KnownArchive(etag, size)
    _feed(archive.members, data)
    return archive


async def _read(reads: CallerReads, place: _Place, span: tuple[int, int], etag: str) -> tuple[bytes, str, int]:
    """Bytes of an archive, of the version with this ETag if one is given, with its ETag and its size."""
    _, bucket, key = place
    start, stop = span
    read = reads.begin(bucket, key, f"bytes={start}-{stop - 1}", etag, free=True)
    answer = read.hit or await read.answer()
    if answer.status not in (200, 206):
        raise WalkRefused(read, answer)
    try:
        fields = fields_of(answer)
        part = content_range(fields.get(b"content-range", ""))
        seen = fields.get(b"etag", "")
        if answer.status != 206 or part is None or part[0] != start or part[1] >= stop or not seen:
            raise S3Error("NotImplemented", explain="Members need a store that answers ranges, with the object's ETag.")
        data = b"".join([piece async for piece in pieces_of(answer)])
        if len(data) != min(stop, part[2]) - start:
            raise OriginUnavailable("a range of an archive is not what was asked for")
        return data, seen, part[2]
    finally:
        await release(answer)
