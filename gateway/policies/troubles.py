"""What is wrong with a node, with its remedy: decided from what it knows of itself, once every few seconds.

A trouble is something an operator can do something about; what the gateway repairs by itself is a metric. Shares need a number
behind them: one failed request of an idle night is no failing origin, and a cache that was filled once has evicted nothing yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.model.counters import Counters
from gateway.model.units import format_size
from gateway.policies.breaker import BreakerState

FAILING = 0.05
"""Share of requests to origins that fail within a minute: less than this is weather."""
DOWN = 0.5
FEWEST = 5
"""Requests to origins in a minute of which a share says something."""
SKEW = 5.0
"""Seconds by which a node's clock may differ from Redis's: signatures allow 15 minutes, logs had better agree."""
TURNOVER = 600.0
"""Seconds over which evictions are looked at."""
CHURN = 0.2
"""Share of the cache that is evicted within ``TURNOVER``: at this rate everything has left within an hour."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that is wrong. ``kind`` stays the same for as long as it is the same trouble; ``what`` may say it anew."""

    kind: str
    severity: Severity
    what: str
    remedy: str

    def to_json(self) -> dict[str, str]:
        """JSON types only."""
        return {"kind": self.kind, "severity": self.severity, "what": self.what, "remedy": self.remedy}

    @classmethod
    def from_json(cls, told: Mapping[str, Any]) -> Trouble:
        """Read what ``to_json`` made.

        Raises:
            KeyError, TypeError: it is something else.
        """
        severity: Severity = "error" if told["severity"] == "error" else "warning"
        return cls(str(told["kind"]), severity, str(told["what"]), str(told["remedy"]))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node knows of itself.

    ``minute`` and ``turnover`` are what it counted within the last minute, and within ``TURNOVER``; ``since_start`` all.
    ``disk`` with its ``cause``; ``shortage`` is what the store says of the file system. ``redis`` is what is wrong with it, empty
    when nothing is, and so are ``fleet``, ``catalog`` and ``reload``. ``skew`` is the node's clock minus Redis's, in seconds.
    """

    capacity: int
    minute: Counters = field(default_factory=Counters)
    turnover: Counters = field(default_factory=Counters)
    since_start: Counters = field(default_factory=Counters)
    disk: BreakerState = BreakerState.NORMAL
    cause: str = ""
    shortage: str = ""
    redis: str = ""
    fleet: str = ""
    catalog: str = ""
    reload: str = ""
    skew: float = 0.0
    others: tuple[Trouble, ...] = field(default=())


def troubles(facts: NodeFacts) -> list[Trouble]:
    """Everything that is wrong with a node, errors first."""
    found = [
        *_disk(facts),
        *_said(facts),
        *_origin(facts.minute),
        *_cache(facts),
        *_clock(facts.skew),
        *facts.others,
    ]
    return sorted(found, key=lambda trouble: trouble.severity != "error")


def _disk(facts: NodeFacts) -> list[Trouble]:
    cause = f" ({facts.cause})" if facts.cause else ""
    if facts.disk is BreakerState.DOWN:
        what = f"The cache disk is down{cause}; reads go to the origin."
        return [
            Trouble(
                "disk-down", "error", what, "Look at the disk and its file system; the node tries it again by itself."
            )
        ]
    if facts.disk is BreakerState.UNSTABLE:
        what = f"The cache disk fails now and then{cause}."
        return [Trouble("disk-unstable", "warning", what, "Look at the kernel's log and the disk's SMART values.")]
    if facts.shortage:
        return [
            Trouble(
                "disk-space",
                "warning",
                _sentence(facts.shortage),
                "Free space on the file system, or lower cache.capacity.",
            )
        ]
    return []


def _said(facts: NodeFacts) -> list[Trouble]:
    """What other parts have put into words already, each with the remedy that is theirs."""
    parts = (
        ("redis", facts.redis, "warning", "Look at the Redis that redis.url names, and at the network in between."),
        ("fleet", facts.fleet, "error", "Do what the message says, and watch /-/readyz of this node."),
        (
            "catalog",
            facts.catalog,
            "error",
            "Look at the database that database.url names, and at the network in between.",
        ),
        (
            "reload",
            facts.reload,
            "error",
            "Correct the configuration file; the last good one stays in force until then.",
        ),
    )
    return [
        Trouble(kind, "error" if severity == "error" else "warning", _sentence(what), remedy)
        for kind, what, severity, remedy in parts
        if what
    ]


def _origin(minute: Counters) -> list[Trouble]:
    failed, asked = minute.origin_failures, minute.origin_requests
    if failed < FEWEST or failed < FAILING * asked:
        return []
    what = f"{failed:.0f} of {asked:.0f} requests to the origin failed within the last minute."
    remedy = "Look at the origin, and at the network to it; what is cached goes on being served within stale_if_error."
    return [Trouble("origin", "error" if failed >= DOWN * asked else "warning", what, remedy)]


def _cache(facts: NodeFacts) -> list[Trouble]:
    found = []
    if facts.since_start.corrupt_blobs:
        what = f"{facts.since_start.corrupt_blobs:.0f} blobs were wrong or missing on the disk since the start, and dropped."
        found.append(Trouble("corrupt", "warning", what, "Run a verification; when it finds more, replace the disk."))
    evicted = facts.turnover.evicted_bytes
    if evicted >= CHURN * facts.capacity:
        what = (
            f"{format_size(int(evicted))} were evicted within ten minutes, of a cache of {format_size(facts.capacity)}."
        )
        remedy = "More is read than fits: give the node more cache.capacity, add nodes, or exclude what is read once by a rule."
        found.append(Trouble("churn", "warning", what, remedy))
    return found


def _clock(skew: float) -> list[Trouble]:
    if abs(skew) < SKEW:
        return []
    what = f"The node's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} Redis's."
    return [Trouble("clock", "warning" if abs(skew) < 600 else "error", what, "Set the clocks of all machines by NTP.")]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
