"""Items of datasets on disk. The states that workers share are hints; every state is checked before use."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.model.objects import BlobRef
from gateway.store.datasets.content import FETCHING, NOT_KNOWN, RESIDENT, VERIFIED, Content
from gateway.store.items import ItemFile, close_files, stamp_of
from gateway.store.store import Store
from rig.digests import Row, sha, write
from rig.near import NearRegistry
from tests.stores import FakeClock, entering, write_blob

Open = Callable[..., Awaitable[Store]]
BODIES = [b"first", b"second", b"third", b"second"]


async def content_of(store: Store, root: Path, bodies: list[bytes] = BODIES) -> Content:
    """A registered dataset's content."""
    registry = NearRegistry(root / "datasets", store.directory.boot)
    rows = [Row(sha(body), "b", str(number), None, len(body)) for number, body in enumerate(bodies)]
    registration, _ = await registry.register("t", "x", write(root.parent / "digests", rows), "full")
    return registration.content


async def keep(store: Store, body: bytes, now: float = 1.0) -> BlobRef:
    """Store a blob for its own sake."""
    ref = await write_blob(store, body)
    assert await store.keep_item(ref, entering(now))
    return ref


def read(file: ItemFile | None) -> bytes | None:
    """All of an item, and its file closed."""
    if file is None:
        return None
    data = os.pread(file.fd, file.size, 0)
    close_files([file])
    return data


async def opened(store: Store, content: Content, index: int) -> ItemFile | None:
    """An item's file, if it is known to be right."""
    [file] = await store.items.open_all(content, np.array([index], np.uint32), content.digests_of([index]))
    return file


async def test_a_stored_blob_is_known_at_every_index_that_has_its_bytes(store: Store, root: Path) -> None:
    """Rule: an adopted dataset learns of each new blob; equal items share it."""
    content = await content_of(store, root)
    store.items.adopt(content)
    await store.items.ready(content)
    await keep(store, b"second")
    assert content.states.flags.tolist() == [NOT_KNOWN, VERIFIED, NOT_KNOWN, VERIFIED]
    assert read(await opened(store, content, 3)) == b"second"
    assert await opened(store, content, 0) is None


async def test_a_survey_finds_what_was_stored_before(store: Store, root: Path) -> None:
    """Rule: opening a dataset finds its blobs, with the verifications of this start."""
    await keep(store, b"first")
    content = await content_of(store, root)
    store.items.adopt(content)
    await store.items.ready(content)
    assert content.states.flags.tolist() == [VERIFIED, NOT_KNOWN, NOT_KNOWN, NOT_KNOWN]
    assert content.states.surveyed
    assert read(await opened(store, content, 0)) == b"first"


async def test_after_a_restart_items_are_resident_and_not_verified(open_store: Open, root: Path) -> None:
    """Rule: blobs verified by an earlier start are not opened unverified; ``look`` verifies them."""
    first = await open_store()
    await keep(first, b"first")
    await first.close()
    again = await open_store()
    content = await content_of(again, root)
    again.items.adopt(content)
    await again.items.ready(content)
    assert content.states.flags[0] == RESIDENT
    assert await opened(again, content, 0) is None
    assert read(await again.items.look(content, 0)) == b"first"
    assert content.states.flags[0] == VERIFIED
    assert read(await opened(again, content, 0)) == b"first"


async def test_a_blob_that_is_damaged_is_dropped_when_it_is_looked_at(open_store: Open, root: Path) -> None:
    """Rule: wrong bytes are never opened: the blob loses its row, its file and its state."""
    first = await open_store()
    ref = await keep(first, b"first")
    path = Path(first.directory.blob_path(ref.digest))
    await first.close()
    path.write_bytes(b"wrong")
    again = await open_store()
    content = await content_of(again, root)
    again.items.adopt(content)
    await again.items.ready(content)
    assert await again.items.look(content, 0) is None
    assert content.states.flags[0] == NOT_KNOWN
    assert not path.exists()
    assert await again.items.resident(ref.digest) is None


