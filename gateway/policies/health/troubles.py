"""The one list of problems: every kind that a gateway can report, with its severity and its remedy.

``/-/readyz``, ``larder-gateway status`` with its exit code, the dashboard and ``/-/admin/problems`` show ``Trouble`` values of
the kinds declared in ``KINDS``. A new problem takes an entry there and a function that returns it: one of ``troubles`` below if
it follows from ``NodeFacts``, one in gateway/wiring/problems.py if a part of this node knows it, one in
gateway/operate/status/problems.py if it only shows across all nodes. Its entry in docs/runbook.md names it.

A trouble is something that an operator can act on; faults that the gateway repairs itself are metrics. A share means nothing
below a minimum number of events: one failed request in a quiet night does not make a failing origin, and a cache that was filled
once has evicted nothing yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gateway.model.counters import Counters
from gateway.model.units import format_size
from gateway.policies.health.breaker import BreakerState

FAILING = 0.05
"""Share of requests to origins that fail within a minute; less than this is normal."""
DOWN = 0.5
FEWEST = 5
"""Requests to origins in a minute that make a share meaningful."""
SKEW = 5.0
"""Seconds by which a node's clock may differ from Redis's: signatures allow 15 minutes, but logs should agree."""
TURNOVER = 600.0
"""Seconds over which evictions are counted."""
CHURN = 0.2
"""Share of the cache that is evicted within ``TURNOVER``: at this rate everything has left within an hour."""

Severity = Literal["error", "warning"]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of problem.

    Attributes:
        severity: the usual one; a single trouble may be worse or milder.
        remedy: the operator's action.
        runbook: the heading in docs/runbook.md, as in a link to it.
        unready: whether ``/-/readyz`` of the node answers 503 while it lasts, so that balancers send requests elsewhere.
    """

    severity: Severity
    remedy: str
    runbook: str
    unready: bool = False


KINDS: Mapping[str, Kind] = {
    # Of one node, from its counters.
    "disk-down": Kind("error", "Check the disk and its file system. The node retries by itself.", "larderdisk"),
    "disk-unstable": Kind("warning", "Check the kernel's log and the disk's SMART values.", "larderdisk"),
    "disk-space": Kind("warning", "Free space on the file system, or lower cache.capacity.", "larderspacetaken"),
    "origin": Kind(
        "warning",
        "Check the origin and the network to it. Cached objects are served within stale_if_error.",
        "larderoriginfailing",
    ),
    "corrupt": Kind("warning", "Run a verification. If it finds more, replace the disk.", "lardercorruptblobs"),
    "churn": Kind(
        "warning", "Raise cache.capacity, add nodes, or exclude data that is read once by a rule.", "larderthrashing"
    ),
    "clock": Kind("warning", "Synchronise the clocks of all machines by NTP.", "larderrefusals"),
    # Of one node, reported by its parts.
    "origin-lost": Kind("error", "Check the origin, and the network between it and this node.", "larderoriginfailing"),
    "origin-keys": Kind(
        "error",
        "Correct the key of the origin, or of the credential, or wait until the AWS credential chain has new ones.",
        "larderoriginfailing",
    ),
    "resources": Kind(
        "error",
        "Raise the limit of descriptors (LimitNOFILE, ulimit -n), or give the process more memory; see what uses them up.",
        "out-of-descriptors-or-memory",
    ),
    "overload": Kind(
        "warning",
        "Find out who sends so many requests (larder-gateway top). Add workers or nodes, or limit the tenant.",
        "lardershedding",
    ),
    "overload-whole": Kind(
        "error",
        "Add workers or nodes, or raise server.max_in_flight if the machine is idle.",
        "lardershedding",
        unready=True,
    ),
    "redis": Kind("warning", "Check the Redis of redis.url, and the network to it.", "larderredislost"),
    "fleet": Kind("error", "Do what the message says, and watch /-/readyz of this node.", "larderfleetconflict"),
    "no-secret": Kind(
        "warning",
        "Give all gateways the same fleet.secret to make them one cache. Give a gateway that is meant to be alone its own "
        "Redis or fleet.zone.",
        "gateways-that-share-a-redis-without-a-secret",
    ),
    "catalog": Kind(
        "error", "Check the database of database.url, its disk, and the network to it.", "lardercatalogunreachable"
    ),
    "catalog-tables": Kind(
        "error",
        "If the tables were lost, restore the backup first: revocations are only there. Then run larder-gateway migrate as "
        "a user that owns the tables.",
        "lardercatalogunreachable",
    ),
    "catalog-unread": Kind(
        "error",
        "Check the database of database.url, and the space on its disk. Without the catalog a revoked key would be valid again.",
        "lardernotready",
        unready=True,
    ),
    "catalog-split": Kind(
        "warning", "Give all nodes of the fleet one PostgreSQL as database.url.", "lardercatalogsdiffer"
    ),
    "reload": Kind(
        "error",
        "Correct the configuration file. The last valid one stays in force until then.",
        "larderconfigurationrefused",
    ),
    # Of the whole zone.
    "silent": Kind("warning", "Check its log and the load of its machine.", "larderdown"),
    "gone": Kind(
        "error", "Start it again. If it will not come back, run larder-gateway nodes dismiss with its id.", "larderdown"
    ),
    "job": Kind(
        "warning",
        "Nothing, if its GPUs are busy. Else check what the job does besides reading: decoding, augmentation, workers.",
        "a-job-that-gains-nothing-from-the-cache",
    ),
    "not-whole": Kind(
        "warning",
        "Add nodes or cache.capacity, or set quotas for datasets that matter less. The rest is read from the origin.",
        "a-dataset-that-is-not-cached-whole",
    ),
    "over-quota": Kind(
        "warning",
        "Raise the dataset's quota or remove it (larder-gateway datasets quota). The rest is read from the origin.",
        "a-dataset-that-is-not-cached-whole",
    ),
    "claimed-size": Kind(
        "warning",
        "Register the dataset again, under every tenant, with a digest file that states the true lengths.",
        "a-dataset-whose-file-states-wrong-lengths",
    ),
    "part-gone": Kind(
        "warning",
        "Start the node again. If it will not come back, dismiss it: larder-gateway nodes dismiss. The part is then cached "
        "again by the others.",
        "larderdown",
    ),
    "no-space": Kind(
        "warning",
        "Add nodes or cache.capacity, or pin the dataset: larder-gateway datasets pin. The lists of datasets and of streams "
        "say who has the space.",
        "larderdatasetwithoutspace",
    ),
    "empty": Kind(
        "warning",
        "Look at what the plan gives to datasets and streams, at rules with cache = false, and at why reads miss: "
        "larder-gateway explain.",
        "lardercacheempty",
    ),
}
"""By the name of the kind in documents and alerts, which is stable across versions."""
COUNTED = frozenset({"origin", "corrupt", "churn", "clock"})
"""Kinds that ``troubles`` finds in counters. Only the worker that counts for the whole node knows them."""

