"""A training job on a fleet whose leader dies, or whose Redis is emptied: chunks in use stay, and the job continues."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.policies.space.chunk_cut import ChunkCut
from tests.batches import Stock, bytes_of, stock
from tests.gateways import Running, fleet
from tests.scenarios.redis_server import RedisServer
from tests.scenarios.world import Origin, eventually
from tests.v1 import ask

ITEMS, SIZE = 100, 10_000
ORDER = (3, 1, 4, 0, 5, 9, 2, 6, 8, 7)
SETTINGS: dict[str, Any] = {
    "capacity": "250KB",
    "fleet": {"expire": "2s"},
    "extra": "[manager]\nprobe_batches = 0\njob_expire = '20s'\n",
}


@dataclass
class Trainer:
    """A job that tells one gateway where it is, and registers again when it is not known."""

    data: Stock
    running: Running
    at: int = 0
    registered: int = 0
    statuses: list[int] = field(default_factory=list)

    @property
    def chunk(self) -> int:
        """The chunk in use."""
        return ORDER[self.at % len(ORDER)]

    def items(self, chunk: int) -> list[int]:
        """The items of a chunk."""
        return ChunkCut(self.data.id, ITEMS, 10, 10).items_of(chunk).tolist()

    def _post(self, path: str, body: Any) -> Any:
        reply = ask(self.running, "POST", path, json.dumps(body).encode())
        self.statuses.append(reply.status)
        return reply

    def register(self) -> None:
        """Say who this is."""
        said = {"job": "j", "dataset": self.data.name, "gpus": 4, "batch_size": 10, "ranks": 1}
        self.registered += self._post("/v1/jobs", said).status in (200, 201)

    def beat(self) -> int:
        """Say where this is; the status of the answer."""
        upcoming = [*ORDER[self.at :], *ORDER[:2]]
        said = {"rank": 0, "epoch": 0, "upcoming": upcoming, "epoch_left": len(upcoming) - 2, "phases": {}}
        reply = self._post("/v1/jobs/j/heartbeat", said)
        if reply.status == 404:
            self.register()
        return int(reply.status)

    def plan(self) -> dict[str, Any]:
        """Send a heartbeat and return the dataset's entry in the gateway's plan."""
        self.beat()
        reply = ask(self.running, "GET", "/v1/plan")
        found: dict[str, Any] = reply.json["datasets"].get(self.data.id, {}) if reply.status == 200 else {}
        return found

    def await_chunks(self, *chunks: int) -> None:
        """Wait until these are complete."""
        eventually(
            lambda: self.plan().get("chunks", {}).get("complete"),
            lambda there: there is not None and set(chunks) <= set(there),
            f"chunks {chunks}",
        )

    def train(self) -> None:
        """Read the chunk in use."""
        indices = self.items(self.chunk)
        assert self.data.read(self.running, indices, "job=j") == self.data.expected(indices)


@dataclass
class World:
    """A fleet of two gateways with a trainer."""

    origin: Origin
    redis: RedisServer
    nodes: list[Running]
    trainer: Trainer
    home: Path

    def kept(self, chunk: int, *nodes: int) -> bool:
        """True if every item of a chunk is on the disk of one of these nodes."""
        digests = [self.trainer.data.rows[index].digest.hex() for index in self.trainer.items(chunk)]
        homes = [self.home / f"node-{number}" / "cache" / "blobs" for number in nodes]
        return all(any((home / digest[:2] / digest[2:]).exists() for home in homes) for digest in digests)

    def leaders(self) -> list[int]:
        """The nodes that report leading."""
        return [number for number, node in enumerate(self.nodes) if node.metric("larder_manager_leading")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """A job whose first two chunks are complete."""
    with Origin() as origin, RedisServer() as redis:
        data = stock(origin.s3, tmp_path / "data", "d", bytes_of(ITEMS, SIZE, "jobs"))
        with fleet(origin.endpoint, redis.url, 2, tmp_path, **SETTINGS) as nodes:
            data.register(nodes[0], "auto")
            trainer = Trainer(data, nodes[0])
            trainer.register()
            trainer.await_chunks(*ORDER[:2])
            yield World(origin, redis, nodes, trainer, tmp_path)


def test_a_leader_that_is_killed_is_replaced(world: World) -> None:
    """Rule: when the leading node is killed -9, another takes over within the lease, and the rotation continues."""
    eventually(world.leaders, lambda found: len(found) == 1, "one leader")
    (leader,) = world.leaders()
    other = 1 - leader
    trainer = world.trainer
    trainer.running = world.nodes[other]
    eventually(trainer.beat, lambda status: status == 200, "a heartbeat at the other node")
    world.nodes[leader].kill()
    survivor = world.nodes[other]
    eventually(lambda: survivor.metric("larder_manager_leading"), lambda leads: leads == 1, "another leader")
    trainer.at = 1
    trainer.await_chunks(*ORDER[1:3])
    for chunk in ORDER[1:3]:
        eventually(lambda chunk=chunk: world.kept(chunk, other), lambda kept: kept, f"chunk {chunk} on one node")
    trainer.train()


@pytest.mark.parametrize("mood", ["killed", "flushed"])
def test_a_redis_that_loses_everything_takes_no_chunk_that_is_in_use(world: World, mood: str) -> None:
    """Rule: while Redis is lost the job reads on; when Redis returns empty, the job registers again and continues."""
    trainer = world.trainer
    trainer.train()
    before = trainer.plan()
    if mood == "killed":
        world.redis.kill()
        assert trainer.beat() == 503
        trainer.train()
        assert world.kept(trainer.chunk, 0, 1)
        reply = trainer.data.ask(trainer.running, trainer.items(trainer.chunk), "job=j")
        assert reply.headers["x-larder-caching"] == "chunked"
        world.redis.start()
    else:
        world.redis.flush()
    eventually(trainer.beat, lambda status: status == 200, "the job's second registration")
    assert trainer.registered == 2
    eventually(
        lambda: [node.metric("larder_manager_leading") for node in world.nodes], lambda seen: sum(seen) == 1, "a leader"
    )
    eventually(trainer.plan, lambda plan: plan.get("chunks") == before["chunks"], "the plan from before")
    assert world.kept(trainer.chunk, 0, 1)
    trainer.train()
    trainer.at = 1
    trainer.await_chunks(*ORDER[1:3])
    trainer.train()
