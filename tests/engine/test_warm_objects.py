"""Background loads of objects: after readers, each block once, never more than the cache holds."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import cast

import pytest

from gateway.engine.base.homes import PeerNodes
from gateway.engine.items.lane import BESIDE
from gateway.engine.operations.warm_objects import Warmed, WarmObjects
from gateway.fleet.nodes.peers import PeerUnavailable
from gateway.model.fleet import Node, NodeState
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.outcomes import Outcome, Reason
from gateway.net import exchange
from gateway.operate.explain.work import Explainer, expected
from gateway.operate.warm.permitted import PermittedLoads
from gateway.operate.warm.warm_prefix import WarmPrefix
from gateway.operate.warm.warming import WarmupFailed, WarmupProgress
from gateway.origin.listing import ListedObject, ListingPage, Listings
from gateway.policies.lane import LoadClass
from gateway.policies.reads.rules import Caching, Rules
from rig.origin_faults import Hang
from tests.engine.conftest import BLOCK, Bench, benched
from tests.fleet.conftest import until


async def load(bench: Bench, objects: WarmObjects, key: str) -> Warmed:
    """Load one object."""
    return await objects.load(ObjectKey("default", "b", key), "t", bench.identity)


def running(bench: Bench) -> int:
    """Loads for warm-ups that are under way."""
    return bench.engine.lane.running(LoadClass.WARMUP)


async def test_an_object_is_loaded_whole_and_once(bench: Bench) -> None:
    """Rule: a load reads every block once; a second load reads none."""
    body = b"x" * (3 * BLOCK + 5)
    bench.origin.put("b", "k", body)
    objects = WarmObjects(bench.engine, None)
    assert await load(bench, objects, "k") == Warmed(len(body), False)
    await bench.settle()
    assert await load(bench, objects, "k") == Warmed(len(body), True)
    assert bench.origin.count("GET") == 1


async def test_what_cannot_be_loaded_is_said_with_its_reason(bench: Bench) -> None:
    """Rule: each failure has words: no such object, refused by a rule, by the object, an origin that was
    removed since, one that is away."""
    bench.origin.put("b", "private", b"x", [("Cache-Control", "private")])
    bench.origin.put("b", "ruled", b"x")
    bench.engine.services.rules = Rules([Caching(match="b/ruled", cache=False)])
    objects = WarmObjects(bench.engine, None)
    failures = [(await load(bench, objects, key)).failure for key in ("nothing", "private", "ruled")]
    assert [bool(failure) for failure in failures] == [True, True, True]
    assert "no such object" in failures[0]
    assert "private" in failures[1]
    assert "rule" in failures[2]
    gone = await objects.load(ObjectKey("gone", "b", "k"), "t", OriginIdentity("gone", "OK"))
    assert "no longer configured" in gone.failure
    await bench.origin.stop()
    assert "cannot be reached" in (await load(bench, objects, "else")).failure
    await bench.origin.start()


async def test_an_origin_that_is_busy_is_not_called_unreachable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a load that gets no connection says that all are in use, and which setting allows more."""
    monkeypatch.setattr(exchange, "WITHIN", 0.01)
    async with benched(tmp_path / "cache", max_connections=1) as bench:
        for key in ("wanted", "else"):
            bench.origin.put("b", key, b"r" * BLOCK)
        reader = bench.origin.inject(Hang(path="/b/wanted", after=10))
        reading = asyncio.create_task(bench.read("wanted"))
        await reader.gate.reached()
        failure = (await load(bench, WarmObjects(bench.engine, None), "else")).failure
        assert failure.startswith("all connections to the origin are in use")
        assert "max_connections" in failure
        reader.gate.open()
        await reading


