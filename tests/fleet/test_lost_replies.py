"""Redis does what it is asked, and its reply is lost: nothing is sent a second time unseen, and who asks again does no harm.

redis-py 8 repeats commands whose reply was lost, writes and scripts among them, unless its client is told not to.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway import fleet
from gateway.fleet.jobs.datasets import DatasetTable, ListedRegistration
from gateway.fleet.jobs.jobs import Jobs
from gateway.fleet.jobs.leadership import Leadership
from gateway.fleet.jobs.plans import Plans
from gateway.fleet.jobs.result_claims import ResultClaims
from gateway.fleet.nodes.beginnings import Beginnings
from gateway.fleet.nodes.live import LiveExchange
from gateway.fleet.nodes.register import Register
from gateway.fleet.nodes.reports import HELD_ITEMS, NodeReport, NodeReports
from gateway.fleet.nodes.samples import Samples
from gateway.fleet.nodes.trends import Trends
from gateway.fleet.nodes.verifications import VerificationQueue
from gateway.fleet.redis.compare_and_set import Change, CompareAndSet
from gateway.fleet.redis.connection import commands
from gateway.fleet.redis.tenant_index import TenantIndex
from gateway.model.counters import Counters
from gateway.model.fleet import Node, NodeState
from gateway.model.live import LiveFilter
from gateway.policies.space.plan import Plan
from gateway.policies.space.read_model import ReadSums
from rig.proxy import Proxy
from rig.redis_server import RedisServer
from tests.fleet.job_book import LONG, beat, record
from tests.fleet.pipeline_book import Fleet, batches, profile
from tests.fleet.test_live import REQUEST

Z = "larder:z:"
NAME = ("tenant", "dataset")
NODE = Node("node", "http://127.0.0.1:1", 1, "default", NodeState.READY)
Do = Callable[[Redis], Awaitable[Any]]


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    """One redis-server for the module."""
    with RedisServer() as started:
        yield started


@pytest.fixture
async def lossy(server: RedisServer) -> AsyncIterator[tuple[Redis, Proxy]]:
    """A gateway's client, and the proxy through which it speaks."""
    server.flush()
    with Proxy(server.port) as proxy:
        client = commands(f"redis://127.0.0.1:{proxy.port}", 5.0)
        await client.ping()
        yield client, proxy
        await client.aclose()


async def _transaction(redis: Redis) -> Any:
    pipeline = redis.pipeline(transaction=True)
    pipeline.incr("counter")
    return await pipeline.execute()


async def _pipeline(redis: Redis) -> Any:
    pipeline = redis.pipeline(transaction=False)
    pipeline.incr("counter")
    pipeline.lpush("list", 1)
    return await pipeline.execute()


COMMANDS: dict[str, Do] = {
    "hset": lambda redis: redis.hset("hash", "field", "1"),
    "hsetnx": lambda redis: redis.hsetnx("hash", "field", "1"),
    "hdel": lambda redis: redis.hdel("hash", "field"),
    "set": lambda redis: redis.set("key", "1", px=10_000),
    "del": lambda redis: redis.delete("key"),
    "pexpire": lambda redis: redis.pexpire("key", 10_000),
    "publish": lambda redis: redis.publish("channel", "1"),
    "incr": lambda redis: redis.incr("counter"),
    "lpush": lambda redis: redis.lpush("list", 1),
    "zadd": lambda redis: redis.zadd("sorted", {"a": 1}),
    "incr in a transaction": _transaction,
    "incr and lpush in a pipeline": _pipeline,
    "eval": lambda redis: redis.eval("return redis.call('INCR', KEYS[1])", 1, "counter"),
    "evalsha": lambda redis: redis.register_script("return redis.call('INCR', KEYS[1])")(keys=["counter"]),
}


def _calls(server: RedisServer, name: str) -> int:
    """How often Redis has executed a command."""
    return int(server.ask("INFO", "commandstats").get(f"cmdstat_{name}", {}).get("calls", 0))


@pytest.mark.parametrize("kind", COMMANDS)
async def test_a_command_whose_reply_is_lost_is_sent_once(
    server: RedisServer, lossy: tuple[Redis, Proxy], kind: str
) -> None:
    """Rule: every kind of write and script fails for its caller, and Redis has seen it once."""
    redis, proxy = lossy
    await COMMANDS[kind](redis)  # its script is known from here on
    counted = {"incr": "incrby"}.get(kind, "incrby" if kind.startswith("incr ") else kind)
    before = _calls(server, counted)
    proxy.lose_reply()
    with pytest.raises(RedisConnectionError):
        await COMMANDS[kind](redis)
    assert _calls(server, counted) == before + 1


async def _led(redis: Redis) -> Any:
    return await Leadership(redis, Z, "me", LONG).lead(0)


