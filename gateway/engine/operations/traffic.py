"""Counts a worker's S3 requests by tenant and bucket, and its misses by folder.

A request costs one look-up and two additions, which the edge makes itself (gateway/api/s3/accounting.py); a miss is also
appended to a list. Twice a second the sums go to the metrics, where those of all workers meet; the misses go to Redis, as
folders are too many for metrics. Tenants and buckets are labels of metrics, so their number is bounded: a worker names the first
``MOST`` pairs with a successful request, which an invented bucket never has. The other requests of a tenant count together under
its name, so no tenant's buckets hide another tenant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client import Counter

from gateway.base import metrics
from gateway.model.keys import ObjectKey
from gateway.model.outcomes import Outcome, Reason
from gateway.policies.health.misses import MissReport, MissTally

MOST = 50
"""Pairs of tenant and bucket that a worker names."""
MOST_TENANTS = 500
"""Tenants that a worker names; operators make them."""
OTHER = "(other)"
"""The bucket of a tenant's other requests, and the tenant of all other requests; no real bucket or tenant has this name."""
EVERY = 5.0
"""Seconds between two reports of misses."""
SILENCE = 6 * EVERY
"""Seconds after which the report of a worker that ended is ignored."""


@dataclass(slots=True)
class Traffic:
    """The counts of one kind of request that are not in the metrics yet; ``sent``: bytes of objects."""

    requests: int
    sent: int
    all_requests: Counter
    all_sent: Counter


class TrafficTally:
    """The counts of one worker's requests. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.kinds: dict[tuple[str, str, Outcome], Traffic] = {}
        """By tenant, bucket and outcome; ``begin`` gives missing ones."""
        self.missed: list[tuple[ObjectKey, Reason, int]] = []
        """Reads since the last ``publish`` that were not plain hits, with the bytes sent."""
        self._clock = clock
        self._named: set[tuple[str, str]] = set()
        self._tenants: set[str] = set()
        self._misses = MissTally(clock())

    def begin(self, tenant: str, bucket: str, outcome: Outcome, status: int) -> Traffic:
        """The counts for a request whose kind is not in ``kinds``."""
        if (tenant, bucket) not in self._named:
            if status < 400 and len(self._named) < MOST:
                self._named.add((tenant, bucket))
            else:
                bucket = OTHER
                if len(self._tenants) < MOST_TENANTS:
                    self._tenants.add(tenant)
                tenant = tenant if tenant in self._tenants else OTHER
        traffic = self.kinds.get((tenant, bucket, outcome))
        if traffic is None:
            labels = tenant, bucket, outcome.value
            traffic = Traffic(0, 0, metrics.BUCKET_REQUESTS.labels(*labels), metrics.BUCKET_SENT_BYTES.labels(*labels))
            self.kinds[tenant, bucket, outcome] = traffic
        return traffic

    def report(self) -> MissReport:
        """The misses of the last minutes, up to the last ``publish``."""
        return self._misses.report(self._clock())

    def publish(self) -> None:
        """Add the counts since the last call to the metrics, and to the misses by folder."""
        missed, self.missed = self.missed, []
        for key, reason, sent in missed:
            self._misses.add(key.bucket, key.key, reason, sent)
        for pending in self.kinds.values():
            if pending.requests or pending.sent:
                pending.all_requests.inc(pending.requests)
                pending.all_sent.inc(pending.sent)
                pending.requests = pending.sent = 0
