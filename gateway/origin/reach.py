"""Determines whether one origin answers this worker, by one probe at a time.

A request that fails, or waits longer than half of ``check_timeout`` while the origin answers nothing else, raises a doubt. A
doubt sends a probe over a new connection; if that fails too, the origin is lost (gateway/policies/health/reachability.py), and
probes continue until it answers. This does not fail requests: callers with an alternative to waiting use ``wait``, ``result``
and ``unless_lost``; other callers wait as long as the origin's time-outs allow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from gateway.model.errors import OriginUnavailable
from gateway.net.dialing import EXHAUSTED, ExchangeFailed
from gateway.policies.health.reachability import Contact, Reachability

log = logging.getLogger("larder.origin")
T = TypeVar("T")


class Reach:
    """One worker's knowledge of whether an origin answers.

    Args:
        name: of the origin.
        probe: sends any request to the origin over a new connection, and returns once it has answered.
        patience: ``check_timeout`` of the origin, in seconds.
    """

    def __init__(self, name: str, probe: Callable[[], Awaitable[None]], patience: float) -> None:
        self.patience = patience
        self._name = name
        self._probe = probe
        self._state = Reachability()
        self._loop = asyncio.get_running_loop()
        self._loss: asyncio.Future[None] = self._loop.create_future()
        self.waiting = 0
        """Requests that wait for an answer; ``asked`` adds one, and the asking request removes it when it stops waiting."""
        self._heard_at = self._probed_at = float("-inf")
        self._timer: asyncio.TimerHandle | None = None
        self._probing: asyncio.Task[None] | None = None

    @property
    def contact(self) -> Contact:
        """The outcome of the last probe, or ANSWERS."""
        return self._state.contact

    @property
    def met(self) -> bool:
        """Whether there was any contact with the origin: an answered request, or a probe."""
        return max(self._heard_at, self._probed_at) > float("-inf")

    @property
    def lost(self) -> bool:
        """Whether the origin cannot be reached."""
        return self._state.lost

    @property
    def silent(self) -> bool:
        """Whether a request would now wait for a time-out."""
        return self._state.contact is Contact.SILENT

    @property
    def problem(self) -> str:
        """The problem, in words; empty if there is none."""
        if not self.lost:
            return ""
        how = "does not answer this node" if self.silent else "cannot be reached from this node"
        return f"the origin {self._name!r} {how}"

    # -- reports of requests

    def asked(self) -> None:
        """Note that a request without a body starts waiting for its answer."""
        self.waiting += 1
        if self._timer is None:
            self._timer = self._loop.call_later(self.patience / 2, self._look)

    def heard(self) -> None:
        """Note that an answer has begun."""
        self._heard_at = self._loop.time()
        if self._state.contact is not Contact.ANSWERS:
            self._hear(Contact.ANSWERS)
            if self._probing is not None:
                self._probing.cancel()
                self._probing = None

    def doubt(self) -> None:
        """Check whether the origin answers, because a request failed or got no answer for a while."""
        if self._probing is None:
            self._probing = self._loop.create_task(self._find_out())

    def _look(self) -> None:
        self._timer = None
        if not self.waiting:
            return
        if self._loop.time() - self._heard_at >= self.patience / 2:
            self.doubt()
        self._timer = self._loop.call_later(self.patience / 2, self._look)

    # -- waits of callers

    def require(self) -> None:
        """Raise OriginUnavailable if the origin is lost."""
        if self.lost:
            raise OriginUnavailable(self.problem)

    async def wait(self, work: asyncio.Future[Any], within: float | None = None) -> None:
        """Wait for ``work``, which continues if this gives up.

        With ``within``, the caller waits even for an origin known to refuse connections: if the connection is still refused, the
        request ends at once; otherwise the origin is back.

        Raises:
            OriginUnavailable: the origin is lost, or ``within`` seconds have passed.
        """
        if not work.done():
            asked_anyway = within is not None and self._state.contact is Contact.REFUSES
            ends = {work} if asked_anyway else {work, self._loss}
            await asyncio.wait(ends, timeout=within, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise OriginUnavailable(self.problem or f"the origin {self._name!r} is slow to answer")

    async def result(self, work: asyncio.Future[T], within: float | None = None) -> T:
        """Like ``wait``, but returns the result of ``work``, which is cancelled if this gives up."""
        try:
            await self.wait(work, within)
            return work.result()
        finally:
            work.cancel()

    async def unless_lost(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of ``work``, which is cancelled if the origin is lost.

        Raises:
            OriginUnavailable: the origin is lost.
        """
        if self.lost:
            work.close()
            self.require()
        return await self.result(self._loop.create_task(work))

    async def reached(self) -> bool:
        """Whether the origin answers now: it has just done so, or answers a probe."""
        if self.lost or self._loop.time() - self._heard_at < self.patience:
            return not self.lost
        self.doubt()
        if self._probing is not None:
            await asyncio.wait({self._probing, self._loss}, return_when=asyncio.FIRST_COMPLETED)
        return not self.lost

    # -- probes

    async def _find_out(self) -> None:
        """Probe until the origin answers; the first probe is at least half of ``check_timeout`` after the previous one."""
        try:
            await asyncio.sleep(self._probed_at + self.patience / 2 - self._loop.time())
            while True:
                self._hear(await self._met())
                if not self.lost:
                    return
                await asyncio.sleep(self._state.pause)
        finally:
            if self._probing is asyncio.current_task():
                self._probing = None

    async def _met(self) -> Contact:
        try:
            async with asyncio.timeout(self.patience / 2):
                await self._probe()
        except TimeoutError:
            return Contact.SILENT
        except ExchangeFailed as failure:
            # Without a descriptor, no probe was sent.
            return self._state.contact if failure.kind == EXHAUSTED else Contact.REFUSES
        finally:
            self._probed_at = self._loop.time()
        self._heard_at = self._probed_at
        return Contact.ANSWERS

    def _hear(self, contact: Contact) -> None:
        if not self._state.found(contact):
            return
        if self.lost:
            log.warning(
                "%(error)s; it is probed until it answers",
                {"error": self.problem, "origin": self._name, "state": contact.value},
            )
            self._loss.set_result(None)
        else:
            log.info("the origin %(origin)r answers again", {"origin": self._name})
            self._loss = self._loop.create_future()

    async def close(self) -> None:
        """Stop probing."""
        if self._timer is not None:
            self._timer.cancel()
        if self._probing is not None:
            self._probing.cancel()
            await asyncio.gather(self._probing, return_exceptions=True)
