"""The gauges of one worker, updated for every scrape; twice a second where other workers may be scraped for them."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass

from gateway.api.ops import Lifecycle, Monitoring, OpsApp
from gateway.api.s3.accounting import Accounting
from gateway.api.s3.app import S3App
from gateway.base import metrics
from gateway.base.tasks import keep_running, repeat
from gateway.engine.operations.watch import NodeWatch
from gateway.engine.space.sweep_loop import SweepLoop
from gateway.fleet.nodes.invalidations import Invalidations
from gateway.origin.client import OriginClient
from gateway.server.asgi_types import Scope
from gateway.wiring.vitals import late, show_memory

_REFRESH = 0.5


@dataclass(frozen=True, slots=True)
class Gauges:
    """The sources of the gauges' values."""

    lifecycle: Lifecycle
    watch: NodeWatch
    s3: S3App
    origin: OriginClient
    sweeping: SweepLoop
    channel: Invalidations
    accounting: Accounting

    def refresh(self) -> None:
        """Update the gauges and counters of this worker."""
        metrics.IN_FLIGHT.set(self.s3.in_flight)
        metrics.ORIGIN_IN_FLIGHT.set(self.origin.in_flight)
        metrics.READY.set(self.lifecycle.ready(self.watch.problems()))
        show_memory()
        self.publish()

    def publish(self) -> None:
        """Update what the node's own status is read from (``engine/operations/counting.py``)."""
        # If the clock was set back, everything learned from now on would seem older.
        self.channel.heard.since = min(self.channel.heard.since, time.time())
        metrics.CHANNEL_HEALTHY.set(self.channel.healthy)
        self.accounting.publish()
        self.sweeping.publish()
        metrics.publish()

    def monitor(self, may_read: Callable[[Scope], bool], waits: Callable[[float], bool]) -> OpsApp:
        """Health, readiness and metrics; see ``Monitoring``."""
        return OpsApp(Monitoring(self.lifecycle, self.watch.problems, self.refresh, may_read, waits))

    def keep(self, stack: AsyncExitStack) -> None:
        """Keep them up to date until the stack is closed."""
        # A scrape of another worker reads this one's last values; a single worker is asked itself.
        work = self.refresh if "PROMETHEUS_MULTIPROC_DIR" in os.environ else self.publish
        keep_running(repeat("gauges", lambda: _later(_REFRESH, work)), stack)


async def _later(seconds: float, work: Callable[[], None]) -> None:
    with late(seconds):
        await asyncio.sleep(seconds)
    work()
