"""``/-/admin/traffic``: requests by tenant and bucket, and the prefixes that the cache does not have."""

from __future__ import annotations

from fastapi import APIRouter

from gateway.admin.fleet.documents import BucketTraffic, MissedPrefixDocument, TrafficDocument
from gateway.admin.fleet.reading import FleetReading
from gateway.admin.fleet.view import last_minute
from gateway.admin.http.requests import Ops, Reader
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
        buckets=_buckets(reading)[:most],
        misses=[_missed(row) for row in missed[:most]],
        miss_seconds=max((report.seconds for report in reports), default=0.0),
    )


def _buckets(reading: FleetReading) -> list[BucketTraffic]:
    found = []
    for name, counts in last_minute(reading)[1].traffic.items():
        bucket, _, tenant = name.partition("/")
        sent = counts["sent_bytes"]
        found.append(
            BucketTraffic(
                bucket=bucket,
                tenant=tenant,
                requests_per_second=round(counts["requests"], 3),
                sent_bytes_per_second=round(sent, 1),
                hit_ratio=round(counts["cache_bytes"] / sent, 4) if sent else None,
            )
        )
    return sorted(found, key=lambda each: (-each.sent_bytes_per_second, -each.requests_per_second, each.bucket))


def _missed(row: MissedPrefix) -> MissedPrefixDocument:
    known = Reason.of(row.reason)
    return MissedPrefixDocument.of(row, meaning=known.meaning if known else "", change=known.change if known else "")
