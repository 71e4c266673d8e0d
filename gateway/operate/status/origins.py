"""Health of the zone's origins: whether nodes reach them, and how fast they answer. Pure functions of a ``FleetReading``."""

from __future__ import annotations

from gateway.admin.state.documents import OriginSeen
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import last_minute
from gateway.policies.health.answers import Answers, percentile
from gateway.policies.health.reachability import Contact

_WORST = (Contact.SILENT, Contact.REFUSES, Contact.ANSWERS)


def origins_of(reading: FleetReading) -> list[OriginSeen]:
    """The origins that nodes have used, by name."""
    met: dict[str, dict[str, str]] = {}
    for node in sorted(reading.nodes):
        for name, contact in reading.status(node).get("origins", {}).items():
            met.setdefault(str(name), {})[node] = str(contact)
    everything, rates = last_minute(reading)
    answering = {name for name, buckets in everything.origins.items() if any(buckets.values())}
    return [_seen(name, met.get(name, {}), everything, rates) for name in sorted(answering | met.keys())]


def _seen(name: str, met: dict[str, str], everything: Answers, rates: Answers) -> OriginSeen:
    buckets = everything.origins.get(name, {})
    p50, p95, p99 = (percentile(buckets, share) for share in (0.5, 0.95, 0.99))
    return OriginSeen(
        name=name,
        state=next((contact for contact in _WORST if contact in met.values()), Contact.ANSWERS).value,
        lost_by=[node for node, contact in met.items() if contact != Contact.ANSWERS],
        requests_per_second=round(max(rates.origins.get(name, {}).values(), default=0.0), 3),
        p50=p50,
        p95=p95,
        p99=p99,
    )
