"""Real gateways with their admin addresses open, asked over HTTP as an operator's programs do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gateway.policies.fleet.ring import Ring, path_key
from rig.gateways import Running, fleet
from rig.redis_server import RedisServer
from rig.v1 import Reply, send
from rig.world import Origin, eventually

TOKEN = "the-operator's-token"
READ_TOKEN = "the-onlooker's-token"
ADMIN = f'[admin]\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'


def admin(
    running: Running,
    method: str,
    path: str,
    body: Any = None,
    token: str = TOKEN,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request to ``/-/admin`` + path."""
    given = {"Authorization": f"Bearer {token}", **(headers or {})}
    content = b"" if body is None else json.dumps(body).encode()
    if content:
        given["Content-Type"] = "application/json"
    return send(running, method, f"/admin{path}", content, given)


def get(running: Running, path: str) -> Any:
    """A document, which must be there."""
    reply = admin(running, "GET", path)
    assert reply.status == 200, reply.body
    return reply.json


def post(running: Running, path: str, body: Any = None, status: int = 200) -> Any:
    """POST a change, check the status, and return the answer's JSON."""
    reply = admin(running, "POST", path, {} if body is None else body)
    assert reply.status == status, reply.body
    return reply.json


class Zone:
    """A fleet with its own origin and Redis."""

    def __init__(self, origin: Origin, redis: RedisServer, nodes: list[Running], extra: str) -> None:
        self.origin = origin
        self.redis = redis
        self.nodes = nodes
        self.extra = extra

    def read(self, number: int, path: str) -> str:
        """Read an object through a node, whole; how its cache answered."""
        bucket, _, key = path.removeprefix("/").partition("/")
        answer = self.nodes[number].client().get_object(Bucket=bucket, Key=key)
        answer["Body"].read()
        status: str = answer["ResponseMetadata"]["HTTPHeaders"]["x-larder-cache"]
        return status

    def metric(self, name: str, **labels: str) -> float:
        """The sum of a metric over all nodes."""
        return sum(node.metric(name, **labels) for node in self.nodes)

    def heard(self) -> None:
        """Wait until every node has reported."""
        eventually(
            lambda: [node["version"] for node in get(self.nodes[0], "/overview")["nodes"]],
            lambda versions: len(versions) == len(self.nodes) and all(versions),
            "every node to have said something of itself",
        )


@contextmanager
def zone(home: Path, count: int = 2, **settings: Any) -> Iterator[Zone]:
    """A fleet whose nodes have one catalog, in a file that they share."""
    catalog = f'[database]\nurl = "sqlite:///{home}/catalog.db"\n'
    settings = {**settings, "extra": f"{ADMIN}{catalog}{settings.get('extra', '')}"}
    with (
        Origin() as origin,
        RedisServer() as redis,
        fleet(origin.endpoint, redis.url, count, home, **settings) as nodes,
    ):
        yield Zone(origin, redis, nodes, settings["extra"])


def path_at(number: int, name: str) -> str:
    """A path whose home is a node of two while both are in the ring."""
    ring = Ring({"node-0": 1, "node-1": 1})
    keys = (f"{name}/{serial}" for serial in range(1000))
    return next(f"/bucket/{key}" for key in keys if ring.ranked(path_key("bucket", key), 1) == [f"node-{number}"])
