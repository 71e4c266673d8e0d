"""The catalog of one worker: opened, polled, and changed.

A poll reads the number and the mark of the last change, unless the catalog's file is unchanged. If they differ from those of the
last snapshot, the whole catalog is read: it is small, and so every snapshot is consistent. A failed poll leaves the last snapshot
in force. Until the first poll succeeds, requests are refused (gateway/wiring/admin.py). Withdrawn rights take effect even before
the change is read (gateway/admin/catalog/withdrawals.py).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from sqlalchemy import insert, select

from gateway.admin.catalog.changes import CatalogChange, ChangeListener, Changes
from gateway.admin.catalog.database import PATIENCE, CatalogDatabase, FileState, witnesses
from gateway.admin.catalog.migrating import lost_tables, migrate, read_before
from gateway.admin.catalog.schema import meta
from gateway.admin.catalog.snapshot import EMPTY, Snapshot, mark_of, read_noted, read_snapshot
from gateway.admin.catalog.vault import Vault, file_vault, vault_of
from gateway.admin.catalog.withdrawals import Withdrawal, Withdrawn
from gateway.model.errors import CatalogUnavailable, CatalogUnusable, ConfigError
from gateway.policies.space.overrides import Overrides
from gateway.store.files.threads import closer, within

log = logging.getLogger("larder.admin")

_CHECK = select(meta.c.value).where(meta.c.name == "key")


class Catalog:
    """Tenants, credentials, origins and rules that operators keep in a database.

    Args:
        url: of the database.
        key: seals its secrets; empty for SQLite, which has a key file.
        now: seconds since the epoch.
        home: as for ``CatalogDatabase``.
    """

    longest_read = 10.0
    """Seconds for a poll; each statement in it has a shorter limit."""

    def __init__(self, url: str, key: str, now: Callable[[], float], home: Path | None = None) -> None:
        self.database = CatalogDatabase(url, home)
        self.changes = Changes(self.database, now, self._changed)
        self.last: Snapshot | None = None
        """The last snapshot; ``None`` before the first one."""
        self.now = now
        self._key = key
        self._newest: Snapshot | None = None
        self._withdrawn = Withdrawn()
        self._vault: Vault | None = None
        self._state: FileState | None = None
        """The state of the catalog's file when ``last`` was read; ``None`` if unknown."""
        self._looking = asyncio.Lock()
        self._reading: asyncio.Task[Snapshot] | None = None
        self._away = False
        self._followers: list[Callable[[Snapshot], Awaitable[None]]] = []
        self._listeners: list[ChangeListener] = []

    @property
    def vault(self) -> Vault:
        """Seals and opens secrets.

        Raises:
            CatalogUnavailable: the catalog has not been reached yet.
        """
        if self._vault is None:
            raise CatalogUnavailable("it has not been reached since this gateway started")
        return self._vault

    @property
    def overrides(self) -> Overrides:
        """Operators' overrides; none before the first snapshot."""
        return Overrides() if self.last is None else self.last.overrides

    @property
    def away(self) -> bool:
        """Whether the last poll failed, so that the last snapshot may be stale."""
        return self._away

    @property
    def key_file(self) -> Path | None:
        """The key file, if there is one."""
        path = self.database.path
        return None if path is None or self._key else witnesses(path)[0]

    def follow(self, follower: Callable[[Snapshot], Awaitable[None]]) -> None:
        """Call ``follower`` with every new snapshot, including the first."""
        self._followers.append(follower)

    def on_change(self, listener: ChangeListener) -> None:
        """Call ``listener`` after every change made by this worker, with the rights that the change withdrew."""
        self._listeners.append(listener)

    async def withdraw(self, withdrawals: Iterable[Withdrawal]) -> None:
        """Refuse keys and tenants until a snapshot includes their withdrawal."""
        new = self._withdrawn.hold(withdrawals, self._newest.version if self._newest else -1)
        for withdrawal in new:
            log.info(
                "the %(kind)s %(target)s is refused: revoked or disabled at version %(version)d",
                {"kind": withdrawal.what, "target": withdrawal.name, "version": withdrawal.version},
            )
        if new and self._newest is not None:
            await self._put_into_force(self._newest)

    async def look(self) -> Snapshot:
        """Poll: read a new snapshot if there is one, put it into force, and return the one in force.

        Raises:
            CatalogUnavailable: the database cannot be reached, or lacks the tables of the catalog.
            ConfigError: this key, or this version of Larder, cannot read it.
        """
        async with self._looking:
            try:
                snapshot = await self._read_in_time()
            except CatalogUnavailable:
                self._away = True
                raise
            self._away = False
            if snapshot is not self.last:
                # Set before the first await, so that a concurrent withdrawal is applied on top of this snapshot.
                self._newest = snapshot
                self._withdrawn.settle(snapshot.version)
                await self._put_into_force(snapshot)
                self.last = snapshot
            return snapshot

    async def _put_into_force(self, snapshot: Snapshot) -> None:
        for follower in self._followers:
            await follower(self._withdrawn.over(snapshot))

    async def latest(self) -> Snapshot:
        """The current snapshot or, while the catalog cannot be reached, the last one without rights withdrawn since.

        Raises:
            CatalogUnavailable: there is no snapshot yet.
        """
        if self._away and self.last is not None:
            # The follower keeps trying; callers do not wait for an unresponsive database.
            return self._withdrawn.over(self.last)
        try:
            return self._withdrawn.over(await self.look())
        except CatalogUnavailable:
            if self.last is None:
                raise
            return self._withdrawn.over(self.last)

    async def before(self, change: CatalogChange) -> Snapshot:
        """The catalog at the beginning of a change: the last snapshot if it is current, else a new one.

        Raises:
            CatalogUnavailable: as ``vault``.
            ConfigError: as ``look``.
        """
        if self.last is not None and mark_of(change.noted) == (self.last.version, self.last.mark):
            return self.last
        return await read_snapshot(change.connection, change.noted, self.vault, self.last or EMPTY)

    async def close(self) -> None:
        """Close the database without waiting for a read in progress."""
        if self._reading is not None:
            self._reading.cancel()
        await self.database.close()

    async def _read_in_time(self) -> Snapshot:
        """``_read`` with a time limit. On a hung disk the read cannot be cancelled, so the next poll waits for the same read.

        Raises:
            CatalogUnavailable: the read did not finish in time.
        """
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        await asyncio.wait([self._reading], timeout=self.longest_read)
        if not self._reading.done():
            raise CatalogUnavailable(f"it did not answer within {self.longest_read:g} s")
        ended, self._reading = self._reading, None
        try:
            return ended.result()
        except TimeoutError as error:
            raise CatalogUnavailable("the disk of the catalog's files did not answer") from error

    async def _read(self) -> Snapshot:
        """A new snapshot, or ``last`` if nothing has changed."""
        if self._vault is None:
            self._vault = await self._open()
        last, state = self.last, await self.database.state()
        if last is not None and state is not None and state == self._state:
            return last
        self._state = None
        async with self.database.reading() as connection:
            noted = await read_noted(connection)
            if last is not None and mark_of(noted) == (last.version, last.mark):
                self._state = state
                return last
            if mark_of(noted) == (EMPTY.version, EMPTY.mark):
                await self._check_begun_anew()
            snapshot = await read_snapshot(connection, noted, self._vault, last or EMPTY)
        if snapshot.mark and (last is None or not last.mark) and self.database.written is not None:
            closer.submit(partial(self.database.written.touch, 0o600))
        return snapshot

    async def _check_begun_anew(self) -> None:
        """Refuse an empty catalog that has replaced one with changes: the revocations are lost.

        Raises:
            CatalogUnusable: the catalog is empty and was not before.
        """
        if (written := await within(PATIENCE, partial(read_before, self.database))) is not None:
            raise CatalogUnusable(lost_tables(written, "is empty"))
        if (last := self.last) is not None and last.mark:
            raise CatalogUnusable(
                f"it is empty, and was at version {last.version} before; restore the backup, "
                "or restart the gateways to begin anew"
            )

    async def _open(self) -> Vault:
        """Migrate the tables, and find the key of the secrets.

        During a deployment all gateways do this at the same time; the first one's transaction makes the others wait.
        """
        await migrate(self.database)
        # An existing catalog is only read, so a read-only disk does not hide revocations.
        async with self.database.reading() as connection:
            check = await connection.scalar(_CHECK)
        if check is not None:
            await self._mark_begun()
            return await within(PATIENCE, partial(self._find_vault, check))
        async with self.database.writing() as connection:
            # The row of the key may not exist yet, so the row of the version is locked.
            await connection.execute(select(meta).where(meta.c.name == "version").with_for_update())
            check = await connection.scalar(_CHECK)
            vault = await within(PATIENCE, partial(self._find_vault, check))
            if check is None:
                await connection.execute(insert(meta).values(name="key", value=vault.check()))
        await self._mark_begun()
        return vault

    async def _mark_begun(self) -> None:
        """Create the marker that replaces the key file where the key is configured."""
        if self.database.path is not None and self.key_file is None:
            with suppress(OSError):
                await within(PATIENCE, partial(witnesses(self.database.path)[1].touch, 0o600))

    def _find_vault(self, check: str | None) -> Vault:
        """The vault; ``check`` is the text in the catalog that identifies its key.

        Raises:
            ConfigError: there is no key, or it is a different key.
        """
        file = self.key_file
        vault = vault_of(self._key) if file is None else file_vault(file, make=check is None)
        if check is not None and not vault.fits(check):
            raise ConfigError(
                f"{file or 'database.encryption_key'}: is not the key that this catalog was begun with; restore that one"
            )
        return vault

    async def _changed(self, withdrawn: Sequence[Withdrawal]) -> None:
        for listener in self._listeners:
            await listener(withdrawn)
        try:
            # The change is committed, even if the database is lost now.
            await self.withdraw(withdrawn)
            await self.look()
        except Exception as error:
            # The change is committed; the follower polls again and reports the problem.
            log.warning("a committed change is not in force here yet: %(error)s", {"error": error})
