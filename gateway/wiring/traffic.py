"""Wires what is kept of S3 requests: access log, traffic by tenant and bucket, misses by prefix, and those who follow live."""

from __future__ import annotations

import time
import uuid
from contextlib import AsyncExitStack

from gateway.api.s3.access_log import AccessLog
from gateway.api.s3.accounting import Accounting
from gateway.engine.operations.live import LiveRequests
from gateway.engine.operations.traffic import EVERY, TrafficTally
from gateway.fleet.announcer import DOWN
from gateway.tasks import keep_running, repeat
from gateway.wiring.manager import Management


def account(access_log: str, management: Management, stack: AsyncExitStack) -> Accounting:
    """Account for requests until the stack is closed. ``access_log``: the setting ``log.access``."""
    access, tally = AccessLog(access_log), TrafficTally(time.monotonic)
    stack.callback(access.close)
    parts, node = management.parts, management.membership.me
    live = LiveRequests(parts.live)
    worker = f"{node}/{uuid.uuid4().hex}"

    async def tell() -> None:
        report = tally.report()
        if report.rows:
            await parts.misses.tell(worker, report)

    keep_running(repeat("reporting misses", tell, EVERY, DOWN), stack)
    keep_running(repeat("live requests", live.turn, live.pause, DOWN), stack)
    return Accounting(node, access, tally, live)
