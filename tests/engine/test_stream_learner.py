"""One worker's part in learning from reads: it folds if it keeps the cache, and hands over if it does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from gateway.base.config import CacheSettings
from gateway.base.metrics import STREAM_ACCESSES
from gateway.engine.space import stream_learner
from gateway.engine.space.stream_learner import StreamLearner, StreamLinks
from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey
from gateway.policies.pools import Pool, with_default
from gateway.policies.reads.rules import Caching, Rules
from gateway.policies.streams.pattern import WINDOW, Pattern
from gateway.policies.streams.zone import NodeStreams
from gateway.store.shared.accesses import ObservedReads
from gateway.store.shared.observation import ReadChannel
from gateway.store.store import Store
from tests.engine.conftest import BLOCK, Bench, asked_of
from tests.stores import key_of, put

REPORT = stream_learner._REPORT_EVERY
Record = Callable[[Sequence[ObjectRead]], None]


class Zone:
    """Receives a node's reports; ``lost`` stands for a Redis that is down."""

    def __init__(self) -> None:
        self.told: list[NodeStreams] = []
        self.lost = False

    async def send(self, report: NodeStreams) -> None:
        """Hear a report."""
        if self.lost:
            raise ConnectionError("lost")
        self.told.append(report)


class Worker:
    """A worker whose clients read; its clock is the bench's."""

    def __init__(
        self, store: Store, place: Path, zone: Zone, bench: Bench, rules: Rules, record: Record | None = None
    ) -> None:
        self.observed = ObservedReads()
        self.channel = ReadChannel(place)
        links = StreamLinks(lambda: rules, BLOCK, zone.send, lambda _: 0, record=record)
        self.learner = StreamLearner(store, self.observed, self.channel, links, lambda: bench.now[0])
        self.bucket = "lake"
        self._bench = bench

    def read(self, key: str, start: int = 0, stop: int = 100, size: int = 100, origin: str = "default") -> None:
        """A client reads."""
        self._bench.now[0] += 0.01
        place = ObjectKey(origin, self.bucket, key)
        self.observed.note(place, start, stop, size, False, self._bench.now[0], "AK", ("h", 1), 0.25)

    async def scan(self, prefix: str, count: int = 150, origin: str = "default") -> None:
        """A client reads a prefix in order, and the worker turns until it reports."""
        for number in range(count):
            self.read(f"{prefix}{number:04}", origin=origin)
        for _ in range(REPORT):
            await self.learner.run_once()


@contextmanager
def worker(
    bench: Bench,
    tmp_path: Path,
    zone: Zone,
    store: Store | None = None,
    *rules: Caching,
    record: Record | None = None,
) -> Iterator[Worker]:
    """A worker of the bench's node."""
    made = Worker(store or bench.store, tmp_path / "reads", zone, bench, Rules(rules), record)
    try:
        yield made
    finally:
        made.channel.close()


async def test_the_keeper_tells_the_zone_of_streams(bench: Bench, tmp_path: Path) -> None:
    """Rule: reads become streams with pattern, evidence, and counts; names have the origin unless that is ``default``."""
    zone = Zone()
    with worker(bench, tmp_path, zone) as one:
        await one.scan("a/")
        await one.scan("b/", origin="other")
    seen = zone.told[-1].streams
    assert set(seen) == {"lake/a/", "other:lake/b/"}
    assert seen["lake/a/"].pattern is Pattern.SEQUENTIAL
    assert seen["lake/a/"].evidence is not None
    assert seen["lake/a/"].idle == pytest.approx(1.5)


async def test_the_keeper_says_what_a_stream_without_a_pool_has(bench: Bench, tmp_path: Path) -> None:
    """Rule: reports have a stream's cached bytes until the stream has a pool, whose bytes count from then on."""
    zone = Zone()
    for number in range(5):
        await put(bench.store, f"a/{number:04}", bytes([number]) * 100)
    name = f"{key_of('').bucket}/a/"
    with worker(bench, tmp_path, zone) as one:
        one.bucket = key_of("").bucket
        await one.scan("a/")
        assert zone.told[-1].streams[name].held == 500
        await bench.store.pools.define(with_default([Pool(f"stream:{name}", 10**6)], 10**7, "lru"))
        await one.scan("a/")
        assert zone.told[-1].streams[name].held == 0


async def test_a_large_object_is_read_block_by_block(bench: Bench, tmp_path: Path) -> None:
    """Rule: a GET of many blocks is a read of each, and one range of the first block is a read of that."""
    zone, size = Zone(), 400 * BLOCK - 7
    with worker(bench, tmp_path, zone) as one:
        one.read("big", 0, 100, size)
        one.read("big", 0, size, size)
        for _ in range(REPORT):
            await one.learner.run_once()
        (stream,) = one.learner.tree.streams()
    assert (stream.name, stream.blocks, stream.pattern) == ("lake/big", 400, Pattern.SEQUENTIAL)


