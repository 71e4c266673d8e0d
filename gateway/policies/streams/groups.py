"""Scans beside other readers of one prefix: each is a stream of its own (groups of readers, IGTCache's future work).

A client whose own reads of a prefix are in order, while those of all are not, is *scanning*. From then on, its reads below the
prefix go to a second tree of the bucket, ``scans@bucket``, and are kept out of the prefix's window. So the scan has a window,
names, a pattern, a pool and a time-to-live by the rules of every stream, and the others are judged without it. All scans of one
prefix are one stream. Their reads count among those of the prefix: what its pool holds saves their waiting too.

A client is judged by 16 children at a time: it scans above a rho of 0.9, and returns to the others below 0.5.
"""

from __future__ import annotations

from collections import OrderedDict

from gateway.policies.pools import STREAM
from gateway.policies.streams.pattern import SEQUENTIAL_RHO, trend

SCANS = "scans@"
"""Before the bucket, in names of streams of scanning clients; no bucket's name has an ``@``."""
JUDGED = 16
"""Children that a client is judged by."""
DISORDER = 0.5
"""Spearman's rho below which a scanning client returns to the others."""
MOST_CLIENTS = 1024
"""The most scanning clients that are remembered, the latest to read."""
MOST_PLACES = 4
"""The most prefixes that one client scans."""
MOST_COURSES = 64
"""The most clients of one prefix whose order is judged."""

_Place = tuple[str, str]
"""A bucket and a prefix, with its slash."""


def pool_of_scan(stream: str) -> str:
    """The name of the pool of a scan beside others, which its objects do not enter by their keys; empty for another stream."""
    return f"{STREAM}{stream}" if stream.startswith(SCANS) else ""


def order_of(children: list[str]) -> float:
    """Spearman's rho of children and the order in which they were read."""
    ranks = {name: float(rank) for rank, name in enumerate(sorted(set(children)))}
    return trend([(ranks[name], 0.0, 0) for name in children], len(ranks))


class Courses:
    """The order in which each client reads the children of a stream: the next ones of each, until it is judged by 16."""

    __slots__ = ("_clients",)

    def __init__(self) -> None:
        self._clients: dict[int, list[str]] = {}

    def in_order(self, client: int, child: str) -> bool:
        """Note a client's next child; returns whether it is the last of 16 in order."""
        children = self._clients.get(client)
        if children is None:
            if len(self._clients) >= MOST_COURSES:
                self._clients.clear()
            self._clients[client] = [child]
            return False
        children.append(child)
        if len(children) < JUDGED:
            return False
        del self._clients[client]
        # Random children rarely get past this, which costs less than rho.
        return children[0] < children[5] < children[10] < children[15] and order_of(children) > SEQUENTIAL_RHO


class ScanningClients:
    """The clients that scan beside others, and where."""

    def __init__(self) -> None:
        self._places: OrderedDict[int, dict[_Place, list[str]]] = OrderedDict()

    def bucket_of(self, bucket: str, key: str, client: int) -> str:
        """The first level of the tree to which a read belongs."""
        places = self._places.get(client)
        return bucket if places is None or _place(places, bucket, key) is None else f"{SCANS}{bucket}"

    def read(self, bucket: str, key: str, client: int) -> bool:
        """Note a read; returns whether it is a scan's. The client returns to the others with this read if it was out of order."""
        places = self._places.get(client)
        place = None if places is None else _place(places, bucket, key)
        if places is None or place is None:
            return False
        self._places.move_to_end(client)
        children, child = places[place], key[len(place[1]) :].partition("/")[0]
        if children[-1:] != [child]:
            children.append(child)
        if len(children) < JUDGED:
            return True
        if order_of(children) >= DISORDER:
            del children[:-1]
            return True
        del places[place]
        if not places:
            del self._places[client]
        return False

    def add(self, bucket: str, prefix: str, client: int) -> None:
        """From now on a client scans below a prefix."""
        places = self._places.setdefault(client, {})
        for place in [place for place in places if place[0] == bucket and place[1].startswith(prefix)]:
            del places[place]
        places[bucket, prefix] = []
        if len(places) > MOST_PLACES:
            del places[next(iter(places))]
        if len(self._places) > MOST_CLIENTS:
            self._places.popitem(last=False)


def _place(places: dict[_Place, list[str]], bucket: str, key: str) -> _Place | None:
    return next((place for place in places if place[0] == bucket and key.startswith(place[1])), None)
