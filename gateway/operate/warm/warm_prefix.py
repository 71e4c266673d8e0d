"""Warm-up of a prefix: the origin lists its objects page by page, and each is loaded at its home node.

Listing and reading use the rights of a tenant's access key, so objects outside its allow-list are not loaded. All pages are
counted first, which gives the progress its total. A prefix larger than the cache is refused, because it would evict itself.
Objects are loaded in the origin's order, so an interrupted warm-up resumes after the last part that it loaded.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from gateway.model.errors import OriginUnavailable
from gateway.model.keys import ObjectKey, OriginIdentity
from gateway.model.units import format_size
from gateway.operate.warm.permitted import PermittedLoads
from gateway.operate.warm.warming import (
    Capacity,
    PrincipalSource,
    WarmupFailed,
    WarmupProgress,
    WarmupRefused,
    require_valid,
)
from gateway.origin.listing import ListedObject, ListingPage, ListingRefused, Listings, ListingUnreadable

_PART = 200
"""Objects between two updates of the resume position."""


class WarmPrefix:
    """Loads the objects of a bucket whose keys begin with a prefix.

    Args:
        bucket: of the objects.
        prefix: of their keys.
        principal: lists and reads.
        listings: of the origins.
        loads: loads objects.
        capacity: bytes that the caches of the fleet can hold.
    """

    def __init__(
        self,
        bucket: str,
        prefix: str,
        principal: PrincipalSource,
        listings: Listings,
        loads: PermittedLoads,
        capacity: Capacity,
    ) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._principal = principal
        self._listings = listings
        self._loads = loads
        self._capacity = capacity

    async def run(self, progress: WarmupProgress) -> None:
        """Load everything after ``progress.cursor``, keeping ``progress`` up to date.

        Raises:
            WarmupRefused: it cannot succeed.
            WarmupFailed: it cannot continue now.
        """
        if progress.total is None:
            await self._count(progress)
        async for page in self._pages(progress.cursor):
            for start in range(0, len(page), _PART):
                part = page[start : start + _PART]
                principal = require_valid(self._principal)
                keys = (ObjectKey(principal.identity.origin, self._bucket, listed.key) for listed in part)
                await self._loads.load(principal, ((key, None) for key in keys), progress)
                progress.mark(part[-1].key)
        # Objects may be written or deleted during the warm-up; that is not an error.
        progress.total = progress.done

    async def _count(self, progress: WarmupProgress) -> None:
        count = size = 0
        limit = self._capacity()
        async for page in self._pages(""):
            principal = require_valid(self._principal)
            count += len(page)
            paths = ((listed.size, f"{self._bucket}/{listed.key}") for listed in page)
            size += sum(size for size, path in paths if not self._loads.excluded(principal, path))
            if size > limit:
                raise WarmupRefused(
                    f"the objects below {self._bucket}/{self._prefix} have more than {format_size(limit)}, "
                    "the capacity of the fleet's caches: name a longer prefix, or add nodes"
                )
        progress.total, progress.total_bytes = count, size

    async def _pages(self, after: str) -> AsyncIterator[tuple[ListedObject, ...]]:
        """The objects after a key, in the origin's order, which may differ from that of the keys' bytes."""
        more, token = True, ""
        while more:
            page = await self._page(require_valid(self._principal).identity, after, token)
            more, token = page.truncated, page.token
            if page.objects:
                if page.objects[-1].key == after:
                    raise WarmupFailed("the origin repeats a page of its listing; it seems to ignore start-after")
                yield page.objects
                after = page.objects[-1].key

    async def _page(self, identity: OriginIdentity, after: str, token: str) -> ListingPage:
        try:
            return await self._listings.list_page(identity, self._bucket, self._prefix, start_after=after, token=token)
        except OriginUnavailable as failure:
            raise WarmupFailed(failure.told) from None
        except ListingUnreadable:
            raise WarmupFailed("the origin's listing cannot be read") from None
        except ListingRefused as refusal:
            raise WarmupFailed(
                f"the origin answered {refusal.status} to listing the bucket with this access key's rights (ListBucket)"
            ) from None
