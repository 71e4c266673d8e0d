"""``larder-gateway verify``: compares every blob with its digest, and the index with the disk.

It only reads, so it may run beside a gateway: files younger than a minute are skipped, because a blob gets its row a moment
after its file. Repairs need the node lock, and use the store's own means: recovery, and verification at first opening.
"""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gateway.base.config import CacheSettings
from gateway.model.errors import BlobGone, LarderError
from gateway.model.objects import BlobRef
from gateway.policies.health.breaker import FailureKind
from gateway.store.files.blobs import read_contents
from gateway.store.files.failures import DiskFault, disk_faults
from gateway.store.index import blob_rows
from gateway.store.index.index_file import ensure_index, identity_of
from gateway.store.index.salvage import damage
from gateway.store.index.schema import driver_of, open_engine
from gateway.store.store import Store

_YOUNG_NS = 60 * 10**9
_NAME = re.compile(r"[0-9a-f]{62}")
_PATIENCE = 5.0


@dataclass(slots=True)
class VerifyReport:
    """The result. ``corrupt``, ``missing`` and ``orphans`` name files below ``blobs/``; sizes are bytes.

    ``damaged`` counts the damaged rows and pages of the index."""

    blobs: int = 0
    bytes: int = 0
    corrupt: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    damaged: int = 0
    repaired: bool = False
    shards: int = 0
    """Number of the 256 folders that have been read."""

    @property
    def sound(self) -> bool:
        """Whether there are no defects, or all were repaired."""
        return self.repaired or not (self.corrupt or self.missing or self.orphans or self.damaged)

    def describe(self) -> str:
        """One line per problem."""
        kinds = (
            ("corrupt, its bytes do not match its name", self.corrupt),
            ("missing, but in the index", self.missing),
            ("orphan, no object uses it", self.orphans),
        )
        lines = [f"{name}: {what}" for what, names in kinds for name in names]
        if self.damaged:
            lines.append(
                f"index.db: {self.damaged} of its rows or pages damaged; --repair makes a new index of the others"
            )
        if self.repaired and lines:
            lines.append("all of these were dropped; the next reads fetch the data again")
        return "\n".join(lines)


async def verify_cache(
    settings: CacheSettings, *, repair: bool = False, progress: Callable[[VerifyReport], bool] | None = None
) -> VerifyReport:
    """Read and verify every blob.

    Args:
        settings: the ``[cache]`` table; ``dir`` is verified.
        repair: drop defective blobs; needs exclusive use of the cache.
        progress: called in a thread with the results so far, after each file; returns whether to continue.

    Raises:
        LarderError: no cache in ``dir``, the cache is unreadable, or ``repair`` while a gateway is running.
    """
    root = Path(settings.dir)
    if not (root / "index.db").is_file():
        raise LarderError(f"cache.dir: no cache in {root}")
    try:
        report = await asyncio.to_thread(_look, root, progress)
    except DiskFault as fault:
        if not repair or fault.kind is not FailureKind.CORRUPT:
            raise
        report = VerifyReport(damaged=1)
    if repair and not report.sound:
        await _repair(settings, report)
    return report


def _look(root: Path, progress: Callable[[VerifyReport], bool] | None) -> VerifyReport:
    report = VerifyReport(damaged=damage(root / "index.db", _PATIENCE))
    engine = open_engine(root / "index.db", patience=_PATIENCE)
    try:
        with disk_faults(), engine.connect() as connection:
            for number in range(256):
                if not _compare(report, root / "blobs", number, driver_of(connection), progress or _always):
                    break
                report.shards = number + 1
    finally:
        engine.dispose()
    return report


def _always(_report: VerifyReport) -> bool:
    return True


def _compare(
    report: VerifyReport, blobs: Path, number: int, index: sqlite3.Connection, progress: Callable[[VerifyReport], bool]
) -> bool:
    """Compare one folder with the index; ``False`` if the verification was cancelled."""
    young = time.time_ns() - _YOUNG_NS
    rows = blob_rows.in_shards(index, range(number, number + 1))
    folder = blobs / f"{number:02x}"
    present = set()
    for entry in _blob_files(folder):
        name = f"{folder.name}/{entry.name}"
        digest = bytes.fromhex(folder.name + entry.name)
        present.add(digest)
        try:
            with open(entry.path, "rb") as file:
                status, contents = os.fstat(file.fileno()), read_contents(file.fileno())
        except FileNotFoundError:
            continue  # evicted since the folder was listed
        report.blobs += 1
        report.bytes += contents.size
        if contents.digest != digest:
            report.corrupt.append(name)
        elif digest not in rows and status.st_ctime_ns < young:
            report.orphans.append(name)
        if not progress(report):
            return False
    for digest in rows.keys() - present:
        name = digest.hex()[2:]
        # A blob may have been evicted, or written again, since the index was read.
        if blob_rows.find(index, digest) is not None and not (folder / name).exists():
            report.missing.append(f"{folder.name}/{name}")
    return progress(report)


def _blob_files(folder: Path) -> Iterator[os.DirEntry[str]]:
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except FileNotFoundError:
        return
    yield from (entry for entry in entries if _NAME.fullmatch(entry.name))


async def _repair(settings: CacheSettings, report: VerifyReport) -> None:
    store = await Store.open(settings, now=time.time)
    try:
        if not await store.try_lock():
            raise LarderError("cache.dir: a gateway is using this cache; stop it before --repair")
        if report.damaged:
            index = store.directory.index
            await asyncio.to_thread(ensure_index, index, identity_of(index))
        await store.recover()
        for name in report.corrupt:
            digest = bytes.fromhex(name.replace("/", ""))
            try:
                # The first opening after a start reads the whole file, and drops it if it is corrupt.
                await store.open_blob(BlobRef(digest, -1, 0))
            except BlobGone:
                continue
        report.repaired = True
    finally:
        await store.close()
