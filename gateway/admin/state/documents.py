"""The documents of ``/-/admin/overview`` and the lists beside it, as schemas with examples."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gateway.edge.documents import ResponseModel
from gateway.edge.epochs import LastEpoch
from gateway.edge.pipelines import PipelineDocument

_ID = "331088130435"
_AT = "2026-03-02T14:30:00.000Z"
Mode = Literal["full", "part", "none"]
State = Literal["JOINING", "READY", "LEAVING", "GONE"]
Disk = Literal["normal", "unstable", "down"]
PatternName = Literal["sequential", "random", "skewed"]


class NodeDocument(ResponseModel):
    """One node of the zone, from its last sample."""

    id: str = Field(examples=["gw-1"])
    address: str = Field(description="where other nodes and clients reach it", examples=["http://10.0.0.11:9000"])
    state: State = Field(
        description="READY: in the ring; LEAVING: drained, or about to stop; GONE: it died; listed until it is back or dismissed",
        examples=["READY"],
    )
    capacity: int = Field(description="of its cache, in bytes", examples=[8_000_000_000_000])
    bytes: int = Field(description="in its cache", examples=[5_210_000_000_000])
    blobs: int = Field(examples=[18_422_110])
    dataset_bytes: int = Field(
        description="of its cache disk, used by registrations of datasets; the part above 16 MiB counts against capacity",
        examples=[94_000_000],
    )
    disk: Disk = Field(examples=["normal"])
    redis: bool = Field(description="whether it receives the fleet's invalidations", examples=[True])
    version: str = Field(description="empty before its first sample", examples=["0.1.0"])
    uptime_seconds: float = Field(description="at its last sample", examples=[93600.0])
    silent_seconds: float | None = Field(description="since its last sample; null: none yet", examples=[1.4])


class Now(ResponseModel):
    """Rates of the whole zone, over about the last minute."""

    requests_per_second: float = Field(description="S3 requests", examples=[412.4])
    batch_items_per_second: float = Field(
        description="items delivered in batches, which is how the loader reads", examples=[2310.0]
    )
    hit_ratio: float | None = Field(
        description="bytes from the cache, of all bytes sent to clients; null without traffic", examples=[0.942]
    )
    cache_bytes_per_second: float = Field(description="sent from the cache", examples=[3.12e9])
    origin_bytes_per_second: float = Field(description="received from origins", examples=[2.04e8])
    origin_requests_per_second: float = Field(examples=[31.2])


class Latency(ResponseModel):
    """Seconds from the head of a request to the end of its answer."""

    outcome: str = Field(description="of the cache, such as HIT; BATCH: batches; empty: all requests", examples=["HIT"])
    requests_per_second: float = Field(examples=[388.1])
    p50: float | None = Field(description="half took no longer; null without requests", examples=[0.0021])
    p95: float | None = Field(examples=[0.0087])
    p99: float | None = Field(examples=[0.031])


class AnswersDocument(ResponseModel):
    """Answers to S3 requests and batches of the whole zone, over about the last minute."""

    statuses: dict[str, float] = Field(
        description="answers to S3 requests per second, by class of the status",
        examples=[{"2xx": 409.2, "4xx": 3.2, "5xx": 0.0}],
    )
    latency: list[Latency] = Field(description="of all requests, then by outcome, the most frequent first")


class BucketTraffic(ResponseModel):
    """S3 requests of a tenant to a bucket, or its batches of a dataset, over about the last minute."""

    bucket: str = Field(
        description="dataset:NAME for batches; empty: of none, such as a listing of buckets", examples=["datasets"]
    )
    tenant: str = Field(
        description="(other), as the bucket: all those that a gateway does not name", examples=["vision"]
    )
    requests_per_second: float = Field(examples=[210.5])
    sent_bytes_per_second: float = Field(description="of objects, to clients", examples=[1.8e9])
    hit_ratio: float | None = Field(description="bytes from the cache, of all sent; null: none", examples=[0.93])


class MissedPrefixDocument(ResponseModel):
    """Reads below one prefix that were not plain hits, for one reason."""

    bucket: str = Field(examples=["datasets"])
    prefix: str = Field(description="at most two folders; empty: the keys in none", examples=["imagenet/train/"])
    reason: str = Field(description="as in the header x-larder-cache", examples=["cold"])
    meaning: str = Field(examples=["No bytes of the object are in the cache."])
    change: str = Field(description="what makes it rarer", examples=["Read it once, or warm up its prefix."])
    requests: int = Field(examples=[18_204])
    bytes: int = Field(description="sent to clients", examples=[2_002_440_000])


class TrafficDocument(ResponseModel):
    """S3 traffic of the zone: who reads, and what the cache does not have."""

    buckets: list[BucketTraffic] = Field(description="by tenant and bucket, the busiest first")
    misses: list[MissedPrefixDocument] = Field(description="the most frequent first")
    miss_seconds: float = Field(description="for how long misses were counted: 5 to 10 minutes", examples=[431.0])


class OriginSeen(ResponseModel):
    """An object store as the zone's nodes see it; answers are of about the last minute."""

    name: str = Field(examples=["default"])
    state: Literal["answers", "refuses", "silent"] = Field(
        description="the worst that a node meets; refuses: no connection; silent: requests wait for a time-out",
        examples=["answers"],
    )
    lost_by: list[str] = Field(description="nodes that do not reach it; they probe it until it answers", examples=[[]])
    requests_per_second: float = Field(description="that it answered", examples=[31.2])
    p50: float | None = Field(
        description="seconds until the head of half of its answers; null without any", examples=[0.021]
    )
    p95: float | None = Field(examples=[0.087])
    p99: float | None = Field(examples=[0.31])