async def test_readers_come_first(tmp_path: Path) -> None:
    """Rule: while a reader's fill is under way, few loads go on beside it; the others begin when it is over."""
    async with benched(tmp_path / "cache", max_fills=64) as bench:
        bench.origin.put("b", "wanted", b"r" * BLOCK)
        for number in range(8):
            bench.origin.put("b", f"w/{number}", b"w" * 100)
        reader = bench.origin.inject(Hang(path="/b/wanted", after=10))
        loads_hang = bench.origin.inject(Hang(path="/b/w/", times=8, after=10))
        reading = asyncio.create_task(bench.read("wanted"))
        await until(lambda: bench.engine.blocks.active == 1)
        objects = WarmObjects(bench.engine, None)
        loads = [asyncio.create_task(load(bench, objects, f"w/{number}")) for number in range(8)]
        await until(lambda: running(bench) == BESIDE)
        for _ in range(20):
            await asyncio.sleep(0)
            assert running(bench) == BESIDE
        reader.gate.open()
        await reading
        await until(lambda: running(bench) > BESIDE)
        loads_hang.gate.open()
        assert [done.failure for done in await asyncio.gather(*loads)] == [""] * 8


async def test_loads_take_half_of_the_places_at_most(bench: Bench) -> None:
    """Rule: loads use at most half of the fill slots, so readers find the other half free; no load fails for lack of a slot."""
    for number in range(8):
        bench.origin.put("b", f"w/{number}", b"w" * 100)
    hang = bench.origin.inject(Hang(path="/b/w/", times=8, after=10))
    objects = WarmObjects(bench.engine, None)
    loads = [asyncio.create_task(load(bench, objects, f"w/{number}")) for number in range(8)]
    await hang.gate.reached()
    assert running(bench) == bench.engine.blocks.half == 2
    hang.gate.open()
    assert [done.failure for done in await asyncio.gather(*loads)] == [""] * 8


async def test_another_node_hears_that_a_load_goes_on(bench: Bench) -> None:
    """Rule: the first line of a load comes at once, and the last one has the result."""
    bench.origin.put("b", "k", b"x" * 100)
    objects = WarmObjects(bench.engine, None)
    lines = [line async for line in objects.progress(ObjectKey("default", "b", "k"), bench.identity)]
    assert lines[0] == b"\n"
    assert json.loads(b"".join(lines)) == {"size": 100, "there": False, "failure": ""}


async def test_what_is_explained_is_what_comes(bench: Bench) -> None:
    """Rule: the explainer predicts the read path, and asks no origin."""
    bench.origin.put("b", "k", b"x" * (2 * BLOCK))
    key, rule = ObjectKey("default", "b", "k"), Caching()
    explainer = Explainer(bench.engine, "me")
    assert expected(rule, await explainer.here(key, bench.identity)).reason is Reason.COLD
    await bench.read("k", 0, 10)
    await bench.settle()
    partial = await explainer.here(key, bench.identity)
    assert (partial.resident, partial.blocks, expected(rule, partial).reason) == (1, 2, Reason.PARTIAL)
    await bench.read("k")
    await bench.settle()
    asked = bench.origin.count()
    found = await explainer.here(key, bench.identity)
    assert (expected(rule, found).outcome, expected(rule, found).reason) == (Outcome.HIT, None)
    bench.now[0] += 601
    assert expected(rule, await explainer.here(key, bench.identity)).reason is Reason.REVALIDATED
    assert bench.origin.count() == asked


class Homes:
    """A fleet whose nodes answer loads with a status, or not at all (0); a node that does not answer stops being an owner."""

    def __init__(self, **statuses: int) -> None:
        self.members, self.peers = self, self
        self.statuses = statuses
        self.asked: list[str] = []
        self.open = 0
        self.reading = asyncio.Event()
        self.gate: asyncio.Event | None = None

    def home(self, _key: int) -> Node | None:
        """The first node that is left; ``None``: this one."""
        return next((Node(name, "", 1, "default", NodeState.READY) for name in self.statuses), None)

    async def request(self, node: Node, *_rest: object, **_options: object) -> Homes:
        """Ask a node to load an object."""
        self.asked.append(node.id)
        self.status = self.statuses[node.id]
        if not self.status:
            del self.statuses[node.id]
            raise PeerUnavailable(f"node {node.id} does not answer")
        self.open += 1
        return self

    async def read(self, _most: int) -> bytes:
        """The result of a load; with a gate, once it is open. Releases the answer, as ``StreamedResponse.read`` does."""
        self.reading.set()
        try:
            if self.gate is not None:
                await self.gate.wait()
        finally:
            self.open -= 1
        return b'{"size": 7, "there": false, "failure": ""}'


