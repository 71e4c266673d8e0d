"""Comparison of two answers, and the exceptions, each with its reason.

Every header counts, except those about the connection or the answering server. Error documents are compared by
their S3 code, because their text names hosts and request ids; everything else is compared byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tests.differential.asks import Ask, Reply

_OF_THE_HOP = frozenset(
    {
        "date", "server", "connection", "keep-alive", "transfer-encoding", "x-amz-request-id", "x-amz-id-2",
        "x-larder-cache", "x-larder-request-id", "x-amzn-requestid",
    }
)  # fmt: skip
_OF_AN_ERROR = frozenset({"content-length", "content-type", "content-encoding"})


@dataclass(frozen=True)
class Deviation:
    """A known deviation of an origin from S3; the gateway, which answers like S3, may differ from it.

    ``applies`` gets the ask, the origin's reply and the gateway's. ``headers`` narrows the exception to some headers; without
    them, such a pair of replies is not compared at all.
    """

    reason: str
    applies: Callable[[Ask, Reply, Reply], bool]
    headers: frozenset[str] = frozenset()


def differences(ask: Ask, direct: Reply, through: Reply, allowed: Sequence[Deviation] = ()) -> list[str]:
    """The differences between the origin's reply and the gateway's; empty if a client could not tell them apart."""
    excused = [deviation for deviation in allowed if deviation.applies(ask, direct, through)]
    if any(not deviation.headers for deviation in excused):
        return []
    ignored = _OF_THE_HOP.union(*(deviation.headers for deviation in excused))
    if direct.status != through.status:
        return [f"status {direct.status} {direct.code} directly, {through.status} {through.code} through the gateway"]
    found = []
    if direct.status >= 400:
        ignored |= _OF_AN_ERROR
        if ask.method != "HEAD" and direct.code != through.code:
            found.append(f"code {direct.code} directly, {through.code} through the gateway")
    elif direct.body != through.body:
        found.append(f"{len(direct.body)} bytes directly, {len(through.body)} other ones through the gateway")
    for name in sorted((direct.headers.keys() | through.headers.keys()) - ignored):
        ours, theirs = through.headers.get(name), direct.headers.get(name)
        if ours != theirs:
            found.append(f"{name}: {theirs!r} directly, {ours!r} through the gateway")
    return found


class Ledger:
    """Counts comparisons and keeps what differed, so that one run shows every difference, not only the first."""

    def __init__(self, allowed: Sequence[Deviation] = ()) -> None:
        self.compared = 0
        self.caches: dict[str, int] = {}
        self.wrong: list[str] = []
        self._allowed = allowed

    def compare(self, state: str, ask: Ask, direct: Reply, through: Reply) -> None:
        """Hold two replies to one ask against each other."""
        self.compared += 1
        self.caches[through.cache] = self.caches.get(through.cache, 0) + 1
        found = differences(ask, direct, through, self._allowed)
        if found:
            self.wrong.append(f"{state}: {ask}: {'; '.join(found)} [{through.cache}]")

    def seen(self, cache: str) -> int:
        """The number of the gateway's answers whose cache status begins with ``cache``."""
        return sum(count for status, count in self.caches.items() if status.startswith(cache))

    def verdict(self) -> None:
        """Fail with every difference that was found (the first 40 of them)."""
        shown = "\n".join(self.wrong[:40])
        assert not self.wrong, f"{len(self.wrong)} of {self.compared} comparisons differ:\n{shown}"
