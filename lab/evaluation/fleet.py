"""Gateways that are one fleet, with a Redis, as processes on this machine."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lab.evaluation.origin import KEY, SECRET, Data, Origin
from larder import Client, Credentials, DatasetInfo
from larder.http.api import Api
from rig.gateways import FLEET_SECRET, Running, Settings, gateway, table, wait_for_fleet
from rig.launched import PROGRAM
from rig.redis_server import RedisServer

CREDENTIALS = Credentials("GWA", "gateway-secret-a")
LOW = 0.9
"""Share of a cache's capacity that is used (gateway/policies/watermarks.py)."""


@dataclass(frozen=True)
class Fleet:
    """Its gateways, their addresses, and the folder of their files."""

    endpoints: tuple[str, ...]
    directory: Path
    nodes: tuple[Running, ...] = ()

    def __reduce__(self) -> tuple[type[Fleet], tuple[tuple[str, ...], Path]]:
        """Pickle without the gateways' processes, for jobs in separate processes."""
        return Fleet, (self.endpoints, self.directory)

    def register(self, data: Data, caching: str = "auto") -> DatasetInfo:
        """Register a dataset at the fleet."""
        client = Client(self.endpoints[0], credentials=CREDENTIALS)
        return client.register(data.name, data.digests(self.directory), caching=caching)

    def ask(self, path: str) -> Any:
        """The first gateway's answer to GET ``path``."""
        return Api(self.endpoints[0], credentials=CREDENTIALS, timeout=10).json("GET", path)


@contextmanager
def fleet(
    store: Origin,
    directory: Path,
    capacity: float,
    *,
    nodes: int = 3,
    workers: int = 1,
    tables: Mapping[str, Mapping[str, object]] | None = None,
) -> Iterator[Fleet]:
    """Gateways with some worker processes each, whose caches together keep ``capacity`` bytes.

    ``tables`` are further ones of their configuration.
    """
    directory.mkdir(parents=True)
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        running = []
        for number in range(nodes):
            home = directory / f"node-{number}"
            settings = Settings(
                store.endpoint,
                home / "cache",
                f"{math.ceil(capacity / nodes / LOW)}",
                reserve="100MB",
                workers=workers,
                origin_key=(KEY, SECRET),
                rules=({"match": "**", "freshness": "immutable", "grant": "1h"},),
                redis=redis.url,
                fleet={"secret": FLEET_SECRET, "node": home.name},
                extra="".join(table(*each) for each in {"[log]": {"level": "warning"}, **(tables or {})}.items()),
            )
            running.append(stack.enter_context(gateway(settings, home, program=(PROGRAM,))))
        wait_for_fleet(running, {f"node-{number}": "READY" for number in range(nodes)})
        yield Fleet(tuple(node.endpoint for node in running), directory, tuple(running))
