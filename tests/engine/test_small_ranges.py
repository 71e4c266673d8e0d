"""Small ranges of large objects: read alone at first, and right in every way in which blocks are."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.api.s3.answer import Answer
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call, resource_of
from gateway.api.s3.objects import ObjectReads
from gateway.engine.objects.body import Body
from gateway.engine.objects.found import Forward, Found, Relay
from gateway.engine.objects.ranged import ObjectChanged, ReaderRefused
from gateway.engine.objects.small_ranges import SmallRanges
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.ranges import parse_range
from gateway.model.s3.sigv4 import WireRequest
from gateway.net.exchange import StreamedResponse
from gateway.operate.explain.work import Explainer
from gateway.store.shared.leases import FillLeases
from rig.origin import ALICE, BOB
from rig.origin_faults import ChangedEtag, DieAfter, Hang, Refuse, WrongContentRange
from tests.engine.conftest import Bench, benched, take

KIB = 1024
BLOCK = 1024 * KIB
DATA = os.urandom(8 * BLOCK + 300 * KIB)
CHECKSUM = ("x-amz-checksum-crc32", "AAAAAA==")


@pytest.fixture
async def large(tmp_path: Path) -> AsyncIterator[Bench]:
    """An engine with blocks of 1 MiB; its origin has a large object ``k``."""
    async with benched(tmp_path / "cache", max_fills=64, block_size=BLOCK) as bench:
        bench.origin.put("b", "k", DATA)
        yield bench


async def ask(
    bench: Bench, key: str = "k", *, who: OriginIdentity | None = None, method: str = "GET", **headers: str
) -> Answer:
    """Send a read to the S3 edge and return its answer."""
    raw = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    request = WireRequest(method, f"/b/{key}".encode(), b"", [(b"host", b"h"), *raw])
    auth = Authenticated(Principal("AK", "t", who or bench.identity), PayloadForm.UNSIGNED, "")
    request, query, names = resource_of(request, frozenset())
    call = S3Call(request, auth, "b", key.encode(), ObjectKey("default", "b", key), query, names)
    answer = await ObjectReads(bench.engine).read(call)
    assert isinstance(answer, Answer), answer
    return answer


async def got(bench: Bench, start: int, stop: int, key: str = "k", **how: str) -> tuple[bytes, str]:
    """The bytes of a range, with its cache status."""
    answer = await ask(bench, key, range=f"bytes={start}-{stop - 1}", **how)
    assert answer.status == 206
    assert isinstance(answer.content, Body)
    return await take(answer.content), f"{answer.outcome}; {answer.reason}" if answer.reason else str(answer.outcome)


def asked(bench: Bench) -> list[tuple[str, str]]:
    """Method and range of every request that the origin saw."""
    return [(seen.method, seen.header("range")) for seen in bench.origin.seen]


async def test_a_cold_small_range_is_one_request(large: Bench) -> None:
    """Rule: the answer to the range has the object's metadata too."""
    assert await got(large, 70_000, 130_000) == (DATA[70_000:130_000], "MISS; range")
    assert asked(large) == [("GET", "bytes=70000-129999")]


@pytest.mark.parametrize(("value", "known"), [("bytes=-1000", False), (f"bytes={len(DATA) - 1000}-", True)])
async def test_a_suffix_is_read_alone(large: Bench, value: str, known: bool) -> None:
    """Rule: the end of an object, where many formats have their index, does not cost a block, if its length can be told."""
    if known:
        await large.find(large.ask("k", metadata_first=True))
    answer = await ask(large, range=value)
    assert isinstance(answer.content, Body)
    assert await take(answer.content) == DATA[-1000:]
    assert dict(answer.headers)[b"content-range"] == f"bytes {len(DATA) - 1000}-{len(DATA) - 1}/{len(DATA)}".encode()
    assert (
        sum(seen.header("range") in (value, f"bytes={len(DATA) - 1000}-{len(DATA) - 1}") for seen in large.origin.seen)
        == 1
    )


async def test_a_known_object_is_asked_for_the_range_of_its_version(large: Bench) -> None:
    """Rule: a range of a known object is requested with If-Match, so bytes of two versions are never mixed."""
    head = await ask(large, method="HEAD")
    assert await got(large, 0, 1000) == (DATA[:1000], "MISS; range")
    assert large.origin.seen[-1].header("if-match") == dict(head.headers)[b"etag"].decode()
    assert asked(large) == [("HEAD", ""), ("GET", "bytes=0-999")]


