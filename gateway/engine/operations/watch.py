"""Collects a node's status every few seconds, and reports it to the zone: counters, condition, problems.

One worker of the node does so (``Samples.speaks``). While Redis is lost, every worker collects for itself without reporting, so
an overview requested from it still includes this node. A problem begins when it is first seen; a worker that takes over
continues from the previous worker's report.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway import __version__
from gateway.base.tasks import repeat
from gateway.engine.operations.counting import Counted, counted
from gateway.fleet.nodes.announcer import DOWN
from gateway.fleet.nodes.samples import EVERY, FINE, Samples
from gateway.model.counters import Counters, Sample
from gateway.policies.health.answers import Answers
from gateway.policies.health.rates import lately
from gateway.policies.health.troubles import COUNTED, TURNOVER, NodeFacts, Trouble, troubles, worst_first
from gateway.policies.space.plan import Plan
from gateway.store.datasets.content import Content
from gateway.store.store import Store

_MINUTE = 60.0
_SOON = 1.0
_OF_A_MINUTE = 1 + int(_MINUTE / EVERY)
"""Readings in a minute."""
_MOST_DATASETS = 500


@dataclass(frozen=True, slots=True)
class NodeView:
    """The sources of a node's status. ``contents`` are the open datasets, ``stopping`` says whether the node is about to end,
    ``parts`` returns the current problems of this worker's parts, ``origins`` its latest experience with each origin.
    """

    store: Store
    contents: Callable[[], Iterable[Content]]
    plan: Callable[[], Plan]
    stopping: Callable[[], bool] = lambda: False
    parts: Callable[[], Iterable[Trouble]] = tuple
    redis: Callable[[], bool] = lambda: True
    origins: Callable[[], Mapping[str, str]] = dict


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    """The identity of a node and worker: node id, token of the start, unique id of the worker, address for other nodes."""

    node: str
    boot: str
    worker: str
    address: str = ""


class NodeWatch:
    """Collects the status, in one worker.

    Args:
        samples: of the zone.
        me: the node and worker.
        seen: the sources.

    Attributes:
        speaks: whether this worker speaks for its node.
        document: the last report; empty before the first one.
        recent: samples taken by this worker, oldest first; times are by Redis's clock once its offset is known.
    """

    def __init__(self, samples: Samples, me: NodeIdentity, seen: NodeView) -> None:
        self.speaks = False
        self.document: Mapping[str, Any] = {}
        self.recent: deque[Sample] = deque(maxlen=FINE)
        self._samples = samples
        self._me = me
        self._seen = seen
        self._began = time.time()
        self._skew = 0.0
        self._since: dict[str, float] = {}
        self._counted: Sequence[Trouble] = ()
        self._answers: deque[tuple[float, Answers]] = deque(maxlen=_OF_A_MINUTE)

    def problems(self) -> list[Trouble]:
        """The problems of this node, errors first; those derived from counters are a few seconds old."""
        return worst_first([*self._seen.parts(), *self._counted])

    async def run(self) -> None:
        """Collect every ``EVERY`` seconds until cancelled."""
        await repeat("collecting node status", self.run_once, lambda: EVERY if self.speaks else _SOON)

    async def stop(self) -> None:
        """Let another worker speak at once, and withdraw the report of a stopping node. Never raises for Redis."""
        self.speaks = False
        try:
            await self._samples.silent(self._me.node, self._me.worker)
            if self._seen.stopping():
                await self._samples.gone(self._me.node)
        except DOWN:
            return  # both expire by themselves

    async def run_once(self) -> None:
        """Collect once, if this worker speaks for its node."""
        try:
            spoke, self.speaks = self.speaks, await self._may_speak()
            if not self.speaks:
                self._hear(await self._samples.said(self._me.node))
                return
            if not spoke:
                await self._take_over()
            counts = await asyncio.to_thread(counted)
            asked = time.time()
            at = await self._samples.send(self._me.node, self._me.boot, counts.counters)
            self._skew = (asked + time.time()) / 2 - at
            self._publish(at, counts)
            await self._samples.say(self._me.node, self.document)
        except DOWN:
            self.speaks = False
            counts = await asyncio.to_thread(counted)
            self._publish(time.time() - self._skew, counts)

    async def _may_speak(self) -> bool:
        """Whether this worker should speak: the keeper does, because it has the node's datasets open."""
        store = self._seen.store
        if self._seen.stopping() or (store.usable and not store.directory.locked):
            if self.speaks:
                await self._samples.silent(self._me.node, self._me.worker)
            return False
        return await self._samples.speaks(self._me.node, self._me.worker)

    def _hear(self, document: Mapping[str, Any]) -> None:
        """Adopt the report of the worker that speaks for this node: only one worker's reports count."""
        if document.get("boot") != self._me.boot:
            return
        self.document = document
        problems = [Trouble.from_json(problem) for problem in document.get("problems", ())]
        self._counted = [problem for problem in problems if problem.kind in COUNTED]

    async def _take_over(self) -> None:
        """Continue from the previous worker's report: the beginnings of problems, and the counters."""
        before_us = (await self._samples.statuses()).nodes.get(self._me.node)
        if before_us is not None and before_us.document.get("boot") == self._me.boot:
            known = before_us.document.get("problems", [])
            self._since = {str(problem["kind"]): float(problem["since"]) for problem in known if "kind" in problem}
        before = await self._samples.recent([self._me.node])
        self.recent.clear()
        self._answers.clear()
        self.recent.extend(before[self._me.node])

    def _publish(self, at: float, counts: Counted) -> None:
        self.recent.append(Sample(at, self._me.boot, counts.counters))
        status, seen = self._seen.store.status(), self._seen
        self._answers.append((at, counts.answers))
        self._counted = troubles(self._facts(at, counts.counters))
        problems = self.problems()
        self._since = {problem.kind: self._since.get(problem.kind, at) for problem in problems}
        self.document = {
            "boot": self._me.boot,
            "address": self._me.address,
            "capacity": status.capacity,
            "version": __version__,
            "uptime": round(max(0.0, time.time() - self._started()), 3),
            "bytes": status.bytes,
            "blobs": status.blobs,
            "dataset_bytes": status.datasets,
            "room": status.room,
            "disk": status.state.value,
            "redis": seen.redis(),
            "skew": round(self._skew, 3),
            "reasons": counts.reasons,
            "answers": self._lately_answered(),
            "origins": dict(seen.origins()),
            "datasets": self._datasets(),
            "problems": [self._document_of(problem) for problem in problems],
        }

    def _lately_answered(self) -> dict[str, Any]:
        """Answers of about the last minute, and the exact seconds."""
        (begun, before), (ended, after) = self._answers[0], self._answers[-1]
        return {"for": round(ended - begun, 3), **after.since(before).to_json()}

    def _document_of(self, trouble: Trouble) -> dict[str, Any]:
        return {**asdict(trouble), "since": round(self._since[trouble.kind], 3)}

    def _facts(self, at: float, since_start: Counters) -> NodeFacts:
        return NodeFacts(
            capacity=self._seen.store.status().capacity,
            minute=lately(self.recent, at, _MINUTE)[0],
            turnover=lately(self.recent, at, TURNOVER)[0],
            since_start=since_start,
            skew=self._skew,
        )

    def _started(self) -> float:
        """When the node started, even if a worker has been replaced since."""
        started = self._seen.store.directory.started_ns / 1e9
        return min(started, self._began) if started else self._began

    def _datasets(self) -> dict[str, list[int]]:
        """Items, bytes and resident items of the open datasets, by id."""
        sizes: dict[str, list[int]] = {}
        for content in self._seen.contents():
            known = sizes.get(content.id, [0, 0, 0])
            now = [content.items, content.size, content.states.resident]
            sizes[content.id] = [max(pair) for pair in zip(known, now, strict=True)]
            if len(sizes) >= _MOST_DATASETS:
                break
        return sizes
