"""Sends a job's importance to the gateways: scores as they change, and the list of the next epoch.

Each node of the fleet gets the items whose home it is. It keeps them in memory, so it may have forgotten the part that the next
one continues; then it answers 409 and gets a whole part. All sending happens in the heartbeat thread: the training loop only
leaves a report, which replaces an unsent one. A failed part is sent again after each heartbeat, until a newer report replaces it
and includes its changes.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from larder.base.dataset import DatasetInfo
from larder.base.errors import LarderError, RequestRefused
from larder.http.api import Api
from larder.http.connection import TRANSIENT
from larder.http.fleet import Fleet
from larder.http.signing import encode_query
from larder.training.heartbeat import HeartbeatThread, answer_of
from larder.training.importance_wire import MEDIA_TYPE, ImportancePart, coarse, encode

_HEADERS = {"Content-Type": MEDIA_TYPE}
_UNKNOWN_BASE = 409
_ONE_ADDRESS = ""
"""Stands for the job's gateway if the nodes cannot be reached directly: it gets everything and passes it on."""


class ImportanceReport(NamedTuple):
    """The scores of a training run at the beginning of an epoch. The arrays must not change afterwards.

    Args:
        epoch: number of the epoch.
        scores: by item, its score; NaN for an item that was never scored.
        counts: by item, how often it comes in the epoch's list.
    """

    epoch: int
    scores: NDArray[np.float16]
    counts: NDArray[np.integer]

    def of_members(self, members: int) -> ImportanceReport:
        """The report of a dataset in which ``members`` adjacent items are a sample: each has its sample's score."""
        if members == 1:
            return self
        return ImportanceReport(self.epoch, np.repeat(self.scores, members), np.repeat(self.counts, members))


class ImportanceSender:
    """Sends the reports of one job. `offer` is for the training loop, `send` for the heartbeat thread.

    Args:
        heartbeat: of the job.
        dataset: of the reports.
    """

    def __init__(self, heartbeat: HeartbeatThread, dataset: DatasetInfo) -> None:
        self.counts = {"reports": 0, "parts": 0, "whole": 0, "bytes": 0, "failed": 0}
        self.dataset = dataset
        self._heartbeat = heartbeat
        base = heartbeat.api.connection
        self._fleet = Fleet(Api(base.endpoint, credentials=base.credentials, timeout=base.timeout), dataset)
        self._offered: ImportanceReport | None = None
        # A restarted job must not reuse its earlier numbers, which the gateways would take for repetitions.
        self._sequence = time.time_ns() // 1_000_000
        self._known = np.full(dataset.items, np.nan, np.float16)
        self._changed = np.zeros(dataset.items, np.uint64)  # by item: number of the report that changed its score
        self._received: dict[str, int] = {}  # by node: number of the last part that it received
        self._open: set[str] = set()  # nodes that have not received the latest report
        self._homes: NDArray[np.int16] | None = None
        self._nodes: tuple[str, ...] = (_ONE_ADDRESS,)
        self._report: ImportanceReport | None = None
        self._registered = 0

    def offer(self, report: ImportanceReport) -> None:
        """Leave a report for the heartbeat thread, which sends it at once: the epoch has begun."""
        self._offered = report
        self._heartbeat.hurry()

    def send(self) -> None:
        """Send the parts that are due, one per node. Raises the last error after trying all of them."""
        offered, self._offered = self._offered, None
        if offered is not None:
            self._adopt(offered)
        if self._heartbeat.counts["registered"] != self._registered:
            # The fleet forgot the job, and probably its scores.
            self._registered = self._heartbeat.counts["registered"]
            self._restart()
        if self._report is None or not self._open:
            return
        apis = self._divide()
        failure: Exception | None = None
        for node in sorted(self._open):
            try:
                self._send_part(node, apis[node])
            except (LarderError, ValueError, *TRANSIENT) as error:
                self.counts["failed"] += 1
                failure = error
        if failure is not None:
            raise failure

    def _adopt(self, report: ImportanceReport) -> None:
        self._sequence = max(self._sequence + 1, time.time_ns() // 1_000_000)
        report = report._replace(scores=coarse(report.scores))
        different = report.scores.view(np.uint16) != self._known.view(np.uint16)
        self._changed[different] = self._sequence
        self._known, self._report = report.scores, report
        self._open = set(self._nodes)
        self.counts["reports"] += 1

    def _restart(self) -> None:
        """Send the latest report to every node, whole and under a new number: a node may hold another share under the old
        number."""
        self._received = {}
        if self._report is not None:
            self._sequence += 1
            self._open = set(self._nodes)

    def _divide(self) -> Mapping[str, Api]:
        """The gateways to send to. If homes have changed, every node gets a whole part."""
        self._fleet.refresh()
        view = self._fleet.view
        nodes: tuple[str, ...] = (_ONE_ADDRESS,) if view is None else view.ring.ids
        homes = None if view is None else view.ring.homes(view.keys)
        if nodes != self._nodes or not _same(homes, self._homes):
            self._nodes, self._homes = nodes, homes
            self._restart()
        return {_ONE_ADDRESS: self._heartbeat.api} if view is None else view.apis

    def _send_part(self, node: str, api: Api) -> None:
        base = self._received.get(node, 0)
        try:
            self._put(api, self._part(node, base))
        except RequestRefused as error:
            if error.status == _UNKNOWN_BASE and base:
                self._received.pop(node)
                self._put(api, self._part(node, 0))
            elif error.code in ("UnknownJob", "UnknownDataset"):
                self._heartbeat.register()  # and the next heartbeat sends whole parts
                return
            else:
                self._open.discard(node)  # a refusal is not an outage: the next report may be accepted
                raise
        self._received[node] = self._sequence
        self._open.discard(node)

    def _part(self, node: str, base: int) -> ImportancePart:
        assert self._report is not None
        report = self._report
        mine = np.ones(len(report.counts), np.bool_)
        if self._homes is not None:
            mine = self._homes == self._nodes.index(node)
        scored = np.flatnonzero(mine & (self._changed > base) & ~np.isnan(report.scores)).astype(np.uint32)
        listed = np.flatnonzero(mine & (report.counts > 0)).astype(np.uint32)
        return ImportancePart(
            sequence=self._sequence,
            base=base,
            epoch=report.epoch,
            items=self.dataset.items,
            scored=scored,
            scores=report.scores[scored],
            listed=listed,
            counts=report.counts[listed],
            whole=not base,
            of_all=self._homes is None,
        )

    def _put(self, api: Api, part: ImportancePart) -> None:
        heartbeat, body = self._heartbeat, encode(part)
        send = heartbeat.send if api is heartbeat.api else partial(answer_of, api)
        query = encode_query([("dataset", self.dataset.id)])
        send("PUT", heartbeat.path("/importance"), query=query, headers=_HEADERS, body=body)
        self.counts["parts"] += 1
        self.counts["whole"] += part.whole
        self.counts["bytes"] += len(body)


def _same(values: NDArray[Any] | None, other: NDArray[Any] | None) -> bool:
    return values is other if values is None or other is None else bool(np.array_equal(values, other))
