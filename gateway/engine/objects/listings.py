"""Recorded listings of prefixes that a rule or a dataset's registration calls immutable: pages of XML, kept like objects and
served until a write.

A page is a blob with a row in the index, under a name that no client can ask for, so all workers of a node share it, and it is
evicted like everything else. A rule is a *scope*, and so is a folder of a tenant's datasets (registered_folders.py). Each scope
has its own slot per bucket in the table of generations (``_slot_of``). Every event that forgets a key bumps the slots of the
scopes that contain it: writes through this node, writes that other nodes announce, and objects that the origin shows to have
changed. Purges bump every slot, and a change of rights bumps the bucket's slot. A row has the generation under which the origin
was asked, and is valid while the slot has that one. An older row is replaced or evicted.

As with objects, the generation is read before the origin is asked, and a write bumps it before and after it is forwarded. So a
page that was listed during a write is never served after the write was acknowledged. All pages served under one generation show
one state of the prefix.

The origin decides who may list: a page is served to the identities to which the origin has sent it within the ``grant``. Pages
of a folder are for its tenant alone. A node that may have missed writes trusts no earlier page. Nor does a worker trust pages
from before it started, or from before its rules last changed which listings are recorded, because it may have recorded no
writes then.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from hashlib import sha256
from typing import NamedTuple

from gateway.engine.base.services import Services
from gateway.engine.objects.entries import EntryCache, ObjectEntry
from gateway.engine.objects.registered_folders import MISSED
from gateway.model.access import Access
from gateway.model.errors import LarderError
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.objects import BlobRef, Header, ObjectMeta
from gateway.store.memory import LARGEST
from gateway.store.shared.generations import slots_of

LONGEST = 4 * 1024**2
"""Bytes of a page that is recorded: a thousand keys of 1,024 bytes, percent-encoded, with their attributes."""

_MOST = 1024
"""Rows that a worker remembers, so that a repeated listing needs no database."""
_SKEW = 10.0
"""Seconds within which all workers of a node adopt changed rules."""


class WantedPage(NamedTuple):
    """A requested page.

    ``scope`` is the glob of its rule, or that of its folder. ``grant``: seconds for which the origin's answer to one identity
    counts. ``read``: the number under which the folder was read; ``None`` for a rule.
    """

    origin: str
    bucket: str
    query: str
    scope: str
    grant: float
    read: int | None = None

    @property
    def row(self) -> ObjectKey:
        """The name of its row; no origin can have this name."""
        name = sha256(f"{self.scope}\0{self.query}".encode("utf-8", "surrogatepass")).hexdigest()
        return ObjectKey(f"{self.origin}\x1flistings", self.bucket, name)


class AskedPage(NamedTuple):
    """A page about to be requested from the origin; generation and time (seconds since the epoch) precede the request."""

    page: WantedPage
    generation: int
    asked_at: float


def _slot_of(origin: str, bucket: str, scope: str) -> ObjectKey:
    """The key whose slot stands for the listings of a scope; a real object with this key would only invalidate listings."""
    return ObjectKey(origin, bucket, f"\0{scope}")


class RecordedListings:
    """The recorded pages of a node."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._entries = EntryCache(_MOST)
        self._recorded = services.rules.listings
        self._since = self._began = services.now()

    def forget(self, keys: Sequence[ObjectKey]) -> None:
        """Forget the pages that may contain these keys; effective at once, for all workers of the node."""
        rules, folders = self._services.rules, self._services.folders
        ruled = bool(self._recorded or rules.listings) and self._notes()
        if not ruled and folders.none():
            return
        slots: set[ObjectKey] = set()
        for key in keys:
            path = key.path
            scopes = [*rules.listed(path), *folders.forget(path)] if ruled else folders.forget(path)
            slots.update(_slot_of(key.origin, key.bucket, scope) for scope in scopes)
        for slot in slots:
            self._services.store.generations.bump(slot)

    def begin(self, page: WantedPage) -> AskedPage:
        """Note the facts with which a page must be recorded; call it before the origin is asked."""
        self._notes()
        return AskedPage(page, self._generation(page), self._services.now())

    def _generation(self, page: WantedPage) -> int:
        of = self._services.store.generations.of
        own = of(_slot_of(page.origin, page.bucket, page.scope))
        return own if page.read is None else own + of(MISSED) + page.read

    def _notes(self) -> bool:
        """Whether listings are recorded; notices when the rules change which listings are."""
        recorded = self._services.rules.listings
        if recorded != self._recorded:
            self._recorded, self._since = recorded, self._services.now() + _SKEW
        return bool(recorded)

    async def recall(self, asked: AskedPage, identity: OriginIdentity) -> tuple[tuple[Header, ...], bytes] | None:
        """The headers and the document of a recorded page, if this identity may see it."""
        key = asked.page.row
        entry = self._entries.get(key)
        if entry is None or not self._counts(entry, asked, identity):
            known = await self._services.store.known(key, 1)
            if known is None or 0 not in known.blobs:
                return None
            entry = ObjectEntry(key, known.record, asked.generation, slots_of(key), known.blobs, known.grants)
            if not self._counts(entry, asked, identity):
                return None
        ref = entry.blobs[0]
        document = await self._document(ref)
        if document is None:
            self._entries.pop(key, None)
            return None
        self._entries.put(entry)
        self._services.store.accesses.record(Access(key, 0, ref.digest, True, self._services.now(), identity))
        return entry.record.meta.headers, document

    def _counts(self, entry: ObjectEntry, asked: AskedPage, identity: OriginIdentity) -> bool:
        """Whether a row is of the present generation, and its page was sent to this identity within the grant."""
        if entry.record.meta.etag != _tag(asked.generation) or not self._services.store.generations.trusts(entry.key):
            return False
        granted = entry.grants.get(identity.name)
        if granted is None or not granted <= asked.asked_at < granted + asked.page.grant:
            return False
        since = self._since if asked.page.read is None else self._began
        return min(granted, entry.record.confirmed_at) >= max(since, self._services.trusted_since())

    async def _document(self, ref: BlobRef) -> bytes | None:
        """The bytes of a page: from memory where they are there, otherwise from the file."""
        store = self._services.store
        document = store.memory.get(ref.digest)
        if document is not None:
            return document
        with suppress(LarderError, OSError):
            blob = await store.open_blob(ref)
            document = (store.memory.offer(ref.digest, blob) if ref.size <= LARGEST else None) or blob.read_at_once()
            if document is not None:
                return document
            blob.hold()
            try:
                document = await store.read_cold(blob.fd, ref.size, 0)
            finally:
                blob.release()
            if len(document) == ref.size:
                return document
        return None

    async def keep(
        self, asked: AskedPage, identity: OriginIdentity, headers: tuple[Header, ...], document: bytes
    ) -> None:
        """Record a page; best effort."""
        store, key = self._services.store, asked.page.row
        if self._generation(asked.page) != asked.generation:
            return
        meta = ObjectMeta(_tag(asked.generation), len(document), "", headers, ())
        with suppress(LarderError):
            blob = await store.create(len(document))
            try:
                ref = await blob.commit(document)
            finally:
                blob.end()
            await store.record(
                key,
                meta,
                max(len(document), self._services.block_size),
                {0: ref},
                generation=store.generations.of(key),
                confirmed_at=asked.asked_at,
                grants={identity.name: asked.asked_at},
            )


def _tag(generation: int) -> str:
    return f'"{generation:x}"'
