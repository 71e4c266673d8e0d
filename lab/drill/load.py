"""Verified load: clients that run without pause and compare every byte.

Three kinds of client run side by side, each in its own thread. A *reader* gets objects that do not change. A *batch reader*
gets the same bytes as items of a dataset. A *writer* owns a few keys: it overwrites or deletes one, and reads it back at once.
An answer is right, wrong, or refused; a body that breaks off counts as refused, because the client notices.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rig.batches import Stock, decoded, taken
from rig.clients import Client
from rig.gateways import Running
from rig.world import KIB, content

PAUSE = 0.02
"""Seconds between two requests of one client, as the clients run on the same machine."""
HEALTH_EVERY = 0.2


@dataclass
class Seen:
    """The clients' observations: counts by kind and verdict, the slowest answer of each kind in seconds, and examples."""

    answers: Counter[tuple[str, str]] = field(default_factory=Counter)
    slowest: dict[str, float] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)

    def count(self, verdict: str, *kinds: str) -> int:
        """Number of answers with this verdict, of these kinds or of all."""
        return sum(
            number for (kind, found), number in self.answers.items() if found == verdict and kind in (kinds or (kind,))
        )

    def note(self, kind: str, verdict: str, seconds: float, what: str = "") -> None:
        """Count one answer."""
        self.answers[kind, verdict] += 1
        self.slowest[kind] = max(self.slowest.get(kind, 0.0), seconds)
        if verdict != "right" and len(self.examples) < 8:
            self.examples.append(f"{kind} {verdict} after {seconds:.1f} s: {what}")


Act = Callable[[int], str]
"""Performs request number ``number``; returns an empty text if all is right, else ``wrong: ...`` or the reason of a refusal."""


class Load:
    """Clients in threads; ``seen`` has their observations since it was last replaced."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._busy: dict[threading.Thread, tuple[str, float]] = {}
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def add(self, kind: str, act: Act, pause: float = PAUSE) -> None:
        """Start a client."""
        thread = threading.Thread(target=self._run, args=(kind, act, pause), daemon=True)
        self._threads.append(thread)
        thread.start()

    def window(self) -> Seen:
        """Return the observations since the last call, and start new ones.

        A request that is still waiting counts with its waiting time so far.
        """
        seen, self.seen = self.seen, Seen()
        for kind, began in list(self._busy.values()):
            seen.slowest[kind] = max(seen.slowest.get(kind, 0.0), time.monotonic() - began)
        return seen

    def stop(self) -> None:
        """End all clients."""
        self._over.set()
        for thread in self._threads:
            thread.join(90)

    def _run(self, kind: str, act: Act, pause: float) -> None:
        number = 0
        while not self._over.is_set():
            began = time.monotonic()
            self._busy[threading.current_thread()] = kind, began
            try:
                said = act(number)
            except Exception as error:
                said = f"{type(error).__name__}: {error}"
            del self._busy[threading.current_thread()]
            verdict = "right" if not said else "wrong" if said.startswith("wrong") else "refused"
            self.seen.note(kind, verdict, time.monotonic() - began, said)
            number += 1
            self._over.wait(pause)


@contextmanager
def running() -> Iterator[Load]:
    """A load for the duration of a block."""
    load = Load()
    try:
        yield load
    finally:
        load.stop()


def reads(gateways: Sequence[Running], stock: Stock) -> Act:
    """Get objects one by one, from each gateway in turn."""

    def act(number: int) -> str:
        index = number * 7 % len(stock.rows)
        with Client(gateways[number % len(gateways)].endpoint) as client:
            got = client.get(stock.path(index))
        if got.status != 200 or not got.whole:
            return f"{got.status} whole={got.whole} {got.cache}"
        return "" if got.body == stock.bodies[index] else f"wrong bytes of {stock.path(index)} {got.cache}"

    return act


def batch(gateway: Running, stock: Stock, indices: Sequence[int]) -> str:
    """Get one exact batch; return the reason of an error or a refusal, empty if it is right."""
    reply = stock.ask(gateway, indices, "mode=exact")
    if reply.status != 200:
        return f"{reply.status} {reply.body[:200]!r}"
    received = decoded(indices, reply.body)
    if received.failures:
        return f"items failed: {list(received.failures.values())[:3]}"
    return "" if taken(received) == stock.expected(indices) else "wrong items"


def batches(gateways: Sequence[Running], stock: Stock, size: int = 16) -> Act:
    """Get exact batches of items."""

    def act(number: int) -> str:
        start = number * size % len(stock.rows)
        indices = [(start + place) % len(stock.rows) for place in range(size)]
        return batch(gateways[number % len(gateways)], stock, indices)

    return act


def writes(writer: Running, readers: Sequence[Running], prefix: str, keys: int = 12) -> Act:
    """Overwrite or delete a key through ``writer``, and read it through every reader.

    A refused write may have happened or not, so the key is not compared until a later write succeeds.
    """
    known: dict[str, bytes | None] = {}

    def act(number: int) -> str:
        path = f"/data/{prefix}/{number % keys}"
        body = None if number % 5 == 4 else content(8 * KIB, (prefix, number))
        known.pop(path, None)
        with Client(writer.endpoint) as client:
            done = client.ask("DELETE", path) if body is None else client.put(path, body)
        if done.status not in (200, 204):
            return f"write: {done.status} {done.body[:120]!r}"
        known[path] = body
        refused = ""
        for reader in readers:
            with Client(reader.endpoint) as client:
                got = client.get(path)
            if got.status == 200 and got.whole and got.body != body:
                return f"wrong: {path} read after {'DELETE' if body is None else 'PUT'} gives old bytes, {got.cache}"
            if got.status == 404 and body is not None:
                return f"wrong: {path} is missing after PUT, {got.cache}"
            if got.status not in (200, 404) or not got.whole:
                refused = f"read: {got.status} whole={got.whole} {got.cache}"
        return refused

    return act


def health(gateway: Running) -> Act:
    """A health check of the gateway, which must always be answered."""

    def act(_number: int) -> str:
        connection = gateway.connection()
        connection.timeout = 30
        try:
            connection.request("GET", "/-/healthz")
            status = connection.getresponse().status
            return "" if status == 200 else str(status)
        finally:
            connection.close()

    return act
