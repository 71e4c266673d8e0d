"""Every metric, declared once; docs/metrics.md is checked against ``ALL``.

Labels are bounded: no keys, digests, datasets or nodes; the values of each label are listed in its description, or in an enum of
the code. ``NAMED`` metrics have names of origins, or of a bounded number of tenants and buckets (engine/operations/traffic.py).
So the number of series does not depend on clients' requests (tests/deploy/test_cardinality.py).

With several workers, a gauge is combined according to its mode. A gauge that is summed, or whose worst value counts, has a
"live" mode: it excludes dead workers (gateway/server/run.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from prometheus_client import Counter, Gauge, Histogram, disable_created_metrics

from gateway.base import counter_files as counter_files

disable_created_metrics()  # type: ignore[no-untyped-call]

LATENCY_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
"""Upper bounds of the latencies of requests, in seconds."""
REQUESTS = Counter(
    "larder_requests_total",
    "Requests by method, status class, cache outcome and reason",
    ["method", "status", "outcome", "reason"],
)
SENT_BYTES = Counter("larder_sent_bytes_total", "Object bytes sent to clients, by cache outcome", ["outcome"])
REPEATED = Counter(
    "larder_repeated_requests_total",
    "Hits whose head equals the connection's last one but for path, date and signature, so that it was not parsed",
)
BUCKET_REQUESTS = Counter(
    "larder_bucket_requests_total",
    "S3 requests by tenant, bucket and cache outcome, batches with dataset:NAME for the bucket, and other requests of /-/v1 with "
    "their kind, such as (blobs). A worker names its first "
    "50 pairs of tenant and bucket; the others of a tenant are (other)",
    ["tenant", "bucket", "outcome"],
)
BUCKET_SENT_BYTES = Counter(
    "larder_bucket_sent_bytes_total",
    "Bytes of answers sent to clients, by tenant, bucket and cache outcome, named as in larder_bucket_requests_total",
    ["tenant", "bucket", "outcome"],
)
LATENCY = Histogram(
    "larder_request_seconds",
    "Seconds from the request's header to the end of its answer",
    ["outcome"],
    buckets=LATENCY_BUCKETS,
)
_QUICK = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_SLOW = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120)

IN_FLIGHT = Gauge("larder_requests_in_flight", "Requests being answered now", multiprocess_mode="livesum")
RATE_LIMITED = Counter(
    "larder_rate_limited_requests_total",
    "Requests answered 503 SlowDown because their tenant has reached its limit, by tenant",
    ["tenant"],
)
SHED = Counter(
    "larder_shed_requests_total",
    "Requests answered 503 SlowDown for want of something that all share, by the shortage: requests (server.max_in_flight), "
    "bodies (server.body_memory), uploads (server.spool), digests (digest files being received), origin "
    "(origins.max_connections), process (descriptors, memory or threads)",
    ["shortage"],
)
CONNECTIONS = Gauge("larder_connections", "Connections of clients and other nodes now", multiprocess_mode="livesum")
OPENED_CONNECTIONS = Counter("larder_connections_opened_total", "Connections of clients and other nodes accepted")
CALLERS_CLOSED = Counter(
    "larder_tenant_connections_closed_total",
    "Connections of tenants closed because the tenant had more than its share",
)
STRANGERS_CLOSED = Counter(
    "larder_unauthenticated_connections_closed_total",
    "Idle connections closed because too many unauthenticated ones were open",
)
AUTH_FAILURES = Counter("larder_auth_failures_total", "Refused requests by S3 error code", ["code"])

ORIGIN_REQUESTS = Counter(
    "larder_origin_requests_total", "Requests to origins by method and status class", ["method", "status"]
)
ORIGIN_FAILURES = Counter(
    "larder_origin_failures_total",
    "Failed requests to origins, and bodies of their answers, by kind: dns, connect, tls, timeout, broken (truncated), "
    "invalid (not HTTP), busy (no connection was free)",
    ["kind"],
)
ORIGIN_HEDGES = Counter(
    "larder_origin_hedges_total",
    "Late reads of origins that were sent a second time (issued), and those answered by the second request first (won)",
    ["outcome"],
)
ORIGIN_IN_FLIGHT = Gauge(
    "larder_origin_requests_in_flight",
    "Requests to origins in flight, including those that wait for a free connection",
    multiprocess_mode="livesum",
)
ORIGIN_LATENCY = Histogram(
    "larder_origin_seconds",
    "Seconds until the head of an origin's answer, including the wait for a free connection",
    ["method"],
    buckets=_SLOW,
)
ORIGIN_ANSWERS = Histogram(
    "larder_origin_answer_seconds",
    "The seconds of larder_origin_seconds by the origin's name",
    ["origin"],
    buckets=_SLOW,
)
ORIGIN_BYTES = Counter("larder_origin_received_bytes_total", "Body bytes received from origins")
CHECKS = Counter("larder_revalidations_total", "Checks of a cached object with the origin, by result", ["result"])
FILLS = Counter(
    "larder_fills_total",
    "Origin reads being stored, by event: started, completed, failed, raced; and uploads stored as they passed: uploaded",
    ["event"],
)
SMALL_RANGES = Counter(
    "larder_small_ranges_total",
    "Reads of ranges of large objects whose blocks were not in the cache, by result: alone (only the range was read "
    "from the origin), memory and stored (it was read before), filled (its blocks were read)",
    ["result"],
)
ACTIVE_FILLS = Gauge("larder_fills_active", "Origin reads being stored now", multiprocess_mode="livesum")
FORGOTTEN = Counter("larder_invalidations_total", "Keys forgotten because of a write, by its source", ["source"])

INVALIDATION_LATENCY = Histogram(
    "larder_invalidation_seconds",
    "Seconds until every other worker had forgotten the keys of a write, or no longer trusted its cache",
    buckets=_QUICK,
)
LATE_INVALIDATIONS = Counter(
    "larder_invalidations_late_total",
    "Late invalidations, by what: unannounced (objects that neither Redis nor another node accepted in time), unanswered "
    "(announcements that a worker did not answer)",
    ["what"],
)

EPOCH_ITEMS = Counter(
    "larder_dataset_epoch_items_total",
    "Items of the whole epochs of jobs: delivered, read from the origin, and least (each job's part of the fewest reads that its "
    "dataset's jobs could make). The zone's leader counts, and names its first 50 pairs of tenant and dataset",
    ["tenant", "dataset", "kind"],
)
BATCHES = Counter(
    "larder_batches_total", "Batches by mode and form: index, descriptors, frames, tar, none", ["mode", "form"]
)
BATCH_LATENCY = Histogram(
    "larder_batch_seconds",
    "Seconds from a valid batch request to the end of its answer, by mode",
    ["mode"],
    buckets=LATENCY_BUCKETS,
)
BATCH_ITEMS = Counter(
    "larder_batch_items_total",
    "Items of batches by result: hit, joined, fetched, missing, changed, origin-error, not-resident, refused",
    ["result"],
)
BATCH_BYTES = Counter(
    "larder_batch_bytes_total", "Item bytes sent in batches, by result: hit, joined, fetched", ["result"]
)
DESCRIPTORS = Counter(
    "larder_batch_descriptors_total",
    "Items of batches, and parts of objects, that clients of this machine got as open files",
)
DESCRIPTORS_REFUSED = Counter(
    "larder_batch_descriptors_refused_total",
    "Cached batches sent as bytes to clients that take open files, by reason: user (it runs as root or as the gateway's "
    "user), many (more items than it takes), in-flight (earlier ones were not received), tcp, refused, bytes",
    ["reason"],
)
PEER_ITEMS = Counter(
    "larder_peer_items_total",
    "Items of batches requested by other nodes, by result; the requesting node counts them too",
    ["result"],
)
MOVED_ITEMS = Counter("larder_moved_items_total", "Items taken from another node's cache instead of the origin")
ITEMS_FROM_BLOCKS = Counter("larder_dataset_items_from_blocks_total", "Items taken from cached blocks of their objects")
ITEM_RUNS = Counter("larder_dataset_runs_total", "Reads of adjacent items, by source: origin, blocks", ["source"])
READ_FROM_ITEMS = Counter("larder_object_bytes_from_items_total", "Bytes of objects that S3 readers got from items")
STREAM_PREFETCHED = Counter(
    "larder_stream_prefetched_bytes_total",
    "Bytes loaded ahead of the readers of access streams: loaded; of these, used (read) and wasted (not read in time)",
    ["result"],
)
PREFETCHED = Counter("larder_prefetched_items_total", "Items fetched ahead, by result: stored, failed", ["result"])
RESULTS = Counter(
    "larder_results_total",
    "Results of pipelines by what became of them. Asked for: read, missing, busy (another job computes it). Put: stored, known "
    "(there was one), full (its pool has no room), too-large, unavailable (the disk or its home does not take it)",
    ["result"],
)
RESULT_BYTES = Counter(
    "larder_result_bytes_total", "Bytes of results of pipelines: read, stored, known, refused", ["result"]
)
REGISTRATIONS = Counter(
    "larder_dataset_registrations_total", "Registrations of datasets, by result: new, known, refused", ["result"]
)

RELAYED = Counter(
    "larder_relayed_reads_total",
    "Reads of objects whose home is another node, by event: answered, forwarded, unavailable; resumed, broken; moved here",
    ["event"],
)
PEER_SERVED = Counter("larder_peer_requests_served_total", "Requests of other nodes answered here, by kind", ["what"])

CACHE_BYTES = Gauge("larder_cache_bytes", "Bytes of blobs on this node", multiprocess_mode="mostrecent")
CACHE_BLOBS = Gauge("larder_cache_blobs", "Blobs on this node", multiprocess_mode="mostrecent")
CACHE_CAPACITY = Gauge(
    "larder_cache_capacity_bytes", "Configured capacity of this node", multiprocess_mode="mostrecent"
)
DATASET_BYTES = Gauge(
    "larder_cache_dataset_bytes", "Bytes of registrations of datasets on the cache disk", multiprocess_mode="mostrecent"
)
CACHE_ROOM = Gauge(
    "larder_cache_usable_bytes",
    "Usable part of the capacity: less while the file system has less free than cache.reserve, 0 while the disk is down",
    multiprocess_mode="mostrecent",
)
EVICTED_BLOBS = Counter(
    "larder_evicted_blobs_total",
    "Blobs evicted to make room; replaced items count in larder_replaced_items_total, ended streams in the released bytes",
)
EVICTED_BYTES = Counter("larder_evicted_bytes_total", "Bytes of evicted blobs")
CORRUPT_BLOBS = Counter("larder_corrupt_blobs_total", "Blobs dropped because their bytes did not match their digest")
VERIFIED_BLOBS = Counter("larder_verified_blobs_total", "Blobs read completely that matched their digest")
SKIPPED_FILES = Gauge(
    "larder_cache_skipped_files", "Files in the cache directory that cannot be removed", multiprocess_mode="livemax"
)
OPEN_BLOBS = Gauge("larder_open_blob_files", "Blob files that are kept open", multiprocess_mode="livesum")
MEMORY_BLOBS = Gauge("larder_memory_blobs", "Small blobs in the memory of the workers", multiprocess_mode="livesum")
MEMORY_BLOB_BYTES = Gauge(
    "larder_memory_blob_bytes",
    "Bytes that these blobs are charged: their own and 512 each",
    multiprocess_mode="livesum",
)
MEMORY_HITS = Counter("larder_memory_hits_total", "Hits, and relayed hits of this node's objects, sent from memory")
DISK_STATE = Gauge("larder_disk_state", "Cache disk: 0 normal, 1 unstable, 2 down", multiprocess_mode="livemax")
CHANNEL_HEALTHY = Gauge(
    "larder_invalidation_channel_healthy", "1 while invalidations of other gateways arrive", multiprocess_mode="livemin"
)
FLEET_NODES = Gauge(
    "larder_fleet_nodes",
    "Nodes of the zone as this node knows them, by state; only this one, as JOINING, while it may not join",
    ["state"],
    multiprocess_mode="mostrecent",
)
FLEET_CONFLICTS = Counter(
    "larder_fleet_conflicts_total",
    "Nodes that could not join one fleet, by reason: id (duplicate), protocol (other version), secret (different)",
    ["reason"],
)
RING_CHANGES = Counter(
    "larder_ring_changes_total",
    "Changes of the ring, as the workers of this node see it; a suspect that leaves and returns counts twice",
)
SUSPECTS = Counter(
    "larder_peer_suspects_total",
    "Times that another node was suspected and taken out of the ring, by reason: silent, refused",
    ["why"],
)
PEER_LATENCY = Histogram("larder_peer_seconds", "Seconds until the head of another node's answer", buckets=_SLOW)
PEER_BYTES = Counter("larder_peer_received_bytes_total", "Body bytes received from other nodes")
PEER_REQUESTS = Counter(
    "larder_peer_requests_total",
    "Requests to other nodes, by result: answered, failed (status 5xx), refused, unavailable, broken (half-way)",
    ["result"],
)
PEER_REFUSED = Counter(
    "larder_peer_refused_total",
    "Refused requests of other nodes, by reason: unsigned, protocol, date, signature, body, request, "
    "replayed (it changes something, and was carried out before)",
    ["reason"],
)
JOB_REQUESTS = Counter(
    "larder_job_requests_total",
    "Requests about jobs by kind: register, heartbeat, order, remove, show, plan; and by result: done, unknown, refused, "
    "unavailable",
    ["kind", "result"],
)
JOBS = Gauge(
    "larder_jobs",
    "Jobs of the zone in the current plan, by phase: probe-miss, measure, steady",
    ["phase"],
    multiprocess_mode="livemostrecent",
)
JOBS_CACHED = Gauge(
    "larder_jobs_using_cache", "Jobs of the zone that the plan lets use the cache", multiprocess_mode="livemostrecent"
)
PLANNED_DATASETS = Gauge(
    "larder_planned_datasets",
    "Datasets in the current plan, by caching mode: full, part, none",
    ["caching"],
    multiprocess_mode="livemostrecent",
)
PLANNED_BYTES = Gauge(
    "larder_planned_bytes", "Bytes of the zone that the plan gives to datasets", multiprocess_mode="livemostrecent"
)
PLAN_CHANGES = Counter(
    "larder_plan_changes_total",
    "Plan changes by this node's leader: allocated, released (a dataset); judged, gone (a job)",
    ["what"],
)
JOB_PHASES = Counter(
    "larder_job_phases_total",
    "Times that this node's leader put a job into a phase; probe-miss counts the probes",
    ["phase"],
)
PIPELINES = Gauge(
    "larder_pipelines",
    "Pipelines of jobs of the zone, by what the fleet has decided: profile (not yet), compute, cache",
    ["mode"],
    multiprocess_mode="livemostrecent",
)
PIPELINE_DECISIONS = Counter(
    "larder_pipeline_decisions_total",
    "Decisions where a pipeline caches, by reason: fastest, nothing-to-gain, no-marks, no-room, profiling, "
    "shared, override",
    ["reason"],
)
PLAN_VERSION = Gauge("larder_plan_version", "Version of the plan that is followed", multiprocess_mode="mostrecent")
MANAGER_LEADING = Gauge(
    "larder_manager_leading", "1 in the zone's node whose worker leads", multiprocess_mode="livesum"
)
ZONE_PROBLEMS = Gauge(
    "larder_zone_problems",
    "Problems of the zone by kind, as `/-/admin/problems` names it; counted by the node whose worker leads, 0 elsewhere",
    ["kind"],
    multiprocess_mode="livesum",
)
MANAGER_DEPOSED = Counter("larder_manager_deposed_total", "Plans refused because another worker has become leader")
REPLACED_ITEMS = Counter(
    "larder_replaced_items_total",
    "Items of datasets in mode part that this node evicted for items of the same dataset that more jobs need",
)
SCORE_PARTS = Counter(
    "larder_importance_parts_total",
    "Parts of jobs' scores by result: applied, repeated, unknown-base, malformed; forwarded (to their homes)",
    ["result"],
)
SCORED_ITEMS = Gauge(
    "larder_importance_scored_items",
    "Items that jobs have scored on this node, by the node's keeper: the ghost list, one entry per item and job",
    multiprocess_mode="livesum",
)
UNIMPORTANT_ITEMS = Counter(
    "larder_importance_refused_items_total",
    "Items that were read and not stored because all that their full pool holds is more important",
)
IMPORTANT_ITEMS = Counter(
    "larder_importance_prefetched_items_total",
    "Items of next epochs' lists that were read from the origin ahead because they are important",
)
IMPORTANT_BYTES = Counter("larder_importance_prefetched_bytes_total", "Bytes of those items")
STREAM_ACCESSES = Counter(
    "larder_stream_accesses_total",
    "S3 reads observed for access streams, by result: recorded, dropped (too many to process)",
    ["result"],
)
STREAMS = Gauge(
    "larder_streams",
    "Access streams that this node sees, by pattern: sequential, random, skewed",
    ["pattern"],
    multiprocess_mode="livesum",
)
RELEASED_BYTES = Counter(
    "larder_stream_released_bytes_total",
    "Bytes of ended access streams, and of prefixes without space, that left to free space; not counted as evicted",
)
BUILD = Gauge("larder_build_info", "Always 1; the version is the label", ["version"], multiprocess_mode="livemax")
READY = Gauge("larder_ready", "1 while /-/readyz reports ready", multiprocess_mode="livemin")
MEMORY = Gauge("larder_memory_bytes", "Resident memory of the workers", multiprocess_mode="livesum")
LOOP_LAG = Histogram(
    "larder_event_loop_lag_seconds",
    "Delay of a task that is due twice a second in a worker's event loop; requests wait as long",
    buckets=_QUICK,
)
WARMUPS_RUNNING = Gauge("larder_warmups_running", "Warm-ups that a worker here is running", multiprocess_mode="livesum")
WARMUPS_ENDED = Counter("larder_warmups_total", "Warm-ups that ended here, by result: done, failed, refused", ["state"])
ADMIN_CHANGES = Counter(
    "larder_admin_changes_total", "Changes made through this gateway's admin addresses, by kind", ["action"]
)
CATALOG_VERSION = Gauge("larder_catalog_version", "Version of the catalog in force here", multiprocess_mode="livemin")
CATALOG_REACHABLE = Gauge(
    "larder_catalog_reachable",
    "1 while the catalog can be read, or none is configured; at 0 the last snapshot is in force",
    multiprocess_mode="livemin",
)
CONFIG_RELOADS = Counter("larder_config_reloads_total", "Reloads of rules and credentials, by result", ["result"])

ALL = (
    REQUESTS, SENT_BYTES, REPEATED, BUCKET_REQUESTS, BUCKET_SENT_BYTES, LATENCY, IN_FLIGHT, RATE_LIMITED, SHED, CONNECTIONS,
    OPENED_CONNECTIONS, CALLERS_CLOSED, STRANGERS_CLOSED, AUTH_FAILURES,
    ORIGIN_REQUESTS, ORIGIN_FAILURES, ORIGIN_IN_FLIGHT, ORIGIN_LATENCY, ORIGIN_ANSWERS, ORIGIN_BYTES, CHECKS, FILLS, SMALL_RANGES,
    ORIGIN_HEDGES, ACTIVE_FILLS, FORGOTTEN, INVALIDATION_LATENCY, LATE_INVALIDATIONS, CHANNEL_HEALTHY,
    EPOCH_ITEMS, BATCHES, BATCH_LATENCY, BATCH_ITEMS, BATCH_BYTES, DESCRIPTORS, DESCRIPTORS_REFUSED, PEER_ITEMS, MOVED_ITEMS,
    ITEMS_FROM_BLOCKS, ITEM_RUNS, READ_FROM_ITEMS, PREFETCHED, STREAM_PREFETCHED, REGISTRATIONS, RESULTS, RESULT_BYTES,
    RELAYED, PEER_SERVED, PEER_REQUESTS, PEER_LATENCY, PEER_BYTES, PEER_REFUSED, SUSPECTS, FLEET_NODES,
    FLEET_CONFLICTS, RING_CHANGES, CACHE_BYTES, CACHE_BLOBS, CACHE_CAPACITY, CACHE_ROOM, EVICTED_BLOBS, EVICTED_BYTES,
    CORRUPT_BLOBS, VERIFIED_BLOBS, SKIPPED_FILES, OPEN_BLOBS, MEMORY_BLOBS, MEMORY_BLOB_BYTES, MEMORY_HITS,
    DATASET_BYTES, DISK_STATE, JOB_REQUESTS, JOBS, JOBS_CACHED, JOB_PHASES, PLANNED_DATASETS, PLANNED_BYTES, PLAN_CHANGES,
    PLAN_VERSION, MANAGER_LEADING,
    ZONE_PROBLEMS, MANAGER_DEPOSED, PIPELINES, PIPELINE_DECISIONS, REPLACED_ITEMS,
    SCORE_PARTS, SCORED_ITEMS, UNIMPORTANT_ITEMS, IMPORTANT_ITEMS, IMPORTANT_BYTES,
    STREAM_ACCESSES, STREAMS, RELEASED_BYTES,
    BUILD, READY, MEMORY, LOOP_LAG, CONFIG_RELOADS, ADMIN_CHANGES, CATALOG_VERSION, CATALOG_REACHABLE,
    WARMUPS_RUNNING, WARMUPS_ENDED,
)  # fmt: skip


NAMED = (BUCKET_REQUESTS, BUCKET_SENT_BYTES, ORIGIN_ANSWERS, RATE_LIMITED, EPOCH_ITEMS)
"""Metrics with names of tenants, buckets or origins, hidden from unauthenticated callers (edge/exposition.py)."""


def _begin_at_zero() -> None:
    """Create all label values at 0, because alerts see no increase in a counter that appears with its first event."""
    for counter, values in (
        (ORIGIN_FAILURES, ("dns", "connect", "tls", "timeout", "broken", "invalid", "busy")),
        (ORIGIN_HEDGES, ("issued", "won")),
        (LATE_INVALIDATIONS, ("unannounced", "unanswered")),
        (FLEET_CONFLICTS, ("id", "protocol", "secret")),
        (SUSPECTS, ("silent", "refused")),
        (PEER_REQUESTS, ("answered", "failed", "refused", "unavailable", "broken")),
        (CONFIG_RELOADS, ("loaded", "refused")),
        (SHED, ("requests", "bodies", "uploads", "digests", "origin", "process")),
        (STREAM_PREFETCHED, ("loaded", "used", "wasted")),
    ):
        for value in values:
            counter.labels(value)


_begin_at_zero()


_published: set[Any] = set()
"""Counts of requests, which other workers read from this worker's files."""