class Prices(ResponseModel):
    """The configured prices of reads and GPUs."""

    gb_read: float = Field(description="a GB (10^9 bytes) from the object store; 0: no price", examples=[0.02])
    thousand_requests: float = Field(description="a thousand reads of it", examples=[0.0004])
    gpu_hour: float = Field(examples=[2.5])
    currency: str = Field(description="ISO 4217", examples=["USD"])


class Total(ResponseModel):
    """Sums since Redis first knew the zone, including nodes that were restarted, stopped or are gone."""

    requests: int = Field(description="S3 requests", examples=[81_244_310])
    hits: int = Field(description="of them, answered from the cache (HIT, STALE)", examples=[74_210_088])
    sent_bytes: int = Field(description="of objects and items, to clients", examples=[412_800_000_000_000])
    origin_bytes: int = Field(description="received from origins", examples=[24_100_000_000_000])
    saved_bytes: int = Field(
        description="of sent_bytes, those that came from the cache", examples=[388_700_000_000_000]
    )
    batch_items: int = Field(description="delivered in batches", examples=[3_120_448_000])
    batch_hits: int = Field(description="of them, from the cache", examples=[2_968_114_210])


class MeasuringDocument(ResponseModel):
    """A measurement of a job's benefit."""

    stage: Literal["without", "with"] = Field(
        description="mini-batches without hits, or with them",
        examples=["without"],
    )
    batches: int = Field(description="mini-batches that count so far", examples=[38])
    needed: int = Field(description="for this stage", examples=[100])
    until: str | None = Field(
        description="when this stage ends at the present speed, ISO 8601; null: not known, as while too few reads are hits",
        examples=[_AT],
    )


class JobDocument(ResponseModel):
    """A training job."""

    tenant: str = Field(examples=["vision"])
    job: str = Field(examples=["resnet50-17"])
    dataset: str = Field(description="the first 12 digits of its id", examples=[_ID])
    dataset_name: str = Field(examples=["imagenet-train"])
    gpus: int = Field(examples=[8])
    ranks: int = Field(examples=[8])
    epoch: int = Field(description="-1 before its first heartbeat", examples=[31])
    phase: Literal["probe-miss", "measure", "steady"] = Field(examples=["steady"])
    cache: bool = Field(description="whether it uses the cache now", examples=[True])
    t_miss: float | None = Field(
        description="seconds per mini-batch without the cache; null: not measured", examples=[0.618]
    )
    t_hit: float | None = Field(description="with the hits that it has now", examples=[0.351])
    benefit: float | None = Field(description="t_miss by the time with hits only; null: not measured", examples=[2.46])
    t_predicted: float | None = Field(
        description="t_hit as predicted from the space that its dataset has; null: not known", examples=[0.342]
    )
    t_with_more: float | None = Field(
        description="the same with room for another tenth of the dataset", examples=[0.305]
    )
    gpu_seconds_waited: float = Field(
        description="for which its GPUs had no data, since it began: seconds that a rank waited on average, times the GPUs",
        examples=[412.8],
    )
    last_epoch: LastEpoch | None = Field(description="the last whole epoch; null: none yet")
    measured: MeasuringDocument | None = Field(description="while its benefit is being measured; null: it is not")
    silent_seconds: float = Field(description="since its last heartbeat", examples=[1.2])


