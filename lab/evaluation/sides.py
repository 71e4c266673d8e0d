"""Sides of a comparison that run at the same time: each has its own clients, gateway and store, as real processes.

All share the machine, so other load slows them down alike.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from lab.evaluation.fleet import LOW
from lab.evaluation.origin import KEY, SECRET, origin_of_files
from lab.evaluation.workloads import BLOCK, BUCKET, DATA, SETS, make
from lab.evaluation.workloads import SECRET as CLIENT_SECRET
from rig.gateways import Running, Settings, gateway, table

TOKEN = "the-evaluations-token"
BANDWIDTH, LATENCY = 125e6, 0.03
"""Bandwidth and latency of the store: the paper's 1 Gbit/s, and a fifth of its 150 ms. Objects are a tenth of their real size."""
SAMPLE = 2.0
"""Seconds between two samples of a side."""
_LATE = 90.0
"""The most seconds of a read that began in time."""
_ANSWER = 60.0
"""Seconds for which a gateway may be silent on a busy machine."""
_LINE = re.compile(r' (\S+) \S+ REST\.GET\.OBJECT \S+ "[^"]*" (20[06]) .* "(\w+)[^"]*"$')


@dataclass(frozen=True)
class Side:
    """One way of caching, with its jobs.

    Args:
        name: of the side.
        variant: of ``lab.evaluation.variants``.
        set: of ``lab.evaluation.workloads.SETS``.
        data: prefixes of the store.
        share: of the data that the cache may hold.
        tables: of the configuration, in addition to the common ones.
        starts: seconds after which each job begins; empty for at once.
        sampled: sample its streams while it runs.
    """

    name: str
    variant: str
    set: str
    data: tuple[str, ...]
    share: float = 0.35
    tables: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    starts: tuple[float, ...] = ()
    sampled: bool = False


@dataclass
class Outcome:
    """Results of a side: by access key the seconds, reads and hits of a job; bytes sent by the store; samples of its streams.

    ``cut`` are jobs that did not finish in time, ``failed`` those whose clients gave up.
    """

    seconds: dict[str, float]
    cut: list[str]
    failed: list[str]
    reads: dict[str, int]
    hits: dict[str, int]
    origin_bytes: float
    ahead_bytes: float
    wasted_bytes: float
    samples: list[tuple[float, dict[str, Any]]]

    def hit_ratio(self, keys: Sequence[str] = ()) -> float:
        """Share of the reads of some jobs, or of all, that were hits."""
        chosen = keys or list(self.reads)
        return sum(self.hits.get(key, 0) for key in chosen) / max(1, sum(self.reads.get(key, 0) for key in chosen))

    def mean_seconds(self, keys: Sequence[str] = ()) -> float:
        """Mean completion time of some jobs, or of all."""
        chosen = keys or list(self.seconds)
        return sum(self.seconds[key] for key in chosen) / len(chosen)


@dataclass(frozen=True)
class GatewayProcess:
    """The gateway of one side; ``log`` is its access log."""

    name: str
    endpoint: str
    log: Path
    running: Running

    def ask(self, path: str) -> bytes:
        """The body of an answer of the admin API."""
        request = Request(f"{self.endpoint}{path}", headers={"Authorization": f"Bearer {TOKEN}"})
        with urlopen(request, timeout=_ANSWER) as answer:
            found: bytes = answer.read()
        return found

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        return self.running.metric(name, TOKEN)


@dataclass(frozen=True)
class _Gateway(GatewayProcess):
    side: Side

    def streams(self) -> dict[str, Any]:
        items = json.loads(self.ask("/-/admin/streams?limit=1000"))["items"]
        return {item["name"]: item for item in items}


def run_sides(sides: Sequence[Side], limit: float) -> dict[str, Outcome]:
    """Run sides at the same time, for ``limit`` seconds at most; their outcomes by name."""
    with tempfile.TemporaryDirectory(prefix="larder-sides-") as temporary, ExitStack() as stack:
        directory = Path(temporary)
        data = {prefixes: directory / f"data-{number}" for number, prefixes in enumerate({side.data for side in sides})}
        for prefixes, where in data.items():
            make(where, prefixes)
        gateways = [stack.enter_context(_gateway(side, directory, data[side.data])) for side in sides]
        clients = [stack.enter_context(_clients(gateway, limit)) for gateway in gateways]
        samples = _watch(gateways, clients, limit + _LATE)
        return {
            gateway.side.name: _outcome(gateway, client, samples[gateway.side.name])
            for gateway, client in zip(gateways, clients, strict=True)
        }


