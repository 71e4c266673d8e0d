"""Warm-up of one object. Its key needs no right to list, because nothing is listed."""

from __future__ import annotations

from gateway.model.keys import ObjectKey
from gateway.operate.warm.permitted import PermittedLoads
from gateway.operate.warm.warming import PrincipalSource, WarmupProgress, require_valid


class WarmObject:
    """Loads the object with a key.

    Args:
        bucket: of the object.
        key: of the object.
        principal: reads.
        loads: loads objects.
    """

    def __init__(self, bucket: str, key: str, principal: PrincipalSource, loads: PermittedLoads) -> None:
        self._bucket = bucket
        self._key = key
        self._principal = principal
        self._loads = loads

    async def run(self, progress: WarmupProgress) -> None:
        """Load the object. Its size is known when it is loaded.

        Raises:
            WarmupFailed: the access key is no longer valid.
        """
        progress.total = 1
        principal = require_valid(self._principal)
        key = ObjectKey(principal.identity.origin, self._bucket, self._key)
        await self._loads.load(principal, [(key, None)], progress)
        progress.total_bytes = progress.done_bytes