def publish() -> None:
    """Write the counts of requests to this worker's files, which other workers read: twice a second, not at each request."""
    for value in _published:
        value._file.write_value(value._key, value._value, 0.0)


def counted_in_loop(*values: Any) -> None:
    """Have ``publish`` write values of prometheus_client that the event loop changes directly."""
    _published.update([value for value in values if value._multiprocess])


class LoopSum:
    """A counter or gauge that only the event loop changes.

    It adds to the value directly, without prometheus_client's lock and, with several workers, without its system call for the
    process id. Create it in the process that counts.
    """

    __slots__ = ("_value",)

    def __init__(self, metric: Counter | Gauge) -> None:
        metric.inc(0)  # after a fork prometheus_client starts another file
        self._value: Any = metric._value

    def inc(self, amount: float = 1) -> None:
        """Add ``amount``, which for a gauge may be negative."""
        value = self._value
        value._value += amount
        if value._multiprocess:
            value._file.write_value(value._key, value._value, 0.0)


class LoopHistogram:
    """Like ``LoopSum``, for one or more histograms of the same seconds, with an optional counter of observations."""

    __slots__ = ("_count", "_histograms")

    def __init__(self, *histograms: Histogram, counter: Counter | None = None) -> None:
        self._histograms: list[tuple[Any, Sequence[float], Sequence[Any]]] = []
        self._count: Any = None
        if counter is not None:
            counter.inc(0)
            self._count = counter._value
        for histogram in histograms:
            histogram._sum.inc(0)
            self._histograms.append((histogram._sum, histogram._upper_bounds, histogram._buckets))

    def observe(self, amount: float) -> None:
        """Count one observation."""
        count = self._count
        if count is not None:
            count._value += 1
            if count._multiprocess:
                count._file.write_value(count._key, count._value, 0.0)
        for total, bounds, buckets in self._histograms:
            bucket = buckets[bisect_left(bounds, amount)]
            total._value += amount
            bucket._value += 1
            if total._multiprocess:
                total._file.write_value(total._key, total._value, 0.0)
                bucket._file.write_value(bucket._key, bucket._value, 0.0)
