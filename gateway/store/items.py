"""Items of datasets on this node's disk: blobs by digest, and residency flags.

Looking up an item costs no database access, and no thread while the kernel has its path in memory. Each dataset that is open in
a worker has three arrays in a file that all workers of the node share (``ItemStates``): whether the item's blob is resident, its
CRC, and the modification time of its file when it was verified. They are hints, checked against the file when it is opened;
unknown items are looked up in the index before the origin is asked. So a worker that missed an eviction or a fill elsewhere
loses time, but serves no wrong bytes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from gateway.base.tasks import SingleFlight
from gateway.model.errors import BlobGone
from gateway.model.objects import BlobRef
from gateway.policies.items.demand import leaving, need_of, window_of
from gateway.policies.pools import dataset_pool
from gateway.store.datasets.content import FETCHING, NOT_KNOWN, RESIDENT, VERIFIED, Content
from gateway.store.disk import Disk
from gateway.store.files.blobs import OpenBlob
from gateway.store.files.directory import CacheDirectory
from gateway.store.files.failures import DiskFault, attempt
from gateway.store.files.threads import close_together, closer
from gateway.store.index import blob_rows
from gateway.store.index.blob_rows import BlobRow
from gateway.store.opening import Opener

K = TypeVar("K")

_PAGE = 500
_INLINE = 2_000
_CONSIDERED = 4
"""Residents looked up in all datasets, per resident that may be evicted."""
_MISSING, _FAILED = -2, -3
"""In place of a descriptor: the file does not exist, or cannot be opened. -1 means that the disk must be accessed."""


class ItemFile(NamedTuple):
    """An open file with exactly an item's bytes; its holder closes ``fd``."""

    fd: int
    size: int
    crc32: int
    inode: int


def stamp_of(mtime_ns: int) -> int:
    """A modification time folded to 32 bits: enough to notice that a file was replaced."""
    return (mtime_ns ^ (mtime_ns >> 32)) & 0xFFFFFFFF