async def test_the_same_range_again_is_in_memory(large: Bench) -> None:
    """Rule: a client that reads the same small range again, or its beginning, waits for no origin."""
    await got(large, 5000, 9000)
    assert await got(large, 5000, 9000) == (DATA[5000:9000], "HIT")
    assert await got(large, 5000, 6000) == (DATA[5000:6000], "HIT")
    assert len(asked(large)) == 1


async def test_readers_of_one_range_share_a_request(large: Bench) -> None:
    """Rule: concurrent readers of a range share one request, whether the object is known or not."""
    for turn, start in enumerate((5000, 3 * BLOCK)):
        hang = large.origin.inject(Hang())
        readers = [asyncio.create_task(got(large, start, start + 4000)) for _ in range(10)]
        await hang.gate.reached()
        hang.gate.open()
        assert {data for data, _ in await asyncio.gather(*readers)} == {DATA[start : start + 4000]}
        assert len(asked(large)) == turn + 1


async def test_a_second_touch_of_what_left_memory_fills_the_block(large: Bench) -> None:
    """Rule: a second touch of a block fills it."""
    await got(large, 5000, 9000)
    large.engine.blocks.small._kept.clear()
    assert await got(large, 5000, 9000) == (DATA[5000:9000], "MISS; cold")
    await large.settle()
    assert await got(large, 500_000, 509_000) == (DATA[500_000:509_000], "HIT")
    assert asked(large)[1:] == [("GET", f"bytes=0-{BLOCK - 1}")]


async def test_a_sequential_scan_fills(large: Bench) -> None:
    """Rule: a scan by small ranges costs two of them more than the object."""
    step = 50 * KIB
    data = [(await got(large, at, min(at + step, len(DATA))))[0] for at in range(0, len(DATA), step)]
    assert b"".join(data) == DATA
    lengths = [int(last) - int(first) + 1 for _, span in asked(large) for first, last in [span[6:].split("-")]]
    assert sum(lengths) == len(DATA) + 2 * step
    assert len(lengths) == 2 + 9


async def test_a_scan_goes_on_at_a_border_without_a_small_range(large: Bench) -> None:
    """Rule: a range that begins where a cached block ends fills."""
    await got(large, 0, BLOCK)
    await got(large, BLOCK, BLOCK + 1000)
    assert asked(large)[-1] == ("GET", f"bytes={BLOCK}-{2 * BLOCK - 1}")


async def test_a_range_over_a_border_is_read_alone(large: Bench) -> None:
    """Rule: a small range that crosses a block border is read alone, without filling either block."""
    assert await got(large, BLOCK - 500, BLOCK + 500) == (DATA[BLOCK - 500 : BLOCK + 500], "MISS; range")
    assert asked(large) == [("GET", f"bytes={BLOCK - 500}-{BLOCK + 499}")]


async def test_a_part_of_a_parallel_download_fills(large: Bench) -> None:
    """Rule: a range that is most of its blocks fills them, by the request that tells what the object is."""
    assert await got(large, 0, 2 * BLOCK - 1000) == (DATA[: 2 * BLOCK - 1000], "MISS; cold")
    assert asked(large) == [("GET", f"bytes=0-{2 * BLOCK - 1}")]


