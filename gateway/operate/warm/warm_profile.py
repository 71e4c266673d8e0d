"""Warm-up by a profile: the recorded reads of a job, in their order.

A profile belongs to the tenant whose reads were recorded. It is replayed with the rights of any key of that tenant: objects that
the key may not read are counted as failed, and so are deleted objects. An object changed since then is loaded in its present
version. A profile larger than the cache is refused, because its end would evict its beginning.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gateway.model.errors import CatalogUnavailable
from gateway.model.keys import ObjectKey
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
from gateway.policies.streams.profile import Profile

_PART = 200
"""Reads between two updates of the resume position."""

FindProfile = Callable[[str], Awaitable[Profile | None]]


class WarmProfile:
    """Replays one profile.

    Args:
        name: of the profile.
        principal: the reader.
        find: returns a profile by its name. Raises CatalogUnavailable.
        loads: loads objects.
        capacity: bytes that the caches of the fleet can hold.
    """

    def __init__(
        self, name: str, principal: PrincipalSource, find: FindProfile, loads: PermittedLoads, capacity: Capacity
    ) -> None:
        self._name = name
        self._principal = principal
        self._find = find
        self._loads = loads
        self._capacity = capacity

    async def run(self, progress: WarmupProgress) -> None:
        """Load everything after ``progress.cursor``, keeping ``progress`` up to date.

        Raises:
            WarmupRefused: it cannot succeed.
            WarmupFailed: it cannot continue now.
        """
        reads = (await self.check()).reads
        progress.total, progress.total_bytes = len(reads), sum(read.stop - read.start for read in reads)
        for start in range(int(progress.cursor or 0), len(reads), _PART):
            part = reads[start : start + _PART]
            principal = require_valid(self._principal)
            origin = principal.identity.origin
            wanted = ((ObjectKey(origin, read.bucket, read.key), read.span) for read in part)
            await self._loads.load(principal, wanted, progress)
            progress.mark(str(start + len(part)))

    async def check(self) -> Profile:
        """Check whether the profile can be replayed, as of now.

        Raises:
            WarmupRefused: it cannot.
            WarmupFailed: that cannot be decided now.
        """
        principal = require_valid(self._principal)
        try:
            profile = await self._find(self._name)
        except CatalogUnavailable as failure:
            raise WarmupFailed(f"the catalog cannot be read: {failure}") from None
        if profile is None or profile.tenant != principal.tenant:
            raise WarmupRefused(
                f"the access key's tenant {principal.tenant} has no profile {self._name!r}; record it first"
            )
        if profile.recording:
            raise WarmupRefused(f"the profile {self._name!r} is still being recorded; stop it first")
        if profile.origin != principal.identity.origin:
            raise WarmupRefused(
                f"the profile was read at the origin {profile.origin!r}, and the access key reads {principal.identity.origin!r}"
            )
        size, limit = sum(read.stop - read.start for read in profile.reads), self._capacity()
        if size > limit:
            raise WarmupRefused(
                f"the profile has {format_size(size)}, and the caches of the fleet can hold {format_size(limit)}: record below "
                "a longer prefix or for a shorter time, or add nodes"
            )
        return profile
