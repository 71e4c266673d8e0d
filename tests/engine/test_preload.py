"""One node executes the plan over a real store and origin: loads, evictions, reports."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from redis.exceptions import ConnectionError as RedisConnectionError

from gateway.engine.items.wanted import Purpose
from gateway.engine.lane import BESIDE
from gateway.engine.space import chunk_keeper, preload
from gateway.engine.space.chunk_keeper import ChunkKeeper, PlanExchange
from gateway.engine.space.job_readers import OpenDatasets
from gateway.engine.space.planned import Planned
from gateway.engine.space.preload import Preloader, Reader
from gateway.fleet.jobs.jobs import JobRecord
from gateway.fleet.nodes.reports import NodeReport
from gateway.policies.items.datasets import CachingMode
from gateway.policies.pools import dataset_pool
from gateway.policies.space.chunk_cut import ChunkCut
from gateway.policies.space.orders import ChunkRotation, JobOrder, Phase, PoolOrder, WhyCaching
from gateway.policies.space.plan import Plan
from gateway.store.datasets.opened import Registration
from gateway.store.datasets.registry import Registry
from gateway.testing.origin import BOB
from gateway.testing.origin_faults import Hang, Refuse
from tests.engine.datasets import BUCKET, Data, Shelf, bodies_of, shelved, until
from tests.fleet.conftest import counted

UNITS = 5


@dataclass
class Desk:
    """A node's chunk keeper, with the plan that the fleet sends it."""

    shelf: Shelf
    plan: Plan = field(default_factory=Plan)
    jobs: list[JobRecord] = field(default_factory=list)
    copied: set[str] = field(default_factory=set)
    told: dict[str, NodeReport] = field(default_factory=dict)
    times_told: int = 0
    here: set[int] | None = None
    version: int = 1
    redis_down: bool = False
    me: str = "n"

    def __post_init__(self) -> None:
        """Make the keeper, with this object in place of Redis and of the membership."""
        self.planned = Planned(lambda: self.plan, lambda: self.shelf.bench.store.status().capacity)
        self.shelf.bench.engine.services.keeps = self.planned.keeps
        shelves = OpenDatasets(
            self.find, self.shelf.registry.contents, lambda identity: identity.access_key_id != "unknown"
        )
        self.preloader = Preloader(self.shelf.bench.engine.fetches, self.shelf.bench.engine.lane)
        self.keeper = ChunkKeeper(
            self.shelf.bench.store, self.preloader, shelves, PlanExchange(self.planned, self, self, self)
        )

    async def find(self, tenant: str, name: str) -> Registration | None:
        """A dataset; one that is ``copied`` does not come."""
        if name in self.copied:
            await asyncio.Event().wait()
        return self.shelf.registry.find(tenant, name)

    async def records(self) -> list[JobRecord]:
        """The jobs."""
        if self.redis_down:
            raise RedisConnectionError("down")
        return self.jobs

    async def tell(self, node: str, report: dict[str, NodeReport]) -> None:
        """Take the report."""
        if self.redis_down:
            raise RedisConnectionError("down")
        self.told = report
        self.times_told += 1

    def homes(self, keys: NDArray[np.uint64]) -> tuple[NDArray[np.int16], tuple[object, ...]]:
        """Everything is at home here, or the items that ``here`` has by position in their chunk."""
        away = [self.here is not None and number not in self.here for number in range(len(keys))]
        return np.where(away, 0, -1).astype(np.int16), ()

    def order(self, data: Data, caching: CachingMode = CachingMode.CHUNKED, **chunks: object) -> None:
        """Have the plan say something of a dataset."""
        why = WhyCaching.BENEFIT if caching is not CachingMode.NONE else WhyCaching.NO_BENEFIT
        order = PoolOrder(caching, 2, UNITS, why, 0, ChunkRotation(**chunks))  # type: ignore[arg-type]
        content = data.registration.content
        self.plan = replace(
            self.plan, version=self.plan.version + 1, pools={**self.plan.pools, dataset_pool(content.id): order}
        )

    def read_by(self, data: Data, key: str = "") -> None:
        """Have a job read a dataset."""
        registration, identity = data.registration, self.shelf.bench.identity
        record = JobRecord(
            registration.tenant, f"j{len(self.jobs)}", registration.content.id, registration.name, 1, 1, 1, "auto",
            identity.origin, key or identity.access_key_id, 0, 0, "auto",
        )  # fmt: skip
        self.jobs.append(record)

    def chunk(self, data: Data, *numbers: int) -> set[int]:
        """The items of chunks."""
        content = data.registration.content
        cut = ChunkCut(content.id, content.items, 2, UNITS)
        return {int(index) for number in numbers for index in cut.items_of(number)}

    async def loaded(self, data: Data, chunk: int) -> None:
        """Turn until this node says that it has a chunk."""
        name = data.registration.content.id
        for _ in range(2000):
            await self.keeper.turn()
            if self.told.get(name, NodeReport()).chunk == chunk:
                return
            await asyncio.sleep(0.005)
        raise TimeoutError(f"chunk {chunk} was not loaded")


