"""Clients that never stop reading while their fleet changes, and how much a node is home of."""

from __future__ import annotations

import io
import itertools
import re
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import boto3

from gateway.policies.fleet.ring import Ring, item_key, path_key
from rig.batches import Stock
from rig.clients import Client
from rig.gateways import Running
from rig.world import eventually


def share(stock: Stock, nodes: Sequence[str], of: Collection[str]) -> int:
    """The number of items, plus the number of objects, whose home is one of some nodes; all nodes have the same capacity."""
    ring = Ring(dict.fromkeys(nodes, 1))
    keys = [key for row in stock.rows for key in (item_key(row.digest), path_key(row.bucket, row.key))]
    return sum(ring.ranked(key, 1)[0] in of for key in keys)


def doubted(gateways: Sequence[Running]) -> set[str]:
    """The nodes that a gateway has ever logged as not answering. On a slow machine a live node may be among them, and its keys
    may then be read once more."""
    return {name for running in gateways for name in re.findall(r"node (\S+) did not answer", running.log.read_text())}


@dataclass
class Load:
    """Progress of clients in threads.

    Attributes:
        done: the number of finished reads of each client.
        failures: the failures of all clients.
    """

    done: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)

    def await_more(self, turns: int) -> None:
        """Wait until every client has finished so many more reads, or one has failed."""
        before = dict(self.done)
        eventually(
            lambda: self.failures or min(self.done[name] - count for name, count in before.items()),
            lambda seen: isinstance(seen, list) or seen >= turns,
            f"{turns} more reads of every client",
        )


Reading = Callable[[int], object]
"""Read something, the number-th time, and raise if it is not as it should be."""
PAUSE = 0.01
"""Seconds between two reads of a client. Without them clients would take the processors from the gateways that change."""


@contextmanager
def reading(clients: Mapping[str, Reading]) -> Iterator[Load]:
    """Run clients that read, each in a thread, until the block ends; a failure ends its client, and fails the test."""
    load, over = Load(dict.fromkeys(clients, 0)), threading.Event()

    def run(name: str, read: Reading) -> None:
        for number in itertools.count():
            if over.wait(PAUSE):
                return
            try:
                read(number)
            except Exception as error:
                load.failures.append(f"{name}, read {number}: {type(error).__name__}: {error}")
                return
            load.done[name] = number + 1

    threads = [threading.Thread(target=run, args=each) for each in clients.items()]
    for thread in threads:
        thread.start()
    try:
        yield load
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert load.failures == []


def batches(running: Running, stock: Stock, size: int = 16) -> Reading:
    """A client that asks one gateway for exact batches, all over a dataset."""

    def read(number: int) -> None:
        indices = [(number * size + place) * 7 % len(stock.rows) for place in range(size)]
        assert stock.read(running, sorted(set(indices)), "mode=exact") == stock.expected(sorted(set(indices)))

    return read


def objects(running: Running, stock: Stock) -> Reading:
    """A client that gets the same items as plain objects, one after the other."""

    def read(number: int) -> None:
        index = number * 7 % len(stock.rows)
        with Client(running.endpoint) as client:
            got = client.get(stock.path(index))
        assert (got.status, got.whole, got.body) == (200, True, stock.bodies[index]), got.status

    return read


def downloads(endpoint: str, stock: Stock) -> Reading:
    """boto3 as people use it: its default retries, and a new try when a body breaks off."""
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="GWA",
        aws_secret_access_key="gateway-secret-a",
        region_name="us-east-1",
    )

    def read(number: int) -> None:
        index, body = number * 7 % len(stock.rows), io.BytesIO()
        row = stock.rows[index]
        client.download_fileobj(row.bucket, row.key, body)
        assert body.getvalue() == stock.bodies[index]

    return read
