"""The registered datasets of this node, by tenant and name on disk, opened on demand.

Registrations are soft state. A registration that cannot be read, or has the wrong size, is treated as missing and removed; the
client registers it again. Workers do not communicate: each checks a registration's small file, at most once a second while
batches use it and always when the registration itself is requested, and thus notices changes and removals by other workers.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

from gateway.model.datasets import CACHING, MAX_ITEMS, MODES, ApiError, check_name
from gateway.policies.items.dataset_quota import Limit, Quota, allowance
from gateway.store.datasets.announced import AnnouncedRegistration, Name
from gateway.store.datasets.content import Content
from gateway.store.datasets.conversion import Converted, Grant, GrantExceeded, Limits, convert
from gateway.store.datasets.folders import READERS, REGISTRATION, Folders, Terms, read_document, terms_of
from gateway.store.datasets.layout import INDEX, LOCATIONS
from gateway.store.datasets.listed import folders_to_record
from gateway.store.datasets.locations import open_locations
from gateway.store.datasets.opened import BELIEVED, OpenRegistrations, Registration
from gateway.store.datasets.parcel import VERSION, Parcel
from gateway.store.datasets.publishing import Publisher, content_name, foreign_digits, over_quota
from gateway.store.files.failures import DiskFault, disk_faults

T = TypeVar("T")

_TIDY_EVERY = 60.0
_WAITING = 16


@dataclass(frozen=True, slots=True)
class DigestSource:
    """The facts about a digest file, besides its bytes.

    ``fingerprint`` is the SHA-256 of its bytes, so that the same file is not read twice; empty if unknown. ``allow`` is
    the allow-list of the registering caller, which must cover every item. ``content_name`` requests a content name
    (publishing.py). ``additive``: an existing registration is not replaced. ``pays``: the tenant accepts the charges of
    requester-pays buckets for reads of the items. ``listing``: listings of the items' folders are recorded.
    """

    fingerprint: str = ""
    allow: tuple[str, ...] = ()
    content_name: bool = False
    additive: bool = False
    pays: bool = False
    listing: bool = False

    def terms(self, caching: str, locations: Path) -> Terms:
        """The terms of its registration with these locations. Runs in a thread.

        Raises:
            ApiError: InvalidRequest, no folder can be recorded; AccessDenied, the allow-list does not cover one.
        """
        listing = folders_to_record(open_locations(locations), self.allow) if self.listing else ()
        return terms_of(caching, self.pays, listing)


@dataclass(frozen=True, slots=True)
class RegistrationRules:
    """The limits of registrations.

    ``limits`` apply to reading one digest file, ``quota`` to a tenant's registrations. An unused content name is kept for
    ``keep_unused`` seconds.
    """

    limits: Limits = field(default_factory=Limits)
    quota: Quota = field(default_factory=lambda: Quota(1000, 2 * MAX_ITEMS, 1 << 60, 1 << 60))
    keep_unused: float = 7 * 86_400.0


class DiskWork(Protocol):
    """Threads for work that may block on the cache disk. Both methods raise DiskFault while it hangs."""

    async def glance(self, work: Callable[[], T]) -> T:
        """Do short work, in order."""

    async def chore(self, work: Callable[[], T]) -> T:
        """Do work that may take long."""


class _Inline:
    """Runs short work inline, and other work in any thread: for a disk that does not hang."""

    async def glance(self, work: Callable[[], T]) -> T:
        return work()

    async def chore(self, work: Callable[[], T]) -> T:
        return await asyncio.to_thread(work)


class Registry:
    """The registrations of one node, as one worker sees them. Methods that are not coroutines may block.

    Args:
        directory: of datasets, in the cache directory; need not exist, and may vanish at any time.
        boot: identifies this start of the node.
        rules: limits of registrations.
        clock: seconds, monotonic.
        on_open: called with each content when it is opened, before its first use, in the thread that opened it.
        work: runs blocking work.

    Attributes:
        folders: paths and locks.
        limits: of reading one digest file.
        work: runs blocking work.
    """

    def __init__(
        self,
        directory: Path,
        boot: int,
        rules: RegistrationRules | None = None,
        clock: Callable[[], float] = time.monotonic,
        on_open: Callable[[Content], None] = lambda content: None,
        work: DiskWork | None = None,
    ) -> None:
        self.folders = Folders(directory)
        self.work = work or _Inline()
        # Without a boot number (the disk is down), distrust everything that earlier starts verified.
        self._boot = boot or int.from_bytes(os.urandom(7), "little") + 1
        rules = rules or RegistrationRules()
        self.limits = rules.limits
        self._publisher = Publisher(self.folders, self._boot, rules.quota, rules.keep_unused)
        self._clock = clock
        self._opened = OpenRegistrations(self.folders, self._boot, clock, on_open)
        self._readers = asyncio.Semaphore(READERS)
        self._turns: dict[str, asyncio.Lock] = {}
        self._waiting: Counter[str] = Counter()
        self._tidy_at = clock() + _TIDY_EVERY
        self._sweeping: asyncio.Task[None] | None = None

    def sweep(self) -> None:
        """Remove files that no registration names, such as those left by an earlier start."""
        self._opened.damaged = False
        self._publisher.sweep()

    # --- looking

    async def get(self, tenant: str, name_or_id: str, *, now: bool = False) -> Registration | None:
        """A tenant's dataset by its name or id; ``None`` if it is not registered.

        If several names have the id, an open one is preferred, then the first by name. With ``now``, changes by other workers up
        to this moment count; without it, a check within the last second suffices, as for a batch. While the disk hangs, the last
        known state is returned.

        Raises:
            DiskFault: the disk hangs, and the registration is unknown.
        """
        registration = None if now else self._opened.believed(tenant, name_or_id, BELIEVED)
        try:
            if registration is None:
                registration = await self.work.glance(partial(self.find, tenant, name_or_id, now=now))
            elif self._opened.is_use_due(registration):
                await self.work.glance(partial(self._opened.note_use_of, registration))
        except DiskFault:
            registration = self._opened.believed(tenant, name_or_id, math.inf)
            if registration is None:
                raise
        self._tidy()
        return registration

    def find(self, tenant: str, name_or_id: str, *, now: bool = False) -> Registration | None:
        """Like ``get``, for callers outside the event loop."""
        return self._opened.find(tenant, name_or_id, now=now)

    async def of_tenant(self, tenant: str) -> AsyncIterator[Registration]:
        """A tenant's datasets by name, opened one after the other, because each costs descriptors."""
        for name in sorted(await self.work.glance(partial(self._opened.names, tenant))):
            registration = await self.work.glance(partial(self._opened.refreshed, tenant, name))
            if registration is not None:
                yield registration

    def contents(self) -> Iterable[Content]:
        """The contents that are open in this worker."""
        return self._opened.contents()

    def close(self) -> None:
        """Drop everything; contents in use are closed by their last user."""
        self._opened.close()

    # --- changing

    @asynccontextmanager
    async def draft(self) -> AsyncIterator[Path]:
        """A folder on the same disk for an incoming digest file; removed at the end.

        Raises:
            DiskFault: it cannot be created.
        """
        with disk_faults():
            draft = await self.work.chore(self.folders.open_draft)
        try:
            yield draft.path
        finally:
            await self.work.chore(draft.close)

    @asynccontextmanager
    async def registering(self, tenant: str) -> AsyncIterator[None]:
        """Serialize the registrations of a tenant, from the first byte of their digest files on.

        Raises:
            ApiError: SlowDown if too many registrations of the tenant are waiting.
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
        self, tenant: str, name: str, parquet: Path, caching: str, source: DigestSource | None = None
    ) -> tuple[Registration, bool]:
        """Register a dataset under a name, replacing the previous one.

        Args:
            tenant: the owner of the name.
            name: see ``check_name``; with ``source.content_name``, the beginning of its content name.
            parquet: the digest file.
            caching: one of ``CACHING``.
            source: further facts and options.

        Returns:
            The registration, and whether the name is new.

        Raises:
            ApiError: InvalidRequest; InvalidDigestFile; TooLarge; AccessDenied if the allow-list does not cover an item, or an
                additive registration would replace another; Conflict if the name belongs to another dataset.
            DiskFault: the disk cannot store it.
        """
        check_name(name)
        if caching not in CACHING:
            raise ApiError("InvalidRequest", f"caching must be one of {', '.join(MODES)}, not {caching!r}.")
        source = source or DigestSource()
        with disk_faults():
            known = await self._known(tenant, name, caching, source)
            if known is not None:
                return known, False
            async with self.draft() as draft:
                converted = await self._converted(tenant, name, parquet, draft, source.allow)
                if source.content_name:
                    name = content_name(name, converted.id)
                await self.work.glance(partial(self._check_untaken, tenant, name, converted.id))
                if source.additive and (there := await self.work.glance(partial(self._opened.refreshed, tenant, name))):
                    _require_same(there, converted.id)
                    return there, False
                terms = await self.work.chore(partial(source.terms, caching, draft / LOCATIONS))
                document = _document(tenant, name, terms, source, converted)
                new = await self.work.chore(partial(self._publisher.publish, draft, document))
            registration = await self.work.glance(partial(self._opened.refreshed, tenant, name))
            if self._unswept:
                await self.work.chore(self.sweep)
        if registration is None:
            raise ApiError("ServiceUnavailable", "The dataset was lost while it was registered; register it again.")
        return registration, new

    async def remove(self, tenant: str, name: str) -> bool:
        """Forget a dataset's name; returns whether it existed.

        Raises:
            DiskFault: the disk cannot be written.
        """
        with disk_faults():
            await self.work.glance(partial(self._opened.forget, tenant, name))
            return await self.work.chore(partial(self._publisher.remove, tenant, name))

    # --- other nodes

    def parcel(self, tenant: str, name: str) -> Parcel | None:
        """A registration with its files open, to be sent to another node; ``None`` if it does not exist. Runs in a thread."""
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
        """Put a checked registration from another node in place.

        Raises:
            ApiError: TooLarge if the tenant's quota would be exceeded.
            DiskFault: the disk cannot store it.
        """
        with disk_faults():
            await self.work.chore(partial(self._publisher.publish, draft, document))
            if self._unswept:
                await self.work.chore(self.sweep)

    async def grant(self, tenant: str, name: str, allow: tuple[str, ...] = ()) -> Grant:
        """The limits of a tenant's registration of a name, given its other registrations.

        Raises:
            ApiError: TooLarge if the quota is used up.
        """
        with disk_faults():
            used = await self.work.chore(partial(self._publisher.used, tenant, name))
        allowed = allowance(self._publisher.quota, used)
        return Grant(allow, min(MAX_ITEMS, allowed.items), allowed.bytes)

    async def drop(self, tenant: str, name: str, known: AnnouncedRegistration) -> bool:
        """Forget a name if its registration is still ``known``; returns whether it was forgotten.

        Raises:
            DiskFault: the disk cannot be written.
        """
        with disk_faults():
            return await self.work.chore(partial(self._publisher.drop, tenant, name, known))

    @property
    def expired(self) -> set[Name]:
        """Content names that have expired here. The caller notifies the fleet, then removes them."""
        return self._publisher.expired

    # --- how

    def _check_untaken(self, tenant: str, name: str, identity: str) -> None:
        digits = foreign_digits(name, identity)
        if digits and any(self._opened.names_of(tenant, digits)):
            raise ApiError(
                "Conflict",
                f"The name {name!r} belongs to the dataset whose id begins with {digits}, and this is {identity}: the "
                "digest file has changed. Register it under another name.",
            )

    async def _known(self, tenant: str, name: str, caching: str, source: DigestSource) -> Registration | None:
        """The existing registration of this very file under the name, or under a content name that begins with it."""
        look = self._publisher
        names = await self.work.chore(partial(look.content_names, tenant, name)) if source.content_name else [name]
        for written_as in names:
            terms = None if source.additive else partial(source.terms, caching)
            if await self.work.chore(partial(look.known, tenant, written_as, terms, source.fingerprint, source.allow)):
                return await self.work.glance(partial(self._opened.refreshed, tenant, written_as))
        return None

    async def _converted(self, tenant: str, name: str, parquet: Path, draft: Path, allow: tuple[str, ...]) -> Converted:
        grant = await self.grant(tenant, name, allow)
        async with self._readers:
            try:
                return await self._convert(tenant, parquet, draft, grant)
            except GrantExceeded as exceeded:
                used = await self.work.chore(partial(self._publisher.used, tenant, name))
                by_bytes = exceeded.limit is Limit.BYTES
                limit = allowance(self._publisher.quota, used).bound_by if by_bytes else exceeded.limit
                raise over_quota(limit, self._publisher.quota, used) from None

    async def _convert(self, tenant: str, parquet: Path, draft: Path, grant: Grant) -> Converted:
        return await convert(parquet, draft, self.limits, grant, self.folders.turns(tenant))

    def _tidy(self) -> None:
        """Release registrations that another worker removed, and free contents that no process has open. Called periodically."""
        now = self._clock()
        if now < self._tidy_at:
            return
        self._tidy_at = now + _TIDY_EVERY
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_again())

    async def _sweep_again(self) -> None:
        with suppress(DiskFault, OSError):
            await self.work.glance(self._opened.tidy)
            # This waits for the lock of the node, and removing a large dataset takes long.
            await self.work.chore(self._expire)

    @property
    def _unswept(self) -> bool:
        return self._publisher.unswept or self._opened.damaged

    def _expire(self) -> None:
        self._publisher.expire()
        if self._unswept:
            self.sweep()

    async def swept(self) -> None:
        """Wait for removals in the background."""
        if self._sweeping is not None:
            await self._sweeping


def _require_same(there: Registration, identity: str) -> None:
    if there.content.id != identity:
        raise ApiError(
            "AccessDenied",
            f"This access key is read-only, and {there.name!r} is another dataset; register it under a name that nobody has.",
        )


def _document(tenant: str, name: str, terms: Terms, source: DigestSource, converted: Converted) -> dict[str, Any]:
    return {
        "version": VERSION,
        "tenant": tenant,
        "name": name,
        **terms,
        "registered_at": time.time(),
        "fingerprint": source.fingerprint,
        "allow": list(source.allow),
        "content": converted.tag,
        "locations": f"{LOCATIONS}-{os.urandom(8).hex()}",
    }