class ImportanceTenth(ResponseModel):
    """A tenth of the scored items."""

    reads: int = Field(description="since the nodes' start", examples=[48_210])
    read_share: float | None = Field(description="of all reads; null without any", examples=[0.31])
    hit_ratio: float | None = Field(description="of its reads; null without any", examples=[0.98])


class ImportanceDocument(ResponseModel):
    """Cache state of a dataset that is kept by importance."""

    threshold: float | None = Field(
        description="the score from which on items fit; null while all that is scored fits", examples=[4.21]
    )
    partial: bool = Field(description="whether only a part of the dataset fits", examples=[True])
    jobs: dict[str, float] = Field(
        description="tenant/job of those whose scores count, each with its share of their reads",
        examples=[{"vision/resnet50-17": 1.0}],
    )
    scored: int = Field(
        description="scores that nodes keep, one for each item and job: the ghost list", examples=[1_281_167]
    )
    tenths: list[ImportanceTenth] = Field(description="of the scored items, the least important first")
    unscored: ImportanceTenth = Field(description="items that no job has scored")


class Savings(ResponseModel):
    """The money that cached bytes save, by the prices of the configuration, at the measured speed of the jobs."""

    per_hour: float = Field(examples=[1.25])
    per_day: float = Field(examples=[30.0])
    currency: str = Field(description="ISO 4217", examples=["USD"])


class SharedEpochsDocument(ResponseModel):
    """The last whole epochs of the jobs on a dataset."""

    jobs: int = Field(description="that have ended an epoch", examples=[2])
    per_item: float = Field(description="reads of the origin per item, of all of them together", examples=[0.511])
    least: float | None = Field(
        description="the fewest possible: the share that was not cached when the epochs began; null: not known",
        examples=[0.5],
    )


class DatasetSummary(ResponseModel):
    """A dataset, under all names and tenants."""

    id: str = Field(description="the first 12 digits of its id", examples=[_ID])
    names: list[str] = Field(description="under which it is registered", examples=[["imagenet-train"]])
    listing: Literal["forward", "immutable"] = Field(
        description="immutable: a registration has listings of its folders answered from recorded ones",
        examples=["forward"],
    )
    items: int | None = Field(description="null: not known here", examples=[1_281_167])
    bytes: int | None = Field(description="of all items; null: not known here", examples=[147_900_000_000])
    caching: Mode | None = Field(description="the mode in force; null: not decided", examples=["part"])
    why: str = Field(
        description="benefit, no-benefit, no-room, no-jobs, override, requested; or how a gateway decides alone: "
        "fits, too-large",
        examples=["benefit"],
    )
    shortfall: str = Field(
        description="why a dataset that is to be kept whole (caching: full) is not; empty if nothing prevents it",
        examples=[""],
    )
    granted: int = Field(description="space in bytes that the plan gives it", examples=[29_580_000_000])
    saves: Savings | None = Field(description="by that space; null: no price is set, or the plan has no jobs of it")
    resident_share: float = Field(
        description="of its items, in the cache, at most: copies may count twice", examples=[0.183]
    )
    last_epochs: SharedEpochsDocument | None = Field(description="of its jobs; null: none has ended one")
    importance: ImportanceDocument | None = Field(description="null: no job says how important items are")


class ProblemSeen(ResponseModel):
    """A problem and its remedy."""

    name: str = Field(description="by which it is muted; the same while it lasts", examples=["origin gw-2"])
    muted_until: str | None = Field(description="an operator's mute, ISO 8601; null: it is not muted", examples=[None])
    kind: str = Field(description="its name in /-/readyz and the runbook", examples=["origin"])
    severity: Literal["error", "warning"] = Field(examples=["warning"])
    since: str = Field(description="ISO 8601", examples=[_AT])
    what: str = Field(examples=["12 of 80 requests to the origin failed within the last minute."])
    remedy: str = Field(examples=["Check the origin and the network to it."])
    runbook: str = Field(
        description="its entry in the runbook, which every gateway serves", examples=["/-/runbook#larderoriginfailing"]
    )
    node: str = Field(description="the affected node; empty: the whole zone", examples=["gw-2"])


