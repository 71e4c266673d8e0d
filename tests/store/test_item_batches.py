"""Many items stored in one step: each is right and has its row, or leaves nothing behind."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.model.errors import DiskUnavailable
from gateway.store.item_batches import NewItem
from gateway.store.store import Store
from rig.consistency import assert_index_equals_disk, files_of
from rig.digests import sha
from tests.faults import FaultyDirectory
from tests.stores import entering, eventually

Open = Callable[..., Awaitable[Store]]


def new(*bodies: bytes) -> list[NewItem]:
    """Items to store."""
    return [NewItem(sha(body), body, entering(1.0)) for body in bodies]


async def test_right_items_are_stored_and_wrong_ones_are_not(store: Store, root: Path) -> None:
    """Rule: an item whose bytes have another digest gets no file; the others of its batch are kept, each once."""
    wrong = NewItem(sha(b"asked for"), b"came", entering(1.0))
    refs = await store.batches.store([*new(b"one", b"two"), wrong, *new(b"one")])
    assert [ref and ref.digest for ref in refs] == [sha(b"one"), sha(b"two"), None, sha(b"one")]
    assert files_of(root).keys() == {sha(b"one").hex(), sha(b"two").hex()}
    assert_index_equals_disk(root)
    assert store.status().filling == 0


async def test_a_directory_that_takes_few_bytes_at_a_time(open_store: Open, root: Path) -> None:
    """Rule: an item is written to its end, in as many pieces as the disk takes."""
    directory = FaultyDirectory(root)
    directory.most_bytes = 2
    store = await open_store(directory=directory)
    [ref] = await store.batches.store(new(b"seven77"))
    assert ref is not None
    assert files_of(root) == {ref.digest.hex(): 7}


@pytest.mark.parametrize("fault", ["write_errno", "publish_errno"])
async def test_a_failing_disk_keeps_none(open_store: Open, root: Path, fault: str) -> None:
    """Rule: a batch that the disk does not take leaves neither files nor reservations, not even of its first items."""
    directory = FaultyDirectory(root)
    store = await open_store(directory=directory)
    setattr(directory, fault, errno.EIO)
    with pytest.raises(DiskUnavailable):
        await store.batches.store(new(b"one", b"two"))
    setattr(directory, fault, 0)
    await eventually(lambda: not files_of(root))
    assert not list((root / "tmp").iterdir())
    assert store.status().filling == 0


async def test_a_batch_without_room(open_store: Open, root: Path) -> None:
    """Rule: a batch that is larger than the cache is refused."""
    store = await open_store(capacity=100)
    await store.try_lock()
    with pytest.raises(DiskUnavailable):
        await store.batches.store(new(bytes(60), bytes(61)))
    assert not files_of(root)


async def test_items_beyond_the_low_watermark(open_store: Open, root: Path) -> None:
    """Rule: an item that may displace nothing is not kept above the low watermark, whoever reserved its room."""
    store = await open_store(capacity=1000)
    await store.try_lock()
    fits, exceeds = (item._replace(for_good=True) for item in new(bytes(500), bytes(499)))
    refs = await store.batches.store([fits, exceeds], reserved=True)
    assert [ref is not None for ref in refs] == [True, False]
    await eventually(lambda: files_of(root).keys() == {sha(bytes(500)).hex()})


async def test_reserved_items_displace_nothing(open_store: Open, root: Path) -> None:
    """Rule: items whose room is reserved are stored, and nothing is evicted for them, also while reservations and what was stored
    under them exceed the capacity together."""
    store = await open_store(capacity=10_000)
    await store.try_lock()
    held = new(*(bytes([number]) * 1000 for number in range(5)))
    assert None not in await store.batches.store(held)
    rooms = [store.begin(5000), store.begin(3000, instead=True)]
    item = new(bytes([9]) * 1000)
    assert None not in await store.batches.store(item, reserved=True)
    for room in rooms:
        room.end()
    assert files_of(root).keys() == {each.digest.hex() for each in [*held, *item]}
