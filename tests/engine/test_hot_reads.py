"""The hot path: files it holds, names it remembers, requests it leaves to the full path."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable
from copy import copy
from dataclasses import replace

import pytest

from gateway.api.s3.answer import SERVER, Answer, cache_status
from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call
from gateway.api.s3.classify import not_cacheable
from gateway.api.s3.hot import _HARMLESS, Hit, HotReads, Unresolved
from gateway.api.s3.objects import ObjectReads, is_forced
from gateway.api.s3.payload import PayloadForm
from gateway.engine.objects.body import Body
from gateway.engine.objects.hits import ReadyObject
from gateway.model.keys import ObjectKey, OriginIdentity, Principal, rights_in
from gateway.model.outcomes import Outcome
from gateway.model.s3.conditions import Conditions
from gateway.model.s3.sigv4 import WireRequest
from gateway.server.head import encode_lines
from gateway.store.files import blobs
from gateway.store.memory import LARGEST
from tests.compiled import holds
from tests.engine.conftest import BLOCK, Bench, alone, take


def call(bench: Bench, host: bytes) -> S3Call:
    """A plain GET of ``b/k``, sent to this host."""
    request = WireRequest("GET", b"/b/k", b"", [(b"host", host)])
    auth = Authenticated(Principal("AK", "t", bench.identity), PayloadForm.UNSIGNED, "")
    return S3Call(request, auth, "b", b"k", ObjectKey("default", "b", "k"), "", frozenset())


async def test_hosts_that_clients_make_up_are_remembered_only_when_short(bench: Bench) -> None:
    """Or the memo of addresses, which is bounded in number, would not be bounded in bytes."""
    bench.origin.put("b", "k", b"x" * 100)
    await bench.read("k")
    members = alone()
    hot = HotReads(bench.engine, members)
    for length, remembered in ((200, True), (10_000, False)):
        made_up = call(bench, b"h" * length)
        hot.learn(made_up, members.ring)
        hit = hot.find(made_up.request, made_up.auth, bench.now[0])
        assert isinstance(hit, Hit) is remembered


DATA = os.urandom(40 * BLOCK + 77)
"""More blocks than the short path sends at once."""


def ranged(bench: Bench, value: str) -> S3Call:
    """A GET of a range of ``b/k``."""
    request = WireRequest("GET", b"/b/k", b"", [(b"host", b"h"), (b"range", value.encode())])
    asked = call(bench, b"h")
    return replace(asked, request=request)


@pytest.fixture
async def resident(bench: Bench) -> tuple[Bench, HotReads]:
    """An object of many blocks in the cache, known to the short path."""
    bench.origin.put("b", "k", DATA, headers=[("x-amz-meta-a", "b")])
    assert await bench.read("k") == DATA
    await bench.settle()
    members = alone()
    hot = HotReads(bench.engine, members)
    hot.learn(call(bench, b"h"), members.ring)
    return bench, hot


@pytest.mark.parametrize(
    "value",
    [
        "bytes=0-0", "bytes=5-4095", f"bytes={BLOCK}-{2 * BLOCK - 1}", f"bytes={BLOCK - 1}-{BLOCK}", f"bytes=100-{9 * BLOCK}",
        "bytes=-1", "bytes=-70000", f"bytes={len(DATA) - 3}-", f"bytes={len(DATA) - 1}-{10**12}",
    ],
)  # fmt: skip
async def test_a_range_is_the_same_by_both_paths(resident: tuple[Bench, HotReads], value: str) -> None:
    """Rule: a range of resident blocks has the bytes and the header lines that the long path gives it."""
    bench, hot = resident
    asked = ranged(bench, value)
    answer = await ObjectReads(bench.engine).read(asked)
    assert isinstance(answer, Answer)
    assert isinstance(answer.content, Body)
    body = await take(answer.content)
    hit = hot.find(asked.request, asked.auth, bench.now[0])
    assert isinstance(hit, Hit)
    assert (hit.status, hit.length, hit.span) == (answer.status, answer.length, answer.span)
    assert b"".join(os.pread(fd, count, offset) for fd, offset, count, _ in hit.files) == body
    assert sorted(hit.head.splitlines()) == sorted(
        encode_lines([*answer.headers, cache_status(Outcome.HIT, None), SERVER]).splitlines()
    )


@pytest.mark.parametrize(
    "value", ["bytes=0-", f"bytes={len(DATA)}-", "bytes=-0", "bytes=0-1,5-6", "bytes=2-1", "items=0-1"]
)
async def test_a_range_that_is_long_or_strange_is_left_to_the_long_path(
    resident: tuple[Bench, HotReads], value: str
) -> None:
    """Rule: a range over many blocks, an unsatisfiable one, and several ranges take the long path."""
    bench, hot = resident
    asked = ranged(bench, value)
    assert hot.find(asked.request, asked.auth, bench.now[0]) is Unresolved.OTHER


async def test_a_range_is_served_only_while_its_object_is(resident: tuple[Bench, HotReads]) -> None:
    """Rule: a write, a lapse of freshness and an evicted block end the short path of ranges as they end that of whole reads."""
    bench, hot = resident
    asked = ranged(bench, "bytes=0-9")
    stranger = asked.auth._replace(principal=replace(asked.auth.principal, identity=OriginIdentity("default", "other")))
    await ObjectReads(bench.engine).read(asked)
    assert isinstance(hot.find(asked.request, asked.auth, bench.now[0]), Hit)
    assert hot.find(asked.request, stranger, bench.now[0]) is Unresolved.OTHER
    assert hot.find(asked.request, asked.auth, bench.now[0] + 600) is Unresolved.OTHER
    conditional = replace(asked.request, headers=[*asked.request.headers, (b"if-range", b'"a"')])
    assert hot.find(conditional, asked.auth, bench.now[0]) is Unresolved.OTHER
    await bench.store.forget([ObjectKey("default", "b", "k")])
    assert hot.find(asked.request, asked.auth, bench.now[0]) is Unresolved.OTHER


async def test_no_more_addresses_are_remembered_than_entries(bench: Bench) -> None:
    """Rule: reads of ever new objects leave no more addresses in memory than the engine keeps entries."""
    members = alone()
    hot = HotReads(bench.engine, members)
    for number in range(bench.engine.entries_kept + 500):
        asked = call(bench, b"h")
        asked.request.raw_path = b"/b/%d" % number
        hot.learn(asked, members.ring)
    assert len(hot._addresses) == bench.engine.entries_kept
    assert ("default", b"h", asked.request.raw_path) in hot._addresses


async def test_a_header_that_cannot_be_sent_leaves_nothing_held(bench: Bench) -> None:
    """A failure before the files are handed to the server leaves no file open."""
    bench.origin.put("b", "k", b"x" * 100)
    await bench.read("k")
    asked = call(bench, b"h")
    entry = bench.engine._entries.get(ObjectKey("default", "b", "k"))
    assert entry is not None
    entry.record = replace(entry.record, meta=replace(entry.record.meta, headers=(("x-amz-meta-a", "b\0c"),)))
    members = alone()
    hot = HotReads(bench.engine, members)
    hot.learn(asked, members.ring)
    before = set(blobs._held)
    with pytest.raises(ValueError, match="NUL"):
        hot.find(asked.request, asked.auth, bench.now[0])
    assert blobs._held == before


async def test_a_ring_that_changes_is_looked_at_before_the_next_hit(bench: Bench) -> None:
    """Rule: after the ring changes, the long path checks the home again before the next hit."""
    bench.origin.put("b", "k", b"x" * 100)
    await bench.read("k")
    members = alone()
    hot = HotReads(bench.engine, members)
    asked, before = call(bench, b"h"), members.ring
    hot.learn(asked, before)
    members.ready()
    assert members.ring is not before
    assert hot.find(asked.request, asked.auth, bench.now[0]) is Unresolved.PLAIN
    hot.learn(asked, before)
    assert hot.find(asked.request, asked.auth, bench.now[0]) is Unresolved.PLAIN
    hot.learn(asked, members.ring)
    hit = hot.find(asked.request, asked.auth, bench.now[0])
    assert isinstance(hit, Hit)


KEY = ObjectKey("default", "b", "k")


@pytest.fixture
async def ready(bench: Bench) -> tuple[Bench, ReadyObject]:
    """A small object that its reader has just got from memory."""
    bench.store.memory.budget = LARGEST
    bench.origin.put("b", "k", b"x" * 100)
    await bench.read("k")
    await bench.settle()
    assert [bench.engine.hot(KEY, bench.identity, bench.now[0]) is not None for _ in range(3)] == [True] * 3
    object_ = bench.engine.hits.ready(KEY, bench.identity)
    assert object_ is not None
    assert bench.engine.hits.again(object_, bench.now[0], time.monotonic()) == b"x" * 100
    return bench, object_


async def write(bench: Bench) -> None:
    """The object is written."""
    await bench.store.forget([KEY])


async def change_rights(bench: Bench) -> None:
    """The rights of the bucket change."""
    bench.store.generations.bump(rights_in(KEY))


async def revoke(bench: Bench) -> None:
    """The origin refuses somebody an object."""
    bench.engine._grants.revocation = object()


async def reload(bench: Bench) -> None:
    """The configuration is read again."""
    bench.engine.services.rules = copy(bench.engine.services.rules)


async def wait(bench: Bench) -> None:
    """The object's freshness ends."""
    bench.now[0] += 100_000