class EvidenceDocument(ResponseModel):
    """The measurements that a pattern was recognised from."""

    window: int = Field(description="reads in the window", examples=[100])
    listed: bool = Field(description="whether positions come from a listing, else from the names seen", examples=[True])
    count: int = Field(description="objects, folders or blocks side by side", examples=[1_281_167])
    rho: float = Field(description="agreement of position and time; above 0.9: sequential", examples=[0.03])
    statistic: float = Field(description="distance of the gaps from those of uniform reads", examples=[0.081])
    threshold: float = Field(description="above it, `statistic` says skewed", examples=[0.161])
    repeats: int = Field(description="reads of a position that is in the window already", examples=[0])
    most_repeats: int = Field(description="above it, `repeats` say skewed", examples=[2])
    population: int = Field(description="estimated number of siblings", examples=[1_281_167])
    unevenness: float = Field(
        description="standard deviations by which siblings are read unequally often, without a listing; above 3.1: skewed",
        examples=[0.4],
    )


class StreamPool(ResponseModel):
    """The space that a stream has on all nodes together."""

    name: str = Field(examples=["stream:datasets/imagenet/train/"])
    order: str = Field(description="eviction order", examples=["uniform"])
    target: int = Field(
        description="bytes; 0: the stream has ended, or an operator decided never, and its space is released; 1: it pauses, and "
        "others take its space first",
        examples=[50_000_000_000],
    )
    bytes: int = Field(examples=[48_211_000_000])
    blobs: int = Field(examples=[418_220])
    hits: int = Field(examples=[1_204_221])
    misses: int = Field(examples=[88_214])
    evicted_bytes: int = Field(examples=[0])
    ghost_hits: int = Field(description="misses of recently evicted objects", examples=[0])


class StreamAhead(ResponseModel):
    """Read-ahead of a stream, in objects, folders or blocks."""

    loaded: int = Field(examples=[1_204])
    used: int = Field(description="of them, read", examples=[1_180])
    wasted: int = Field(description="of them, evicted unread", examples=[8])
    accuracy: float | None = Field(
        description="used / (used + wasted); null before the first of them", examples=[0.993]
    )


class StreamDocument(ResponseModel):
    """The reads below one prefix, or of the blocks of one large object."""

    name: str = Field(
        description="bucket and prefix; prefixed with ORIGIN: unless the origin is called default",
        examples=["datasets/imagenet/train/"],
    )
    pattern: PatternName | None = Field(
        description="null: not recognised yet, or not being read now", examples=["random"]
    )
    evidence: EvidenceDocument | None = Field(description="of the last window; null before the first")
    accesses: int = Field(description="reads since it was detected, by block", examples=[1_292_435])
    hits: int = Field(description="of them", examples=[1_204_221])
    misses: int = Field(description="of them", examples=[88_214])
    bytes: int = Field(description="read by clients", examples=[147_000_000_000])
    idle_seconds: float = Field(description="since the last read", examples=[0.4])
    nodes: list[str] = Field(description="nodes whose clients read it", examples=[["gw-1", "gw-2"]])
    ahead: StreamAhead
    override: Literal["pin", "never"] | None = Field(
        description="an operator's decision; null: the plan decides", examples=["pin"]
    )
    pinned: int | None = Field(description="bytes that stay for it; null: it is not pinned", examples=[40_000_000_000])
    pool: StreamPool | None = Field(description="null: its objects are in the pool `default`")


