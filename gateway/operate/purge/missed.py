"""Applies purges that the node has missed, before it serves clients and whenever a new one is announced."""

from __future__ import annotations

import asyncio

from gateway.admin.catalog.catalog import Catalog
from gateway.admin.catalog.following import PAUSE
from gateway.admin.catalog.snapshot import Snapshot
from gateway.base.tasks import repeat
from gateway.model.errors import CatalogUnavailable
from gateway.operate.purge.remembered import unseen
from gateway.operate.purge.work import Forgetting, Unseen


class MissedPurges:
    """Keeps a node up to date with the catalog's purges.

    Args:
        catalog: that stores them.
        forgetting: of the node.
    """

    def __init__(self, catalog: Catalog, forgetting: Forgetting) -> None:
        self._catalog = catalog
        self._forgetting = forgetting
        self._newest = ""
        self._begun = False
        self._news = asyncio.Event()

    async def hear(self, snapshot: Snapshot) -> None:
        """Note the catalog's last purge. The first call returns once that purge is applied, unless the disk is down.

        Raises:
            CatalogUnavailable: in the first call: missed purges could not be read.
        """
        news, self._newest = snapshot.purge != self._newest, snapshot.purge
        if not self._begun:
            news = not await self._catch_up()
            self._begun = True
        if news:
            # In the background: a large purge takes a while, and a revocation must not wait for it.
            self._news.set()

    async def run(self) -> None:
        """Apply purges as they are announced, until cancelled; failed ones are retried."""
        await repeat("purges", self._apply, PAUSE, (CatalogUnavailable,))

    async def _apply(self) -> None:
        await self._news.wait()
        self._news.clear()
        done = False
        try:
            done = await self._catch_up()
        finally:
            if not done:
                self._news.set()

    async def _catch_up(self) -> bool:
        return await self._forgetting.catch_up(self._newest, self._unseen)

    async def _unseen(self, last: str) -> Unseen:
        return await unseen(self._catalog.database, last)