async def turn_back(bench: Bench) -> None:
    """The clock is set back by more than anything may be early."""
    bench.now[0] -= 100_000


async def miss_writes(bench: Bench) -> None:
    """The fleet does not answer, so writes elsewhere may be missed."""
    bench.engine.services.heard.until = 0.0


async def have_missed_writes(bench: Bench) -> None:
    """Writes elsewhere were missed after the object was confirmed."""
    bench.engine.services.heard.since = bench.now[0] + 1


async def forget_the_entry(bench: Bench) -> None:
    """Other objects need its place among the entries."""
    del bench.engine._entries[KEY]


async def replace_the_entry(bench: Bench) -> None:
    """The entry is made anew."""
    entry = bench.engine._entries[KEY]
    bench.engine._entries.put(replace(entry))


async def learn_other_headers(bench: Bench) -> None:
    """The origin is asked, and describes the object with other headers."""
    entry = bench.engine._entries[KEY]
    entry.record = replace(entry.record, meta=replace(entry.record.meta, headers=(("x-amz-meta-a", "b"),)))


async def remove_the_blob(bench: Bench) -> None:
    """Any worker of the node removes the blob."""
    entry = bench.engine._entries[KEY]
    bench.store._disk.removed.add(entry.blobs[0].digest)


async def clear_memory(bench: Bench) -> None:
    """Other blobs need its memory."""
    bench.store.memory.clear()


