"""Which datasets are registered here: by tenant and name on disk, opened when they are asked for.

Registrations are soft state. What cannot be read, or is not as long as it should be, counts as not registered and is removed;
the client registers again. Workers tell each other nothing: each looks at a registration's small file, at most once a second
while batches use it and always when somebody asks about the registration itself, and sees what a sibling registered, replaced or
removed.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from gateway.model.datasets import CACHING, MAX_ITEMS, ApiError, check_name, is_dataset_id, is_name
from gateway.policies.dataset_quota import Limit, Quota, allowance
from gateway.store.datasets.announced import Known
from gateway.store.datasets.content import Content
from gateway.store.datasets.conversion import Converted, Grant, GrantExceeded, Limits, convert
from gateway.store.datasets.folders import READERS, REGISTRATION, Folders, read_document
from gateway.store.datasets.layout import INDEX, LOCATIONS, Damaged
from gateway.store.datasets.locations import Locations, open_locations
from gateway.store.datasets.parcel import VERSION, Parcel
from gateway.store.datasets.publishing import Name, Publisher, content_name, foreign_digits, note_use, over_quota
from gateway.store.failures import disk_faults

_BELIEVED = 1.0
_KEPT_OPEN = 64
_TIDY_EVERY = 60.0
_WAITING = 16
_NOTED_EVERY = 600.0

Stamp = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class Registration:
    """One dataset under one tenant's name. ``caching`` is what was asked for; ``registered_at`` in seconds since the epoch."""

    tenant: str
    name: str
    content: Content
    locations: Locations
    caching: str
    registered_at: float


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of a digest file beside its bytes.

    ``fingerprint`` names its bytes (their SHA-256), so that the same file is not read twice; empty when unknown. ``allow`` is the
    allow-list of whoever registers it, which must cover every item. ``content_name`` asks for a content name (publishing.py).
    """

    fingerprint: str = ""
    allow: tuple[str, ...] = ()
    content_name: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be registered.

    ``limits`` are of reading one digest file, ``quota`` of what stays; a content name stays ``keep_unused`` seconds without use.
    """

    limits: Limits = field(default_factory=Limits)
    quota: Quota = field(default_factory=lambda: Quota(1000, 2 * MAX_ITEMS, 1 << 60, 1 << 60))
    keep_unused: float = 7 * 86_400.0


@dataclass(slots=True)
class _Entry:
    registration: Registration
    stamp: Stamp
    locations: str
    checked_at: float = -math.inf
    noted_at: float = -math.inf


