"""A fleet of 64 nodes, and a zone of 1,000 jobs: what the ring, Redis and the manager take.

The shipped code of ``gateway/fleet`` and of the manager runs for all nodes in this process, over a redis-server of its own.
Commands, bytes and processor time are Redis' own counters (``INFO``) around each kind of message; a rate is the count of one
message times how often the shipped settings send it. Counts depend on no load; seconds of this process do.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from redis.asyncio import Redis

from gateway.base.config import FleetSettings
from gateway.engine.space.manager import Coordination, Electorate, Manager, Silences, settings_of
from gateway.fleet.jobs.datasets import DatasetTable
from gateway.fleet.jobs.jobs import Beat, JobRecord
from gateway.fleet.jobs.leadership import Leadership
from gateway.fleet.jobs.plans import Plans, plan_document
from gateway.fleet.nodes.announcer import Timing
from gateway.fleet.nodes.invalidations import Invalidations
from gateway.fleet.nodes.membership import Membership, Pace
from gateway.fleet.nodes.reports import NodeReport
from gateway.fleet.nodes.samples import EVERY, Samples
from gateway.fleet.redis.connection import commands
from gateway.model.counters import Counters
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey
from gateway.policies.fleet.ring import Ring
from gateway.policies.space.orders import Phase
from gateway.policies.space.overrides import Overrides
from gateway.policies.space.probing import PhaseTotals
from lab.benchmarks import servers
from lab.benchmarks.report import Ratio, machine, write

NODES = (4, 16, 64)
"""Nodes of one worker each; a node of four workers counts as four, except for the work of the worker with the node lock."""
JOBS, RANKS, DATASETS = 1000, 8, 200
KEYS = 500_000
PACE = FleetSettings()
ROUNDS = 3
AT_ONCE = 32
"""Writes of each worker at the same time."""
CAPACITY = 10**12
"""Bytes of each node."""
SIZE = 10**12
"""Bytes of each dataset."""
ZONE = "larder:default:"
SECRET = "the secret of a fleet that is measured"
_NO_ORIGIN = 9
"""A port without a store; this benchmark reads no objects."""
_FLEET = """
[redis]
url = "redis://127.0.0.1:{redis}/0"
[fleet]
secret = "{secret}"
"""
_SETTLING, _WATCHED = 5.0, 15.0
"""Seconds that a gateway idles after its start, and seconds for which it is then watched."""
LONG = 3600.0
"""Seconds; long enough that nothing expires or repeats during the run."""
SILENT = Timing(heartbeat=LONG, dead=LONG, connect=60.0)
MOST_SHARE = 1.05
GROWTH_BUDGET = 1.2
"""Bytes of one heartbeat in the largest fleet, as a multiple of those in the smallest."""
PLANNING_BUDGET = 1.0
"""Seconds that the leader may take for a turn: there is one each second."""
Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True)
class Usage:
    """Redis' work for one message: commands, bytes received and sent, microseconds of CPU."""

    commands: float
    received: float
    sent: float
    cpu_us: float

    def times(self, factor: float) -> Usage:
        """The usage of ``factor`` messages."""
        return Usage(*(factor * value for value in (self.commands, self.received, self.sent, self.cpu_us)))


@dataclass
class JobsFound:
    """Cost of 1,000 jobs: by message, and figures of one number each."""

    messages: dict[str, Usage]
    figures: dict[str, float]


def rates(of: Mapping[str, Usage], nodes: int) -> dict[str, tuple[float, Usage]]:
    """Messages per second of a whole idle fleet under the shipped settings, with their cost."""
    beats = 1 / PACE.heartbeat
    often = {
        "heartbeat": beats,
        "lease and plan": beats,
        "channel heartbeat": 1 / Timing().heartbeat,
        "sample and status": 1 / EVERY,
        "table of datasets": 1.0,
    }
    return {name: (nodes * rate, of[name].times(nodes * rate)) for name, rate in often.items()}


class Meter:
    """Counts what Redis does.

    Args:
        redis: a client that nothing else uses.
    """

    def __init__(self, redis: Redis) -> None:
        self._redis = redis

    async def of(self, work: Work, messages: float) -> Usage:
        """Cost of each of the messages that ``work`` sends, without the cost of counting."""
        idle = _difference(await self._look(), await self._look())
        before = await self._look()
        await work()
        used = _difference(before, await self._look())
        commands, received, sent = (
            max(0.0, one - other) / messages for one, other in zip(used[:3], idle[:3], strict=True)
        )
        return Usage(commands, received, sent, used[3] / messages)

    async def _look(self) -> list[float]:
        stats, cpu = await self._redis.info("stats"), await self._redis.info("cpu")
        names = ("total_commands_processed", "total_net_input_bytes", "total_net_output_bytes")
        seconds = cpu["used_cpu_user"] + cpu["used_cpu_sys"]
        return [*(float(stats[name]) for name in names), seconds * 1e6]