class ItemBlobs:
    """One worker's knowledge of the items of its open datasets. Created by the store."""

    def __init__(self, disk: Disk, opener: Opener) -> None:
        self._disk = disk
        self._opener = opener
        self.contents: WeakValueDictionary[str, Content] = WeakValueDictionary()
        """The datasets whose items this worker knows, by tag."""
        self._surveys: SingleFlight[Content, None] = SingleFlight()
        self._random = np.random.default_rng()

    # --- news of stores and evictions

    def stored(self, ref: BlobRef, mtime_ns: int) -> None:
        """Record a blob that was just published; it was hashed while it was written."""
        for content in tuple(self.contents.values()):
            indices = content.indices_of(ref.digest)
            if indices.size:
                self._set_states(content, indices, VERIFIED, ref.crc32, stamp_of(mtime_ns))

    def gone(self, digests: Iterable[bytes]) -> None:
        """Record that blobs were evicted or dropped."""
        contents = tuple(self.contents.values())
        for digest in digests if contents else ():
            for content in contents:
                content.states.flags[content.indices_of(digest)] = NOT_KNOWN

    @staticmethod
    def _set_states(content: Content, index: int | NDArray[np.uint32], flag: int, crc32: int, stamp: int) -> None:
        states = content.states
        states.crc32[index] = crc32
        states.stamp[index] = stamp
        states.flags[index] = flag

    def doubt(self, content: Content, indices: NDArray[np.uint32]) -> None:
        """Note that these items could not be opened: those still marked as verified are checked at their next read."""
        flags = content.states.flags
        flags[indices[flags[indices] == VERIFIED]] = RESIDENT

    def distrust(self, digest: bytes) -> None:
        """Have a blob verified when it is next opened, because bytes that were read do not match its digest."""
        self._opener.doubt(digest)
        for content in tuple(self.contents.values()):
            self.doubt(content, content.indices_of(digest))

    @property
    def readable(self) -> bool:
        """Whether files may be read now."""
        return self._disk.readable

    # --- datasets

    def others(self, content: Content, digest: bytes) -> Iterator[tuple[Content, NDArray[np.uint32]]]:
        """Other datasets open here that have an item with these bytes, with the indices of those items."""
        for other in tuple(self.contents.values()):
            if other is not content and (indices := other.indices_of(digest)).size:
                yield other, indices

    def least_needed(self, most: int) -> dict[str, list[bytes]]:
        """By pool, cached items of datasets that are kept by demand: the first ``most`` to evict if the pool must shrink."""
        return {
            dataset_pool(content.id): content.digests_of(needless)
            for content in tuple(self.contents.values())
            if (needless := self._needless(content, most)).size
        }

    def _needless(self, content: Content, most: int) -> NDArray[np.uint32]:
        """Residents in a window of a dataset, the least needed first; none while no job reads it by demand."""
        table = content.demand()
        if table is None or not (active := table.active()):
            return np.empty(0, np.uint32)
        window = window_of(content.items, self._random)
        residents = (window.start + np.flatnonzero(content.states.believed(window))).astype(np.uint32)
        uses = table.next_uses(residents, content.items / max(1, window.stop - window.start))
        if uses is None:
            order = leaving(need_of(table.bits[residents], active), _CONSIDERED * most, self._random)
        else:
            order = np.argsort(-uses.of(residents.astype(np.int64), table.bits[residents]), kind="stable")
        # Only the first ones' bytes are looked up in all datasets, because each look-up is a search.
        first: NDArray[np.uint32] = residents[order[: _CONSIDERED * most]]
        need = [self._need(content, content.digest(index), own=uses is None) for index in first.tolist()]
        return first[np.argsort(need, kind="stable")[:most]]

    def _need(self, content: Content, digest: bytes, *, own: bool) -> int:
        """How often bytes are needed, as items of other datasets and, if ``own``, of this dataset: a sum over jobs."""
        need = 0
        here = ((content, content.indices_of(digest)),) if own else ()
        for holder, indices in (*here, *self.others(content, digest)):
            table = holder.demand()
            # It is unknown how jobs read a dataset that is not kept by demand; one of them may want the item.
            need += int(need_of(table.bits[indices], table.active()).sum()) if table is not None else len(indices)
        return need

    def adopt(self, content: Content) -> None:
        """Keep this dataset's states up to date from now on, and survey its residency in the background."""
        if self.contents.get(content.tag) is not content:
            self.contents[content.tag] = content
        # The next caller restarts a survey that failed.
        if not content.states.surveyed and self._disk.usable():
            self._surveys.join(content, partial(self._survey, content))

    async def ready(self, content: Content) -> None:
        """Wait for the survey of a small dataset; a large one is surveyed in the background."""
        if content in self._surveys and content.items <= _INLINE:
            await self._surveys.waiter(content)

    async def close(self) -> None:
        """Stop the surveys."""
        await self._surveys.stop()
        self.contents.clear()

    async def _survey(self, content: Content) -> None:
        for start in range(0, content.items, _PAGE):
            digests = [content.digest(index) for index in range(start, min(start + _PAGE, content.items))]
            distinct = list(dict.fromkeys(digests))
            try:
                rows = await self._disk.read(lambda connection: blob_rows.find_many(connection, distinct))  # noqa: B023
            except DiskFault:
                return
            by_digest = {row.digest: row for row in rows}
            for index, digest in enumerate(digests, start):
                if (row := by_digest.get(digest)) is not None:
                    self._adopt_row(content, index, row)
        content.states.surveyed = True

    async def confirm(self, content: Content, indices: NDArray[np.uint32]) -> None:
        """Check that those items marked as resident have a file, and clear the marks of the others.

        A closed dataset does not learn of evictions, and a worker does not notify datasets that only other workers have open.
        """
        believed = indices[content.states.believed(indices)]
        path_of = self._disk.directory.blob_path
        for start in range(0, len(believed), _PAGE):
            page = believed[start : start + _PAGE]
            paths = [path_of(content.digest(index)) for index in page.tolist()]
            try:
                gone = await self._disk.files(lambda: [not os.path.exists(path) for path in paths])  # noqa: B023
            except DiskFault:
                return
            content.states.flags[page[gone]] = NOT_KNOWN

    def _adopt_row(self, content: Content, index: int, row: BlobRow) -> None:
        if content.states.flags[index] in (NOT_KNOWN, FETCHING):
            verified = row.boot == self._disk.directory.boot
            self._set_states(content, index, VERIFIED if verified else RESIDENT, row.crc32, stamp_of(row.mtime_ns))

    # --- reading

    async def open_all(
        self, content: Content, indices: NDArray[np.uint32], digests: Sequence[bytes]
    ) -> list[ItemFile | None]:
        """The items' verified and unchanged files; ``None`` for the others.

        If the disk must be accessed, one thread opens all of those files in one go.
        """
        files: list[ItemFile | None] = [None] * len(indices)
        verified = (content.states.flags[indices] == VERIFIED).nonzero()[0].tolist()
        if not verified or not self._disk.readable:
            return files
        wanted = {place: digests[place] for place in verified}
        try:
            await open_blobs(self._disk, wanted, partial(self._check, content, indices, files))
        except DiskFault:
            return files
        except BaseException:
            close_files([file for file in files if file is not None])
            raise
        return files

    @staticmethod
    def _check(
        content: Content, indices: NDArray[np.uint32], files: list[ItemFile | None], opened: Iterable[tuple[int, int]]
    ) -> None:
        """Store each open file that is still the verified file; close the others."""
        flags, fstat = content.states.flags, os.fstat
        # One look at each array for all items: one per item would cost a quarter of this loop.
        stamps, crcs = content.states.stamp[indices].tolist(), content.states.crc32[indices].tolist()
        for place, fd in opened:
            if fd < 0:
                if fd == _MISSING:
                    flags[indices[place]] = NOT_KNOWN
                continue
            status = fstat(fd)
            modified = status.st_mtime_ns
            if (modified ^ (modified >> 32)) & 0xFFFFFFFF == stamps[
                place
            ]:  # ``stamp_of`` inline, to save a call for each item
                files[place] = ItemFile(fd, status.st_size, crcs[place], status.st_ino)
            else:
                closer.close_files([fd])
                flags[indices[place]] = RESIDENT

    async def look(self, content: Content, index: int) -> ItemFile | None:
        """Like ``open_all``, for one item, falling back to the index; verifies the file unless that was done since the start."""
        digest = content.digest(index)
        if (file := (await self.open_all(content, np.array([index], np.uint32), [digest]))[0]) is not None:
            return file
        try:
            row = await self._disk.look(lambda connection: blob_rows.find(connection, digest))
        except DiskFault:
            return None
        if row is None:
            if content.states.flags[index] != FETCHING:
                content.states.flags[index] = NOT_KNOWN
            return None
        try:
            blob: OpenBlob = await self._opener.open(row.ref)
        except BlobGone:
            content.states.flags[index] = NOT_KNOWN
            return None
        self._set_states(content, index, VERIFIED, blob.crc32, stamp_of(blob.mtime_ns))
        return file_of(blob)

    async def resident(self, digest: bytes) -> BlobRef | None:
        """The blob of a digest according to the index, independent of datasets."""
        row = await attempt(self._disk.look, partial(blob_rows.find, digest=digest), None)
        return None if row is None else row.ref

    async def among(self, digests: Sequence[bytes]) -> set[bytes]:
        """Those digests that have a blob in the index; none while it cannot be read."""
        present: set[bytes] = set()
        for start in range(0, len(digests), _PAGE):
            page = list(dict.fromkeys(digests[start : start + _PAGE]))
            try:
                rows = await self._disk.read(lambda connection: blob_rows.find_many(connection, page))  # noqa: B023
            except DiskFault:
                break
            present.update(row.digest for row in rows)
        return present


