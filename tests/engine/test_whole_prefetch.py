"""Random streams loaded whole: into the room of their pools, with the reader's rights, bounded, and ended where it is wrong."""

from __future__ import annotations

import logging
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.engine.operations.warm_objects import WarmObjects
from gateway.engine.space.stream_learner import whole_streams
from gateway.engine.space.stream_prefetch import PrefetchLinks, StreamPrefetcher
from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.s3.ranges import block_span
from gateway.origin.listing import ListedObject, ListingPage, ListingRefused, Listings
from gateway.policies.reads.rules import Caching, Rules
from gateway.policies.streams import wholes
from gateway.policies.streams.instructions import LoadRights
from gateway.policies.streams.prefetch import DEPTH, JUDGED, LEAST_ACCURACY, MOST_FAILURES, PoolRoom
from gateway.policies.streams.tree import AccessStreamTree
from gateway.policies.streams.wholes import MOST_PAGES, WholeStreams
from gateway.policies.streams.zone import AheadReport
from rig.origin import ALICE, BOB
from tests.engine.conftest import BLOCK, Bench, benched

WINDOW = 10
SMALL = 1000
PLENTY = {"b/train/": PoolRoom(10**9)}
NAMES = [f"train/{number:03}" for number in range(200)]
ORDER = random.Random(5).sample(NAMES, len(NAMES))


class Pages(Listings):
    """Listings that are counted, or made up by ``pages``: the names on the page of a number."""

    def __init__(self, bench: Bench, pages: Callable[[int], ListingPage] | None = None) -> None:
        super().__init__(bench.engine.services.origin)
        self.count = 0
        self._pages = pages

    async def list_page(self, *asked: object, **how: object) -> ListingPage:
        """See ``Listings``."""
        self.count += 1
        if self._pages is not None:
            return self._pages(self.count)
        return await super().list_page(*asked, **how)  # type: ignore[arg-type]