class Registry:
    """The registrations of one node, as one worker sees them.

    Args:
        directory: of datasets, in the cache directory; need not exist, and may go away at any time.
        boot: names this start of the node.
        rules: of what may be registered.
        clock: seconds, monotonic.
        on_open: hears of each content when it is opened, before anybody else has it.

    Attributes:
        folders: where everything is.
        limits: of reading one digest file.
    """

    def __init__(
        self,
        directory: Path,
        boot: int,
        rules: Rules | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_open: Callable[[Content], None] = lambda content: None,
    ) -> None:
        self.folders = Folders(directory)
        # Without a start (an ill disk has none) nothing that an earlier one verified may be believed.
        self._boot = boot or int.from_bytes(os.urandom(7), "little") + 1
        rules = rules or Rules()
        self.limits = rules.limits
        self._publisher = Publisher(self.folders, self._boot, rules.quota, rules.keep_unused)
        self._clock = clock
        self._on_open = on_open
        self._open: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._contents: WeakValueDictionary[str, Content] = WeakValueDictionary()
        self._readers = asyncio.Semaphore(READERS)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._tidy_at = clock() + _TIDY_EVERY
        self._sweeping: asyncio.Future[None] | None = None
        self._known_tags: dict[Path, tuple[Stamp, str]] = {}
        try:
            self._publisher.sweep()
        except OSError:
            pass  # an ill disk is looked at again by whoever registers

    # --- looking

    def find(self, tenant: str, name_or_id: str, *, now: bool = False) -> Registration | None:
        """A tenant's dataset by its name or id; ``None`` when it is not registered, or not any more.

        Of several names with one id, it is one that is open, else the first by name. ``now`` looks at what siblings did until
        this moment; without it, what was seen within the last second is believed, which a batch can afford.
        """
        found = self._found(tenant, name_or_id, now)
        # The use is noted before a sweep begins in a thread, which would expire what was only about to be used.
        self._used(found)
        self._tidy()
        return found

    def _found(self, tenant: str, name_or_id: str, now: bool) -> Registration | None:
        look = self._refreshed if now else self._named
        if not is_dataset_id(name_or_id):
            return look(tenant, name_or_id) if is_name(name_or_id) else None
        ids = {at: entry.registration.content.id for at, entry in self._open.items()}
        names = [name for (owner, name), identity in ids.items() if (owner, identity) == (tenant, name_or_id)]
        # The folder is looked at only if nothing is open: every batch comes by here, and there may be a thousand names.
        for name in chain(names, self._names_of(tenant, name_or_id)):
            registration = look(tenant, name)
            if registration is not None and registration.content.id == name_or_id:
                return registration
        return None

    def of_tenant(self, tenant: str) -> Iterator[Registration]:
        """A tenant's datasets by name; opened one after the other, because each costs descriptors."""
        for name in sorted(self._all_names(tenant)):
            registration = self._refreshed(tenant, name)
            if registration is not None:
                yield registration

    def contents(self) -> Iterable[Content]:
        """What is open in this worker."""
        return list(self._contents.values())

    def close(self) -> None:
        """Let go of everything; what is still in use is closed with its last user."""
        self._open.clear()

    # --- changing

    @asynccontextmanager
    async def draft(self) -> AsyncIterator[Path]:
        """A folder on the same disk for a digest file that is still coming; removed at the end.

        Raises:
            DiskFault: there can be none.
        """
        with disk_faults():
            draft = await asyncio.to_thread(self.folders.open_draft)
        try:
            yield draft.path
        finally:
            await asyncio.to_thread(draft.close)

    @asynccontextmanager
    async def turn(self, tenant: str) -> AsyncIterator[None]:
        """One registration of a tenant at a time, from the first byte of its digest file on.

        Raises:
            ApiError: SlowDown, too many of the tenant's are waiting.
        """
        if self._waiting[tenant] >= _WAITING:
            raise ApiError("SlowDown", "Other digest files are being read; try again.", headers={"Retry-After": "10"})
        self._waiting[tenant] += 1
        lock = self._turns.setdefault(tenant, asyncio.Lock())
        try:
            async with lock:
                yield
        finally:
            self._waiting[tenant] -= 1
            if not self._waiting[tenant]:
                del self._waiting[tenant], self._turns[tenant]

    async def register(
        self, tenant: str, name: str, parquet: Path, caching: str, source: Source | None = None
    ) -> tuple[Registration, bool]:
        """Register a dataset under a name, in place of what had that name.

        Args:
            tenant: whose name it is.
            name: see ``check_name``; with ``source.content_name``, what its content name begins with.
            parquet: the digest file.
            caching: one of ``CACHING``.
            source: what is known of the file, and asked for.

        Returns:
            The registration, and whether the name is new.

        Raises:
            ApiError: InvalidRequest; InvalidDigestFile, TooLarge; AccessDenied, the allow-list does not cover an item; Conflict,
                the name is another dataset's.
            DiskFault: the disk cannot take it.
        """
        check_name(name)
        if caching not in CACHING:
            raise ApiError("InvalidRequest", f"caching must be one of {', '.join(CACHING)}, not {caching!r}.")
        source = source or Source()
        with disk_faults():
            known = await self._known(tenant, name, caching, source)
            if known is not None:
                return known, False
            async with self.draft() as draft:
                converted = await self._converted(tenant, name, parquet, draft, source.allow)
                if source.content_name:
                    name = content_name(name, converted.id)
                self._check_untaken(tenant, name, converted.id)
                document = _document(tenant, name, caching, source, converted)
                new = await asyncio.to_thread(self._publisher.publish, draft, document)
            registration = self._refreshed(tenant, name)
            if self._publisher.unswept:
                await asyncio.to_thread(self._publisher.sweep)
        if registration is None:
            raise ApiError("ServiceUnavailable", "The dataset was lost while it was registered; register it again.")
        return registration, new

    async def remove(self, tenant: str, name: str) -> bool:
        """Forget a dataset's name; whether there was one.

        Raises:
            DiskFault: the disk cannot be written.
        """
        self._open.pop((tenant, name), None)
        with disk_faults():
            return await asyncio.to_thread(self._publisher.remove, tenant, name)

    # --- other nodes

    def parcel(self, tenant: str, name: str) -> Parcel | None:
        """A registration with its files open, to be sent to another node; ``None`` when there is none. Runs in a thread."""
        folder = self.folders.of_tenant(tenant) / name
        try:
            with self.folders.locked():
                document = read_document(folder / REGISTRATION)
                if document is None:
                    return None
                index = self.folders.contents / str(document["content"]) / INDEX
                return Parcel(document, index, folder / str(document["locations"]))
        except (OSError, KeyError):
            return None

    async def adopt(self, draft: Path, document: dict[str, Any]) -> None:
        """Put a registration that came from another node, and was checked, in its place.

        Raises:
            ApiError: TooLarge, the tenant would have too much.
            DiskFault: the disk cannot take it.
        """
        with disk_faults():
            await asyncio.to_thread(self._publisher.publish, draft, document)
            if self._publisher.unswept:
                await asyncio.to_thread(self._publisher.sweep)

    async def grant(self, tenant: str, name: str, allow: tuple[str, ...] = ()) -> Grant:
        """What a tenant's registration of a name may have beside its others.

        Raises:
            ApiError: TooLarge, the tenant has all that it may have.
        """
        with disk_faults():
            used = await asyncio.to_thread(self._publisher.used, tenant, name)
        allowed = allowance(self._publisher.quota, used)
        return Grant(allow, min(MAX_ITEMS, allowed.items), allowed.bytes)

    async def drop(self, tenant: str, name: str, known: Known) -> bool:
        """Forget a name if it still is what it was when that was found out; whether it was.

        Raises:
            DiskFault: the disk cannot be written.
        """
        with disk_faults():
            return await asyncio.to_thread(self._publisher.drop, tenant, name, known)

    @property
    def expired(self) -> set[Name]:
        """Content names that have expired here; whoever has told the fleet takes them out."""
        return self._publisher.expired

    # --- how

    def _named(self, tenant: str, name: str) -> Registration | None:
        now = self._clock()
        entry = self._open.get((tenant, name))
        if entry is not None and now - entry.checked_at < _BELIEVED:
            return entry.registration
        path = self.folders.of_tenant(tenant) / name / REGISTRATION
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

    def _used(self, registration: Registration | None) -> None:
        """Note now and then that a registration is used, for it may expire otherwise."""
        entry = registration and self._open.get((registration.tenant, registration.name))
        if entry and self._clock() >= entry.noted_at + _NOTED_EVERY:
            entry.noted_at = self._clock()
            folder = self.folders.of_tenant(entry.registration.tenant) / entry.registration.name
            note_use(folder / entry.locations)

    def _refreshed(self, tenant: str, name: str) -> Registration | None:
        """``_named``, whatever was believed about it."""
        entry = self._open.get((tenant, name))
        if entry is not None:
            entry.checked_at = -math.inf
        return self._named(tenant, name)

    def _is_current(self, content: Content) -> bool:
        return content.still_at(self.folders.contents / content.tag)

    def _load(self, tenant: str, name: str, path: Path, stamp: Stamp) -> _Entry | None:
        try:
            document = read_document(path) or {}
            return _Entry(self._opened(tenant, name, path.parent, document), stamp, str(document["locations"]))
        except Damaged:
            self._forget_damaged(path, stamp)
            return None
        except OSError:
            return None  # says nothing about the dataset: too many open files, no memory

    def _opened(self, tenant: str, name: str, folder: Path, document: dict[str, Any]) -> Registration:
        try:
            assert (document["version"], document["tenant"], document["name"]) == (VERSION, tenant, name)
            tag, locations = str(document["content"]), str(document["locations"])
            caching, registered_at = str(document["caching"]), float(document["registered_at"])
            assert "/" not in tag + locations
            assert caching in CACHING
        except (AssertionError, KeyError, TypeError, ValueError) as error:
            raise Damaged(f"{folder / REGISTRATION} is not what this version writes") from error
        content = self._contents.get(tag)
        if content is None or not self._is_current(content):
            content = self._contents[tag] = Content(self.folders.contents / tag, self._boot)
            self._on_open(content)
        opened = open_locations(folder / locations)
        if opened.items != content.items:
            raise Damaged(f"{folder / locations} belongs to another dataset")
        return Registration(tenant, name, content, opened, caching, registered_at)

    def _forget_damaged(self, path: Path, stamp: Stamp) -> None:
        try:
            with self.folders.locked():
                # A sibling may have replaced it while it was being opened.
                if _stamp(path) == stamp:
                    path.unlink()
                    self._publisher.unswept = True
        except OSError:
            return

    def _all_names(self, tenant: str) -> list[str]:
        try:
            return os.listdir(self.folders.of_tenant(tenant))
        except OSError:
            return []

    def _names_of(self, tenant: str, identity: str) -> Iterator[str]:
        folder = self.folders.of_tenant(tenant)
        for name in sorted(self._all_names(tenant)):
            if self._tag_of(folder / name / REGISTRATION).startswith(identity):
                yield name

    def _tag_of(self, path: Path) -> str:
        """The content that a registration names, read again only when its file has changed."""
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

    def _check_untaken(self, tenant: str, name: str, identity: str) -> None:
        digits = foreign_digits(name, identity)
        if digits and any(self._names_of(tenant, digits)):
            raise ApiError(
                "Conflict",
                f"The name {name!r} is that of the dataset whose id begins with {digits}, and this is {identity}: the digest "
                "file has changed. Register it under another name.",
            )

    async def _known(self, tenant: str, name: str, caching: str, source: Source) -> Registration | None:
        """The registration of this very file, if there is one under this name, or a content name that begins with it."""
        look = self._publisher
        names = await asyncio.to_thread(look.content_names, tenant, name) if source.content_name else [name]
        for each in names:
            if await asyncio.to_thread(look.known, tenant, each, caching, source.fingerprint, source.allow):
                return self._refreshed(tenant, each)
        return None

    async def _converted(self, tenant: str, name: str, parquet: Path, draft: Path, allow: tuple[str, ...]) -> Converted:
        grant = await self.grant(tenant, name, allow)
        async with self._readers:
            try:
                return await self._convert(tenant, parquet, draft, grant)
            except GrantExceeded as exceeded:
                used = await asyncio.to_thread(self._publisher.used, tenant, name)
                by_bytes = exceeded.limit is Limit.BYTES
                limit = allowance(self._publisher.quota, used).bound_by if by_bytes else exceeded.limit
                raise over_quota(limit, self._publisher.quota, used) from None

    async def _convert(self, tenant: str, parquet: Path, draft: Path, grant: Grant) -> Converted:
        return await convert(parquet, draft, self.limits, grant, self.folders.turns(tenant))

    def _tidy(self) -> None:
        """Now and then: let go of what a sibling removed, and free the room of what nobody has open any more."""
        now = self._clock()
        if now < self._tidy_at:
            return
        self._tidy_at = now + _TIDY_EVERY
        for tenant, name in list(self._open):
            self._named(tenant, name)
        if self._sweeping is None or self._sweeping.done():
            # Not here: it waits for the lock of the node, and removing what a large dataset leaves takes long.
            self._sweeping = asyncio.get_running_loop().run_in_executor(None, self._sweep_again)

    def _sweep_again(self) -> None:
        with suppress(OSError):
            self._publisher.expire()
            for path in [path for path in list(self._known_tags) if not path.exists()]:
                self._known_tags.pop(path, None)
            if self._publisher.unswept:
                self._publisher.sweep()

    async def swept(self) -> None:
        """Wait for what is being removed in the background."""
        if self._sweeping is not None:
            await self._sweeping


def _document(tenant: str, name: str, caching: str, source: Source, converted: Converted) -> dict[str, Any]:
    return {
        "version": VERSION,
        "tenant": tenant,
        "name": name,
        "caching": caching,
        "registered_at": time.time(),
        "fingerprint": source.fingerprint,
        "allow": list(source.allow),
        "content": converted.tag,
        "locations": f"{LOCATIONS}-{os.urandom(8).hex()}",
    }


def _stamp(path: Path) -> Stamp | None:
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