OF_ZONE = (
    "gone",
    "job",
    "not-whole",
    "over-quota",
    "claimed-size",
    "part-gone",
    "no-space",
    "empty",
)
"""Kinds that only show across all nodes; the leading gateway counts them."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """A problem. ``kind`` identifies the problem while it lasts; ``what`` may change."""

    kind: str
    severity: Severity
    what: str
    remedy: str

    @classmethod
    def of(cls, kind: str, what: str, severity: Severity | None = None) -> Trouble:
        """A problem of a kind of ``KINDS``, in a sentence.

        Args:
            kind: its name.
            what: the problem, in words for operators.
            severity: if it differs from the kind's.
        """
        known = KINDS[kind]
        return cls(kind, severity or known.severity, _sentence(what), known.remedy)

    @property
    def unready(self) -> bool:
        """Whether the node that has it should get no requests."""
        return self.kind in KINDS and KINDS[self.kind].unready

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Trouble:
        """Parse the result of ``asdict``.

        Raises:
            KeyError, TypeError: it is something else.
        """
        severity: Severity = "error" if document["severity"] == "error" else "warning"
        return cls(str(document["kind"]), severity, str(document["what"]), str(document["remedy"]))


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What a node knows of itself.

    ``minute`` and ``turnover`` count the last minute and the last ``TURNOVER`` seconds; ``since_start`` counts since the start.
    ``skew`` is the node's clock minus Redis's, in seconds.
    """

    capacity: int
    minute: Counters = field(default_factory=Counters)
    turnover: Counters = field(default_factory=Counters)
    since_start: Counters = field(default_factory=Counters)
    skew: float = 0.0


def troubles(facts: NodeFacts) -> list[Trouble]:
    """The problems of a node, by its counters."""
    return [*_origin(facts.minute), *_cache(facts), *_clock(facts.skew)]


def worst_first(unsorted: Iterable[Trouble]) -> list[Trouble]:
    """Errors before warnings, and else in the given order."""
    return sorted(unsorted, key=lambda trouble: trouble.severity != "error")


def disk_troubles(state: BreakerState, cause: str, shortage: str) -> list[Trouble]:
    """The problems of the cache disk.

    Args:
        state: of its breaker.
        cause: why it is not normal.
        shortage: the store's message about the file system; empty while there is room.
    """
    why = f" ({cause})" if cause else ""
    if state is BreakerState.DOWN:
        return [Trouble.of("disk-down", f"The cache disk is down{why}; reads go to the origin.")]
    if state is BreakerState.UNSTABLE:
        return [Trouble.of("disk-unstable", f"The cache disk fails now and then{why}.")]
    return [Trouble.of("disk-space", shortage)] if shortage else []


def _origin(minute: Counters) -> list[Trouble]:
    failed, asked = minute.origin_failures, minute.origin_requests
    if failed < FEWEST or failed < FAILING * asked:
        return []
    what = f"{failed:.0f} of {asked:.0f} requests to the origin failed within the last minute."
    return [Trouble.of("origin", what, "error" if failed >= DOWN * asked else "warning")]


def _cache(facts: NodeFacts) -> list[Trouble]:
    problems = []
    if facts.since_start.corrupt_blobs:
        what = f"{facts.since_start.corrupt_blobs:.0f} blobs were wrong or missing on the disk since the start, and dropped."
        problems.append(Trouble.of("corrupt", what))
    evicted = facts.turnover.evicted_bytes
    if evicted >= CHURN * facts.capacity:
        what = (
            f"{format_size(int(evicted))} were evicted within ten minutes, of a cache of {format_size(facts.capacity)}."
        )
        problems.append(Trouble.of("churn", what))
    return problems


def _clock(skew: float) -> list[Trouble]:
    if abs(skew) < SKEW:
        return []
    what = f"The node's clock is {abs(skew):.0f} s {'ahead of' if skew > 0 else 'behind'} Redis's."
    return [Trouble.of("clock", what, "warning" if abs(skew) < 600 else "error")]


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + ("" if text.endswith(".") else ".")
