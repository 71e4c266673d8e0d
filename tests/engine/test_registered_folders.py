"""Folders of registered datasets: which pages end with a write or a change of registrations, whatever a worker knows."""

from __future__ import annotations

import asyncio

import pytest

from gateway.engine.objects.listings import WantedPage
from gateway.engine.objects.registered_folders import CHANGED, RegisteredFolders
from gateway.model.keys import ObjectKey
from gateway.store.datasets.listed import ReadFolders
from gateway.store.files.failures import DiskFault
from tests.engine.conftest import Bench

DOCUMENT = b"<ListBucketResult>one</ListBucketResult>"
KEY = ObjectKey("default", "b", "data/k")


class Disk:
    """What a worker reads; ``slow``: not until that is set. ``failing``: the disk."""

    def __init__(self, bench: Bench) -> None:
        self.folders = {"t": frozenset({"b/data/", "b/data/train/"})}
        self.slow: asyncio.Event | None = None
        self.reading = asyncio.Event()
        self.failing = False
        self.reads = 0
        self.brought: list[str] = []
        self._generations = bench.store.generations

    async def read(self) -> ReadFolders:
        """Read the folders."""
        self.reads += 1
        number = self._generations.of(CHANGED)
        self.reading.set()
        if self.slow is not None:
            await self.slow.wait()
        if self.failing:
            raise DiskFault("it hangs")
        return ReadFolders(number, dict(self.folders))


@pytest.fixture
async def disk(bench: Bench) -> Disk:
    """The disk of the worker of the bench, who has read it."""
    disk = Disk(bench)
    folders = RegisteredFolders(bench.store.generations, disk.read, disk.brought.append)
    bench.engine.services.folders = folders
    assert await folders.scope("t", "b/data/") is not None
    return disk


async def page_of(bench: Bench, prefix: str = "data/") -> WantedPage:
    """A page of the tenant."""
    scope = await bench.engine.services.folders.scope("t", f"b/{prefix}")
    assert scope is not None
    return WantedPage("default", "b", f"prefix={prefix}", scope.name, 600.0, scope.number)


async def keep(bench: Bench, page: WantedPage) -> None:
    """Record a page that the origin has just sent."""
    await bench.engine.listings.keep(bench.engine.listings.begin(page), bench.identity, (), DOCUMENT)
    assert await recorded(bench, page)


async def recorded(bench: Bench, page: WantedPage) -> bool:
    """Whether a page counts."""
    return await bench.engine.listings.recall(bench.engine.listings.begin(page), bench.identity) is not None


async def test_whose_folders_and_which(bench: Bench, disk: Disk) -> None:
    """Rule: the narrowest of the tenant's folders; a listing of none begins to copy those of other nodes."""
    folders = bench.engine.services.folders
    assert await folders.scope("t", "b/data/x") != await folders.scope("t", "b/data/train/x")
    assert disk.brought == []
    assert [await folders.scope(*asked) for asked in (("t", "b/dat"), ("u", "b/data/"))] == [None, None]
    assert (disk.brought, disk.reads) == (["t", "u"], 1)


async def test_a_write_ends_the_pages_of_its_folders_alone(bench: Bench, disk: Disk) -> None:
    """Rule: a key in a narrow folder is in the wide one too; other keys, and the same key at another origin, end nothing."""
    wide, narrow = await page_of(bench), await page_of(bench, "data/train/")
    for page in (wide, narrow):
        await keep(bench, page)
    await bench.engine.forget_from_fleet([KEY._replace(key="other/k"), KEY._replace(origin="o")])
    assert [await recorded(bench, page) for page in (wide, narrow)] == [True, True]
    await bench.engine.forget_from_fleet([KEY])
    assert [await recorded(bench, page) for page in (wide, narrow)] == [False, True]
    await bench.engine.forget_from_fleet([KEY._replace(key="data/train/k")])
    assert await recorded(bench, narrow) is False


async def test_a_change_of_registrations_ends_every_page(bench: Bench, disk: Disk) -> None:
    """Rule: pages from before a registration are not served after it, and its folders are read once."""
    page = await page_of(bench)
    await keep(bench, page)
    bench.store.generations.bump(CHANGED)
    assert not await recorded(bench, await page_of(bench))
    assert disk.reads == 2
    disk.folders = {}
    bench.store.generations.bump(CHANGED)
    assert await bench.engine.services.folders.scope("t", "b/data/") is None


async def test_a_worker_that_does_not_know_the_folders_ends_every_page(bench: Bench, disk: Disk) -> None:
    """Rule: a write that another worker handles ends what it may have changed, even if that worker has not read the folders."""
    other = Disk(bench)
    other.slow = asyncio.Event()
    unknowing = RegisteredFolders(bench.store.generations, other.read)
    page = await page_of(bench)
    for key in ("data/k", "elsewhere"):
        await keep(bench, page)
        assert list(unknowing.forget(f"b/{key}")) == []
        assert not await recorded(bench, page)
    other.slow.set()
    await unknowing.scope("t", "b/data/")
    await keep(bench, page)
    assert list(unknowing.forget("b/elsewhere")) == []
    assert await recorded(bench, page)
    assert len(list(unknowing.forget("b/data/train/k"))) == 2
    assert other.reads == 1


async def test_what_is_read_during_a_change_does_not_count(bench: Bench, disk: Disk) -> None:
    """Rule: folders that were read under an older number are read again."""
    page = await page_of(bench)
    disk.slow = asyncio.Event()
    disk.reading.clear()
    bench.store.generations.bump(CHANGED)
    asking = asyncio.create_task(bench.engine.services.folders.scope("t", "b/data/"))
    await disk.reading.wait()
    bench.store.generations.bump(CHANGED)
    disk.slow.set()
    assert await asking is None
    await keep(bench, page)
    assert not await recorded(bench, await page_of(bench))
    assert disk.reads == 3


async def test_a_failing_disk(bench: Bench, disk: Disk) -> None:
    """Rule: while the present folders cannot be read, listings are the origin's, because other workers may know fewer folders."""
    await keep(bench, await page_of(bench))
    disk.failing = True
    bench.store.generations.bump(CHANGED)
    assert await bench.engine.services.folders.scope("t", "b/data/") is None
    await bench.engine.forget_from_fleet([KEY])
    disk.failing = False
    assert not await recorded(bench, await page_of(bench))
