"""The registrations that one worker has open, reopened when their files have changed."""

from __future__ import annotations

import math
import os
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from gateway.model.datasets import CACHING, is_dataset_id, is_name
from gateway.model.keys import OriginIdentity
from gateway.store.datasets.content import Content
from gateway.store.datasets.folders import LISTING, PAYS, REGISTRATION, Folders, read_document
from gateway.store.datasets.layout import Damaged
from gateway.store.datasets.listed import are_folders
from gateway.store.datasets.locations import Locations, open_locations
from gateway.store.datasets.parcel import VERSION
from gateway.store.datasets.publishing import note_use

BELIEVED = 1.0
"""Seconds for which a registration is not checked again."""
_KEPT_OPEN = 64
_NOTED_EVERY = 600.0

Stamp = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Registration:
    """One dataset under one tenant's name.

    ``caching`` is the requested mode; ``registered_at`` in seconds since the epoch. ``pays``: the tenant accepts the charges of
    requester-pays buckets for reads of the items. ``listing``: the folders, as ``bucket/folder/``, whose listings are recorded.
    """

    tenant: str
    name: str
    content: Content
    locations: Locations
    caching: str
    registered_at: float
    pays: bool = False
    listing: tuple[str, ...] = ()

    def read_by(self, identity: OriginIdentity) -> OriginIdentity:
        """The identity that reads the items from the origin for a reader with ``identity``."""
        return identity.paying() if self.pays else identity


FindRegistration = Callable[[str, str], Awaitable[Registration | None]]
"""Finds a tenant's dataset by name or id."""


@dataclass(slots=True)
class _Entry:
    registration: Registration
    stamp: Stamp
    locations: str
    checked_at: float = -math.inf
    noted_at: float = -math.inf


