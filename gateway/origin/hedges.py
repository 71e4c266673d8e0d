"""Repeats a late read of a store, and takes the first answer, if a rule sets ``hedge``.

A read waits until the head of its answer; the body is not hedged.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Coroutine
from types import SimpleNamespace
from typing import Any, Protocol
from urllib.parse import unquote

from gateway.base.metrics import ORIGIN_HEDGES
from gateway.model.errors import OriginUnavailable
from gateway.net.exchange import StreamedResponse
from gateway.policies.reads.hedging import QUANTILES, HedgeBudget, WaitingTimes
from gateway.policies.reads.rules import Rules

Ask = Callable[[], Coroutine[Any, Any, StreamedResponse]]
_ISSUED, _WON = ORIGIN_HEDGES.labels("issued"), ORIGIN_HEDGES.labels("won")
_READS = ("GET", "HEAD")


class HasRules(Protocol):
    """The owner of the rules, which are replaced when they change."""

    rules: Rules


class Hedges:
    """The hedged reads of one worker."""

    def __init__(self) -> None:
        self.services: HasRules = SimpleNamespace(rules=Rules())
        """Has the rules in force; until it is set, there are no rules."""
        self._times: defaultdict[tuple[str, str], WaitingTimes] = defaultdict(WaitingTimes)
        self._budgets: defaultdict[str, HedgeBudget] = defaultdict(HedgeBudget)

    def quantile(self, method: str, raw_path: str) -> float:
        """The quantile of the waiting times after which a request is repeated; 0 for never."""
        rules = self.services.rules
        if not rules.hedging or method not in _READS or "/" not in raw_path[1:].rstrip("/"):
            return 0.0
        return QUANTILES[rules.for_path(unquote(raw_path[1:])).hedge]

    async def sent(self, origin: str, method: str, quantile: float, ask: Ask) -> StreamedResponse:
        """Send a read, and repeat it if it is late; returns at the head of the first answer.

        1. The first request is answered or fails in time: nothing else is sent.
        2. It is late, and the budget allows a second request: the first answer wins, and the other request is aborted.
        3. One of the two fails, or answers 5xx, while the other still waits: the other's answer is the answer.
        4. Both fail: the later failure is raised.
        5. The caller is cancelled: both requests are cancelled.

        Args:
            origin: the name of the store.
            method: of the request.
            quantile: from ``quantile``.
            ask: sends the request; it is called once or twice.

        Raises:
            LarderError: raised by ``ask``.
        """
        times, budget, began = self._times[origin, method], self._budgets[origin], time.perf_counter()
        budget.earn()
        late = times.quantile(quantile)
        first = asyncio.create_task(ask())
        tasks = [first]
        try:
            if not (await asyncio.wait(tasks, timeout=late))[0] and budget.spend():
                _ISSUED.inc()
                tasks.append(asyncio.create_task(ask()))
            winner = await _first_good(tasks)
            response = winner.result()
            times.add(time.perf_counter() - began)
            _WON.inc(winner is not first)
            tasks.remove(winner)
            return response
        finally:
            for task in tasks:
                task.add_done_callback(_discard)
                task.cancel()


async def _first_good(tasks: list[asyncio.Task[StreamedResponse]]) -> asyncio.Task[StreamedResponse]:
    """The first task with an answer below 500; otherwise the last task to end."""
    pending = set(tasks)
    while True:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        last = next((task for task in done if _is_good(task)), None) or done.pop()
        if not pending or _is_good(last):
            return last


def _is_good(task: asyncio.Task[StreamedResponse]) -> bool:
    failure = task.exception()
    if failure is not None:
        return not isinstance(failure, OriginUnavailable)
    return task.result().status < 500


def _discard(task: asyncio.Task[StreamedResponse]) -> None:
    """End the exchange of a request whose answer is not used."""
    if not task.cancelled() and task.exception() is None:
        task.result().abort()