class ResultsDocument(ResponseModel):
    """The results of one fingerprint over one dataset of a tenant; they have a pool of their own."""

    pool: str = Field(examples=["results:6f1c2a9b0d4e4f7ea1b2c3d4e5f60718"])
    tenant: str = Field(examples=["vision"])
    dataset: str = Field(
        description="id", examples=["33108813043581e677d5c9eb047b1f7a3bccdeccac3aa28a09be4e528862199d"]
    )
    dataset_name: str = Field(
        description="the names under which it is registered; empty: none is known", examples=["imagenet-train"]
    )
    fingerprint: str = Field(
        description="of the functions before the mark",
        examples=["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"],
    )
    items: int = Field(description="results: items of the dataset times versions", examples=[1_281_167])
    size: int = Field(
        description="estimated bytes of all results; 0: no element is known yet", examples=[190_000_000_000]
    )
    target: int = Field(description="bytes that the plan gives them; 0: none are stored", examples=[120_000_000_000])
    why: str | None = Field(
        description="benefit, no-room or override; null: the plan does not speak of them yet", examples=["benefit"]
    )
    order: str = Field(description="in which they leave", examples=["uniform"])
    bytes: int = Field(description="in the caches, copies on two nodes twice", examples=[118_200_000_000])
    blobs: int = Field(
        description="elements in the caches, at most: copies on two nodes count twice, up to `items`",
        examples=[794_000],
    )
    blobs_least: int = Field(description="elements in the caches, at least: those of one node", examples=[402_000])
    hits: int = Field(examples=[2_100_000])
    misses: int = Field(examples=[1_300_000])
    evicted_bytes: int = Field(examples=[0])


class Overview(ResponseModel):
    """The whole zone on one page."""

    at: str = Field(description="ISO 8601, by Redis's clock", examples=[_AT])
    zone: str = Field(examples=["default"])
    version: str = Field(description="of the gateway that answers", examples=["0.1.0"])
    nodes: list[NodeDocument] = Field(description="by id")
    now: Now
    answers: AnswersDocument
    traffic: TrafficDocument = Field(description="at most 20 of each list, GET /-/admin/traffic has all")
    origins: list[OriginSeen] = Field(description="those that nodes have asked, by name")
    total: Total
    jobs: list[JobDocument] = Field(description="by tenant and name; at most 500, GET /-/admin/jobs has all")
    pipelines: list[PipelineDocument] = Field(
        description="by tenant and job; at most 500, GET /-/admin/pipelines has all"
    )
    results: list[ResultsDocument] = Field(
        description="results of pipelines, largest first; at most 500, GET /-/admin/results has all"
    )
    datasets: list[DatasetSummary] = Field(
        description="by first name; at most 500, preferring those with space; GET /-/admin/datasets has all"
    )
    streams: list[StreamDocument] = Field(
        description="most-read first; at most 500, GET /-/admin/streams has all, by name"
    )
    problems: list[ProblemSeen] = Field(description="errors first, muted ones last")
    prices: Prices | None = Field(description="of the section [cost]; null: no price is set")


class HistoryPoint(ResponseModel):
    """One step of the past."""

    at: str = Field(description="when it began, ISO 8601", examples=[_AT])
    hit_ratio: float | None = Field(description="of bytes; null without traffic", examples=[0.94])
    cache_bytes_per_second: float = Field(examples=[3.1e9])
    origin_bytes_per_second: float = Field(examples=[2e8])
    requests_per_second: float = Field(examples=[410.0])
    batch_items_per_second: float = Field(examples=[2300.0])
    saved_bytes: int = Field(description="sent from the cache in this step", examples=[186_000_000_000])
    spared_requests: int = Field(
        description="S3 requests and items of batches that the cache answered in this step", examples=[138_000]
    )


class PastProblem(ResponseModel):
    """A problem that is over."""

    kind: str = Field(examples=["origin"])
    severity: Literal["error", "warning"] = Field(examples=["warning"])
    since: str = Field(description="ISO 8601", examples=[_AT])
    until: str = Field(description="ISO 8601", examples=[_AT])
    what: str = Field(
        description="as it was last", examples=["12 of 80 requests to the origin failed within the last minute."]
    )
    node: str = Field(description="empty: the whole zone", examples=["gw-2"])


class Event(ResponseModel):
    """A moment worth a mark on a chart: a problem began or ended, or an operator changed something."""

    at: str = Field(description="ISO 8601", examples=[_AT])
    kind: Literal["error", "warning", "ended", "change"] = Field(examples=["change"])
    what: str = Field(examples=["purge datasets/imagenet/val/ by admin"])


class History(ResponseModel):
    """The zone's last hours."""

    step_seconds: float = Field(examples=[60.0])
    points: list[HistoryPoint] = Field(
        description="oldest first; the last step is unfinished, and has the current rates"
    )
    events: list[Event] = Field(description="within these hours, newest first, at most 200")