def _watch(
    gateways: Sequence[_Gateway], clients: Sequence[subprocess.Popen[str]], limit: float
) -> dict[str, list[Any]]:
    began = time.monotonic()
    samples: dict[str, list[Any]] = {gateway.side.name: [] for gateway in gateways}
    while any(client.poll() is None for client in clients):
        if time.monotonic() - began > limit:
            raise RuntimeError("clients do not end")
        for of_side, client in zip(gateways, clients, strict=True):
            if of_side.side.sampled and client.poll() is None:
                with suppress(OSError):  # on a busy machine a sample is left out
                    samples[of_side.side.name].append((time.monotonic() - began, of_side.streams()))
        time.sleep(SAMPLE)
    return samples


def _outcome(gateway: _Gateway, client: subprocess.Popen[str], samples: list[Any]) -> Outcome:
    assert client.stdout is not None
    text = client.stdout.read()
    if client.returncode:
        raise RuntimeError(f"the clients of {gateway.side.name} failed; what they said is above")
    told = json.loads(text)
    reads: dict[str, int] = {}
    hits: dict[str, int] = {}
    for line in gateway.log.read_text().splitlines():
        if (found := _LINE.search(line)) is not None:
            reads[found[1]] = reads.get(found[1], 0) + 1
            hits[found[1]] = hits.get(found[1], 0) + (found[3] == "HIT")
    ahead = r'larder_stream_prefetched_bytes_total{{[^}}]*result="{}"[^}}]*}}'
    text = gateway.ask("/-/metrics").decode()
    amounts = [re.search(rf"^{ahead.format(kind)} (\S+)$", text, re.MULTILINE) for kind in ("loaded", "wasted")]
    loaded, wasted = (float(one[1]) if one else 0.0 for one in amounts)
    origin = gateway.metric("larder_origin_received_bytes_total")
    return Outcome(told["seconds"], told["cut"], told["failed"], reads, hits, origin, loaded, wasted, samples)


@contextmanager
def _gateway(side: Side, directory: Path, data: Path) -> Iterator[_Gateway]:
    home = directory / side.name.replace(" ", "-")
    capacity = int(side.share * sum(DATA[name].size_of_all for name in side.data) / LOW)
    extra: dict[str, Mapping[str, object]] = {
        "[admin]": {"token": TOKEN},
        "[log]": {"level": "warning", "access": str(home / "access.log")},
        **side.tables,
    }
    cache = extra.pop("[cache]", {})
    with origin_of_files(data, BUCKET, BANDWIDTH, LATENCY) as store:
        settings = Settings(
            store.endpoint,
            home / "cache",
            str(capacity),
            str(BLOCK),
            reserve="100MB",
            further=cache,
            origin_key=(KEY, SECRET),
            credentials=tuple(
                {"access_key_id": key, "secret_access_key": CLIENT_SECRET, "tenant": "evaluation"}
                for key in SETS[side.set]()
            ),
            rules=({"match": "**", "freshness": "immutable", "grant": "1h"},),
            extra="".join(table(title, values) for title, values in extra.items()),
        )
        with gateway(settings, home, program=variant(side.variant)) as running:
            yield _Gateway(side.name, running.endpoint, home / "access.log", running, side)


def variant(name: str) -> tuple[str, ...]:
    """The program of a variant of ``lab.evaluation.variants``."""
    return sys.executable, "-m", "lab.evaluation.variants", name


@contextmanager
def _clients(gateway: _Gateway, limit: float) -> Iterator[subprocess.Popen[str]]:
    side, jobs = gateway.side, SETS[gateway.side.set]()
    order = {
        "set": side.set,
        "endpoint": gateway.endpoint,
        "starts": side.starts or [0.0] * len(jobs),
        "limit": limit,
        "scratch": str(gateway.log.parent),
    }
    command = [sys.executable, "-m", "lab.evaluation.workloads"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.close()
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(15)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