async def _planned(redis: Redis) -> Any:
    await redis.set(f"{Z}leader", "3 me")
    return await Plans(redis, Z).write(Plan(version=1, fence=3), [{"what": "first"}, {"what": "second"}])


async def _swapped(redis: Redis) -> Any:
    async def decide() -> Change[None]:
        seen = await redis.hget("hash", "version")
        if seen is not None:
            return Change(None)
        return Change(None, [("hash", "version", seen)], [("HINCRBY", "hash", "version", 1), ("LPUSH", "list", 1)])

    return await CompareAndSet(redis)(decide)


async def _registered(redis: Redis) -> Any:
    return await Jobs(redis, Z, LONG).register(record())


async def _beaten(redis: Redis) -> Any:
    await Jobs(redis, Z, LONG).register(record())
    return await Jobs(redis, Z, LONG).beat("t/j", beat(1, items=3))


async def _removed(redis: Redis) -> Any:
    jobs = Jobs(redis, Z, LONG)
    if not await redis.exists("began"):
        await jobs.register(record())
        await jobs.register(record("other"))
        await redis.set("began", 1)
    return await jobs.remove("t/j")


async def _claimed(redis: Redis) -> Any:
    return await ResultClaims(redis, Z).take("c", [1, 2, 3], "me", 100.0)


async def _sampled(redis: Redis) -> Any:
    return await Samples(redis, Z).say("node", {"name": "node"})


async def _once(redis: Redis, first: Callable[[], Awaitable[Any]]) -> None:
    """What must be there before a change, which another attempt does not make again."""
    if not await redis.exists("began"):
        await first()
        await redis.set("began", 1)


async def _listed(redis: Redis) -> Any:
    return await DatasetTable(redis, Z).put(NAME, ListedRegistration("1" * 64, "stamp", "node"), only_new=False)


async def _unlisted(redis: Redis) -> Any:
    await _once(redis, lambda: _listed(redis))
    await DatasetTable(redis, Z).remove(NAME)


async def _ended(redis: Redis) -> Any:
    held = {str(index): "9999999999999 me" for index in range(3)}
    await _once(redis, lambda: redis.hset(f"{Z}claims:c", mapping=held))
    await ResultClaims(redis, Z)._end(keys=[f"{Z}claims:c"], args=["me", 1, 2])


async def _swept(redis: Redis) -> Any:
    name = f"{Z}claims:c"
    await _once(redis, lambda: redis.hset(name, mapping={"1": "1 other", "2": "9999999999999 other"}))
    await ResultClaims(redis, Z)._sweep(keys=[name])


async def _resigned(redis: Redis) -> Any:
    leader = Leadership(redis, Z, "me", LONG)
    await _once(redis, lambda: redis.set(f"{Z}leader", "3 me"))
    leader.fence = 3
    await leader.resign()


async def _verified(redis: Redis) -> Any:
    queue = VerificationQueue(redis, Z)
    known = await queue.all()
    name = known[0].id if known else await queue.add(["node"])
    return await queue.say(name, "node", {"state": "running"})


async def _announced(redis: Redis) -> Any:
    register = Register(_url(redis), f"{Z}nodes", LONG, 5.0)
    try:
        await register.beat(NODE, 1.0)
        await register.drain(NODE, True)
        await register.beat(NODE, 2.0)
        return await register.beat(NODE, 3.0)  # reads only the node's own entry
    finally:
        await register.close()


def _url(redis: Redis) -> str:
    return f"redis://127.0.0.1:{redis.connection_pool.connection_kwargs['port']}"


async def _reported(redis: Redis) -> Any:
    return await Fleet(redis).report("t/j", 0, profile(), batches(0.8, 1))


async def _decided(redis: Redis) -> Any:
    """Reports of two jobs of a tenant, one of which reads results, and the turn that processes them."""
    fleet = Fleet(redis)

    async def reports() -> None:
        read = ReadSums(10, 1000, 0.5, 0.25)
        await fleet.report("t/j", 0, replace(profile(cache=2, epoch=2), read=read), batches(0.8, 1))
        await fleet.report("t/k", 0, replace(profile(), read=read), batches(0.8, 1))

    await _once(redis, reports)
    await fleet.turn()


async def _followed(redis: Redis) -> Any:
    exchange = LiveExchange(redis, Z)
    await exchange.follow("f", LiveFilter())
    return await exchange.followers()


