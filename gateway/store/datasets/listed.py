"""Folders of registered datasets whose listings are recorded (``engine/objects/listings.py``), if the registration says so.

A dataset has a folder in each bucket: the longest one that contains all its objects there. It is found when the dataset is
registered, and is in the registration's document. A whole bucket is not recorded: that is a rule's to say.

Each worker reads the folders of all registrations under the lock of registrations, with a number that changes, under the same
lock, before registrations do. So a worker whose number is the present one knows every folder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from gateway.model.datasets import ApiError
from gateway.model.keys import covers_prefix
from gateway.store.datasets.folders import LISTING, REGISTRATION, Folders, read_document
from gateway.store.datasets.locations import Locations, PackedLocations, common_start

_MOST = 16
"""Folders of one registration."""
_PIECE = 4096


class ReadFolders(NamedTuple):
    """The folders of a node's registrations by tenant, as ``bucket/folder/``, and the number under which they were read."""

    number: int
    of_tenants: Mapping[str, frozenset[str]]


class ListedRegistrations:
    """The registrations of a node whose listings are recorded. Files that have not changed are not read again.

    Args:
        folders: of the registrations.
        number: the present number.
    """

    def __init__(self, folders: Folders, number: Callable[[], int]) -> None:
        self._folders = folders
        self._number = number
        self._known: dict[Path, tuple[tuple[int, int, int], str, frozenset[str]]] = {}

    def read(self) -> ReadFolders:
        """Read the folders; raises ``OSError``. Runs in a thread, one at a time."""
        self._folders.create()
        known = {}
        with self._folders.locked():
            number = self._number()
            for path in self._folders.tenants.glob(f"*/*/{REGISTRATION}"):
                status = path.stat()
                stamp = (status.st_ino, status.st_mtime_ns, status.st_size)
                before = self._known.get(path)
                known[path] = before if before is not None and before[0] == stamp else (stamp, *_folders_in(path))
        self._known = known
        tenants: dict[str, frozenset[str]] = {}
        for _, tenant, listed in known.values():
            if listed:
                tenants[tenant] = tenants.get(tenant, frozenset()) | listed
        return ReadFolders(number, tenants)


def _folders_in(path: Path) -> tuple[str, frozenset[str]]:
    document = read_document(path) or {}
    listed = document.get(LISTING, [])
    return str(document.get("tenant")), frozenset(listed if are_folders(listed) else ())


def are_folders(value: Any) -> bool:
    """Whether a value from outside is a list of folders."""
    return (
        isinstance(value, list)
        and 0 < len(value) <= _MOST
        and all(
            isinstance(folder, str) and folder.endswith("/") and 0 < folder.find("/") < len(folder) - 1
            for folder in value
        )
    )


def folders_to_record(locations: Locations, allow: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of a dataset that is registered by a caller with this allow-list. Reads all keys, so it blocks.

    Raises:
        ApiError: InvalidRequest, there is no folder in a bucket, or too many buckets; AccessDenied, one is not covered.
        Damaged: the locations are malformed.
    """
    starts = locations.starts() if isinstance(locations, PackedLocations) else _starts(locations)
    if len(starts) > _MOST:
        raise ApiError("InvalidRequest", f"Listings can be recorded for datasets in at most {_MOST} buckets.")
    folders = []
    for bucket, start in sorted(starts.items()):
        folder = start[: start.rfind(b"/") + 1].decode()
        if not folder:
            raise ApiError(
                "InvalidRequest",
                f"The objects in the bucket {bucket} have no folder in common, so their listings cannot be recorded for the "
                'dataset; a rule for the bucket can do that (listing = "immutable").',
            )
        if allow and not any(covers_prefix(glob, f"{bucket}/{folder}") for glob in allow):
            raise ApiError(
                "AccessDenied", f"The allow-list of this access key does not cover listings of {bucket}/{folder}."
            )
        folders.append(f"{bucket}/{folder}")
    return tuple(folders)


def _starts(locations: Locations) -> dict[str, bytes]:
    starts: dict[str, bytes] = {}
    for first in range(0, locations.items, _PIECE):
        for place in locations.between(first, min(locations.items, first + _PIECE)):
            key = place.key.encode()
            starts[place.bucket] = common_start([starts.get(place.bucket, key), key])
    return starts