async def test_a_home_that_fails_is_not_replaced_by_this_node(bench: Bench) -> None:
    """Rule: an object whose home answers with an error is not loaded elsewhere, where no reader would find it."""
    bench.origin.put("b", "k", b"x")
    homes = Homes(a=500)
    done = await load(bench, WarmObjects(bench.engine, cast(PeerNodes, homes)), "k")
    assert done == Warmed(failure="node a answered 500")
    assert bench.origin.count("GET") == 0


@pytest.mark.parametrize(("statuses", "asked", "here"), [({"a": 0, "b": 200}, ["a", "b"], 0), ({"a": 0}, ["a"], 1)])
async def test_a_home_that_is_gone_has_a_successor(
    bench: Bench, statuses: dict[str, int], asked: list[str], here: int
) -> None:
    """Rule: the successor of a node that does not answer loads in its place: another node, or this one."""
    bench.origin.put("b", "k", b"x" * 7)
    homes = Homes(**statuses)
    assert await load(bench, WarmObjects(bench.engine, cast(PeerNodes, homes)), "k") == Warmed(7, False)
    assert homes.asked == asked
    assert bench.origin.count("GET") == here


async def test_a_load_that_is_cancelled_releases_the_answer_of_its_home(bench: Bench) -> None:
    """Rule: the connection to a home that is still loading is closed with the load."""
    homes = Homes(a=200)
    homes.gate = asyncio.Event()
    loading = asyncio.create_task(load(bench, WarmObjects(bench.engine, cast(PeerNodes, homes)), "k"))
    await homes.reading.wait()
    assert homes.open == 1
    loading.cancel()
    await asyncio.wait([loading])
    assert homes.open == 0


async def test_homes_that_do_not_answer_end_a_load(bench: Bench) -> None:
    """Rule: after three nodes that do not answer the load has failed, and this node has read nothing."""
    bench.origin.put("b", "k", b"x")
    homes = Homes(a=0, b=0, c=0, d=200)
    done = await load(bench, WarmObjects(bench.engine, cast(PeerNodes, homes)), "k")
    assert done == Warmed(failure="node c does not answer")
    assert bench.origin.count("GET") == 0


def test_progress_goes_back_to_its_mark() -> None:
    """Rule: counts after the last mark are counted again after a resume; the catalog keeps the progress whole."""
    progress = WarmupProgress(total=10, total_bytes=100)
    progress.loaded(5, True)
    progress.fail("k", "why")
    progress.mark("k")
    progress.loaded(7, False)
    progress.fail("l", "why")
    again = WarmupProgress.from_json(json.loads(json.dumps(progress.to_json())))
    assert again == progress
    again.rewind()
    assert (again.done, again.done_bytes, again.there, again.failed, len(again.examples)) == (2, 5, 1, 1, 1)
    again.restart()
    assert again == WarmupProgress()


class Repeating:
    """Listings of a store that ignores start-after."""

    async def list_page(self, *_asked: object, **_options: object) -> ListingPage:
        """The first page again."""
        await asyncio.sleep(0)  # lets a time limit cancel an endless listing
        return ListingPage((ListedObject("k", 1),), (), True, "")


async def test_a_list_without_an_end_ends_a_warm_up(bench: Bench) -> None:
    """Rule: a warm-up fails when the store repeats a page, as stores without start-after do."""
    objects = WarmObjects(bench.engine, None)
    reader = Principal("A", "t", bench.identity)
    listings = cast(Listings, Repeating())
    work = WarmPrefix("b", "", lambda: reader, listings, PermittedLoads(objects, lambda: Rules([])), lambda: 10**9)
    with pytest.raises(WarmupFailed, match="repeats"):
        await asyncio.wait_for(work.run(WarmupProgress()), 60)
