"""Verifies a node's cache while it serves, on request of an operator: it only reads, and reports its progress.

The worker that speaks for the node does it, one verification at a time. If the end of the worker or of Redis interrupts one, the
next worker that speaks restarts it. The store itself drops defective blobs at their next read (gateway/store/opening.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from gateway.base.config import CacheSettings
from gateway.base.tasks import repeat
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.verifications import Verification, VerificationQueue
from gateway.model.errors import LarderError
from gateway.store.verify import VerifyReport, verify_cache

_LOOK = 1.0
_SAY = 0.5
_EXAMPLES = 20
_SHARDS = 256


class Verifications:
    """Runs the zone's verifications on this node.

    Args:
        queue: in Redis.
        node: this node's id.
        cache: settings of the cache to verify.
        speaks: whether this worker speaks for its node.
    """

    def __init__(self, queue: VerificationQueue, node: str, cache: CacheSettings, speaks: Callable[[], bool]) -> None:
        self.queue = queue
        self._node = node
        self._cache = cache
        self._speaks = speaks
        self._report = VerifyReport()
        self._wanted = False

    async def run(self) -> None:
        """Run the verifications requested of this node, until cancelled."""
        await repeat("verification", self.run_once, _LOOK, DOWN)

    async def run_once(self) -> None:
        """Run the oldest verification that waits for this node, if there is one and this worker speaks for its node."""
        if not self._speaks():
            return
        waiting = [verification for verification in await self.queue.all() if self._is_due(verification)]
        if waiting:
            await self._verify(waiting[-1].id)

    def _is_due(self, verification: Verification) -> bool:
        return verification.nodes.get(self._node, {}).get("state") in ("queued", "running")

    async def _verify(self, name: str) -> None:
        self._report, self._wanted = VerifyReport(), True
        await self.queue.say(name, self._node, _document(self._report, "running"))
        reading = asyncio.get_running_loop().create_task(verify_cache(self._cache, progress=self._keep_report))
        try:
            while not (await asyncio.wait([reading], timeout=_SAY))[0]:
                if not self._speaks() or not await self.queue.say(name, self._node, _document(self._report, "running")):
                    return
            await self.queue.say(name, self._node, _ended(reading))
        finally:
            # The thread stops after the current file.
            self._wanted = False
            await asyncio.gather(reading, return_exceptions=True)

    def _keep_report(self, report: VerifyReport) -> bool:
        self._report = report
        return self._wanted


def _ended(reading: asyncio.Task[VerifyReport]) -> dict[str, Any]:
    failure = reading.exception()
    if failure is None:
        report = reading.result()
        return _document(report, "done")
    if not isinstance(failure, LarderError | OSError):
        raise failure
    return {"state": "failed", "failure": str(failure)[:500]}


def _document(report: VerifyReport, state: str) -> dict[str, Any]:
    return {
        "state": state,
        "share": round(report.shards / _SHARDS, 4),
        "blobs": report.blobs,
        "bytes": report.bytes,
        "corrupt": len(report.corrupt) + report.damaged,
        "missing": len(report.missing),
        "orphans": len(report.orphans),
        "examples": [*(["index.db"] if report.damaged else []), *report.corrupt, *report.missing, *report.orphans][
            :_EXAMPLES
        ],
    }