async def test_a_worker_without_the_lock_hands_over(bench: Bench, tmp_path: Path) -> None:
    """Rule: the keeper folds the reads of the other workers."""
    zone = Zone()
    settings = CacheSettings(dir=str(tmp_path / "cache"), capacity=64 * 1024**2, block_size=BLOCK, reserve=0)
    sibling = await Store.open(settings, now=lambda: bench.now[0])
    try:
        with worker(bench, tmp_path, zone) as keeper, worker(bench, tmp_path, zone, sibling) as other:
            await keeper.learner.run_once()
            await other.scan("a/")
            assert other.learner.tree.streams() == []
            await keeper.learner.run_once()
            assert [stream.name for stream in keeper.learner.tree.streams()] == ["lake/a/"]
    finally:
        await sibling.close()


async def test_reads_since_the_last_turn_are_recorded_at_the_end(bench: Bench, tmp_path: Path) -> None:
    """Rule: profiles have the reads of every worker that ends before the keeper, and of the keeper itself."""
    recorded: list[ObjectRead] = []
    settings = CacheSettings(dir=str(tmp_path / "cache"), capacity=64 * 1024**2, block_size=BLOCK, reserve=0)
    sibling = await Store.open(settings, now=lambda: bench.now[0])
    try:
        with (
            worker(bench, tmp_path, Zone(), record=recorded.extend) as keeper,
            worker(bench, tmp_path, Zone(), sibling) as other,
        ):
            await keeper.learner.run_once()
            keeper.read("a")
            other.read("b")
            await other.learner.close()
            await keeper.learner.close()
    finally:
        await sibling.close()
    assert [read.key.key for read in recorded] == ["a", "b"]


async def test_rules_say_how_a_prefix_is_read(bench: Bench, tmp_path: Path) -> None:
    """Rule: ``off`` disables the stream; any other pattern of a rule is reported instead of the recognised one."""
    zone, rules = Zone(), (Caching("lake/off/**", pattern="off"), Caching("lake/given/**", pattern="random"))
    with worker(bench, tmp_path, zone, None, *rules) as one:
        await one.scan("off/")
        await one.scan("given/")
    assert {name: stream.pattern for name, stream in zone.told[-1].streams.items()} == {"lake/given/": Pattern.RANDOM}


async def test_a_lost_redis_holds_nothing_up(bench: Bench, tmp_path: Path) -> None:
    """Rule: while Redis is lost, reads are still folded, and the next report contains them."""
    zone = Zone()
    zone.lost = True
    with worker(bench, tmp_path, zone) as one:
        await one.scan("a/")
        zone.lost = False
        await one.scan("b/")
    assert set(zone.told[-1].streams) == {"lake/a/", "lake/b/"}


async def test_a_read_of_a_huge_object_costs_no_more_than_a_window(bench: Bench, tmp_path: Path) -> None:
    """Rule: of one read the last 200 blocks are folded, so a client that asks for a terabyte and leaves costs little."""
    with worker(bench, tmp_path, Zone()) as one:
        one.read("huge", 0, 1_000_000 * BLOCK, 1_000_000 * BLOCK)
        await one.learner.run_once()
    assert one.learner.tree.streams()[0].accesses <= 2 * WINDOW


async def test_a_turn_folds_a_bounded_number_of_blocks(bench: Bench, tmp_path: Path) -> None:
    """Rule: reads beyond 8,192 blocks in a turn are dropped and counted; the worker answers requests in between."""
    recorded, dropped = (STREAM_ACCESSES.labels(result)._value.get() for result in ("recorded", "dropped"))
    with worker(bench, tmp_path, Zone()) as one:
        for number in range(100):
            one.read(f"huge-{number}", 0, 1000 * BLOCK, 1000 * BLOCK)
        await one.learner.run_once()
    after = [STREAM_ACCESSES.labels(result)._value.get() for result in ("recorded", "dropped")]
    assert (after[0] - recorded, after[1] - dropped) == (41, 59)


async def test_without_streams_the_index_is_not_asked(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a keeper without streams reads the pools once, and again when pools were defined; then it tells of them."""
    zone, pools = Zone(), bench.store.pools
    asked = asked_of(bench.store, monkeypatch)
    with worker(bench, tmp_path, zone) as keeper:
        await pools.define(with_default([], 10**7, "lru"))
        for _ in range(5 * REPORT):
            await keeper.learner.run_once()
        assert len(asked) == 1
        await pools.define(with_default([Pool("stream:lake/a/", 10**6)], 10**7, "lru"))
        for _ in range(2 * REPORT):
            await keeper.learner.run_once()
    assert len(asked) == 3
    assert set(zone.told[-1].pools) == {"lake/a/"}
