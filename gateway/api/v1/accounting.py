"""Accounting of each batch after its answer: traffic by tenant and dataset, limits of tenants, and who follows requests live.

Beside buckets, a dataset is called ``dataset:NAME``: its items may be in several buckets, and no bucket's name has a colon.
"""

from __future__ import annotations

import time

from gateway import metrics, tracing
from gateway.api.s3.accounting import Accounting
from gateway.api.v1.batch_body import ItemTally
from gateway.model.frames import ItemFlag, ItemStatus
from gateway.model.keys import Principal
from gateway.model.live import LiveRequest
from gateway.model.outcomes import Outcome, Reason
from gateway.server.asgi_types import Scope

OF_DATASET = "dataset:"
"""The beginning of a dataset's name where others are buckets."""


class AnswerTally(ItemTally):
    """Counts the items of one answer, for the metrics of all and for itself.

    Attributes:
        items: delivered.
        failed: not delivered.
        hits: of the delivered ones, from the cache.
        sent: bytes.
        cached: of them, from the cache.
    """

    def __init__(self) -> None:
        super().__init__(metrics.BATCH_ITEMS, metrics.BATCH_BYTES)
        self.items = self.failed = self.hits = self.sent = self.cached = 0

    def item(self, flags: ItemFlag, status: ItemStatus, size: int) -> None:
        """Count one item of the answer."""
        self.failed += status is not ItemStatus.OK
        super().item(flags, status, size)

    def delivered(self, result: str, count: int, size: int) -> None:
        """Count ``count`` items of ``size`` bytes in total."""
        super().delivered(result, count, size)
        self.items += count
        self.sent += size
        if result == "hit":
            self.hits += count
            self.cached += size

    @property
    def outcome(self) -> tuple[Outcome, Reason | None]:
        """The outcome of the whole batch: a hit if every item was one."""
        if self.hits == self.items and not self.failed:
            return Outcome.HIT, None
        return Outcome.MISS, Reason.PARTIAL if self.hits else Reason.COLD


class BatchAccounting:
    """Counts batches where ``accounting`` counts S3 requests."""

    def __init__(self, accounting: Accounting) -> None:
        self._node = accounting.node
        self._tally = accounting.tally
        self._live = accounting.live
        self._rates = accounting.rates

    def admit(self, tenant: str) -> None:
        """Hold a tenant to its limits.

        Raises:
            RateLimited: it must wait.
        """
        if self._rates.limits:
            self._rates.admit(tenant)

    def note(self, scope: Scope, principal: Principal, dataset: str, counted: AnswerTally, seconds: float) -> None:
        """Account for a batch of the dataset with this name that took so many seconds."""
        if not counted.items and not counted.failed:
            return
        outcome, reason = counted.outcome
        bucket = f"{OF_DATASET}{dataset}"
        self._tally.begin(principal.tenant, bucket, outcome, 200).requests += 1
        parts = ((Outcome.HIT, counted.cached), (Outcome.MISS, counted.sent - counted.cached))
        for kind, size in parts:
            if size:
                self._tally.begin(principal.tenant, bucket, kind, 200).sent += size
        self._rates.spend(principal.tenant, counted.sent)
        if self._live.followers:
            self._live.note(
                LiveRequest(
                    at=time.time(),
                    node=self._node,
                    request_id="",
                    trace_id=tracing.trace_id() or "",
                    tenant=principal.tenant,
                    access_key_id=principal.access_key_id,
                    address=(scope.get("client") or ("", 0))[0],
                    method="POST",
                    bucket=bucket,
                    key=f"{counted.hits} hits of {counted.items + counted.failed} items",
                    status=200,
                    outcome=outcome.value,
                    reason="" if reason is None else reason.value,
                    bytes=counted.sent,
                    seconds=round(seconds, 6),
                )
            )
