"""Prepared answers for the dashboard: a fleet at work, one in trouble, an empty one, and one with hostile names."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

AT_WORK: dict[str, Any] = json.loads(Path(__file__).with_name("overview.json").read_text(encoding="utf-8"))
NOW = datetime.fromisoformat(AT_WORK["at"])
HOSTILE = """<img src=x onerror="window.executed=true"><script>window.executed=true</script>' " & &lt; {{7*7}}"""


_KEY: dict[str, Any] = {
    "access_key_id": "vision", "description": "nightly training", "tenant": "vision", "origin": "default",
    "allow": ["datasets/imagenet/**"], "read_only": True, "expires": "", "revoked": False, "source": "catalog", "problem": "",
    "etag": '"17"',
}  # fmt: skip
KEYS: list[dict[str, Any]] = [
    {**_KEY, "access_key_id": "laptop", "description": "", "tenant": "ops", "allow": [], "read_only": False, "source": "file"},
    {**_KEY, "access_key_id": "notebook-03", "description": "a former colleague", "tenant": "speech", "revoked": True},
    {**_KEY, "access_key_id": "speech", "tenant": "speech", "allow": ["datasets/speech/**"], "expires": "2027-01-31T12:00:00Z"},
    _KEY,
]  # fmt: skip
"""Access keys of the figures' fleet."""


def stamp(moment: datetime) -> str:
    """A time as the API writes it."""
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


GONE = {"state": "GONE", "redis": False, "silent_seconds": 5400.0}
"""Fields of a dead node."""


def in_trouble() -> dict[str, Any]:
    """Everything that is shown otherwise when it is ill."""
    overview = deepcopy(AT_WORK)
    overview["nodes"][1] |= {"disk": "down", "bytes": 0, "blobs": 0}
    overview["nodes"][2] |= {"state": "LEAVING", "redis": False}
    overview["nodes"].append({**AT_WORK["nodes"][2], "id": "gw-4", "address": "http://10.0.0.14:9000", **GONE})
    overview["now"] |= {
        "hit_ratio": 0.4177,
        "cache_bytes_per_second": 901_000_000,
        "origin_bytes_per_second": 1_250_000_000,
    }
    overview["jobs"][0] |= {"silent_seconds": 95, "epoch": -1, "benefit": None}
    overview["datasets"][0] |= {"names": [], "items": None, "bytes": None, "caching": None, "why": ""}
    overview["datasets"].append(
        {
            **AT_WORK["datasets"][0],
            "id": "77aa01d2c3b4",
            "names": ["coyo-700m"],
            "shortfall": "it takes 31 TB, and the caches without gw-4 hold 18 TB",
        }
    )
    overview["problems"] = [
        {
            "kind": "disk-down",
            "name": "disk-down gw-2",
            "muted_until": None,
            "severity": "error",
            "since": stamp(NOW - timedelta(minutes=6)),
            "what": "The cache disk is down: 5 of the last 5 writes failed with EIO.",
            "remedy": "Look at the kernel's log for the device of cache.dir and replace it; reads go to the origin meanwhile.",
            "runbook": "/-/runbook#larderdisk",
            "node": "gw-2",
        },
        {
            "kind": "redis",
            "name": "redis gw-3",
            "muted_until": None,
            "severity": "warning",
            "since": stamp(NOW - timedelta(hours=19)),
            "what": "Redis is not reachable.",
            "remedy": "Start it, or mend the way to redis.internal:6379; cached objects are checked with the origin until then.",
            "runbook": "/-/runbook#larderredislost",
            "node": "gw-3",
        },
        *(
            {
                "kind": "origin",
                "name": f"origin {node}",
                "muted_until": None,
                "severity": "warning",
                "since": stamp(NOW - timedelta(minutes=14)),
                "what": "12 of 80 requests to the origin failed within the last minute.",
                "remedy": "Check the origin and the network to it. Cached objects are served within stale_if_error.",
                "runbook": "/-/runbook#larderoriginfailing",
                "node": node,
            }
            for node in ("gw-1", "gw-3")
        ),
    ]
    return overview


def empty() -> dict[str, Any]:
    """A gateway that was just started and has received no request."""
    overview = deepcopy(AT_WORK)
    overview["nodes"] = []
    overview["jobs"] = []
    overview["datasets"] = []
    overview["pipelines"] = []
    overview["results"] = []
    overview["streams"] = []
    overview["now"] = dict.fromkeys(overview["now"], 0) | {"hit_ratio": None}
    overview["total"] = dict.fromkeys(overview["total"], 0)
    none = {"outcome": "", "requests_per_second": 0, "p50": None, "p95": None, "p99": None}
    overview["answers"] = {"statuses": {}, "latency": [none]}
    overview["traffic"] = {"buckets": [], "misses": [], "miss_seconds": 0.0}
    return overview