CHANGES: dict[str, Do] = {
    "the plan and its history": _planned,
    "a compare-and-set": _swapped,
    "a registration, with ranks and counters": _registered,
    "a heartbeat": _beaten,
    "a removal": _removed,
    "claims of results": _claimed,
    "a status": _sampled,
    "a report": lambda redis: NodeReports(redis, Z, HELD_ITEMS, LONG).send("node", {"d": NodeReport(1, 2)}),
    "beginnings of problems": lambda redis: Beginnings(redis, Z).record({"problem": "words"}),
    "a speaker": lambda redis: Samples(redis, Z).speaks("node", "me"),
    "a dataset": _listed,
    "a dataset's removal": _unlisted,
    "the end of claims": _ended,
    "the end of expired claims": _swept,
    "the end of a leadership": _resigned,
    "a leadership": _led,
    "a verification and its progress": _verified,
    "a node, and its draining": _announced,
    "a heartbeat with reports on a pipeline": _reported,
    "a leader's decisions on pipelines": _decided,
    "figures over time": lambda redis: Trends(redis, Z).record({"bucket:a": {"requests": 1.5}}),
    "a mute": lambda redis: Beginnings(redis, Z).mute("problem", 100.0),
    "a follower": _followed,
    "a thing of a tenant": lambda redis: TenantIndex(redis, f"{Z}of:", 3, 10_000).enter([("t", "thing")]),
}


READINGS: tuple[Do, ...] = (
    lambda redis: DatasetTable(redis, Z).look(),
    lambda redis: DatasetTable(redis, Z).all(),
    lambda redis: Jobs(redis, Z, LONG).all(),
    lambda redis: Jobs(redis, Z, LONG).records(),
    lambda redis: Plans(redis, Z).refresh(),
    lambda redis: Samples(redis, Z).statuses(),
    lambda redis: LiveExchange(redis, Z).add("f", [REQUEST], 0),
    lambda redis: LiveExchange(redis, Z).take_requests("f"),
)
"""With them the scripts that read, and those of the live view, which may lose requests, or show them twice."""


def _state(server: RedisServer) -> dict[str, Any]:
    """All that Redis has, without times."""
    reading = {
        "hash": ("HGETALL",),
        "string": ("GET",),
        "list": ("LRANGE", "0", "-1"),
        "zset": ("ZRANGE", "0", "-1"),
    }
    found = {}
    for key in server.ask("KEYS", "*"):
        command, *rest = reading[str(server.ask("TYPE", key))]
        value = server.ask(command, key, *rest)
        found[_masked(key)] = _masked(repr(sorted(value.items()) if isinstance(value, dict) else value))
    return found


def _masked(text: str) -> str:
    """A text without times and random names."""
    return re.sub(r"\d{10,}(\.\d+)?|\d+\.\d{3,}", "T", re.sub(r"\b[0-9a-f]{16,}\b", "N", text))


@pytest.mark.parametrize("change", CHANGES)
async def test_who_asks_again_does_no_harm(server: RedisServer, lossy: tuple[Redis, Proxy], change: str) -> None:
    """Rule: a change that was made, though its reply was lost, and is asked for once more leaves Redis as one change does."""
    redis, proxy = lossy
    do = CHANGES[change]
    assert await do(redis) is not False
    wanted = _state(server)
    lost = 0
    while True:
        server.flush()
        proxy.lose_reply(lost)
        with suppress(RedisConnectionError):
            await do(redis)
        if proxy.losing is not None:
            break  # it asks no more often
        await do(redis)
        assert _state(server) == wanted, f"the reply of request {lost} is lost"
        lost += 1
    proxy.losing = None
    assert lost


async def test_counters_of_an_earlier_start_are_added_once(server: RedisServer, lossy: tuple[Redis, Proxy]) -> None:
    """Rule: whichever reply is lost, and though the node sends its counters again, those of its earlier start count once."""
    redis, proxy = lossy
    samples = Samples(redis, Z)
    lost = 0
    while proxy.losing is None:
        server.flush()
        await samples.send("node", "boot-1", Counters(requests=7))
        proxy.lose_reply(lost)
        for _ in range(2):
            with suppress(RedisConnectionError):
                await samples.send("node", "boot-2", Counters(requests=1))
        lost += 1
        if proxy.losing is None:
            assert (await samples.statuses()).retired == Counters(requests=7), (
                f"the reply of request {lost - 1} is lost"
            )
    proxy.losing = None
    assert lost > 2


async def test_every_script_is_tried(server: RedisServer, lossy: tuple[Redis, Proxy]) -> None:
    """Rule: the changes above, with the scripts that read, are all scripts of the fleet."""
    redis, _ = lossy
    server.ask("SCRIPT", "FLUSH")
    for do in (*CHANGES.values(), *READINGS):
        server.flush()
        await do(redis)
    await Samples(redis, Z).send("node", "boot", Counters())
    sources = {path: path.read_text(encoding="utf-8") for path in Path(fleet.__path__[0]).rglob("*.py")}
    scripts = {(path, name) for path, text in sources.items() for name in re.findall(r"register_script\((.+)\)", text)}
    shared = sum(name == "STAMPED" for _, name in scripts) - 1
    assert int(server.ask("INFO", "memory")["number_of_cached_scripts"]) == len(scripts) - shared
