"""Loads ahead of access streams: the right bytes, with the reader's rights, bounded, and never in a read's way."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from gateway.base.metrics import STREAM_PREFETCHED
from gateway.engine.operations.warm_objects import Warmed, WarmObjects
from gateway.engine.space.stream_learner import ahead_of
from gateway.engine.space.stream_prefetch import PrefetchLinks, StreamPrefetcher
from gateway.model.access import ObjectRead
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.s3.ranges import block_span
from gateway.origin.listing import ListingPage, Listings
from gateway.policies.reads.rules import Caching, Rules
from gateway.policies.streams.ahead import ReadAhead
from gateway.policies.streams.instructions import LoadRights
from gateway.policies.streams.prefetch import DEPTH, JUDGED, LEAST_ACCURACY
from gateway.policies.streams.tree import AccessStreamTree
from rig.origin import ALICE, BOB
from tests.engine.conftest import BLOCK, Bench, benched

WINDOW = 10
SMALL = 1000


class CountedListings(Listings):
    """Listings that count their pages."""

    pages = 0

    async def list_page(self, *asked: object, **how: object) -> ListingPage:
        """See ``Listings``."""
        self.pages += 1
        return await super().list_page(*asked, **how)  # type: ignore[arg-type]


@dataclass
class Reading:
    """A client that reads bucket ``b`` through a node whose tree needs 10 reads to see a stream."""

    bench: Bench
    listings: CountedListings
    principal: Principal | None
    most_bytes: int = 64 * 1024**2
    rules: Rules = field(default_factory=lambda: Rules([Caching(match="b/**/never*", cache=False)]))
    tree: AccessStreamTree = field(default_factory=lambda: AccessStreamTree(window=WINDOW))
    ahead: StreamPrefetcher[ReadAhead] = field(init=False)
    now: float = 0.0
    objects: WarmObjects | None = None

    def __post_init__(self) -> None:
        objects = self.objects or WarmObjects(self.bench.engine, None)
        rights = LoadRights(lambda _: self.principal, lambda: self.rules)
        self.ahead = ahead_of(self.tree, PrefetchLinks(objects, self.listings, rights, BLOCK, self.most_bytes))

    async def read(
        self, key: str, start: int = 0, size: int = SMALL, stop: int | None = None, *, hit: bool = False
    ) -> None:
        """One read, and the turn of the keeper after it."""
        self.hear(key, start, size, stop, hit=hit)
        await self.run_once()

    def hear(self, key: str, start: int = 0, size: int = SMALL, stop: int | None = None, *, hit: bool = False) -> None:
        """One read, as the keeper hears of it."""
        self.now += 1.0
        end = size if stop is None else stop
        read = ObjectRead(ObjectKey("default", "b", key), start, end, size, hit, self.now, "GWA", 1)
        blocks = -(-size // BLOCK)
        for block in block_span(start, end, BLOCK):
            count = min(end, (block + 1) * BLOCK) - max(start, block * BLOCK)
            self.ahead.machine.read("b", read, block, blocks)
            self.tree.record("b", key, block, blocks, self.now, 1, False, count)

    async def load(self, key: str) -> None:
        """Cache an object, as a read that misses does."""
        assert self.principal is not None
        assert not (await self.ahead._links.load(ObjectKey("default", "b", key), self.principal, None)).failure

    async def run_once(self) -> None:
        """A turn of the keeper, until all that it began is done."""
        for _ in range(2):
            self.ahead.run_once()
            await self.ahead._pages.join()
            while self.ahead._loads:
                await self.ahead._loads.join()
        await self.bench.settle()

    def fetched(self) -> list[str]:
        """The paths that the origin was asked to GET, without listings."""
        return [
            seen.raw_path for seen in self.bench.origin.seen if seen.method == "GET" and "list-type" not in seen.query
        ]


@pytest.fixture
async def reading(tmp_path: Path) -> AsyncIterator[Reading]:
    """Such a client, with ALICE's rights."""
    async with read_through(tmp_path, AccessStreamTree(window=WINDOW)) as made:
        yield made


@asynccontextmanager
async def read_through(home: Path, tree: AccessStreamTree) -> AsyncIterator[Reading]:
    """A client of a node with this tree."""
    async with benched(home / "cache", max_fills=64) as bench:
        listings, principal = CountedListings(bench.engine.services.origin), Principal("GWA", "a", bench.identity)
        made = Reading(bench, listings, principal, tree=tree)
        yield made
        await made.ahead.close()


