"""The disk usage of registrations: per tenant for the quota, and in total for the cache's space."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

from gateway.policies.items.dataset_quota import Usage
from gateway.store.datasets.folders import REGISTRATION, Folders, read_document
from gateway.store.datasets.layout import INDEX, INDEX_HEADER


def disk_bytes(folder: Path) -> int:
    """Bytes of a folder's files, drafts included; 0 if it is missing. Runs in a thread."""
    return sum(status.st_size for status in _files(folder))


def usage_of(folders: Folders, tenant: str, without: str = "") -> Usage:
    """The usage of a tenant, without the registration ``without``; shared contents count once. Runs in a thread.

    Raises:
        OSError: the disk cannot be read.
    """
    registrations = items = size = 0
    contents: set[str] = set()
    for path in folders.of_tenant(tenant).glob(f"*/{REGISTRATION}"):
        document = read_document(path)
        if document is None or path.parent.name == without:
            continue
        registrations += 1
        tag = str(document.get("content"))
        items += items_of(folders.contents / tag / INDEX)
        size += disk_bytes(path.parent)
        if tag not in contents:
            contents.add(tag)
            size += disk_bytes(folders.contents / tag)
    return Usage(registrations, items, size, disk_bytes(folders.contents) + disk_bytes(folders.tenants))


def items_of(index: Path) -> int:
    """The number of items of an ``index`` file; 0 if it is missing or unreadable."""
    try:
        with index.open("rb") as file:
            return int(INDEX_HEADER.unpack(file.read(INDEX_HEADER.size))[1])
    except (FileNotFoundError, NotADirectoryError, struct.error):
        return 0


def _files(folder: Path) -> Iterator[os.stat_result]:
    try:
        entries = list(os.scandir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return
    for entry in entries:
        try:
            if entry.is_dir(follow_symlinks=False):
                yield from _files(Path(entry.path))
            else:
                yield entry.stat(follow_symlinks=False)
        except FileNotFoundError:
            continue  # removed in the meantime