@pytest.fixture
async def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Desk]:
    """A keeper that tries again soon."""
    monkeypatch.setattr(preload, "_AGAIN", 0.01)
    async with shelved(tmp_path) as shelf:
        made = Desk(shelf)
        yield made
        await made.keeper.stop()


async def rotating(desk: Desk, bodies: Sequence[bytes] | None = None, **chunks: object) -> Data:
    """A dataset of 40 items that a job reads, of which some chunks are held."""
    data = await desk.shelf.dataset(bodies or bodies_of(40), "chunked")
    desk.read_by(data)
    desk.order(data, **chunks)
    return data


async def test_a_node_without_planned_datasets_reports_once(desk: Desk) -> None:
    """Rule: a node without planned datasets reports once; a dataset in the plan is in every report."""
    for _ in range(3):
        await desk.keeper.turn()
    assert (desk.told, desk.times_told) == ({}, 1)
    data = await rotating(desk)
    for _ in range(2):
        await desk.keeper.turn()
    assert (list(desk.told), desk.times_told) == ([data.registration.content.id], 3)


async def test_the_chunk_to_come_is_loaded_and_nothing_else(desk: Desk) -> None:
    """Rule: each item of the next chunk is read once without a reader, and the node reports when all are there."""
    before = counted("larder_preloaded_bytes_total")
    data = await rotating(desk, loading=2)
    await desk.loaded(data, 2)
    assert data.resident == desk.chunk(data, 2)
    assert data.reads() == len(data.resident)
    lengths = data.registration.content.lengths[sorted(data.resident)]
    assert counted("larder_preloaded_bytes_total") == before + int(lengths.sum())
    assert desk.told[data.registration.content.id].resident == len(data.resident)


