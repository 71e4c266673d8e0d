"""The folder of datasets: its layout, its locks, and recovery after a crash.

    contents/<id>-<16 hex digits>/    index, states: see layout.py; the digits differ for contents of one id with other lengths
    tenants/<32 hex digits>/<name>/   registration.json and the locations file that it names
    tmp/                              drafts: incomplete folders, and folders being removed
    lock                              held while a folder is renamed into place or removed
    turns/                            locks of conversions: ``READERS`` for the node, and one per tenant

Everything is written in a draft and renamed under the lock; ``registration.json`` comes last, and files that it does not name
are ignored. A draft's folder is locked by the process that fills it, so an unlocked draft is a leftover. flock(2) drops the
locks of a killed process.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Any

from gateway.store.datasets.content import demand_of, twin_of
from gateway.store.datasets.layout import STATES
from gateway.store.files.locks import exclusive, is_locked

DATASETS = "datasets"
"""The folder, in the cache directory."""
REGISTRATION = "registration.json"
READERS = 2
"""Conversions at once on a node, so that a long one does not block those of other tenants."""
PAYS = "pays"
"""A field of a registration's document: true if its reads pay (``Registration.pays``), otherwise absent."""
LISTING = "listing"
"""A field of a registration's document: the folders whose listings are recorded (``Registration.listing``), absent if none."""
TERMS = frozenset({"caching", PAYS, LISTING})
"""The fields that registering the same file again may change."""
Terms = dict[str, str | bool | list[str]]
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LARGEST_REGISTRATION = 1024 * 1024


class Draft:
    """A new folder, filled and closed by its opener."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def close(self) -> None:
        """Remove the folder with its remaining content."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)


class Folders:
    """Paths, locks and renames. Every method may raise ``OSError``.

    Attributes:
        listings_change: called before a change of registrations that may change which listings are recorded, under the lock.
    """

    def __init__(self, root: Path) -> None:
        self.listings_change: Callable[[], object] = lambda: None
        self.root = root
        self.contents = root / "contents"
        self.tenants = root / "tenants"
        self._tmp = root / "tmp"
        self._turns = root / "turns"

    def create(self) -> None:
        """Create missing folders, except the cache directory itself: without it there is no cache."""
        self.root.mkdir(mode=0o700, exist_ok=True)
        for folder in (self.contents, self.tenants, self._tmp, self._turns):
            folder.mkdir(mode=0o700, exist_ok=True)

    def locked(self) -> AbstractContextManager[None]:
        """Hold the lock against other renames and removals, for short work only."""
        return exclusive(self.root / "lock")

    def of_tenant(self, tenant: str) -> Path:
        """The folder of a tenant's registrations, hashed, because a tenant's name may not be a valid file name."""
        return self.tenants / sha256(tenant.encode("utf-8", "surrogatepass")).hexdigest()[:32]

    def turns(self, tenant: str) -> tuple[Path, ...]:
        """The locks of a conversion: one per tenant, and ``READERS`` per node."""
        return (self._turns / self.of_tenant(tenant).name, *(self._turns / str(number) for number in range(READERS)))

    def open_draft(self) -> Draft:
        """A new empty draft."""
        self.create()
        path = self._tmp / os.urandom(8).hex()
        with self.locked():
            path.mkdir(mode=0o700)
            descriptor = os.open(path, _FOLDER)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        return Draft(path, descriptor)

    def announce(self, *documents: dict[str, Any] | None) -> None:
        """Announce the coming replacement of one of these documents by another, or its removal. Requires the lock."""
        if any(document is not None and LISTING in document for document in documents):
            self.listings_change()

    def clear_away(self, into: Path) -> bool:
        """Move contents that no registration names into a draft. Requires the lock.

        Contents that a worker has open stay: it may be about to name them in a new registration.

        Returns:
            Whether any stayed.
        """
        doomed = [path for path in self._tmp.iterdir() if path != into and _is_abandoned(path)]
        used = set()
        for folder in self.tenants.glob("*/*"):
            document = read_document(folder / REGISTRATION)
            if document is None:
                doomed.append(folder)
                continue
            used.add(document.get("content"))
            doomed += [path for path in folder.iterdir() if path.name not in (REGISTRATION, document.get("locations"))]
        unused = [path for path in self.contents.iterdir() if path.name not in used]
        free = [path for path in unused if not _is_open(path)]
        for path in free:
            with suppress(OSError):
                twin = twin_of(path)
                demand = demand_of(twin)
                for table in demand.parent.glob(f"{demand.name}*"):
                    table.unlink(missing_ok=True)
                twin.unlink()
        for path in doomed + free:
            move(path, into)
        return len(free) < len(unused)


def terms_of(caching: str, pays: bool, listing: Sequence[str] = ()) -> Terms:
    """The ``TERMS`` of a registration's document."""
    terms: Terms = {"caching": caching}
    if pays:
        terms[PAYS] = True
    if listing:
        terms[LISTING] = list(listing)
    return terms


def read_document(path: Path) -> dict[str, Any] | None:
    """A registration's JSON document; ``None`` if it is missing or unreadable."""
    try:
        if path.stat().st_size > _LARGEST_REGISTRATION:
            return None
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
    return document if isinstance(document, dict) else None


def write_document(path: Path, document: dict[str, Any]) -> None:
    """Write a document atomically and durably."""
    draft = path.with_name(f".{os.urandom(8).hex()}")
    try:
        with draft.open("xb") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(json.dumps(document).encode())
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(path, _FOLDER)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def move(path: Path, into: Path) -> None:
    """Move a path away, to be removed later; ignored if it is gone."""
    try:
        path.rename(into / os.urandom(8).hex())
    except FileNotFoundError:
        return


def _is_open(content: Path) -> bool:
    """Whether a process has the states mapped, for which time content.py holds a shared lock."""
    try:
        return is_locked(content / STATES)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _is_abandoned(draft: Path) -> bool:
    try:
        return not is_locked(draft)
    except FileNotFoundError:
        return False
