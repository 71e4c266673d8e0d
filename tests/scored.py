"""Parts of scores for tests, written by the specification alone: neither the gateway's code nor the client's."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rig.batches import Stock
from rig.gateways import Running
from rig.v1 import GWA, Key, Reply, ask


@dataclass(frozen=True)
class Part:
    """One part: scores and draws by index, and header fields that a test sets wrong."""

    sequence: int = 1
    base: int = 0
    scores: Mapping[int, float] = field(default_factory=dict)
    draws: Mapping[int, int] = field(default_factory=dict)
    items: int = 100
    whole: bool = False
    of_all: bool = False
    epoch: int = 1
    head: Mapping[str, Any] = field(default_factory=dict)

    @property
    def raw(self) -> bytes:
        """The bytes before compression."""
        rows = sorted({*self.scores, *self.draws})
        differences = [struct.pack("<I", now - before) for before, now in zip([0, *rows], rows, strict=False)]
        scores = [struct.pack("<e", self.scores[row]) if row in self.scores else b"\xff\xff" for row in rows]
        draws = [bytes([self.draws.get(row, 0)]) for row in rows]
        return b"".join(bytes(plane) for column in (differences, scores, draws) for plane in zip(*column, strict=True))

    @property
    def body(self) -> bytes:
        """The bytes."""
        return self.header + zlib.compress(self.raw)

    @property
    def header(self) -> bytes:
        """The first 36 bytes."""
        values = {
            "magic": b"LDIM",
            "version": 2,
            "flags": self.whole + 2 * self.of_all,
            "sequence": self.sequence,
            "base": self.base,
            "epoch": self.epoch,
            "items": self.items,
            "rows": len({*self.scores, *self.draws}),
        } | self.head
        return struct.pack("<4sHHQQIII", *values.values())

    def but(self, **changes: Any) -> Part:
        """The same with other values in its header."""
        return replace(self, head={**self.head, **changes})


def put(running: Running, job: str, dataset: str, part: Part | bytes, key: Key | None = GWA) -> Reply:
    """Send a part."""
    body = part if isinstance(part, bytes) else part.body
    headers = {"content-type": "application/octet-stream"}
    return ask(running, "PUT", f"/v1/jobs/{job}/importance?dataset={dataset}", body, key, headers)


def join(running: Running, job: str, stock: Stock, key: Key = GWA) -> None:
    """Register a job that uses the cache regardless of its gain."""
    said = {"job": job, "dataset": stock.name, "gpus": 1, "batch_size": 10, "ranks": 1, "caching": "on"}
    reply = ask(running, "POST", "/v1/jobs", json.dumps(said).encode(), key)
    assert reply.status in (200, 201), reply.body


def beat(running: Running, job: str, key: Key = GWA) -> Reply:
    """One heartbeat, so that the job stays."""
    said = {"rank": 0, "epoch": 0, "upcoming": [], "epoch_left": 0, "phases": {}}
    return ask(running, "POST", f"/v1/jobs/{job}/heartbeat", json.dumps(said).encode(), key)


def planned(running: Running, stock: Stock) -> dict[str, Any]:
    """The plan's entry of a dataset, in the answering worker's copy of the plan."""
    found: dict[str, Any] = ask(running, "GET", "/v1/plan").json["datasets"].get(stock.id, {})
    return found


def by_importance(running: Running, stock: Stock, job: str, times: int = 16) -> bool:
    """Send a heartbeat; True if all workers see the dataset kept by importance."""
    beat(running, job)
    return all(planned(running, stock).get("order") == "importance" for _ in range(times))