@dataclass
class Training:
    """A client that reads bucket ``b`` at random, through a node whose tree needs 10 reads to see a stream."""

    bench: Bench
    pages: Pages
    principal: Principal | None
    rules: Rules = field(default_factory=lambda: Rules([Caching(match="b/**", pattern="random")]))
    tree: AccessStreamTree = field(default_factory=lambda: AccessStreamTree(window=WINDOW))
    rooms: dict[str, PoolRoom] = field(default_factory=lambda: dict(PLENTY))
    whole: StreamPrefetcher[WholeStreams] = field(init=False)
    now: float = 0.0

    def __post_init__(self) -> None:
        links = PrefetchLinks(
            WarmObjects(self.bench.engine, None),
            self.pages,
            LoadRights(lambda _: self.principal, lambda: self.rules),
            BLOCK,
            10**9,
        )
        self.whole = whole_streams(self.tree, links)

    async def read(self, key: str, start: int = 0, size: int = SMALL, stop: int | None = None) -> None:
        """Report one read, a hit if the object was loaded, and run the next turn."""
        self.now += 1.0
        end = size if stop is None else stop
        place = ObjectKey("default", "b", key)
        hit = self.bench.engine.hot(place, self.bench.identity, self.bench.now[0]) is not None
        read = ObjectRead(place, start, end, size, hit, self.now, "GWA", 1)
        for block in block_span(start, end, BLOCK):
            stream = self.tree.record("b", key, block, -(-size // BLOCK), self.now, 1, hit, end - start)
            self.whole.machine.read(stream, read, block)
        self.whole.machine.look(self.rooms)
        self.whole.run_once()
        while self.whole._pages or self.whole._loads:
            await self.whole._pages.join()
            await self.whole._loads.join()
        await self.bench.settle()

    async def train(self, names: list[str]) -> None:
        """Read objects one after the other."""
        for name in names:
            await self.read(name)

    def fetched(self) -> list[str]:
        """The paths that the origin was asked to GET, without listings."""
        return [
            seen.raw_path for seen in self.bench.origin.seen if seen.method == "GET" and "list-type" not in seen.query
        ]


def put(bench: Bench, names: list[str]) -> None:
    """Small objects."""
    for name in names:
        bench.origin.put("b", name, name.encode().ljust(SMALL, b"."))


@pytest.fixture
async def training(tmp_path: Path) -> AsyncIterator[Training]:
    """Such a client, with ALICE's rights, and 200 objects."""
    async with benched(tmp_path / "cache", max_fills=64) as bench:
        put(bench, NAMES)
        made = Training(bench, Pages(bench), Principal("GWA", "a", bench.identity))
        yield made
        await made.whole.close()


def again(training: Training, pages: Callable[[int], ListingPage]) -> Training:
    """Restart the training with other listings."""
    training.pages = Pages(training.bench, pages)
    training.__post_init__()
    return training


async def test_a_random_stream_is_loaded_before_it_is_read(training: Training) -> None:
    """Rule: as many bytes as were read are loaded, each object once, and the second half of the epoch finds them."""
    await training.train(ORDER[:60])
    loaded = training.fetched()
    assert len(set(loaded)) == len(loaded)
    assert 30 <= len(loaded) <= 50
    await training.train(ORDER[60:])
    report = training.whole.machine.report("b/train/")
    assert report.used > 60
    assert report.wasted == 0
    assert training.pages.count <= 3


async def test_each_load_is_counted_once_as_used(training: Training) -> None:
    """Rule: bytes loaded and read before they left are the metric's ``used``."""
    before = {result: STREAM_PREFETCHED.labels(result)._value.get() for result in ("loaded", "used", "wasted")}
    await training.train(ORDER)
    after = {result: STREAM_PREFETCHED.labels(result)._value.get() - value for result, value in before.items()}
    report = training.whole.machine.report("b/train/")
    assert (after["loaded"], after["used"], after["wasted"]) == (SMALL * report.loaded, SMALL * report.used, 0)


@pytest.mark.parametrize(
    "room", [PoolRoom(), PoolRoom(50 * SMALL), PoolRoom(10**6, 10**6)], ids=["none", "small", "full"]
)
async def test_a_pool_without_room_loads_nothing(training: Training, room: PoolRoom) -> None:
    """Rule: without a pool, with one that holds less than half of the stream, or a full one, nothing is loaded."""
    training.rooms = {"b/train/": room} if room.target else {}
    await training.train(ORDER[:60])
    assert training.fetched() == []
    assert training.pages.count <= 1


async def test_a_pool_that_was_too_small_is_loaded_once_it_is_not(training: Training) -> None:
    """Rule: a stream that does not fit is not listed again, and loaded as soon as the plan gives its pool more."""
    training.rooms = {"b/train/": PoolRoom(50 * SMALL)}
    await training.train(ORDER[:60])
    assert training.fetched() == []
    training.rooms = dict(PLENTY)
    await training.train(ORDER[60:62])
    assert len(training.fetched()) >= 30
    assert training.pages.count <= 3


async def test_loads_end_where_the_room_does(training: Training) -> None:
    """Rule: no more is loaded than the pool has room for."""
    training.rooms = {"b/train/": PoolRoom(10**6, 10**6 - 5 * SMALL)}
    for name in ORDER[:40]:
        await training.read(name)
        held = 10**6 - 5 * SMALL + SMALL * len(training.fetched())
        training.rooms = {"b/train/": PoolRoom(10**6, held)}
    assert len(training.fetched()) == 5


async def test_a_stream_is_counted_though_its_pool_is_full(training: Training) -> None:
    """Rule: the listing counts a stream's items, including those of nested streams, before the stream has room, because the value
    of a byte depends on that number."""
    deeper = [f"train/deep/{number:03}" for number in range(30)]
    put(training.bench, [*deeper, "train/large"])
    training.bench.origin.put("b", "train/large", b"x" * (2 * BLOCK + 1))
    training.rooms = {"b/train/": PoolRoom(10**6, 10**6)}
    await training.train(deeper)
    await training.train(ORDER[:30])
    stream = training.tree.named("b/train/")
    assert stream is not None
    assert training.tree.named("b/train/deep/") is not None
    assert (stream.listed, stream.counted) == (len(NAMES) + 30 + 3, True)
    assert training.fetched() == []


async def test_the_listing_tells_positions(training: Training) -> None:
    """Rule: once all of a stream is listed, its reads are judged by the names that there are, not by those that were read."""
    await training.train(ORDER[:60])
    stream = training.tree.named("b/train/")
    assert stream is not None
    assert stream.evidence is not None
    assert (stream.evidence.listed, stream.evidence.count) == (True, len(NAMES))


async def test_other_patterns_are_not_loaded_whole(training: Training) -> None:
    """Rule: skewed streams are not loaded whole."""
    training.rules = Rules([Caching(match="b/**", pattern="skewed")])
    await training.train(ORDER[:60])
    assert training.fetched() == []


async def test_a_stream_that_is_cached_is_not_looked_up(training: Training) -> None:
    """Rule: while readers hit, no object is looked up and nothing is listed."""
    for name in NAMES:
        await training.bench.read(name)
    pages, reads = training.pages.count, len(training.bench.origin.seen)
    await training.train(ORDER)
    assert training.pages.count == pages
    assert len(training.bench.origin.seen) == reads


async def test_allow_list_and_rules_bound_what_is_loaded(training: Training) -> None:
    """Rule: objects outside the key's allow-list, or with a rule against caching or patterns, are not loaded."""
    training.principal = Principal("GWA", "a", training.bench.identity, allow=("b/train/0*", "b/train/18*"))
    training.rules = Rules(
        [
            Caching(match="b/train/01*", cache=False),
            Caching(match="b/train/02*", pattern="off"),
            Caching(match="b/**", pattern="random"),
        ]
    )
    await training.train([name for name in ORDER if name < "train/1"][:80])
    fetched = training.fetched()
    assert fetched
    assert all(path.startswith(("/b/train/0", "/b/train/18")) for path in fetched)
    assert not any(path.startswith(("/b/train/01", "/b/train/02")) for path in fetched)


async def test_loads_are_given_only_to_who_may_read_them(training: Training) -> None:
    """Rule: a load with one reader's rights grants no other reader anything."""
    await training.train(ORDER[:60])
    bob = OriginIdentity("default", BOB.access_key_id)
    key = ObjectKey("default", "b", training.fetched()[0].removeprefix("/b/"))
    training.bench.origin.deny(BOB.access_key_id, "b/train/*")
    assert training.bench.engine.hot(key, training.bench.identity, training.bench.now[0]) is not None
    assert training.bench.engine.hot(key, bob, training.bench.now[0]) is None


async def test_rights_withdrawn_in_the_middle_end_the_loads(
    training: Training, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: refused loads are logged once; after a few more the loading stops."""
    await training.train(ORDER[:30])
    training.bench.origin.deny(ALICE.access_key_id, "b/train/*")
    with caplog.at_level(logging.INFO, "larder.streams"):
        await training.train(ORDER[30:130])
    refused = [seen for seen in training.bench.origin.seen if seen.status == 403]
    assert 0 < len(refused) <= MOST_FAILURES + DEPTH
    assert len(caplog.records) == 1


async def test_a_key_withdrawn_in_the_middle_loads_nothing_more(training: Training) -> None:
    """Rule: once the reader's key is withdrawn, nothing more is loaded."""
    await training.train(ORDER[:30])
    loaded = len(training.fetched())
    assert loaded
    training.principal = None
    await training.train(ORDER[30:])
    assert len(training.fetched()) == loaded


async def test_a_prefix_deleted_meanwhile_ends_the_loads(training: Training) -> None:
    """Rule: after a few requests for listed objects that no longer exist, the loads end."""
    await training.train(ORDER[:30])
    for name in NAMES:
        training.bench.origin.delete("b", name)
    await training.train(ORDER[30:])
    missing = [seen for seen in training.bench.origin.seen if seen.status == 404]
    assert 0 < len(missing) <= MOST_FAILURES + DEPTH


async def test_a_refused_listing_is_asked_for_once(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: a refused listing loads nothing, is logged once, and is tried again a thousand reads later."""

    def refuse(_: int) -> ListingPage:
        raise ListingRefused(403)

    with caplog.at_level(logging.INFO, "larder.streams"):
        await again(training, refuse).train(ORDER)
    assert (training.fetched(), training.pages.count, len(caplog.records)) == ([], 1, 1)


async def test_a_listing_that_repeats_itself_ends(training: Training) -> None:
    """Rule: a store that repeats one page, or sends empty ones, does not keep the listing going."""
    same = ListingPage((ListedObject(NAMES[3], SMALL), ListedObject(NAMES[5], SMALL)), (), True, "")
    await again(training, lambda _: same).train(ORDER[:100])
    assert training.pages.count <= 5
    assert set(training.fetched()) <= {f"/b/{NAMES[3]}", f"/b/{NAMES[5]}"}
    await again(training, lambda number: ListingPage((), (), True, f"{number}")).train(ORDER[100:])
    assert training.pages.count <= MOST_FAILURES


async def test_an_endless_listing_is_given_up(training: Training, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: after a hundred pages a prefix counts as too large, which is logged; nothing is loaded, and it rests."""

    def endless(number: int) -> ListingPage:
        names = [ListedObject(f"train/endless{number:05}-{at}", SMALL) for at in range(5)]
        return ListingPage(tuple(names), (), True, f"{number}")

    with caplog.at_level(logging.INFO, "larder.streams"):
        await again(training, endless).train(ORDER)
    assert training.pages.count == MOST_PAGES
    assert training.fetched() == []
    assert len(caplog.records) == 1


async def test_a_prefix_that_is_too_long_is_listed_again_after_as_many_reads(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a page costs no more than a thousandth of the reads: a training job on millions of objects is not listed with each
    thousand reads."""
    monkeypatch.setattr(wholes, "REST", 20)
    monkeypatch.setattr(wholes, "MOST_PAGES", 3)

    def long(number: int) -> ListingPage:
        names = [ListedObject(f"train/long{number:05}-{at}", SMALL) for at in range(40)]
        return ListingPage(tuple(names), (), True, f"{number}")

    await again(training, long).train(ORDER[:100])
    assert training.pages.count == 3
    await training.train(ORDER[100:150])
    assert training.pages.count == 6


async def test_a_prefix_that_does_not_fit_is_counted_again_after_as_many_reads(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the same where the count paused because too little would fit."""
    monkeypatch.setattr(wholes, "REST", 20)
    training.rooms = {"b/train/": PoolRoom(50 * SMALL)}
    await training.train(ORDER[:150])
    assert training.pages.count == 1


async def test_loads_that_nobody_reads_end(training: Training) -> None:
    """Rule: for readers of a few objects, the number of other objects loaded is bounded for every pattern."""
    hot = ORDER[:40]
    for _ in range(12):
        await training.train(random.Random(3).sample(hot, len(hot)))
    report = training.whole.machine.report("b/train/")
    assert report.loaded <= 2 * JUDGED / LEAST_ACCURACY


@pytest.mark.parametrize(
    "names", [["a b", "a%2Fb", "Ä", "ä", "🎈", "~", "!", "z/../y"], ["-", "--", "A", "a", "0", "00"]]
)
async def test_names_that_sort_oddly_are_each_loaded_once(training: Training, names: list[str]) -> None:
    """Rule: a walk loads each object once, however the names sort in bytes or letters."""
    odd = [f"train/{name}{number}" for number in range(8) for name in names]
    put(training.bench, odd)
    await training.train(ORDER)
    fetched = training.fetched()
    assert len(set(fetched)) == len(fetched)
    assert training.whole.machine.report("b/train/").loaded >= 60


class Reordered(Pages):
    """Listings in an order of the store's own, as SeaweedFS has one: here, even numbers first."""

    names = NAMES[::2] + NAMES[1::2]

    async def list_page(self, *asked: object, **how: object) -> ListingPage:
        """See ``Listings``."""
        self.count += 1
        after = how["token"] or how["start_after"]
        first = self.names.index(str(after)) + 1 if after else 0
        page = self.names[first : first + 30]
        truncated = first + 30 < len(self.names)
        return ListingPage(
            tuple(ListedObject(name, SMALL) for name in page), (), truncated, page[-1] if truncated else ""
        )


async def test_a_listing_in_another_order_is_loaded_whole(training: Training) -> None:
    """Rule: what is loaded does not depend on the order of the listing; each object is loaded once, and none is left out."""
    training.pages = Reordered(training.bench)
    training.__post_init__()
    for _ in range(3):
        await training.train(ORDER)
    assert sorted(training.fetched()) == [f"/b/{name}" for name in NAMES]


async def test_blocks_of_a_large_object_are_loaded(training: Training) -> None:
    """Rule: an object whose blocks are read at random is loaded by blocks; one with small ranges is not."""
    training.bench.origin.put("b", "shard", bytes(60 * BLOCK))
    training.bench.origin.put("b", "table", bytes(60 * BLOCK))
    training.rooms = {"b/shard": PoolRoom(10**9), "b/table": PoolRoom(10**9)}
    for block in random.Random(1).sample(range(60), 40):
        await training.read("shard", block * BLOCK, 60 * BLOCK, (block + 1) * BLOCK)
        await training.read("table", block * BLOCK, 60 * BLOCK, block * BLOCK + 100)
    assert set(training.fetched()) == {"/b/shard"}
    spans = [seen.header("range") for seen in training.bench.origin.seen if seen.method == "GET"]
    assert len(spans) == len(set(spans)) > 15
    assert training.pages.count == 0


async def test_what_is_remembered_of_loads_is_bounded(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: no more loads than the bound are remembered as unread."""
    monkeypatch.setattr(wholes, "MOST_UNREAD", 10)
    await training.train(ORDER[:80])
    assert 0 < len(training.whole.machine._unread) <= 10 + DEPTH


async def test_a_stream_that_is_gone_leaves_nothing(training: Training) -> None:
    """Rule: loads of a stream that the tree has dropped count as wasted, and its state is dropped."""
    await training.train(ORDER[:60])
    before = STREAM_PREFETCHED.labels("wasted")._value.get()
    unread = len(training.whole.machine._unread)
    assert unread
    training.tree._streams.clear()
    training.whole.run_once()
    assert STREAM_PREFETCHED.labels("wasted")._value.get() - before == unread * SMALL
    assert not training.whole.machine._unread
    assert training.whole.machine.report("b/train/") == AheadReport()


async def test_a_listing_of_nothing_counts_nothing(training: Training) -> None:
    """Rule: a prefix whose objects were deleted, and are read from the cache, is judged by what is read of it."""
    emptied = again(training, lambda _: ListingPage((), (), False, ""))
    await emptied.train(ORDER[: 2 * WINDOW])
    for _ in range(3):
        await emptied.train(ORDER[: 2 * WINDOW])
    (stream,) = [one for one in emptied.tree.streams() if one.name == "b/train/"]
    assert emptied.pages.count > 0
    assert not stream.counted
    assert stream.reference.seen >= 2 * WINDOW
