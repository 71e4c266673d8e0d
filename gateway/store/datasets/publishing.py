"""Registrations on disk: put in place, replaced, expired and removed, within the quota of their tenant.

A *content name* ends in ``-`` and the first 16 digits of its dataset's id. While a tenant has that dataset, no other dataset
gets a name with that ending, and nothing displaces it. Any other name, even one that looks like a content name, goes to the last
dataset registered under it. The previous dataset stays under its content name while in use, so jobs that read it by id continue.
Programs register content names, so these expire when unused.

The time of the last use is the modification time of the locations file. Everything here may block, and runs in threads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gateway.model.datasets import ApiError
from gateway.policies.items.dataset_quota import Limit, Quota, Usage, exceeded, is_near, refusal
from gateway.store.datasets.announced import AnnouncedRegistration, Name, known_of
from gateway.store.datasets.content import Content
from gateway.store.datasets.folders import (
    LISTING,
    REGISTRATION,
    TERMS,
    Folders,
    Terms,
    move,
    read_document,
    sync_folder,
    write_document,
)
from gateway.store.datasets.layout import INDEX, LOCATIONS, Damaged
from gateway.store.datasets.parcel import VERSION
from gateway.store.datasets.usage import disk_bytes, items_of, usage_of

IN_USE = 3600.0
"""Seconds after its last use for which a registration counts as in use."""
_DIGITS = 16
_LONGEST = 128
MakeTerms = Callable[[Path], Terms]
"""Makes the terms of a registration with the given locations."""
_CONTENT_NAME = re.compile(rf"(.+)-([0-9a-f]{{{_DIGITS}}})")


def content_name(name: str, identity: str) -> str:
    """The content name of a dataset."""
    return f"{name[: _LONGEST - _DIGITS - 1]}-{identity[:_DIGITS]}"


def foreign_digits(name: str, identity: str) -> str:
    """The digits of another dataset's id if the name is that dataset's content name; otherwise empty."""
    match = _CONTENT_NAME.fullmatch(name)
    return "" if match is None or identity.startswith(match[2]) else match[2]


def over_quota(limit: Limit, quota: Quota, used: Usage) -> ApiError:
    """The refusal of a registration that exceeds a limit."""
    return ApiError("TooLarge", refusal(limit, quota, used), limit=str(limit))


class Publisher:
    """Changes the registrations of one node.

    Args:
        folders: of the registrations.
        boot: identifies this start of the node.
        quota: of each tenant.
        keep_unused: seconds for which an unused content name is kept.

    Attributes:
        unswept: whether there may be contents that no registration names.
        expired: expired names, until the caller takes them.
    """

    def __init__(self, folders: Folders, boot: int, quota: Quota, keep_unused: float) -> None:
        self.folders = folders
        self.quota = quota
        self.unswept = False
        self.expired: set[Name] = set()
        self._boot = boot
        self._keep_unused = keep_unused

    def used(self, tenant: str, without: str) -> Usage:
        """The usage of a tenant without one registration. Near the quota, unused content names are expired first.

        Raises:
            ApiError: TooLarge if the tenant may not have more registrations.
        """
        used = usage_of(self.folders, tenant, without)
        if is_near(self.quota, used) and self.expire(IN_USE, tenant):
            used = usage_of(self.folders, tenant, without)
        limit = exceeded(self.quota, used, 0, 0)
        if limit is not None:
            raise over_quota(limit, self.quota, used)
        return used

    def known(self, tenant: str, name: str, terms: MakeTerms | None, fingerprint: str, allow: tuple[str, ...]) -> bool:
        """Whether the name already has this very file; if only the terms differ, they are updated (without ``terms``, kept)."""
        path = self.folders.of_tenant(tenant) / name / REGISTRATION
        document = read_document(path)
        if not fingerprint or document is None:
            return False
        same = (document.get("version"), document.get("fingerprint"), document.get("allow"))
        if same != (VERSION, fingerprint, list(allow)):
            return False
        if terms is None:
            return True
        kept = {name: value for name, value in document.items() if name not in TERMS}
        wanted = {**kept, **terms(path.with_name(str(document.get("locations"))))}
        if wanted != document:
            with self.folders.locked():
                if read_document(path) != document:
                    return False
                self.folders.announce(document, wanted)
                write_document(path, wanted)
        return True

    def content_names(self, tenant: str, name: str) -> list[str]:
        """The content names of the datasets that a tenant has registered under a name."""
        registrations = self._content_named(tenant, f"{name[: _LONGEST - _DIGITS - 1]}-")
        return [
            path.parent.name
            for path, of in registrations
            if path.parent.name == content_name(name, str(of.get("content")))
        ]

    def publish(self, draft: Path, document: dict[str, Any]) -> bool:
        """Put a complete dataset in place; returns whether the name is new.

        Raises:
            ApiError: TooLarge if the tenant's quota would be exceeded.
        """
        tenant, name = document["tenant"], document["name"]
        folder = self.folders.of_tenant(tenant) / name
        with self.folders.locked():
            before = read_document(folder / REGISTRATION)
            kept = before is not None and self._outlives(folder, before, document)
            self._check_quota(draft, tenant, "" if kept else name)
            self._place_content(draft, document["content"])
            for place in (folder.parent, folder):
                place.mkdir(mode=0o700, exist_ok=True)
            if before is not None and kept:
                self._keep(folder, before)
            (draft / LOCATIONS).rename(folder / document["locations"])
            self.folders.announce(before, document)
            write_document(folder / REGISTRATION, document)
            sync_folder(folder.parent)
        self.unswept = self.unswept or before is not None
        return before is None

    def remove(self, tenant: str, name: str) -> bool:
        """Forget a name; returns whether it existed."""
        path = self.folders.of_tenant(tenant) / name / REGISTRATION
        if not path.exists():
            return False
        with self.folders.locked():
            self.folders.announce(read_document(path))
            path.unlink(missing_ok=True)
        self.sweep()
        return True

    def drop(self, tenant: str, name: str, known: AnnouncedRegistration) -> bool:
        """Forget a name if its registration is still ``known``; returns whether it was forgotten."""
        path = self.folders.of_tenant(tenant) / name / REGISTRATION
        with self.folders.locked():
            document = read_document(path)
            if document is None or known_of(document) != known:
                return False
            self.folders.announce(document)
            path.unlink(missing_ok=True)
        self.sweep()
        return True

    def sweep(self) -> None:
        """Remove contents that no registration names; open ones are left for the next call."""
        trash = self.folders.open_draft()
        try:
            with self.folders.locked():
                self.unswept = self.folders.clear_away(trash.path)
        finally:
            trash.close()

    def expire(self, idle: float | None = None, tenant: str = "") -> bool:
        """Expire content names that are unused; returns whether there were any.

        Args:
            idle: seconds without use; ``None``: ``keep_unused``.
            tenant: the tenant; empty: all.
        """
        oldest = time.time() - (self._keep_unused if idle is None else idle)
        gone = set()
        with self.folders.locked():
            for path, document in self._content_named(tenant):
                if _last_use(path.parent, document) < oldest:
                    self.folders.announce(document)
                    path.unlink(missing_ok=True)
                    gone.add((str(document.get("tenant")), str(document.get("name"))))
        self.expired.update(gone)
        if gone:
            self.sweep()
        return bool(gone)

    def _content_named(self, tenant: str, stem: str = "") -> Iterator[tuple[Path, dict[str, Any]]]:
        tenants = [self.folders.of_tenant(tenant)] if tenant else list(self.folders.tenants.glob("*"))
        for folder in tenants:
            for path in folder.glob(f"{stem}*/{REGISTRATION}"):
                name = path.parent.name
                document = read_document(path) if _CONTENT_NAME.fullmatch(name) else None
                if document is not None and not foreign_digits(name, str(document.get("content"))):
                    yield path, document

    def _outlives(self, folder: Path, before: dict[str, Any], after: dict[str, Any]) -> bool:
        """Whether the current holder of the name is in use, and so stays under its content name."""
        if AnnouncedRegistration(str(before.get("content")), "").id == AnnouncedRegistration(after["content"], "").id:
            return False
        kept = folder.with_name(content_name(folder.name, str(before.get("content"))))
        return not kept.exists() and _last_use(folder, before) >= time.time() - IN_USE

    def _keep(self, folder: Path, before: dict[str, Any]) -> None:
        kept = folder.with_name(content_name(folder.name, str(before["content"])))
        kept.mkdir(mode=0o700)
        locations = str(before["locations"])
        try:
            os.link(folder / locations, kept / locations)
        except FileNotFoundError:
            kept.rmdir()
            return
        # Listings are as the new holder of the name says.
        terms = {term: value for term, value in before.items() if term != LISTING}
        write_document(kept / REGISTRATION, {**terms, "name": kept.name})

    def _check_quota(self, draft: Path, tenant: str, without: str) -> None:
        used = usage_of(self.folders, tenant, without)
        size = disk_bytes(draft / "content") + (draft / LOCATIONS).stat().st_size
        limit = exceeded(self.quota, used, items_of(draft / "content" / INDEX), size)
        if limit is not None:
            raise over_quota(limit, self.quota, used)

    def _place_content(self, draft: Path, tag: str) -> None:
        target = self.folders.contents / tag
        if target.exists():
            try:
                Content(target, self._boot)
                return
            except Damaged:
                move(target, draft)
        (draft / "content").rename(target)
        sync_folder(self.folders.contents)


def note_use(locations: Path) -> None:
    """Record that a registration is used now; failures to write are ignored."""
    try:
        os.utime(locations)
    except OSError:
        return


def _last_use(folder: Path, document: dict[str, Any]) -> float:
    try:
        return (folder / str(document.get("locations"))).stat().st_mtime
    except OSError:
        return 0.0