async def test_only_what_is_at_home_here_is_loaded(desk: Desk, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: a node loads its own part of a chunk, and counts no other in its log; when homes move, it looks again."""
    caplog.set_level("INFO")
    desk.here = {0, 3}
    data = await rotating(desk, loading=2)
    await desk.loaded(data, 2)
    content = data.registration.content
    chunk = ChunkCut(content.id, content.items, 2, UNITS).items_of(2).tolist()
    assert data.resident == {chunk[0], chunk[3]}
    told = f"of {len(chunk)} items 2 are at home here: 2 of those are held, 0 not to be had"
    assert [record.message.endswith(told) for record in caplog.records if "at home here" in record.message] == [True]
    desk.here, desk.version = {0, 1, 3}, 2
    await desk.keeper.turn()
    await desk.loaded(data, 2)
    assert data.resident == {chunk[0], chunk[1], chunk[3]}
    assert data.reads() == 3


async def test_two_chunks_at_any_time(desk: Desk) -> None:
    """Rule: over a whole rotation the cache never holds items of three chunks, and evicted chunks are deleted from the disk."""
    data = await rotating(desk, loading=0)
    await desk.loaded(data, 0)
    for number in range(1, 2 * UNITS):
        last, chunk = (number - 1) % UNITS, number % UNITS
        desk.order(data, complete=(last,), loading=chunk, active=last)
        allowed = desk.chunk(data, last, chunk)
        for _ in range(2000):
            await desk.keeper.turn()
            assert data.resident <= allowed
            if desk.told[data.registration.content.id].chunk == chunk:
                break
            await asyncio.sleep(0.005)
        assert data.resident == allowed
        assert {index for index in range(40) if data.blob(index).exists()} == allowed


async def test_items_outside_the_held_chunks_are_delivered_but_not_kept(desk: Desk) -> None:
    """Rule: a reader gets every item of a rotated dataset; only those of held chunks stay."""
    data = await rotating(desk, complete=(1,), loading=3, active=1)
    batch = await data.exact(range(40))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert data.resident == desk.chunk(data, 1, 3)
    assert await data.prefetch(range(40)) is not None
    await until(lambda: desk.shelf.batches.fetches.active == 0)
    assert data.resident == desk.chunk(data, 1, 3)


async def test_bytes_that_another_dataset_has_a_place_for_stay(desk: Desk) -> None:
    """Rule: evicting a chunk spares items that a whole dataset, or a held chunk of the same one, has too."""
    shared = bodies_of(40)
    shared[1] = shared[30]
    data = await rotating(desk, shared, loading=0)
    whole = await desk.shelf.dataset(shared[4:6], "full")
    chunk_of = {index: number for number in range(UNITS) for index in desk.chunk(data, number)}
    desk.order(data, complete=tuple(range(UNITS)))
    await data.warm(range(40))
    held = chunk_of[30]
    desk.order(data, complete=(held,), active=held)
    await desk.keeper.turn()
    assert data.resident == desk.chunk(data, held) | {1, 30, 4, 5}
    assert all(whole.blob(index).exists() for index in range(2))


async def test_what_the_plan_gives_space_is_spared_whichever_worker_serves_it(desk: Desk) -> None:
    """Rule: the worker that evicts need not have been asked for the other dataset itself; its items are spared, and counted."""
    shared = bodies_of(40)
    data = await rotating(desk, shared, loading=0)
    whole = await desk.shelf.dataset(shared[4:6], "full")
    desk.read_by(whole)
    desk.order(whole, CachingMode.FULL)
    desk.order(data, complete=tuple(range(UNITS)))
    await data.warm(range(40))
    own = Registry(desk.shelf.registry.folders.root, desk.shelf.bench.store.directory.boot)

    async def find(tenant: str, name: str) -> Registration | None:
        return own.find(tenant, name)

    shelves = OpenDatasets(find, own.contents, lambda identity: True)
    desk.keeper = ChunkKeeper(
        desk.shelf.bench.store, desk.preloader, shelves, PlanExchange(desk.planned, desk, desk, desk)
    )
    desk.order(data, complete=(0,), active=0)
    await desk.keeper.turn()
    assert all(whole.blob(index).exists() for index in range(2))
    assert len(desk.chunk(data, 0)) < 40
    await until(lambda: sum(data.blob(index).exists() for index in range(40)) == len(desk.chunk(data, 0) | {4, 5}))
    for _ in range(chunk_keeper._SWEEP_EVERY):
        await desk.keeper.turn()
    assert all(whole.blob(index).exists() for index in range(2))


async def test_what_an_object_needs_stays(desk: Desk) -> None:
    """Rule: bytes that were also read as an object stay: they belong to plain reads, not to the rotation."""
    data = await rotating(desk, loading=0)
    index = min(desk.chunk(data, 2))
    assert await desk.shelf.bench.read(data.key(index)) == data.bodies[index]
    await desk.shelf.bench.settle()
    await data.exact([index])
    await desk.keeper.turn()
    assert data.blob(index).exists()


async def test_what_cannot_be_had_does_not_hold_up_the_rotation(desk: Desk) -> None:
    """Rule: a chunk is complete without items that the origin lacks; items that failed are tried again."""
    data = await rotating(desk, loading=1)
    chunk = sorted(desk.chunk(data, 1))
    desk.shelf.bench.origin.delete("b", data.key(chunk[0]))
    # Three attempts of the first round fail; the second round finds the origin well.
    desk.shelf.bench.origin.inject(Refuse(times=3, path=data.path(chunk[1])))
    await desk.loaded(data, 1)
    assert data.resident == set(chunk) - {chunk[0]}


async def test_another_jobs_reader_is_tried(desk: Desk) -> None:
    """Rule: an item refused to one job's keys is tried with another job's."""
    data = await desk.shelf.dataset(bodies_of(40), "chunked")
    desk.shelf.bench.origin.deny(BOB.access_key_id, f"{BUCKET}/*")
    desk.read_by(data, BOB.access_key_id)
    desk.read_by(data)
    desk.order(data, loading=1)
    await desk.loaded(data, 1)
    assert data.resident == desk.chunk(data, 1)
    assert data.reads() == 2 * len(data.resident)


async def test_nothing_is_read_as_somebody_this_node_does_not_know(desk: Desk) -> None:
    """Rule: a job whose origin identity is not in this node's configuration loads nothing here."""
    data = await desk.shelf.dataset(bodies_of(40), "chunked")
    desk.read_by(data, "unknown")
    desk.order(data, loading=1)
    await desk.keeper.turn()
    assert desk.keeper._rotated[data.registration.content.id].readers == []
    assert data.reads() == 0


async def test_readers_come_first(desk: Desk) -> None:
    """Rule: while a reader waits for the origin, at most two items are loaded beside it."""
    data = await rotating(desk, loading=1)
    outside = min(desk.chunk(data, 3))
    desk.shelf.bench.origin.inject(Hang(times=100))
    reader = asyncio.create_task(data.exact([outside]))
    await until(lambda: desk.shelf.batches.fetches.active == 1)
    await desk.keeper.turn()
    await until(lambda: desk.shelf.batches.fetches.active == 1 + BESIDE)
    for _ in range(20):
        await desk.keeper.turn()
        await asyncio.sleep(0.005)
        assert desk.shelf.batches.fetches.active <= 1 + BESIDE
    reader.cancel()
    await asyncio.gather(reader, return_exceptions=True)


async def test_only_the_worker_with_the_lock_keeps_chunks(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: siblings of the keeper load and report nothing; one that loses the lock stops."""
    data = await rotating(desk, loading=1)
    monkeypatch.setattr(type(desk.shelf.bench.store.directory), "locked", property(lambda _: False))
    await desk.keeper.turn()
    assert (desk.told, data.resident) == ({}, set())


async def test_a_lost_redis_lets_a_load_go_on(desk: Desk) -> None:
    """Rule: while Redis is down a load continues, and is reported when Redis is back."""
    data = await rotating(desk, loading=1)
    await desk.keeper.turn()
    desk.redis_down = True
    for _ in range(2000):
        await desk.keeper.turn()
        if data.resident == desk.chunk(data, 1):
            break
        await asyncio.sleep(0.005)
    assert data.resident == desk.chunk(data, 1)
    desk.redis_down = False
    await desk.loaded(data, 1)


async def test_a_node_that_knows_nobody_to_read_as_is_not_waited_for(desk: Desk) -> None:
    """Rule: without a job's registration a node soon reports that it has every item that it can load."""
    data = await desk.shelf.dataset(bodies_of(40), "chunked")
    desk.order(data, loading=1)
    await desk.keeper.turn()
    assert desk.told[data.registration.content.id] == NodeReport(-1, 0)
    for _ in range(chunk_keeper._PATIENCE + 2):
        await desk.keeper.turn()
    assert desk.told[data.registration.content.id] == NodeReport(1, 0)


async def test_a_registration_that_is_long_in_coming_holds_no_other_dataset_up(desk: Desk) -> None:
    """Rule: while one dataset is copied from another node, the chunks of the others are loaded, and reported."""
    first, second = await rotating(desk, loading=1), await rotating(desk, bodies_of(40, seed=1), loading=1)
    slow = first.registration.content.id
    desk.copied = {slow}
    async with asyncio.timeout(15):
        await desk.loaded(second, 1)
    assert slow in desk.told
    assert first.resident == set()


async def test_a_plan_that_changes_ends_what_it_does_not_want(desk: Desk) -> None:
    """Rule: when the plan drops a chunk, its load is cancelled."""
    data = await rotating(desk, loading=1)
    for index in desk.chunk(data, 1):
        desk.shelf.bench.origin.inject(Hang(path=data.path(index)))
    await desk.keeper.turn()
    await until(lambda: desk.shelf.batches.fetches.active > 0)
    desk.order(data, loading=2)
    await desk.loaded(data, 2)
    assert data.resident == desk.chunk(data, 2)


async def test_an_item_counts_though_its_load_was_cancelled(desk: Desk) -> None:
    """Rule: a fetch in progress outlives the load that began it, and its item counts as loaded ahead."""
    before = counted("larder_importance_prefetched_items_total")
    data = await desk.shelf.dataset(bodies_of(2), "full")
    hang = Hang(path=data.path(1))
    desk.shelf.bench.origin.inject(hang)
    reader = Reader(data.registration, desk.shelf.bench.identity)
    load = asyncio.create_task(desk.preloader.load([reader], np.array([1], dtype=np.uint32), Purpose.IMPORTANCE))
    await hang.gate.reached()
    load.cancel()
    await asyncio.gather(load, return_exceptions=True)
    hang.gate.open()
    await until(lambda: data.blob(1).exists() and not desk.shelf.batches.fetches.active)
    assert counted("larder_importance_prefetched_items_total") == before + 1


async def test_a_dataset_without_a_place_is_delivered_and_not_kept(desk: Desk) -> None:
    """Rule: items of a dataset without space are delivered but not stored, even if the reader still uses an older mode."""
    data = await desk.shelf.dataset(bodies_of(10), "full")
    desk.order(data, CachingMode.NONE)
    batch = await data.exact(range(10))
    assert batch.delivered == dict(enumerate(data.bodies))
    assert data.resident == set()


async def test_no_word_of_a_tenant_is_the_name_of_anothers_job(desk: Desk) -> None:
    """Rule: a job belongs to its tenant, also if the tenant's name has a slash."""
    data = await rotating(desk, loading=1)
    left = JobOrder(cache=False, phase=Phase.STEADY)
    desk.plan = replace(desk.plan, jobs={"t/j": left, "t/u/j": left})
    registration = replace(data.registration, tenant="t")
    assert not desk.planned.of(registration, "j").cache
    assert desk.planned.of(registration, "u/j").cache
    assert not desk.planned.of(replace(registration, tenant="t/u"), "j").cache