def hostile() -> dict[str, Any]:
    """An overview with HTML in every text."""
    overview = in_trouble()
    overview["zone"] = overview["version"] = HOSTILE
    for name in ("nodes", "jobs", "pipelines", "results", "datasets", "streams", "problems"):
        for entry in overview[name]:
            for field, value in entry.items():
                if isinstance(value, str):
                    entry[field] = HOSTILE
            entry |= {"caching": HOSTILE} if "caching" in entry else {}
        overview[name] = overview[name][:1]
    for rows in (overview["traffic"]["buckets"], overview["traffic"]["misses"]):
        rows[:] = [{field: HOSTILE if isinstance(value, str) else value for field, value in rows[0].items()}]
    overview["datasets"][0]["names"] = [HOSTILE]
    return overview


def history(hours: int = 24) -> dict[str, Any]:
    """History of some hours with a warm-up at the beginning, a gap without samples, and a few events."""
    step = 60 if hours <= 6 else 600
    start = NOW - timedelta(hours=hours)
    points = []
    for number in range(hours * 3600 // step):
        part = number * step / (hours * 3600)
        if 0.62 < part < 0.66:
            continue
        noise = math.sin(number * 1.7) * math.sin(number * 0.31 + 1) + 0.6 * math.sin(number * 0.057)
        ratio = 0.94 - 0.6 * math.exp(-11 * part) - 0.12 * math.exp(-(((part - 0.45) / 0.03) ** 2)) + 0.012 * noise
        sent = 3.2e9 + 4e8 * math.sin(part * 9) + 1.2e8 * noise
        points.append(
            {
                "at": stamp(start + timedelta(seconds=number * step)),
                "hit_ratio": round(min(ratio, 0.97), 4),
                "cache_bytes_per_second": round(sent * ratio),
                "origin_bytes_per_second": round(sent * (1 - ratio)),
                "requests_per_second": round(400 + 40 * math.sin(part * 9), 1),
                "batch_items_per_second": round(2300 + 200 * math.sin(part * 9), 1),
                "saved_bytes": round(sent * ratio * step),
                "spared_requests": round(2500 * ratio * step),
            }
        )
    return {"step_seconds": step, "points": points, "events": events(hours)}


PAST: list[dict[str, Any]] = [
    {
        "kind": "origin",
        "severity": "warning",
        "since": stamp(NOW - timedelta(hours=3.75)),
        "until": stamp(NOW - timedelta(hours=3.25)),
        "what": "12 of 80 requests to the origin failed within the last minute.",
        "node": "gw-1",
    }
]
"""Problems that are over."""
_FIGURES = {
    "node": ("hit_ratio", "cache_bytes_per_second", "origin_bytes_per_second"),
    "job": ("waiting_gpus", "hit_ratio"),
    "dataset": ("resident_share", "granted"),
    "bucket": ("hit_ratio", "cache_bytes_per_second", "origin_bytes_per_second"),
    "origin": ("requests_per_second", "p50", "p95"),
}
_SIZES = {
    "hit_ratio": 0.9, "cache_bytes_per_second": 3e9, "origin_bytes_per_second": 2e8, "waiting_gpus": 2.5,
    "resident_share": 0.8, "granted": 1.4e11, "requests_per_second": 31, "p50": 0.048, "p95": 0.142,
}  # fmt: skip


def trend(kind: str, name: str) -> dict[str, Any]:
    """A day of one thing, in steps of ten minutes."""
    points = [
        {
            "at": stamp(NOW - timedelta(minutes=10 * ago)),
            "figures": {what: _SIZES[what] * (0.9 + 0.1 * math.sin(ago * 0.2)) for what in _FIGURES[kind]},
        }
        for ago in range(143, -1, -1)
    ]
    return {"kind": kind, "name": name, "step_seconds": 600.0, "points": points}


def events(hours: int = 24) -> list[dict[str, Any]]:
    """What happened within some hours, newest first."""
    found = [
        (0.5, "change", "purge datasets/laion/2023/ by admin"),
        (3.25, "ended", "Over: 12 of 80 requests to the origin failed within the last minute."),
        (3.75, "warning", "12 of 80 requests to the origin failed within the last minute."),
        (13.2, "change", "nodes.undrain gw-3 by night-shift"),
        (14, "change", "nodes.drain gw-3 by night-shift"),
    ]
    return [
        {"at": stamp(NOW - timedelta(hours=ago)), "kind": kind, "what": what}
        for ago, kind, what in found
        if ago < hours
    ]