async def lose_the_disk(bench: Bench) -> None:
    """Open files may not be read."""
    bench.store._disk.readable = False


@pytest.mark.parametrize(
    "change",
    [
        write, change_rights, revoke, reload, wait, turn_back, miss_writes, have_missed_writes, forget_the_entry,
        replace_the_entry, learn_other_headers, remove_the_blob, clear_memory, lose_the_disk,
    ],
)  # fmt: skip
async def test_an_object_is_not_sent_again_after_a_change(
    ready: tuple[Bench, ReadyObject], change: Callable[[Bench], Awaitable[None]]
) -> None:
    """Rule: whatever may change between two hits is compared before the second one."""
    bench, object_ = ready
    guards = bench.engine.hits.guards(object_)
    assert holds(guards)
    await change(bench)
    assert bench.engine.hits.again(object_, bench.now[0], time.monotonic()) is None
    if change in (wait, turn_back):
        assert not object_.since <= bench.now[0] < object_.until  # which the compiled code compares, too
    elif change is clear_memory:
        assert not object_.copy.body
    else:
        assert not holds(guards)


async def test_a_hit_that_is_sent_again_counts_as_a_read(ready: tuple[Bench, ReadyObject]) -> None:
    """Rule: the eviction order, the memory and the entries know of it as of any hit."""
    bench, object_ = ready
    bench.store.memory.take_hits()
    folded = bench.store._uses.take_folded()
    bench.engine._entries.move_to_end(KEY, last=False)
    assert bench.engine.hits.again(object_, bench.now[0], time.monotonic()) is not None
    assert next(reversed(bench.engine._entries)) == KEY
    assert bench.store.memory.take_hits() == 1
    folded = bench.store._uses.take_folded()
    assert folded is not None
    assert {digest: use.reads for digest, use in folded.uses.items()} == {object_.digest: 1}


@pytest.mark.parametrize("name", sorted(_HARMLESS))
async def test_what_passes_for_plain_is_plain_to_the_long_path_too(bench: Bench, name: bytes) -> None:
    """Rule: a header that the hot path accepts is neither a range nor a condition, and prevents no cached read."""
    asked = call(bench, b"h")
    request = asked.request = WireRequest("GET", b"/b/k", b"", [(name, b"no-cache, no-store, ENABLED")])
    assert HotReads(bench.engine, alone()).find(request, asked.auth, bench.now[0]) is Unresolved.PLAIN
    assert not_cacheable(asked) is None
    assert Conditions.read(request.fields.get) is None
    assert b"range" not in request.fields
    assert not is_forced(asked)


@pytest.mark.parametrize(
    "header", [(b"range", b"bytes=0-1"), (b"if-match", b'"a"'), (b"cache-control", b"no-cache"), (b"origin", b"x")]
)
async def test_what_is_not_plain_is_left_to_the_long_path(bench: Bench, header: tuple[bytes, bytes]) -> None:
    """Rule: ranges, conditions, forced checks and requests from other web origins take the full path."""
    asked = call(bench, b"h")
    request = WireRequest("GET", b"/b/k", b"", [(b"host", b"h"), header])
    assert HotReads(bench.engine, alone()).find(request, asked.auth, bench.now[0]) is Unresolved.OTHER