class OpenRegistrations:
    """The open registrations. All methods except ``believed``, ``is_use_due``, ``contents`` and ``close`` may block on the disk.

    Args:
        folders: of the registrations.
        boot: identifies this start of the node.
        clock: seconds, monotonic.
        on_open: called with each content when it is opened, before its first use.

    Attributes:
        damaged: whether a registration was removed because it was damaged.
    """

    def __init__(
        self, folders: Folders, boot: int, clock: Callable[[], float], on_open: Callable[[Content], None]
    ) -> None:
        self.damaged = False
        self._folders = folders
        self._boot = boot
        self._clock = clock
        self._on_open = on_open
        self._open: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._contents: WeakValueDictionary[str, Content] = WeakValueDictionary()
        self._known_tags: dict[Path, tuple[Stamp, str]] = {}

    def contents(self) -> Iterable[Content]:
        """The open contents."""
        return list(self._contents.values())

    def close(self) -> None:
        """Drop everything; contents in use are closed by their last user."""
        self._open.clear()

    def forget(self, tenant: str, name: str) -> None:
        """Drop a registration."""
        self._open.pop((tenant, name), None)

    def tidy(self) -> None:
        """Drop registrations that another worker removed."""
        for tenant, name in list(self._open):
            self.named(tenant, name)
        for path in [path for path in list(self._known_tags) if not path.exists()]:
            self._known_tags.pop(path, None)

    def find(self, tenant: str, name_or_id: str, *, now: bool = False) -> Registration | None:
        """Like ``Registry.get``, for callers outside the event loop."""
        registration = self._found(tenant, name_or_id, now)
        # Note the use before a sweep in a thread can expire the registration.
        if registration is not None and self.is_use_due(registration):
            self.note_use_of(registration)
        return registration

    def believed(self, tenant: str, name_or_id: str, within: float) -> Registration | None:
        """The registration, if it is open and was checked within the last ``within`` seconds."""
        since, entry = self._clock() - within, self._open.get((tenant, name_or_id))
        if not is_dataset_id(name_or_id):
            return entry.registration if entry is not None and entry.checked_at > since else None
        for (owner, _), entry in list(self._open.items()):
            if owner == tenant and entry.registration.content.id == name_or_id and entry.checked_at > since:
                return entry.registration
        return None

    def _found(self, tenant: str, name_or_id: str, now: bool) -> Registration | None:
        look = self.refreshed if now else self.named
        if not is_dataset_id(name_or_id):
            return look(tenant, name_or_id) if is_name(name_or_id) else None
        ids = {at: entry.registration.content.id for at, entry in list(self._open.items())}
        names = [name for (owner, name), identity in ids.items() if (owner, identity) == (tenant, name_or_id)]
        # Read the folder only if nothing is open: this is on the path of every batch, and there may be a thousand names.
        for name in chain(names, self.names_of(tenant, name_or_id)):
            registration = look(tenant, name)
            if registration is not None and registration.content.id == name_or_id:
                return registration
        return None

    def named(self, tenant: str, name: str) -> Registration | None:
        """The registration of a name, checked again if the last check is more than a second ago."""
        now = self._clock()
        entry = self._open.get((tenant, name))
        if entry is not None and now - entry.checked_at < BELIEVED:
            return entry.registration
        path = self._folders.of_tenant(tenant) / name / REGISTRATION
        stamp = _stamp(path)
        if stamp is None:
            self._open.pop((tenant, name), None)
            return None
        if entry is None or entry.stamp != stamp or not self._is_current(entry.registration.content):
            entry = self._load(tenant, name, path, stamp)
            if entry is None:
                self._open.pop((tenant, name), None)
                return None
        entry.checked_at = now
        self._open[tenant, name] = entry
        self._open.move_to_end((tenant, name))
        if len(self._open) > _KEPT_OPEN:
            self._open.popitem(last=False)
        return entry.registration

    def is_use_due(self, registration: Registration) -> bool:
        """Whether ``note_use_of`` would write."""
        entry = self._open.get((registration.tenant, registration.name))
        return entry is not None and self._clock() >= entry.noted_at + _NOTED_EVERY

    def note_use_of(self, registration: Registration) -> None:
        """Record the use of a registration every ten minutes, so that it does not expire."""
        entry = self._open.get((registration.tenant, registration.name))
        if entry is not None:
            entry.noted_at = self._clock()
            note_use(self._folders.of_tenant(registration.tenant) / registration.name / entry.locations)

    def refreshed(self, tenant: str, name: str) -> Registration | None:
        """Like ``named``, but always checked again."""
        entry = self._open.get((tenant, name))
        if entry is not None:
            entry.checked_at = -math.inf
        return self.named(tenant, name)

    def _is_current(self, content: Content) -> bool:
        return content.still_at(self._folders.contents / content.tag)

    def _load(self, tenant: str, name: str, path: Path, stamp: Stamp) -> _Entry | None:
        try:
            document = read_document(path) or {}
            return _Entry(self._opened(tenant, name, path.parent, document), stamp, str(document["locations"]))
        except Damaged:
            self._forget_damaged(path, stamp)
            return None
        except OSError:
            return None  # not the dataset's fault: too many open files, no memory

    def _opened(self, tenant: str, name: str, folder: Path, document: dict[str, Any]) -> Registration:
        try:
            assert (document["version"], document["tenant"], document["name"]) == (VERSION, tenant, name)
            tag, locations = str(document["content"]), str(document["locations"])
            caching, registered_at = str(document["caching"]), float(document["registered_at"])
            assert "/" not in tag + locations
            assert caching in CACHING
            pays = document.get(PAYS, False)
            assert isinstance(pays, bool)
            listing = document.get(LISTING, [])
            assert listing == [] or are_folders(listing)
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{folder / REGISTRATION} has an unsupported version or is damaged") from error
        content = self._contents.get(tag)
        if content is None or not self._is_current(content):
            content = self._contents[tag] = Content(self._folders.contents / tag, self._boot)
            self._on_open(content)
        opened = open_locations(folder / locations)
        if opened.items != content.items:
            raise Damaged(f"{folder / locations} belongs to another dataset")
        return Registration(tenant, name, content, opened, caching, registered_at, pays, tuple(listing))

    def _forget_damaged(self, path: Path, stamp: Stamp) -> None:
        try:
            with self._folders.locked():
                # Another worker may have replaced it while it was being opened.
                if _stamp(path) == stamp:
                    self._folders.listings_change()
                    path.unlink()
                    self.damaged = True
        except OSError:
            return

    def names(self, tenant: str) -> list[str]:
        """All names of a tenant."""
        try:
            return os.listdir(self._folders.of_tenant(tenant))
        except OSError:
            return []

    def names_of(self, tenant: str, identity: str) -> Iterator[str]:
        """The names of datasets whose id begins with ``identity``."""
        folder = self._folders.of_tenant(tenant)
        for name in sorted(self.names(tenant)):
            if self._tag_of(folder / name / REGISTRATION).startswith(identity):
                yield name

    def _tag_of(self, path: Path) -> str:
        """The tag of the content that a registration names, read again only if its file has changed."""
        stamp = _stamp(path)
        if stamp is None:
            self._known_tags.pop(path, None)
            return ""
        known = self._known_tags.get(path)
        if known is None or known[0] != stamp:
            try:
                document = read_document(path)
            except OSError:
                return ""
            known = self._known_tags[path] = (stamp, str(document.get("content")) if document else "")
        return known[1]


def _stamp(path: Path) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
