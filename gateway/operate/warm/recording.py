"""Records profiles: the reads of certain access keys, among those that arrive at the keeper.

The worker that learns streams passes its reads on (``StreamLearner``), so there is no additional observation. New reads are saved
once a second. Reads that cannot be saved stay in memory, within the bound of a profile, and are saved later. A worker that is
killed loses its last second.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from gateway.base.tasks import repeat
from gateway.model.access import ObjectRead
from gateway.model.errors import CatalogUnavailable
from gateway.policies.reads.rules import OFF, Rules
from gateway.policies.streams.profile import FirstReads, ProfileRead, ProfileRecording

PAUSE = 1.0
"""Seconds between two saves."""
LINGER = 10.0
"""Seconds after the end of a recording in which earlier reads may still arrive."""
PAGE = 2000
"""Reads that are saved at a time."""

Save = Callable[[str, Sequence[ProfileRead]], Awaitable[bool]]


@dataclass(slots=True)
class _Folding:
    """One recording in progress; ``unsaved`` are reads that are not in the catalog yet."""

    first: FirstReads
    unsaved: list[ProfileRead] = field(default_factory=list)


class Recorder:
    """Records in one worker.

    Args:
        known: the recordings of the catalog; ended ones are ignored.
        save: adds reads to the recording of an id; ``False`` if it takes no more. Raises CatalogUnavailable.
        rules: in force.
        block_size: of the cache, in bytes.
        now: seconds since the epoch.
    """

    def __init__(
        self,
        known: Callable[[], Sequence[ProfileRecording]],
        save: Save,
        rules: Callable[[], Rules],
        block_size: int,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._known = known
        self._save = save
        self._rules = rules
        self._block_size = block_size
        self._now = now
        self._folding: dict[str, _Folding] = {}
        self._closed: set[str] = set()

    def hear(self, reads: Sequence[ObjectRead]) -> None:
        """Record the reads that belong to a profile."""
        for recording in self._known():
            if recording.id not in self._closed and recording.until > self._now() - LINGER:
                self._fold(recording, reads)

    async def run(self) -> None:
        """Save new reads, until cancelled."""
        await repeat("profiles", self.run_once, PAUSE, (CatalogUnavailable,))

    async def run_once(self) -> None:
        """Save new reads.

        Raises:
            CatalogUnavailable: unsaved reads are kept for later.
        """
        since = self._now() - LINGER
        known = {recording.id for recording in self._known() if recording.until > since}
        self._closed &= known
        for name, folding in list(self._folding.items()):
            folding.unsaved += folding.first.take_reads()
            while folding.unsaved:
                if not await self._save(name, folding.unsaved[:PAGE]):
                    self._close(name)
                    break
                del folding.unsaved[:PAGE]
            if name not in known or folding.first.full:
                self._close(name)

    async def stop(self) -> None:
        """Save the rest, if that is possible now."""
        with suppress(CatalogUnavailable):
            await self.run_once()

    def _fold(self, recording: ProfileRecording, reads: Sequence[ObjectRead]) -> None:
        rules = self._rules()
        for key, start, stop, size, _, at, principal, *_ in reads:
            if not recording.wants(principal, key.bucket, key.key, at) or rules.for_path(key.path).pattern == OFF:
                continue
            if (folding := self._folding.get(recording.id)) is None:
                folding = self._folding[recording.id] = _Folding(FirstReads(self._block_size))
            folding.first.add(ProfileRead(at, key.bucket, key.key, start, stop, size))

    def _close(self, name: str) -> None:
        self._folding.pop(name, None)
        self._closed.add(name)
