"""``/-/admin/traffic``: requests by tenant and bucket, and the prefixes of misses."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping

from fastapi import APIRouter

from gateway.admin.http.requests import Reader
from gateway.admin.state.documents import BucketTraffic, MissedPrefixDocument, TrafficDocument
from gateway.admin.state.parameters import Ops
from gateway.admin.state.reading import FleetReading
from gateway.admin.state.view import last_minute
from gateway.engine.operations.traffic import OTHER
from gateway.model.outcomes import Reason
from gateway.policies.health.misses import MissedPrefix, added

MOST = 100
"""Prefixes in an answer."""

router = APIRouter(tags=["overview"])


@router.get("/traffic", summary="Show traffic by tenant and bucket, and misses by prefix")
async def show_traffic(_caller: Reader, operations: Ops) -> TrafficDocument:
    """S3 requests of the last minute by tenant and bucket, and the reads of the last minutes that were not plain hits, with the
    reason; the same from every gateway."""
    return traffic_of(await operations.fleet.look(), MOST)


def traffic_of(reading: FleetReading, most: int) -> TrafficDocument:
    """The traffic of the zone; at most ``most`` rows of each kind."""
    reports = reading.misses.values()
    missed = added(row for report in reports for row in report.rows)
    return TrafficDocument(
        buckets=_buckets(reading, most),
        misses=[_missed(row) for row in missed[:most]],
        miss_seconds=max((report.seconds for report in reports), default=0.0),
    )


def _buckets(reading: FleetReading, most: int) -> list[BucketTraffic]:
    """The busiest pairs of bucket and tenant; the rest of each tenant's traffic is one row, so that every tenant has at least
    one."""
    pairs = last_minute(reading)[1].traffic.items()
    busiest = sorted(pairs, key=lambda pair: (-pair[1]["sent_bytes"], -pair[1]["requests"], pair[0]))
    rows, others = dict(busiest[:most]), defaultdict[str, Counter[str]](Counter)
    for name, counts in busiest[most:]:
        others[f"{OTHER}/{name.partition('/')[2]}"].update(counts)
    for name, counts in others.items():
        rows[name] = Counter(rows.get(name, {})) + counts
    return sorted(
        (_of_pair(name, counts) for name, counts in rows.items()),
        key=lambda row: (-row.sent_bytes_per_second, -row.requests_per_second, row.bucket),
    )


def _of_pair(name: str, counts: Mapping[str, float]) -> BucketTraffic:
    bucket, _, tenant = name.partition("/")
    sent = counts["sent_bytes"]
    return BucketTraffic(
        bucket=bucket,
        tenant=tenant,
        requests_per_second=round(counts["requests"], 3),
        sent_bytes_per_second=round(sent, 1),
        hit_ratio=round(counts["cache_bytes"] / sent, 4) if sent else None,
    )


def _missed(row: MissedPrefix) -> MissedPrefixDocument:
    known = Reason.of(row.reason)
    return MissedPrefixDocument.of(row, meaning=known.meaning if known else "", change=known.change if known else "")
