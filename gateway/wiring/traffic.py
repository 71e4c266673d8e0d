"""Wires request records: access log, traffic by tenant and bucket, misses by prefix, and live followers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from contextlib import AsyncExitStack

from gateway.api.s3.access_log import AccessLog
from gateway.api.s3.accounting import Accounting
from gateway.base.config_base import TenantLimit
from gateway.base.tasks import keep_running, repeat
from gateway.engine.operations.live import LiveRequests
from gateway.engine.operations.tenant_rates import EVERY as RATES_EVERY
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.engine.operations.traffic import EVERY, TrafficTally
from gateway.fleet.nodes.announcer import DOWN
from gateway.policies.fleet.tenant_rates import RateLimit
from gateway.wiring.manager import Management


def rate_limits(limits: Iterable[TenantLimit]) -> list[tuple[str, RateLimit]]:
    """Convert the configured limits for the policy, by tenant."""
    return [(limit.tenant, RateLimit(limit.requests_per_second, float(limit.bytes_per_second))) for limit in limits]


def hold_to_limits(limits: Iterable[TenantLimit], management: Management, stack: AsyncExitStack) -> TenantRates:
    """Hold tenants to their limits until the stack is closed."""
    worker = f"{management.membership.me}/{uuid.uuid4().hex}"
    rates = TenantRates(management.parts.demand, worker, time.monotonic)
    rates.replace(rate_limits(limits))
    keep_running(repeat("limits of tenants", rates.run_once, RATES_EVERY, DOWN), stack)
    return rates


def account(access_log: str, management: Management, rates: TenantRates, stack: AsyncExitStack) -> Accounting:
    """Account for requests until the stack is closed. ``access_log``: the setting ``log.access``."""
    access, tally = AccessLog(access_log), TrafficTally(time.monotonic)
    stack.callback(access.close)
    parts, node = management.parts, management.membership.me
    live = LiveRequests(parts.live)
    worker = f"{node}/{uuid.uuid4().hex}"

    async def tell() -> None:
        report = tally.report()
        if report.rows:
            await parts.misses.send(worker, report)

    keep_running(repeat("reporting misses", tell, EVERY, DOWN), stack)
    keep_running(repeat("live requests", live.run_once, live.pause, DOWN), stack)
    return Accounting(node, access, tally, live, rates)