async def open_blobs(disk: Disk, wanted: Mapping[K, bytes], receive: Callable[[Iterable[tuple[K, int]]], None]) -> None:
    """Open blobs: those whose path the kernel has in memory directly, the others together in a thread.

    Args:
        disk: of the node.
        wanted: digests, by the caller's names.
        receive: gets names with descriptors, which it then owns; negative descriptors where nothing was opened.

    Raises:
        DiskFault: the disk hangs.
    """
    opened = list(zip(wanted, disk.directory.open_at_once(wanted.values()), strict=True))
    receive(opened)
    slow = [name for name, fd in opened if fd < 0]
    if slow:
        digests = [wanted[name] for name in slow]
        descriptors = await disk.bounded(partial(open_each, disk.directory, digests), close_each)
        receive(zip(slow, descriptors, strict=True))


def file_of(blob: OpenBlob) -> ItemFile:
    """Another descriptor of an open blob."""
    return ItemFile(os.dup(blob.fd), blob.size, blob.crc32, blob.inode)


def open_each(directory: CacheDirectory, digests: Sequence[bytes]) -> list[int]:
    """A descriptor for each blob, negative if the blob is missing or cannot be opened. Runs in a thread."""
    opened = []
    for digest in digests:
        try:
            opened.append(directory.open_blob(digest))
        except FileNotFoundError:
            opened.append(_MISSING)
        except OSError:
            opened.append(_FAILED)
    return opened


def close_each(descriptors: Sequence[int]) -> None:
    """Close the descriptors of ``open_each``."""
    for descriptor in descriptors:
        if descriptor >= 0:
            os.close(descriptor)


def close_files(files: Sequence[ItemFile]) -> None:
    """Close the files returned by ``open_all`` and ``look``."""
    closer.close_files([file.fd for file in files])


def close_passed_files(files: Sequence[ItemFile]) -> None:
    """Like ``close_files``, after all of them were passed to another process."""
    close_together([file.fd for file in files])