def put(bench: Bench, names: list[str]) -> None:
    """Small objects."""
    for name in names:
        bench.origin.put("b", name, name.encode() * (SMALL // len(name)))


def counted(result: str) -> float:
    """Bytes loaded ahead so far."""
    return STREAM_PREFETCHED.labels(result)._value.get()


NAMES = [f"scan/{number:04}" for number in range(200)]


async def test_the_next_objects_of_a_sequential_prefix(reading: Reading) -> None:
    """Rule: a scan finds the next siblings in the cache; earlier ones are not loaded."""
    put(reading.bench, NAMES)
    for name in NAMES[: WINDOW + 5]:
        await reading.read(name)
    last = WINDOW + 4
    assert set(reading.fetched()) >= {f"/b/{name}" for name in NAMES[last + 1 : last + 1 + DEPTH]}
    assert not set(reading.fetched()) & {f"/b/{name}" for name in NAMES[:WINDOW]}
    assert len(set(reading.fetched())) <= 5 + 2 * DEPTH


async def test_a_burst_of_reads_is_gone_on_from(reading: Reading) -> None:
    """Rule: a burst of reads suffices: the next objects are loaded without another read."""
    put(reading.bench, NAMES)
    for name in NAMES[: WINDOW + 5]:
        reading.hear(name)
    await reading.run_once()
    assert set(reading.fetched()) == {f"/b/{name}" for name in NAMES[WINDOW + 5 :][:DEPTH]}


async def test_depth_grows_while_the_reader_keeps_up(reading: Reading) -> None:
    """Rule: used prefetches make the depth grow; each object is loaded once, and all count as used."""
    put(reading.bench, NAMES)
    before = counted("used"), counted("wasted")
    for name in NAMES[:60]:
        await reading.read(name)
    fetched = reading.fetched()
    assert len(fetched) == len(set(fetched))
    assert f"/b/{NAMES[59 + DEPTH + 1]}" in fetched
    assert counted("used") - before[0] > 40 * SMALL * 0.9
    assert counted("wasted") == before[1]


async def test_a_reader_that_comes_during_a_load_has_used_it(reading: Reading) -> None:
    """Rule: what is loaded ahead counts as used, not wasted, also if its reader comes before the load ends."""

    class Overtaken(WarmObjects):
        async def load(self, key: ObjectKey, *asked: object) -> Warmed:
            reading.hear(key.key)
            return await super().load(key, *asked)  # type: ignore[arg-type]

    put(reading.bench, NAMES)
    reading.objects = Overtaken(reading.bench.engine, None)
    reading.__post_init__()
    before = {result: counted(result) for result in ("loaded", "used", "wasted")}
    for name in NAMES[: WINDOW + 5]:
        reading.hear(name)
    await reading.run_once()
    loaded, used, wasted = (counted(result) - before[result] for result in before)
    assert loaded == used > 0
    assert wasted == 0


async def test_the_next_blocks_of_a_large_object(reading: Reading) -> None:
    """Rule: a reader of one large object has its next blocks loaded, those alone."""
    size = 60 * BLOCK
    reading.bench.origin.put("b", "large", bytes(size))
    for block in range(WINDOW + 3):
        await reading.read("large", block * BLOCK, size, (block + 1) * BLOCK)
    spans = [seen.header("range") for seen in reading.bench.origin.seen if seen.method == "GET"]
    wanted = WINDOW + 3
    assert f"bytes={wanted * BLOCK}-{(wanted + 1) * BLOCK - 1}" in spans
    assert "" not in spans
    assert len(spans) == len(set(spans)) <= WINDOW + 3 + DEPTH
    assert reading.listings.pages == 0


async def test_a_reader_of_a_quarter_of_each_block_has_none_loaded(reading: Reading) -> None:
    """Rule: ranges that follow each other block by block and leave out most of each load nothing: a rank reads its rows so."""
    size = 60 * BLOCK
    reading.bench.origin.put("b", "large", bytes(size))
    for block in range(WINDOW + 10):
        await reading.read("large", block * BLOCK, size, block * BLOCK + BLOCK // 4)
    assert reading.fetched() == []


async def test_below_the_next_prefix_only_what_was_read_below_those_before(reading: Reading) -> None:
    """Rule: a reader of one place of every month has that place of the next months loaded, not the other places."""
    months = [f"icoads/{number:03}" for number in range(40)]
    put(reading.bench, [f"{month}/{place}.csv" for month in months for place in range(10)])
    for month in months[: WINDOW + 5]:
        await reading.read(f"{month}/7.csv")
    fetched = set(reading.fetched())
    assert f"/b/{months[WINDOW + 5]}/7.csv" in fetched
    assert {path.rpartition("/")[2] for path in fetched} == {"7.csv"}


async def test_below_folders_whose_names_differ_the_next_objects_of_all(reading: Reading) -> None:
    """Rule: a scan of images in class folders goes on over the folders' ends; no folder's name is asked for as an object."""
    names = [f"classes/{at // 4:03}/{at // 4:03}-{at % 4}" for at in range(120)]
    put(reading.bench, names)
    for name in names[:60]:
        await reading.read(name)
    fetched = reading.fetched()
    assert fetched == [f"/b/{name}" for name in names[names.index(fetched[0][3:]) :][: len(fetched)]]
    assert f"/b/{names[60]}" in fetched
    assert all(seen.status == 200 for seen in reading.bench.origin.seen)


async def test_of_a_large_object_in_folders_its_first_block(reading: Reading) -> None:
    """Rule: beyond its first block a large object is loaded as it is read."""
    names = [f"classes/{at:03}/{at:03}" for at in range(30)]
    for name in names:
        reading.bench.origin.put("b", name, bytes(3 * BLOCK))
    for name in names[:20]:
        await reading.read(name, size=3 * BLOCK)
    asked = [seen for seen in reading.bench.origin.seen if (seen.method, seen.raw_path) == ("GET", f"/b/{names[20]}")]
    assert [seen.header("range") for seen in asked] == [f"bytes=0-{BLOCK - 1}"]


async def test_folders_beside_objects_are_not_taken_for_objects(reading: Reading) -> None:
    """Rule: a scan of objects passes over the folders between them."""
    put(reading.bench, NAMES[:60] + [f"scan/{number:04}-more/x" for number in range(60)])
    for name in NAMES[:40]:
        await reading.read(name)
    assert f"/b/{NAMES[40]}" in reading.fetched()
    assert all(seen.status == 200 for seen in reading.bench.origin.seen)


async def test_the_first_reads_in_order_are_loaded_ahead(tmp_path: Path) -> None:
    """Rule: the beginning of a scan is loaded ahead before the scan is a stream."""
    async with read_through(tmp_path, AccessStreamTree()) as reading:
        put(reading.bench, NAMES)
        for name in NAMES[:20]:
            await reading.read(name)
    assert (reading.tree.streams(), f"/b/{NAMES[20]}" in reading.fetched()) == ([], True)


async def test_folders_that_a_scan_goes_on_over_are_not_listed_each(tmp_path: Path) -> None:
    """Rule: once the next objects of all folders are loaded ahead, a listing serves many of them."""
    names = [f"classes/{at // 20:03}/{at:04}" for at in range(600)]
    async with read_through(tmp_path, AccessStreamTree()) as reading:
        put(reading.bench, names)
        for name in names[:330]:
            await reading.read(name)
        before = reading.listings.pages
        for name in names[330:]:
            await reading.read(name)
    assert reading.listings.pages - before <= 1


async def test_a_scan_that_begins_again_is_listed_from_its_beginning(reading: Reading) -> None:
    """Rule: a reader before the end of the listing has it listed again, but not while it finds everything in the cache."""
    put(reading.bench, NAMES)
    for name in NAMES:
        await reading.read(name)
        await reading.load(name)
    for name in NAMES[:20]:
        await reading.read(name, hit=True)
    assert reading.listings.pages == 1
    await reading.read(NAMES[20])
    assert reading.listings.pages == 2


async def test_a_scan_of_what_is_cached_is_not_listed(reading: Reading) -> None:
    """Rule: a scan that finds everything in the cache costs the store no listing, also the first one that is seen."""
    put(reading.bench, NAMES)
    for name in NAMES[:120]:
        await reading.read(name, hit=True)
    assert reading.listings.pages == 0


async def test_nothing_is_loaded_that_a_rule_keeps_from_being_watched(reading: Reading) -> None:
    """Rule: ``pattern = "off"`` holds for siblings too, in whichever order the prefix above is read."""
    reading.rules = Rules([Caching(match="b/days/01[6-9]/**", pattern="off")])
    days = [f"days/{number:03}/log" for number in range(40)]
    put(reading.bench, days)
    for day in days[: WINDOW + 5]:
        await reading.read(day)
    assert "/b/days/015/log" in reading.fetched()
    assert {path for path in reading.fetched() if "/b/days/016" <= path < "/b/days/020"} == set()


async def test_a_large_object_named_like_a_prefix_ends_no_turn(reading: Reading) -> None:
    """Rule: the object ``dir/`` and the prefix ``dir/`` are distinct streams; both go on learning."""
    put(reading.bench, [f"dir/{number:03}" for number in range(60)])
    size = 40 * BLOCK
    for number in range(30):
        await reading.read("dir/", number * BLOCK, size, number * BLOCK + 100)
        await reading.read(f"dir/{number:03}")
    assert [stream.name for stream in reading.tree.streams()] == ["b/dir/"]


async def test_random_and_skewed_reads_load_nothing_ahead(reading: Reading) -> None:
    """Rule: random and skewed reads have no next object."""
    put(reading.bench, NAMES)
    for step in range(60):
        await reading.read(NAMES[step * 67 % 199])
    assert reading.fetched() == []


async def test_listing_takes_a_page_for_many_siblings(reading: Reading) -> None:
    """Rule: siblings are listed in pages at the reader's position, so the cost depends on the reads, not on the prefix's size."""
    put(reading.bench, NAMES)
    for name in NAMES[:50]:
        await reading.read(name)
    assert reading.listings.pages == 1


async def test_where_listing_is_refused_the_names_seen_stand_in(
    reading: Reading, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a refused listing is asked for once and logged once; a second scan is loaded ahead by the names of the first."""

    class Refusing(CountedListings):
        async def list_page(self, *_asked: object, **_how: object) -> ListingPage:
            self.pages += 1
            raise ConnectionRefusedListing

    from gateway.origin.listing import ListingRefused

    class ConnectionRefusedListing(ListingRefused):
        def __init__(self) -> None:
            super().__init__(403)

    put(reading.bench, NAMES[:60])
    refusing = Refusing(reading.bench.engine.services.origin)
    reading.listings = refusing
    reading.__post_init__()
    with caplog.at_level(logging.INFO, "larder.streams"):
        for name in NAMES[:60]:
            await reading.read(name)
        assert reading.fetched() == []
        for name in NAMES[:20]:
            await reading.read(name)
    assert f"/b/{NAMES[20]}" in reading.fetched()
    assert refusing.pages == 1
    assert len(caplog.records) == 1


async def test_a_folder_follows_objects_whose_names_sort_before_its_slash(
    reading: Reading, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule: pages go on in the order of the listing, ``a-b`` and then ``a/``, and no object is taken for a folder."""

    class Short(CountedListings):
        async def list_page(self, *asked: object, **how: object) -> ListingPage:
            return await super().list_page(*asked, **how, limit=3)

    days = [f"days/{number:03}" for number in range(60)]
    put(reading.bench, [f"{day}/log" for day in days] + [f"{day}-note" for day in days])
    reading.listings = Short(reading.bench.engine.services.origin)
    reading.__post_init__()
    with caplog.at_level(logging.INFO, "larder.streams"):
        for day in days[:40]:
            await reading.read(f"{day}/log")
    assert caplog.records == []
    assert set(reading.fetched()) >= {f"/b/{day}/log" for day in days[20:41]}


async def test_a_listing_that_does_not_advance_is_given_up(reading: Reading, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: a store that sends its first page forever is asked once, which is logged, and not with each read."""

    class Repeating(CountedListings):
        async def list_page(self, *asked: object, **how: object) -> ListingPage:
            page = await super().list_page(*asked, **{**how, "start_after": ""}, limit=5)
            return page._replace(truncated=True)

    put(reading.bench, NAMES)
    reading.listings = Repeating(reading.bench.engine.services.origin)
    reading.__post_init__()
    with caplog.at_level(logging.INFO, "larder.streams"):
        for name in NAMES[:60]:
            await reading.read(name)
    assert (reading.listings.pages, len(caplog.records)) == (1, 1)


async def test_loads_have_the_readers_rights(reading: Reading) -> None:
    """Rule: an object that the origin refuses this reader is not loaded; another's grant does not help."""
    put(reading.bench, NAMES)
    reading.bench.origin.deny(ALICE.access_key_id, "b/scan/01*")
    for name in NAMES[:110]:
        await reading.read(name)
    loaded = {path for path in reading.fetched() if path < "/b/scan/0100"}
    assert loaded
    refused = [seen for seen in reading.bench.origin.seen if seen.raw_path >= "/b/scan/0100" and seen.method == "GET"]
    assert {seen.status for seen in refused} <= {403}
    bob = OriginIdentity("default", BOB.access_key_id)
    assert reading.bench.engine.hot(ObjectKey("default", "b", NAMES[20]), bob, reading.bench.now[0]) is None


async def test_an_allow_list_and_the_rules_bound_what_is_loaded(reading: Reading) -> None:
    """Rule: objects outside the key's allow-list, or with a rule against caching, are not loaded."""
    names = [f"scan/{'never' if number % 2 else 'ever'}{number:04}" for number in range(60)]
    put(reading.bench, NAMES + names)
    reading.principal = Principal("GWA", "a", reading.bench.identity, allow=("b/scan/000*", "b/scan/001*"))
    for name in NAMES[: WINDOW + 8]:
        await reading.read(name)
    assert reading.fetched()
    assert all(path.startswith(("/b/scan/000", "/b/scan/001")) for path in reading.fetched())


async def test_a_key_that_was_withdrawn_loads_nothing(reading: Reading) -> None:
    """Rule: without the reader's key nothing is listed or loaded."""
    put(reading.bench, NAMES)
    reading.principal = None
    for name in NAMES[:30]:
        await reading.read(name)
    assert (reading.fetched(), reading.listings.pages) == ([], 0)


async def test_a_prefix_that_is_deleted_ends_its_loads(reading: Reading, caplog: pytest.LogCaptureFixture) -> None:
    """Rule: loads that fail are logged once and judged as wasted; then the stream rests."""
    put(reading.bench, NAMES)
    for name in NAMES[:20]:
        await reading.read(name)
    for name in NAMES[21:]:
        reading.bench.origin.delete("b", name)
    with caplog.at_level(logging.INFO, "larder.streams"):
        for name in NAMES[20:180]:
            await reading.read(name)
    assert len(caplog.records) == 1
    missing = [seen for seen in reading.bench.origin.seen if seen.status == 404]
    assert len(missing) <= 2 * JUDGED / (1 - LEAST_ACCURACY)


async def test_bytes_ahead_are_bounded(reading: Reading) -> None:
    """Rule: the bytes loaded and not read yet are bounded."""
    put(reading.bench, NAMES)
    reading.most_bytes = 2 * SMALL
    reading.__post_init__()
    for name in NAMES[: WINDOW + 5]:
        await reading.read(name)
    ahead = {path for path in reading.fetched() if path > f"/b/{NAMES[WINDOW + 4]}"}
    assert len(ahead) == 2


async def test_what_is_not_read_is_wasted(reading: Reading) -> None:
    """Rule: bytes that were loaded for a stream that is sequential no longer count as wasted."""
    put(reading.bench, NAMES)
    before = counted("wasted"), counted("loaded"), counted("used")
    for name in NAMES[: WINDOW + 5]:
        await reading.read(name)
    for step in range(6 * WINDOW):
        await reading.read(NAMES[(step * 67 + 31) % 199])
    loaded, used, wasted = counted("loaded") - before[1], counted("used") - before[2], counted("wasted") - before[0]
    assert wasted > 0
    assert used + wasted == loaded


async def test_a_client_that_reads_an_object_in_pieces_reads_it_once(reading: Reading) -> None:
    """Rule: ranges of one object are one step of a scan; they do not end its prefetch."""
    put(reading.bench, NAMES)
    before = counted("wasted")
    for name in NAMES[: WINDOW + 5]:
        for piece in range(40):
            await reading.read(name, piece * 20, stop=piece * 20 + 20)
    assert counted("wasted") == before


@pytest.mark.parametrize("pattern", ["random", "skewed"])
async def test_a_rule_that_says_the_pattern_decides(reading: Reading, pattern: str) -> None:
    """Rule: a rule's pattern outranks the recognised one."""
    put(reading.bench, NAMES)
    reading.bench.origin.put("b", "file", bytes(9 * BLOCK))
    reading.rules = Rules([Caching(match="b/**", pattern=pattern)])
    for name in NAMES[: WINDOW + 5]:
        await reading.read(name)
    for block in range(6):
        await reading.read("file", block * BLOCK, 9 * BLOCK, (block + 1) * BLOCK)
    assert reading.fetched() == []
