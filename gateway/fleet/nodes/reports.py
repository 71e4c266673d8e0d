"""Reports of a zone's nodes or workers on one subject, in Redis: the last report of each, until it is too old.

A kind of report is declared once, with the key of its hash and the form of a report.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from redis.asyncio import Redis

from gateway.fleet.redis.connection import pairs, text_of
from gateway.fleet.redis.documents import Document
from gateway.model.live import LiveFilter
from gateway.policies.health.misses import MissReport
from gateway.policies.space.importance import ScoreReport
from gateway.policies.streams.zone import NodeStreams, PoolReport

T = TypeVar("T")

STAMPED = """
local time = redis.call('TIME')
redis.call('HSET', KEYS[1], ARGV[1], string.format('%.0f', time[1] * 1000 + time[2] / 1000) .. ' ' .. ARGV[2])
return redis.call('HLEN', KEYS[1])
"""
"""Sets a field to a text behind Redis's time in milliseconds; returns the number of fields."""
_REPORTS = """
local time = redis.call('TIME')
local oldest = time[1] * 1000 + time[2] / 1000 - tonumber(ARGV[1])
local found = {}
local all = redis.call('HGETALL', KEYS[1])
for place = 1, #all, 2 do
  local at, report = string.match(all[place + 1], '^(%d+) (.*)$')
  if not at or tonumber(at) < oldest then
    redis.call('HDEL', KEYS[1], all[place])
  else
    table.insert(found, all[place])
    table.insert(found, report)
  end
end
return found
"""


class NodeReport(NamedTuple):
    """One node's report on one dataset: items in its cache. Earlier versions report and expect ``chunk``."""

    chunk: int = -1
    resident: int = 0


class ResultsUsed(NamedTuple):
    """Results in use: their tenant and dataset, and their total bytes, 0 while no element is known."""

    tenant: str
    dataset: str
    fingerprint: str
    items: int
    size: int = 0


@dataclass(frozen=True, slots=True)
class ReportKind(Generic[T]):
    """The key of a hash below the zone's prefix, and the form of the reports in it."""

    key: str
    document: Document[T]


HELD_ITEMS = ReportKind("loaded", Document[dict[str, NodeReport]](dict[str, NodeReport]))
"""Items that nodes hold, by dataset."""
STREAMS = ReportKind("streams", Document[NodeStreams](NodeStreams))
"""Access streams that nodes see."""
SCORES = ReportKind("scores", Document[dict[str, ScoreReport]](dict[str, ScoreReport]))
"""Importance of the items that nodes hold, by dataset."""
RESULTS = ReportKind("results", Document[ResultsUsed](ResultsUsed))
"""Results of pipelines that were used, by the hash that names their pool instead of a node."""
HELD = ReportKind("results:held", Document[dict[str, PoolReport]](dict[str, PoolReport]))
"""Results of pipelines that nodes hold, by pool."""
MISSES = ReportKind("misses", Document[MissReport](MissReport))
"""Misses of workers by prefix."""
FOLLOWERS = ReportKind("live", Document[LiveFilter](LiveFilter))
"""Requests that are followed live, keyed by follower instead of node."""
DEMAND = ReportKind("demand", Document[dict[str, int]](dict[str, int]))
"""Requests that each worker received in its last second, by tenant."""
DEMAND_SILENCE = 3.0
"""Seconds after which such a report is ignored: three of a worker's reports."""


class NodeReports(Generic[T]):
    """The reports of a zone of one kind.

    Args:
        redis: for commands.
        prefix: of the zone's keys.
        kind: of the reports.
        silence: seconds after which a node's last report is ignored.

    Every method raises one of ``DOWN`` if Redis is down, slow or refuses.
    """

    def __init__(self, redis: Redis, prefix: str, kind: ReportKind[T], silence: float) -> None:
        self._key = f"{prefix}{kind.key}"
        self._silence = silence
        self._document = kind.document
        self._send = redis.register_script(STAMPED)
        self._reports = redis.register_script(_REPORTS)

    async def send(self, node: str, report: T) -> None:
        """Store the report of a node; replaces its previous one."""
        await self._send(keys=[self._key], args=[node, self._document.text(report)])

    async def all(self) -> dict[str, T]:
        """The last report of each node."""
        stamped = await self._reports(keys=[self._key], args=[round(1000 * self._silence)])
        reports = {text_of(node): self._document.read(text) for node, text in pairs(stamped).items()}
        return {node: report for node, report in reports.items() if report is not None}