def _difference(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [one - other for one, other in zip(after, before, strict=True)]


# --- the ring


def ring(nodes: int) -> dict[str, float]:
    """Shares and movements of random keys in a ring of equal nodes, and microseconds to find homes."""
    keys = np.random.default_rng(1).integers(0, 2**64, KEYS, dtype=np.uint64)
    names = [f"node-{number:03}" for number in range(nodes)]
    here, more = Ring(dict.fromkeys(names, CAPACITY)), Ring(dict.fromkeys([*names, "node-new"], CAPACITY))
    began = time.perf_counter()
    homes = here.homes(keys)
    many = (time.perf_counter() - began) / KEYS * 1e6
    few = [int(key) for key in keys[:5000]]
    first, again = _each(here, few), _each(here, few)
    shares = np.bincount(homes, minlength=nodes) / KEYS * nodes
    joined = np.array(more.ids)[more.homes(keys)]
    moved = joined != np.array(here.ids)[homes]
    return {
        "smallest": float(shares.min()),
        "largest": float(shares.max()),
        "moved": float(moved.mean()),
        "moved between others": float((moved & (joined != "node-new")).mean()),
        "first_us": first,
        "again_us": again,
        "batch_us": many,
    }


def _each(homes: Ring, keys: Sequence[int]) -> float:
    began = time.perf_counter()
    for key in keys:
        homes.home(key)
    return (time.perf_counter() - began) / len(keys) * 1e6


# --- nodes


@dataclass(frozen=True)
class Worker:
    """The parts of one worker that use Redis."""

    member: Membership
    parts: Coordination
    manager: Manager
    samples: Samples
    datasets: DatasetTable
    channel: Invalidations


async def _forget(_keys: Sequence[ObjectKey]) -> None:
    """A worker with an empty cache."""


async def _gap() -> None:
    """A worker with an empty cache."""


def _worker(url: str, number: int, timing: Timing, stack: AsyncExitStack) -> Worker:
    name = f"node-{number:03}"
    node = Node(name, f"http://10.0.0.{number}:9000", CAPACITY, "default", NodeState.JOINING, boot=f"{number:032}")
    member = Membership(url, node, ZONE, Pace(LONG, LONG), SECRET)
    redis, others = commands(url, LONG), commands(url, LONG)
    parts = Coordination.of(redis, ZONE, name, Silences(LONG, LONG, LONG))
    parts = replace(parts, plans=Plans(redis, ZONE, LONG), leadership=Leadership(redis, ZONE, name, LONG))
    electorate = Electorate(lambda: member.nodes.values(), lambda: True)
    manager = Manager(parts, electorate, settings_of(0, 60.0), LONG, Overrides)
    channel = Invalidations(url, on_forget=_forget, on_gap=_gap, timing=timing)
    for close in (member.stop, redis.aclose, others.aclose, channel.stop):
        stack.push_async_callback(close)
    return Worker(member, parts, manager, Samples(others, ZONE), DatasetTable(others, ZONE), channel)


@asynccontextmanager
async def fleet(url: str, nodes: int, timing: Timing = SILENT) -> AsyncIterator[list[Worker]]:
    """Workers of ``nodes`` nodes that are ready and know each other."""
    async with AsyncExitStack() as stack:
        workers = [_worker(url, number, timing, stack) for number in range(nodes)]
        for worker in workers:
            worker.member.ready()
        for _ in range(3):
            for worker in workers:
                await worker.member.beat()
        if any(len(worker.member.ring.ids) != nodes for worker in workers):
            raise RuntimeError("the nodes do not know each other")
        yield workers


async def _subscribe(workers: Sequence[Worker]) -> None:
    """Open the channels. They are opened only when used, as a channel that is silent for some seconds counts as lost."""
    await asyncio.gather(*(worker.channel.start() for worker in workers))


async def _rounds(actions: Sequence[Work]) -> None:
    for _ in range(ROUNDS):
        for action in actions:
            await action()


# --- messages


async def messages(url: str, nodes: int) -> dict[str, Usage]:
    """Cost of one message of each kind in a fleet of ``nodes`` nodes without jobs."""
    found = {}
    async with AsyncExitStack() as stack:
        redis = commands(url, LONG)
        stack.push_async_callback(redis.aclose)
        await redis.flushall()
        meter = Meter(redis)
        workers = await stack.enter_async_context(fleet(url, nodes))
        for worker in workers:
            await worker.manager.run_once()
        kinds: dict[str, list[Work]] = {
            "heartbeat": [worker.member.beat for worker in workers],
            "lease and plan": [worker.manager.run_once for worker in workers if not worker.manager.leads],
            "sample and status": [partial(_sample, worker) for worker in workers],
            "table of datasets": [worker.datasets.look for worker in workers],
        }
        for name, actions in kinds.items():
            await _rounds(actions[:1])
            found[name] = await meter.of(partial(_rounds, actions), ROUNDS * len(actions))
        await _subscribe(workers)
        found["write"] = await meter.of(
            partial(_rounds, [partial(_write_once, worker) for worker in workers]), ROUNDS * nodes
        )
        many = [_write_once(worker) for worker in workers for _ in range(AT_ONCE)]
        found[f"write, {AT_ONCE} at once"] = await meter.of(partial(asyncio.gather, *many), len(many))
    found["channel heartbeat"] = await _channel_heartbeat(url)
    return found


async def _sample(worker: Worker) -> None:
    """The report that ``NodeWatch`` sends every five seconds."""
    me = worker.member.me
    await worker.samples.speaks(me, "worker")
    await worker.samples.send(me, "boot", Counters())
    await worker.samples.say(me, {"bytes": CAPACITY, "blobs": 10**7, "problems": [], "datasets": {}, "reasons": {}})


async def _write_once(worker: Worker) -> None:
    """Write an object: announce before and after."""
    key = ObjectKey("default", "imagenet", "train/n01440764/n01440764_10026.JPEG")
    await worker.channel.announce([key])
    await worker.channel.announce([key])


async def _channel_heartbeat(url: str) -> Usage:
    """One channel heartbeat, measured over some seconds at the shipped rate."""
    redis = commands(url, LONG)
    await redis.flushall()
    async with fleet(url, 2, Timing(connect=60.0)) as workers:
        await _subscribe(workers)
        await redis.config_resetstat()
        used = await Meter(redis).of(lambda: asyncio.sleep(3), 1)
        published = (await redis.info("commandstats"))["cmdstat_publish"]["calls"]
    await redis.aclose()
    return used.times(1 / published)


async def real_worker(url: str, redis: int, directory: Path) -> Usage:
    """All messages that an idle gateway sends in a second, the mean of some seconds."""
    client = commands(url, LONG)
    await client.flushall()
    with servers.gateway(directory, _NO_ORIGIN, extra=_FLEET.format(redis=redis, secret=SECRET)):
        await asyncio.sleep(_SETTLING)
        used = await Meter(client).of(partial(asyncio.sleep, _WATCHED), _WATCHED)
    await client.aclose()
    return used


# --- jobs


def _record(number: int) -> JobRecord:
    dataset = f"{number % DATASETS:064x}"
    return JobRecord(
        f"tenant-{number % 10}", f"train-{number:04}", dataset, f"set-{number % DATASETS}", 8, 256, RANKS, "auto", "default",
        "AKIAEXAMPLE", SIZE, 1_000_000, "auto",
    )  # fmt: skip


def _beat(rank: int, turn: int) -> Beat:
    steps = 150 * (turn + 1)
    totals = {phase: PhaseTotals(steps, 0.5 * steps, 0.2 * steps, 256 * steps, 128 * steps) for phase in Phase}
    return Beat(rank, turn // 10, totals, 4)


async def jobs(url: str) -> JobsFound:
    """The jobs of the zone in a fleet of 64 nodes: registration, heartbeats, the leader's turn, and the followers' reads."""
    records = [_record(number) for number in range(JOBS)]
    async with AsyncExitStack() as stack:
        redis = commands(url, LONG)
        stack.push_async_callback(redis.aclose)
        await redis.flushall()
        workers = await stack.enter_async_context(fleet(url, NODES[-1]))
        meter, leader, book = Meter(redis), workers[0], workers[1].parts.jobs
        await leader.manager.run_once()
        before = (await redis.info("memory"))["used_memory_dataset"]

        async def register() -> None:
            for record in records:
                await book.register(record)

        async def beat(turn: int = 0) -> None:
            for record in records:
                for rank in range(RANKS):
                    await book.beat(record.key, _beat(rank, turn))

        used = {
            "registration": await meter.of(register, JOBS),
            "heartbeat of a rank": await meter.of(beat, JOBS * RANKS),
        }
        planning, reading = await _planned(leader, workers, beat)
        followers = [worker for worker in workers if worker is not leader]
        used["leader's turn"] = await meter.of(leader.manager.run_once, 1)
        await _turns(followers)
        await leader.parts.plans.write(replace(leader.parts.plans.plan, version=leader.parts.plans.plan.version + 1))
        used["another plan, read by a worker"] = await meter.of(lambda: _turns(followers), len(followers))
        used["the same plan, asked for by a worker"] = await meter.of(lambda: _turns(followers), len(followers))
        used["a node's report"] = await meter.of(lambda: _report(workers), len(workers))
        await _look_for_jobs(workers)
        used["jobs, asked for by a node"] = await meter.of(lambda: _look_for_jobs(workers), len(workers))
        document = plan_document(leader.parts.plans.plan)
        figures = {
            "planning": planning,
            "reading jobs": reading,
            "Redis memory": (await redis.info("memory"))["used_memory_dataset"] - before,
            **{f"plan: {part}": len(json.dumps(value)) for part, value in document.items() if isinstance(value, dict)},
            "plan": len(json.dumps(document)),
        }
    return JobsFound(used, figures)


async def _planned(
    leader: Worker, workers: Sequence[Worker], beat: Callable[[int], Awaitable[None]]
) -> tuple[float, float]:
    """CPU seconds of this process for a turn of the leader, and the part for reading the jobs; medians over turns, each after a
    heartbeat of every job."""
    took, reading = [], []
    for turn in range(1, 1 + ROUNDS):
        await beat(turn)
        await _report(workers)
        began = time.process_time()
        await leader.manager.run_once()
        took.append(time.process_time() - began)
        began = time.process_time()
        await leader.parts.jobs.all()
        reading.append(time.process_time() - began)
    return median(took), median(reading)


async def _turns(workers: Sequence[Worker]) -> None:
    for worker in workers:
        await worker.manager.run_once()


async def _report(workers: Sequence[Worker]) -> None:
    for worker in workers:
        datasets = workers[0].parts.plans.plan.datasets
        report = {name: NodeReport(resident=1000) for name in datasets}
        await worker.parts.reports.send(worker.member.me, report)


async def _look_for_jobs(workers: Sequence[Worker]) -> None:
    for worker in workers:
        await worker.parts.jobs.records()


# --- the run


async def _measure(port: int, directory: Path) -> tuple[dict[int, dict[str, Usage]], Usage, JobsFound]:
    url = f"redis://127.0.0.1:{port}/0"
    found = {nodes: await messages(url, nodes) for nodes in NODES}
    return found, await real_worker(url, port, directory), await jobs(url)


def run() -> None:
    """Measure and write the results."""
    where = machine()
    rings = {nodes: ring(nodes) for nodes in NODES}
    with tempfile.TemporaryDirectory(prefix="larder-bench-") as temporary, servers.redis() as redis:
        found, real, of_jobs = asyncio.run(_measure(redis.port, Path(temporary)))
    idle = rates(found[NODES[-1]], NODES[-1])
    data = {
        "keys": KEYS,
        "jobs": JOBS,
        "ranks": RANKS,
        "datasets": DATASETS,
        "beats_per_second": JOBS * RANKS / PACE.heartbeat,
        "ring": rings,
        "messages": {nodes: {name: vars(usage) for name, usage in of.items()} for nodes, of in found.items()},
        "idle": {name: {"per_second": rate, **vars(usage)} for name, (rate, usage) in idle.items()},
        "worker": vars(real),
        "of_jobs": {name: vars(usage) for name, usage in of_jobs.messages.items()},
        "figures": of_jobs.figures,
    }
    write("fleet_large", data, where, _judged(rings, found, of_jobs))


def _judged(
    rings: Mapping[int, Mapping[str, float]], found: Mapping[int, Mapping[str, Usage]], of_jobs: JobsFound
) -> list[Ratio]:
    few, many = (found[nodes]["heartbeat"] for nodes in (NODES[0], NODES[-1]))
    grown = (many.received + many.sent) / (few.received + few.sent)
    return [
        Ratio(
            f"share of the fullest of {NODES[-1]} nodes / mean", rings[NODES[-1]]["largest"], MOST_SHARE, deviation=0.0
        ),
        Ratio(f"bytes of a heartbeat: {NODES[-1]} nodes / {NODES[0]}", grown, GROWTH_BUDGET),
        Ratio(f"seconds of the leader's turn with {JOBS} jobs", of_jobs.figures["planning"], PLANNING_BUDGET),
    ]


if __name__ == "__main__":
    run()