@pytest.mark.parametrize("known", [False, True])
async def test_a_large_part_is_read_once_and_stored(large: Bench, known: bool) -> None:
    """Rule: a range of a sixteenth of a block or more that begins anywhere is read alone and stored: reading it again, or its
    beginning, is a hit that needs no memory."""
    if known:
        await ask(large, method="HEAD")
    start, stop = 700_000, 700_000 + BLOCK
    assert await got(large, start, stop) == (DATA[start:stop], "MISS; range")
    requests = asked(large)
    assert requests[-1] == ("GET", f"bytes={start}-{stop - 1}")
    assert not large.engine.blocks.small._kept
    assert await got(large, start, stop) == (DATA[start:stop], "HIT")
    assert await got(large, start, start + BLOCK // 2) == (DATA[start : start + BLOCK // 2], "HIT")
    assert asked(large) == requests


@pytest.mark.parametrize("known", [False, True])
async def test_a_stored_part_serves_the_ranges_within_it(large: Bench, known: bool) -> None:
    """Rule: bytes that a large part has are not read again, wherever in it a range begins, and however small it is."""
    if known:
        await got(large, 0, 10)
    await got(large, 300 * KIB, 700 * KIB)
    before = len(asked(large))
    for start, stop in ((300, 301), (400, 500), (350, 700), (699, 700), (500, 600)):
        assert await got(large, start * KIB, stop * KIB) == (DATA[start * KIB : stop * KIB], "HIT")
    assert len(asked(large)) == before
    assert (await got(large, 600 * KIB, 701 * KIB))[0] == DATA[600 * KIB : 701 * KIB]
    assert len(asked(large)) == before + 1


async def test_a_stored_part_outlives_what_a_worker_remembers(large: Bench) -> None:
    """Rule: a part is a blob of the object's row: another worker, or the same after a restart, finds it there."""
    await got(large, 700_000, 900_000)
    del large.engine._entries[ObjectKey("default", "b", "k")]
    assert await got(large, 700_000, 900_000) == (DATA[700_000:900_000], "HIT")
    assert len(asked(large)) == 1


async def test_a_stored_part_is_forgotten_with_its_object(large: Bench) -> None:
    """Rule: after a write no part of the earlier bytes is served."""
    await got(large, 700_000, 900_000)
    other = os.urandom(len(DATA))
    large.origin.put("b", "k", other)
    await large.engine.changed([ObjectKey("default", "b", "k")])
    assert await got(large, 700_000, 900_000) == (other[700_000:900_000], "MISS; range")


async def test_a_longer_part_replaces_a_shorter_one(large: Bench) -> None:
    """Rule: a part that lacks bytes is read again as a whole, and stored in its place."""
    await got(large, 700_000, 800_000)
    assert await got(large, 700_000, 900_000) == (DATA[700_000:900_000], "MISS; range")
    assert await got(large, 700_000, 900_000) == (DATA[700_000:900_000], "HIT")


async def test_a_whole_read_after_parts_is_of_blocks(large: Bench) -> None:
    """Rule: parts are no blocks: a reader of the whole gets all bytes, and fills."""
    await got(large, 700_000, 900_000)
    assert await large.read("k") == DATA
    await large.settle()
    assert await got(large, 700_000, 950_000) == (DATA[700_000:950_000], "HIT")


async def test_workers_read_a_large_part_one_after_the_other(large: Bench, tmp_path: Path) -> None:
    """Rule: a worker waits while another one reads the same part, and then finds it stored."""
    await ask(large, method="HEAD")
    mine, other = FillLeases(tmp_path / "fills"), FillLeases(tmp_path / "fills")
    large.engine.blocks.leases = large.engine.services.leases = mine
    readers = [asyncio.create_task(got(large, 700_000, 900_000)) for _ in range(3)]
    assert {data for data, _ in await asyncio.gather(*readers)} == {DATA[700_000:900_000]}
    assert asked(large)[1:] == [("GET", "bytes=700000-899999")]
    for leases in (mine, other):
        leases.close()


async def test_a_range_of_a_block_under_way_waits_for_it(large: Bench) -> None:
    """Rule: a range of a block that is being filled waits for the fill."""
    hang = large.origin.inject(Hang(after=1000))
    whole = asyncio.create_task(large.read("k"))
    await hang.gate.reached()
    small = asyncio.create_task(got(large, 5000, 6000))
    hang.gate.open()
    assert (await small)[0] == DATA[5000:6000]
    assert await whole == DATA
    assert asked(large) == [("GET", "")]


async def test_a_small_object_is_filled_by_its_first_range(large: Bench) -> None:
    """Rule: where a block costs little more than a request, the first range fills it; a range of all bytes is the fill itself."""
    large.origin.put("b", "small", DATA[: 200 * KIB])
    large.origin.put("b", "tiny", DATA[:5000])
    assert await got(large, 10, 1000, "small") == (DATA[10:1000], "MISS; cold")
    await large.settle()
    assert await got(large, 50_000, 51_000, "small") == (DATA[50_000:51_000], "HIT")
    before = len(asked(large))
    answer = await ask(large, "tiny", range="bytes=0-65535")
    assert isinstance(answer.content, Body)
    assert await take(answer.content) == DATA[:5000]
    assert (await got(large, 2, 3, "tiny"))[1] == "HIT"
    assert asked(large)[before:] == [("GET", "bytes=0-65535")]


async def test_an_object_that_changed_gives_the_new_bytes(large: Bench) -> None:
    """Rule: a small range of another version is noticed before the first byte, and the new one is read."""
    await got(large, 0, 1000)
    other = os.urandom(len(DATA))
    large.origin.put("b", "k", other)
    assert await got(large, 3 * BLOCK, 3 * BLOCK + 1000) == (other[3 * BLOCK : 3 * BLOCK + 1000], "MISS; range")


async def test_an_object_that_changes_while_a_range_breaks_off_is_never_mixed(large: Bench) -> None:
    """Rule: the rest of a broken range is requested with If-Match."""
    await ask(large, method="HEAD")
    hang = large.origin.inject(Hang(after=500))
    large.origin.inject(DieAfter(size=500))
    reader = asyncio.create_task(got(large, 0, 1000))
    await hang.gate.reached()
    other = os.urandom(len(DATA))
    large.origin.put("b", "k", other)
    hang.gate.open()
    assert (await reader)[0] == other[:1000]


@pytest.mark.parametrize("known", [False, True])
async def test_a_range_that_breaks_off_is_resumed(large: Bench, known: bool) -> None:
    """Rule: a restart of the origin is invisible; only missing bytes are requested again."""
    if known:
        await ask(large, method="HEAD")
    large.origin.inject(DieAfter(method="GET", size=600))
    assert (await got(large, 0, 1000))[0] == DATA[:1000]
    assert asked(large)[-1] == ("GET", "bytes=600-999")


async def test_memory_of_an_overwritten_object_is_not_served(large: Bench) -> None:
    """Rule: after a write, or a purge, no earlier bytes are served."""
    await got(large, 0, 1000)
    await large.engine.changed([ObjectKey("default", "b", "k")])
    await got(large, 0, 1000)
    assert len(asked(large)) > 1


class OneByte:
    """An answer of the origin with one byte."""

    def __init__(self) -> None:
        self._left = b"x"

    async def next_chunk(self) -> bytes:
        """The byte, then nothing."""
        left, self._left = self._left, b""
        return left

    def release(self) -> None:
        """Nothing is held."""

    abort = release


async def test_tiny_ranges_take_no_more_memory_than_large_ones(large: Bench) -> None:
    """Rule: what is kept is bounded with what is around it, some hundred bytes each, so the number of ranges is bounded too."""
    await got(large, 0, 10)
    entry = await large.engine._reads.known(large.ask("k").key)
    assert entry is not None
    small = SmallRanges(large.store, no_more, lambda: 0.0)
    for start in range(20_000):
        await small.fetch(entry, large.identity, (start, start + 1), OneByte())
    assert small.kept(entry, 19_999, 20_000) == b"x"
    assert small.kept(entry, 0, 1) is None
    assert len(small._kept) * 1024 < 16 * 1024**2


async def no_more(*_: object) -> StreamedResponse:
    """No further answers are needed."""
    raise AssertionError("the origin was asked again")


async def test_the_origin_decides_for_each_reader(large: Bench) -> None:
    """Rule: a range in memory is given only to identities that the origin granted the object."""
    bob = OriginIdentity("default", BOB.access_key_id)
    await got(large, 0, 1000)
    large.origin.deny(BOB.access_key_id, "b/*")
    refused = await large.find(
        large.ask("k", metadata_first=True)._replace(identity=bob, span=parse_range("bytes=0-999"))
    )
    assert isinstance(refused, Relay)
    assert refused.reason == "refused"


async def test_a_reader_whose_right_was_withdrawn_is_refused(large: Bench) -> None:
    """Rule: a known object's small range is requested with the reader's own keys; a refusal affects only that reader."""
    await got(large, 0, 1000)
    large.origin.deny(ALICE.access_key_id, "b/*")
    asks = large.ask("k", metadata_first=True)._replace(span=parse_range("bytes=0-9"))
    found = await large.find(asks)
    assert isinstance(found, Found)
    with pytest.raises(ReaderRefused):
        await large.body(asks, found, 2 * BLOCK, 2 * BLOCK + 10)


async def test_whole_readers_get_the_checksums(large: Bench) -> None:
    """Rule: a ranged answer has no checksums, so a reader of the whole gets metadata from another answer."""
    stored = large.origin.put("b", "k", DATA)
    large.origin.buckets.objects["b"]["k"] = replace(stored, checksums=(CHECKSUM,))
    await got(large, 0, 1000)
    answer = await ask(large, x_amz_checksum_mode="ENABLED")
    assert isinstance(answer.content, Body)
    assert await take(answer.content) == DATA
    assert dict(answer.headers)[b"x-amz-checksum-crc32"] == b"AAAAAA=="
    assert asked(large) == [("GET", "bytes=0-999"), ("GET", "")]


@pytest.mark.parametrize("other", [False, True], ids=["the same keys", "other keys"])
async def test_checksums_of_an_object_that_ranges_filled_are_asked_for(large: Bench, other: bool) -> None:
    """Rule: the same when its blocks are in the cache already: one HEAD, and no byte is read again."""
    who = OriginIdentity("default", BOB.access_key_id) if other else large.identity
    stored = large.origin.put("b", "tiny", b"12345")
    large.origin.buckets.objects["b"]["tiny"] = replace(stored, checksums=(CHECKSUM,))
    await got(large, 0, 5, "tiny")
    key = ObjectKey("default", "b", "tiny")
    assert large.engine.hot(key, who, large.now[0]) is None
    for _ in range(2):
        answer = await ask(large, "tiny", who=who, x_amz_checksum_mode="ENABLED")
        assert isinstance(answer.content, Body)
        assert await take(answer.content) == b"12345"
        assert dict(answer.headers)[b"x-amz-checksum-crc32"] == b"AAAAAA=="
    assert large.engine.hot(key, who, large.now[0]) is not None
    assert asked(large) == [("GET", "bytes=0-4"), ("HEAD", "")]


@pytest.mark.parametrize("fault", [WrongContentRange(value="bytes 0-1/2"), ChangedEtag(etag='W/"weak"')])
async def test_an_answer_that_is_not_what_was_asked_for_is_not_believed(large: Bench, fault: object) -> None:
    """Rule: bytes of an odd answer reach no client as something else."""
    large.origin.inject(fault)  # type: ignore[type-var]
    asks = large.ask("k", metadata_first=True)._replace(span=parse_range("bytes=0-999"))
    found = await large.find(asks)
    assert isinstance(found, Forward) or found.part is None  # type: ignore[union-attr]


async def test_conditions_hold_for_cold_ranges(large: Bench) -> None:
    """Rule: a condition is evaluated with the metadata of the ranged answer."""
    answer = await ask(large, range="bytes=0-999", if_none_match='"other"')
    assert answer.status == 206
    etag = dict(answer.headers)[b"etag"].decode()
    assert (await ask(large, range="bytes=0-999", if_none_match=etag)).status == 304
    mismatched = await ask(large, range="bytes=0-999", if_range='"other"')
    assert mismatched.status == 200
    assert isinstance(mismatched.content, Body)
    assert await take(mismatched.content) == DATA


async def test_an_origin_that_fails_is_an_error_of_the_origin(large: Bench) -> None:
    """Rule: an error of the origin is the answer, without a second request."""
    large.origin.inject(Refuse(status=404, code="NoSuchKey"))
    found = await large.find(large.ask("k", metadata_first=True)._replace(span=parse_range("bytes=0-9")))
    assert isinstance(found, Relay)
    assert (found.reason, len(large.origin.seen)) == ("not-found", 1)
    found.response.abort()


async def test_ranges_beyond_the_memory_for_them_fill(large: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: a worker's memory for small ranges is bounded; when it is full, blocks are filled on disk."""
    monkeypatch.setattr("gateway.engine.objects.small_ranges._UNDER_WAY", 1500)
    await got(large, 0, 1000)
    hang = large.origin.inject(Hang())
    second = asyncio.create_task(got(large, 2 * BLOCK, 2 * BLOCK + 1000))
    await hang.gate.reached()
    assert (await got(large, 4 * BLOCK, 4 * BLOCK + 1000))[1] == "MISS; cold"
    hang.gate.open()
    await second
    assert ("GET", f"bytes={4 * BLOCK}-{5 * BLOCK - 1}") in asked(large)


async def test_object_changed_is_raised_to_the_engine(large: Bench) -> None:
    """Rule: the engine's callers learn before the first byte that the object is another one."""
    await got(large, 0, 1000)
    asks = large.ask("k", metadata_first=True)
    found = await large.find(asks)
    assert isinstance(found, Found)
    large.origin.put("b", "k", b"short")
    with pytest.raises(ObjectChanged):
        await large.body(asks, found, 5 * BLOCK, 5 * BLOCK + 10)


async def test_who_knew_only_a_range_finds_what_a_sibling_stored(large: Bench, tmp_path: Path) -> None:
    """Rule: one worker read a small range alone, another one the whole object: the first one reads it from the cache."""
    leases = FillLeases(tmp_path / "fills")
    large.engine.blocks.leases = large.engine.services.leases = leases
    asks = large.ask("k", metadata_first=True)._replace(span=parse_range("bytes=0-9"))
    found = await large.find(asks)
    assert isinstance(found, Found)
    assert await take(await large.body(asks, found, 0, 10)) == DATA[:10]
    assert not found.entry.has_bytes
    large.engine._entries.pop(asks.key, None)
    await large.read("k")
    await large.settle()
    large.engine._entries.put(found.entry)
    assert (await Explainer(large.engine, "me").here(asks.key, large.identity)).resident == 9
    asked = large.origin.count("GET")
    assert await large.read("k") == DATA
    assert large.origin.count("GET") == asked
    leases.close()