@pytest.mark.parametrize("harm", ["touched", "removed"])
async def test_a_file_that_is_not_what_was_verified_is_not_opened(store: Store, root: Path, harm: str) -> None:
    """Rule: a deleted file, or one with another modification time, no longer counts as verified."""
    content = await content_of(store, root)
    store.items.adopt(content)
    await store.items.ready(content)
    ref = await keep(store, b"first")
    path = Path(store.directory.blob_path(ref.digest))
    if harm == "removed":
        path.unlink()
    else:
        os.utime(path, ns=(1, 1))
    assert await opened(store, content, 0) is None
    assert content.states.flags[0] == (NOT_KNOWN if harm == "removed" else RESIDENT)
    found = read(await store.items.look(content, 0))
    assert found == (None if harm == "removed" else b"first")


async def test_evicted_items_are_not_known_any_more(open_store: Open, root: Path) -> None:
    """Rule: evictions update the states of adopted datasets."""
    store = await open_store(capacity=1000)
    assert await store.try_lock()
    bodies = [bytes([number]) * 100 for number in range(12)]
    content = await content_of(store, root, bodies)
    store.items.adopt(content)
    await store.items.ready(content)
    for number, body in enumerate(bodies[:9]):
        await keep(store, body, float(number))
    assert await store.make_room(200)
    evicted = store.status().evicted_blobs
    assert evicted > 0
    assert content.states.flags.tolist() == [NOT_KNOWN] * evicted + [VERIFIED] * (9 - evicted) + [NOT_KNOWN] * 3


async def test_a_claim_that_somebody_fetches_does_not_hide_a_blob(store: Store, root: Path) -> None:
    """Rule: a dead worker's claim on a fetch does not hide a blob that the index has."""
    await keep(store, b"first")
    content = await content_of(store, root)
    content.states.flags[:] = FETCHING
    store.items.adopt(content)
    await store.items.ready(content)
    assert content.states.flags.tolist() == [VERIFIED, FETCHING, FETCHING, FETCHING]


async def test_a_survey_that_the_disk_ended_is_begun_again(store: Store, root: Path, clock: FakeClock) -> None:
    """Rule: a survey that a failing index ended is repeated at the dataset's next use."""
    await keep(store, b"first")
    content = await content_of(store, root)
    index = Path(store.directory.index)
    index.rename(root / "aside")
    store.items.adopt(content)
    await store.items.ready(content)
    assert not content.states.surveyed
    (root / "aside").rename(index)
    clock.time += 3600
    await store.sweep()
    store.items.adopt(content)
    await store.items.ready(content)
    assert content.states.surveyed
    assert content.states.flags[0] == VERIFIED


async def test_an_item_that_is_being_kept_takes_room(store: Store) -> None:
    """Rule: from its first byte until the index counts it a blob takes room, or more would be let in than there is room for."""
    ref = await write_blob(store, b"second")
    keeping = asyncio.create_task(store.keep_item(ref, entering(1.0)))
    await asyncio.sleep(0)
    assert (store.status().filling, store.status().bytes) == (6, 0)
    assert await keeping
    assert (store.status().filling, store.status().bytes) == (0, 6)


async def test_an_item_that_would_lead_to_eviction_is_not_kept_for_good(open_store: Open) -> None:
    """Rule: ``admits`` and ``keep_item`` with ``for_good`` stay below the low watermark; a refused item leaves no file."""
    store = await open_store(capacity=1000)
    await keep(store, b"x" * 800)
    assert store.admits(100)
    assert not store.admits(101)
    ref = await write_blob(store, b"y" * 150)
    assert not await store.keep_item(ref, entering(1.0), for_good=True)
    store._flush()
    await store._disk.write(lambda connection: None)
    assert not os.path.exists(store.directory.blob_path(ref.digest))


def test_stamps_of_neighbouring_times_differ() -> None:
    """Rule: 32 bits of a modification time still tell it from one a nanosecond, some seconds or a day later."""
    moment = 1_700_000_000_000_000_000
    assert all(stamp_of(moment) != stamp_of(moment + step) for step in (1, 10**9, 2**32, 86_400 * 10**9))
