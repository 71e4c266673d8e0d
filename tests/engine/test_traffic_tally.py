"""Requests by tenant and bucket: named in metrics up to a bound."""

from __future__ import annotations

from prometheus_client import REGISTRY

from gateway.engine.operations.traffic import MOST, MOST_TENANTS, OTHER, TrafficTally
from gateway.model.outcomes import Outcome


def counted(tenant: str, bucket: str, name: str = "requests", outcome: str = "HIT") -> float:
    """The value of a sample; 0 if the sample does not exist."""
    labels = {"tenant": tenant, "bucket": bucket, "outcome": outcome}
    return REGISTRY.get_sample_value(f"larder_bucket_{name}_total", labels) or 0.0


def note(tally: TrafficTally, tenant: str, bucket: str, outcome: Outcome, status: int, sent: int) -> None:
    """Count a request as the edge does."""
    traffic = tally.kinds.get((tenant, bucket, outcome)) or tally.begin(tenant, bucket, outcome, status)
    traffic.requests += 1
    traffic.sent += sent


def test_requests_are_counted_by_tenant_and_bucket() -> None:
    """Rule: each request and its bytes reach the metrics once."""
    tally = TrafficTally(lambda: 0.0)
    for sent in (100, 20):
        note(tally, "tally-vision", "tally-data", Outcome.HIT, 200, sent)
    tally.publish()
    tally.publish()
    assert counted("tally-vision", "tally-data") == 2
    assert counted("tally-vision", "tally-data", "sent_bytes") == 120


def test_failed_requests_name_no_bucket() -> None:
    """Rule: a bucket without a successful request uses up no label; once it has one, all of its requests count."""
    tally = TrafficTally(lambda: 0.0)
    note(tally, "tally-a", "tally-made-up", Outcome.HIT, 404, 0)
    tally.publish()
    assert counted("tally-a", "tally-made-up") == 0
    assert counted("tally-a", OTHER) == 1
    for status in (200, 404):
        note(tally, "tally-a", "tally-made-up", Outcome.HIT, status, 0)
    tally.publish()
    assert counted("tally-a", "tally-made-up") == 2


def test_pairs_beyond_the_bound_count_together() -> None:
    """Rule: a worker names a fixed number of pairs of tenant and bucket; no request is lost."""
    tally = TrafficTally(lambda: 0.0)
    for number in range(MOST + 7):
        note(tally, "tally-many", f"tally-{number}", Outcome.HIT, 200, 1)
    tally.publish()
    assert sum(counted("tally-many", f"tally-{number}") for number in range(MOST + 7)) == MOST
    assert counted("tally-many", OTHER) == 7


def test_no_tenant_hides_another() -> None:
    """Rule: a tenant that comes after all pairs are named has its own name in the metrics, up to a bound of tenants."""
    tally, others = TrafficTally(lambda: 0.0), counted(OTHER, OTHER)
    for number in range(MOST):
        note(tally, "tally-greedy", f"tally-{number}", Outcome.HIT, 200, 1)
    for number in range(MOST_TENANTS + 3):
        note(tally, f"tally-late-{number}", "tally-data", Outcome.HIT, 200, 1)
    tally.publish()
    assert sum(counted(f"tally-late-{number}", OTHER) for number in range(MOST_TENANTS + 3)) == MOST_TENANTS
    assert counted(OTHER, OTHER) == others + 3
