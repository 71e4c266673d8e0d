"""Registrations: kept on disk, seen by every worker, and thrown away rather than believed when something is wrong with them."""

from __future__ import annotations

import gc
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from gateway.model.datasets import ApiError, Location
from gateway.policies.health.breaker import FailureKind
from gateway.store.datasets.content import FETCHING, NOT_KNOWN, RESIDENT, VERIFIED
from gateway.store.datasets.folders import Folders
from gateway.store.datasets.registry import DigestSource, Registry
from gateway.store.files.failures import DiskFault
from rig.digests import Row, files_below, id_of, rows_of, sha, write
from rig.near import NearRegistry
from rig.processes import open_files

T = TypeVar("T")

BOOT = 11
A, B = "tenant a", "tenant/b"


class Clock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The datasets directory of a cache; it does not exist yet."""
    (tmp_path / "cache").mkdir()
    return tmp_path / "cache" / "datasets"


@pytest.fixture
def clock() -> Clock:
    """The registries' clock."""
    return Clock()


@pytest.fixture
async def registry(directory: Path, clock: Clock) -> Registry:
    """One worker's registry."""
    return NearRegistry(directory, BOOT, clock=clock)


@pytest.fixture
async def sibling(registry: Registry, directory: Path, clock: Clock) -> Registry:
    """Another worker's."""
    return NearRegistry(directory, BOOT, clock=clock)


async def test_a_dataset_is_found_by_name_and_id(registry: Registry, tmp_path: Path) -> None:
    """Rule: a registered dataset is found by its name and by its id."""
    rows = rows_of(50)
    registration, new = await registry.register(A, "d", write(tmp_path / "f", rows), "auto")
    assert new
    assert (registration.tenant, registration.name, registration.caching) == (A, "d", "auto")
    assert registration.content.id == id_of(rows)
    assert registration.locations.of(7) == Location("data", rows[7].key, None, 100)
    assert registry.find(A, "d") is registration
    assert registry.find(A, id_of(rows)) is registration
    assert [each.name async for each in registry.of_tenant(A)] == ["d"]


async def test_tenants_do_not_see_one_another(registry: Registry, tmp_path: Path) -> None:
    """Rule: a name or id of another tenant is unknown until one has registered it oneself."""
    rows = rows_of(5)
    await registry.register(A, "d", write(tmp_path / "f", rows), "auto")
    assert registry.find(B, "d") is None
    assert registry.find(B, id_of(rows)) is None
    assert [each async for each in registry.of_tenant(B)] == []
    assert not await registry.remove(B, "d")
    theirs = [row._replace(bucket="copy") for row in rows]
    registration, new = await registry.register(B, "mine", write(tmp_path / "g", theirs), "full")
    assert new
    assert registration.locations.of(0).bucket == "copy"
    mine = registry.find(A, "d")
    assert mine is not None
    assert mine.locations.of(0).bucket == "data"


async def test_equal_bytes_share_what_is_known_of_them(registry: Registry, sibling: Registry, tmp_path: Path) -> None:
    """Rule: tenants and workers with the same bytes share one content and its verifications."""
    rows = rows_of(5)
    first, _ = await registry.register(A, "d", write(tmp_path / "f", rows), "auto")
    second, _ = await registry.register(B, "e", write(tmp_path / "g", [row._replace(key="k") for row in rows]), "auto")
    assert first.content is second.content
    first.content.states.flags[3] = VERIFIED
    elsewhere = sibling.find(B, "e")
    assert elsewhere is not None
    assert elsewhere.content.states.flags.tolist() == [0, 0, 0, VERIFIED, 0]
    elsewhere.content.states.crc32[3] = 0xFFFFFFFF
    elsewhere.content.states.surveyed = True
    assert (first.content.states.crc32[3], first.content.states.surveyed) == (0xFFFFFFFF, True)


async def test_lengths_are_claims(registry: Registry, tmp_path: Path) -> None:
    """Rule: wrong lengths for the same digests, stated by another tenant, change no other dataset."""
    rows = rows_of(5)
    honest, _ = await registry.register(A, "d", write(tmp_path / "f", rows), "auto")
    liar, _ = await registry.register(B, "d", write(tmp_path / "g", [r._replace(length=1) for r in rows]), "auto")
    assert honest.content.id == liar.content.id
    assert (honest.content.size, liar.content.size) == (500, 5)
    assert honest.content.lengths[:].tolist() == [100] * 5


async def test_only_what_is_there_counts_as_resident(registry: Registry, tmp_path: Path) -> None:
    """Rule: an item that is being fetched is not resident yet."""
    registration, _ = await registry.register(A, "d", write(tmp_path / "f", rows_of(4)), "auto")
    registration.content.states.flags[:] = [NOT_KNOWN, RESIDENT, VERIFIED, FETCHING]
    assert registration.content.states.resident == 2


async def test_registering_again_changes_nothing(registry: Registry, tmp_path: Path) -> None:
    """Rule: the same file under the same name is known, and is not even read again when its fingerprint is given."""
    path = write(tmp_path / "f", rows_of(5))
    first, _ = await registry.register(A, "d", path, "auto", DigestSource("print"))
    path.unlink()
    again, new = await registry.register(A, "d", path, "auto", DigestSource("print"))
    assert (new, again is first) == (False, True)
    other, new = await registry.register(A, "d", path, "static", DigestSource("print"))
    assert (new, other.caching, other.content is first.content) == (False, "static", True)


async def test_a_known_file_is_read_again_for_another_allow_list(registry: Registry, tmp_path: Path) -> None:
    """Rule: a registered file is read again for a caller with a narrower allow-list, and refused."""
    path = write(tmp_path / "f", rows_of(5))
    await registry.register(A, "d", path, "auto", DigestSource("print"))
    with pytest.raises(ApiError, match="AccessDenied: Row 0"):
        await registry.register(A, "d", path, "auto", DigestSource("print", ("elsewhere/**",)))


async def test_a_name_is_given_to_another_dataset(
    registry: Registry, sibling: Registry, clock: Clock, tmp_path: Path
) -> None:
    """Rule: open readers of the previous dataset continue; all others get the new one, siblings within a second."""
    old_rows, new_rows = rows_of(5), rows_of(7, seed=2)
    await registry.register(A, "d", write(tmp_path / "f", old_rows), "auto")
    held = sibling.find(A, "d")
    assert held is not None
    registration, new = await registry.register(A, "d", write(tmp_path / "g", new_rows), "auto")
    assert (new, registration.content.items) == (False, 7)
    shown = sibling.find(A, "d", now=True)
    assert shown is not None
    assert shown.content.items == 7
    clock.now += 1
    seen = sibling.find(A, "d")
    assert seen is not None
    assert seen.content.items == 7
    assert held.locations.of(4).key == old_rows[4].key
    assert held.content.digest(4) == old_rows[4].digest


async def test_siblings_see_what_is_registered_and_removed(
    registry: Registry, sibling: Registry, clock: Clock, tmp_path: Path
) -> None:
    """Rule: a new dataset is seen at once, by name and id; a removed one is forgotten within a second."""
    rows = rows_of(5)
    assert sibling.find(A, "d") is None
    await registry.register(A, "d", write(tmp_path / "f", rows), "auto")
    assert sibling.find(A, id_of(rows)) is not None
    assert await registry.remove(A, "d")
    assert registry.find(A, "d") is None
    clock.now += 1
    assert sibling.find(A, "d") is None
    assert sibling.find(A, id_of(rows)) is None
    assert not await sibling.remove(A, "d")


async def test_who_asks_about_a_registration_is_not_told_yesterdays(
    registry: Registry, sibling: Registry, tmp_path: Path
) -> None:
    """Rule: a question about a registration sees a sibling's change at once, by name, id and in lists."""
    old_rows, new_rows = rows_of(5), rows_of(7, seed=2)
    await registry.register(A, "d", write(tmp_path / "f", old_rows), "auto")
    assert [found.content.items async for found in sibling.of_tenant(A)] == [5]
    await registry.register(A, "d", write(tmp_path / "g", new_rows), "auto")
    assert {found.name: found.content.items async for found in sibling.of_tenant(A)}["d"] == 7
    await registry.remove(A, "d")
    assert sibling.find(A, id_of(new_rows), now=True) is None
    assert "d" not in {found.name async for found in sibling.of_tenant(A)}


async def test_nothing_is_left_of_a_removed_dataset(registry: Registry, directory: Path, tmp_path: Path) -> None:
    """Rule: a dataset's files are removed when it is neither registered nor open."""
    await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "auto")
    await registry.register(B, "d", write(tmp_path / "g", rows_of(5)), "auto")
    await registry.remove(A, "d")
    assert len(files_below(directory)) == 4
    await registry.remove(B, "d")
    assert files_below(directory) == set()


async def test_content_in_use_is_not_removed(
    registry: Registry, sibling: Registry, clock: Clock, directory: Path, tmp_path: Path
) -> None:
    """Rule: content that a worker has open stays, so a new registration shares it, and goes when it is closed."""
    await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "auto")
    held = sibling.find(A, "d")
    assert held is not None
    await registry.remove(A, "d")
    assert len(list((directory / "contents").iterdir())) == 1
    again, _ = await registry.register(B, "d", write(tmp_path / "f", rows_of(5)), "auto")
    again.content.states.flags[0] = VERIFIED
    assert held.content.states.flags[0] == VERIFIED
    await registry.remove(B, "d")
    del held, again
    gc.collect()
    clock.now += 100
    for each in (sibling, registry):
        await each.get(A, "nothing")
        await each.swept()
    assert list((directory / "contents").iterdir()) == []


async def test_looking_does_not_wait_for_what_is_being_removed(
    registry: Registry, sibling: Registry, clock: Clock, directory: Path, tmp_path: Path
) -> None:
    """Rule: a request that comes when it is time to remove something does not wait for it, nor for the lock that it needs."""
    await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "auto")
    held = sibling.find(A, "d")
    await registry.remove(A, "d")
    del held
    gc.collect()
    clock.now += 100
    await sibling.get(A, "nothing")
    with Folders(directory).locked():
        assert await registry.get(A, "nothing") is None
    await registry.swept()
    assert list((directory / "contents").iterdir()) == []


async def test_what_is_open_is_found_without_looking_at_other_names(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: a dataset that is open is found by its id at once, however many names its tenant has."""
    await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "auto")

    def listed(tenant: str) -> list[str]:
        raise AssertionError("the names were listed")

    monkeypatch.setattr(registry._opened, "names", listed)
    assert registry.find(A, id_of(rows_of(5))) is not None


async def test_replaced_content_is_removed(registry: Registry, directory: Path, tmp_path: Path) -> None:
    """Rule: a dataset that gets another file every night does not fill the disk with the old ones."""
    for night in range(4):
        registration, _ = await registry.register(A, "d", write(tmp_path / "f", rows_of(5, seed=night)), "auto")
        del registration
        a_day_passes(directory)
    assert len(files_below(directory)) == 4


def a_day_passes(directory: Path) -> None:
    """Age all registrations by a day without use."""
    for path in directory.glob("tenants/*/*/locations-*"):
        os.utime(path, (path.stat().st_mtime - 86_400,) * 2)


async def test_a_restart_keeps_registrations(registry: Registry, directory: Path, tmp_path: Path) -> None:
    """Rule: registrations survive a restart of the node; verifications do not."""
    before, _ = await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "chunked")
    before.content.states.flags[:] = VERIFIED
    before.content.states.surveyed = True
    registered_at = before.registered_at
    same_start = Registry(directory, BOOT).find(A, "d")
    assert same_start is not None
    assert same_start.content.states.resident == 5
    del before, same_start
    registry.close()
    gc.collect()
    after = Registry(directory, BOOT + 1).find(A, "d")
    assert after is not None
    assert (after.caching, after.registered_at) == ("chunked", registered_at)
    assert (after.content.states.resident, after.content.states.surveyed) == (0, False)


async def test_without_a_start_nothing_verified_is_believed(
    registry: Registry, directory: Path, tmp_path: Path
) -> None:
    """Rule: a worker that began with a failing disk does not know the node's start, so it drops others' verifications."""
    registration, _ = await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "auto")
    registration.content.states.flags[:] = VERIFIED
    for _ in range(2):
        ill = Registry(directory, 0).find(A, "d")
        assert ill is not None
        assert ill.content.states.resident == 0
        ill.content.states.flags[:] = VERIFIED


async def test_the_directory_goes_away(registry: Registry, directory: Path, clock: Clock, tmp_path: Path) -> None:
    """Rule: when the datasets are deleted under a running gateway they are unknown, and can be registered again."""
    path = write(tmp_path / "f", rows_of(5))
    held, _ = await registry.register(A, "d", path, "auto", DigestSource("print"))
    shutil.rmtree(directory)
    clock.now += 1
    assert registry.find(A, "d") is None
    assert held.locations.of(0).key == rows_of(5)[0].key
    again, new = await registry.register(A, "d", path, "auto", DigestSource("print"))
    assert (new, again.content is held.content) == (True, False)
    assert registry.find(A, "d") is again


async def test_the_cache_goes_away(registry: Registry, directory: Path, clock: Clock, tmp_path: Path) -> None:
    """Rule: without the cache directory no dataset can be registered; only the store makes the directory."""
    path = write(tmp_path / "f", rows_of(5))
    await registry.register(A, "d", path, "auto")
    shutil.rmtree(directory.parent)
    clock.now += 1
    assert registry.find(A, "d") is None
    with pytest.raises(DiskFault):
        await registry.register(A, "d", path, "auto")
    assert not directory.parent.exists()


async def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    """Rule: a registry on a failing disk opens, finds nothing, and refuses registrations with the reason."""
    (tmp_path / "file").write_text("no folder")
    registry = Registry(tmp_path / "file" / "datasets", BOOT)
    assert registry.find(A, "d") is None
    assert [each async for each in registry.of_tenant(A)] == []
    with pytest.raises(DiskFault):
        await registry.register(A, "d", write(tmp_path / "f", rows_of(1)), "auto")
    with pytest.raises(DiskFault):
        async with registry.draft():
            raise AssertionError("there can be no draft")


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "a b",
        "ä",
        "x" * 129,
        "ab" * 32,
        "AB" * 32,
        "a\0b",
        "a\n",
        "\ud800",
        "d%2F",
        "../../../etc/passwd",
    ],
)
async def test_illegal_names(registry: Registry, directory: Path, tmp_path: Path, name: str) -> None:
    """Rule: a name that could be another path, or an id, is refused at registration and unknown elsewhere."""
    with pytest.raises(ApiError, match="InvalidRequest: A dataset's name"):
        await registry.register(A, name, write(tmp_path / "f", rows_of(1)), "auto")
    assert registry.find(A, name) is None
    assert files_below(directory) == set()


@pytest.mark.parametrize("name", ["...", "a.b_c-D9" + "x" * 120, "registration.json"])
async def test_legal_names(registry: Registry, directory: Path, tmp_path: Path, name: str) -> None:
    """Rule: every other name of those characters works, and survives a restart."""
    await registry.register(A, name, write(tmp_path / "f", rows_of(1)), "auto")
    assert Registry(directory, BOOT).find(A, name) is not None


async def test_tenants_of_any_name(registry: Registry, directory: Path, tmp_path: Path) -> None:
    """Rule: a tenant's name never becomes a path."""
    for tenant in ("../..", "\ud800/", "x" * 5000):
        registration, _ = await registry.register(tenant, "d", write(tmp_path / "f", rows_of(1)), "auto")
        assert registration.tenant == tenant
    assert len(list((directory / "tenants").iterdir())) == 3


async def test_of_several_names_for_one_id(registry: Registry, tmp_path: Path) -> None:
    """Rule: an id finds one of its names; when that name is removed, it finds the other."""
    path, identity = write(tmp_path / "f", rows_of(3)), id_of(rows_of(3))
    await registry.register(A, "one", path, "auto")
    await registry.register(A, "two", path, "full")
    found = registry.find(A, identity)
    assert found is not None
    await registry.remove(A, found.name)
    other = registry.find(A, identity)
    assert other is not None
    assert {found.name, other.name} == {"one", "two"}


async def test_many_datasets_cost_few_descriptors(registry: Registry, directory: Path, tmp_path: Path) -> None:
    """Rule: a tenant with many datasets, all listed, does not take the worker's descriptors; each can still be read."""
    path = write(tmp_path / "f", rows_of(1))
    await registry.register(A, "d0", path, "auto")
    (folder,) = (directory / "tenants").glob("*/d0")
    for number in range(1, 300):
        shutil.copytree(folder, folder.with_name(f"d{number}"))
        document = folder.with_name(f"d{number}") / "registration.json"
        document.write_text(json.dumps({**json.loads(document.read_text()), "name": f"d{number}"}))
    before = len(open_files(directory))
    assert len([each async for each in registry.of_tenant(A)]) == 300
    assert len(open_files(directory)) - before < 200
    oldest = registry.find(A, "d0")
    assert oldest is not None
    assert oldest.locations.of(0).key == rows_of(1)[0].key


async def test_a_siblings_draft_is_left_alone(registry: Registry, directory: Path) -> None:
    """Rule: clean-ups leave a file alone that another worker is writing."""
    async with registry.draft() as draft:
        (draft / "coming").write_bytes(b"x")
        Registry(directory, BOOT).sweep()
        assert (draft / "coming").read_bytes() == b"x"
    assert not draft.exists()


async def test_a_document_survives_a_failed_write(directory: Path, registry: Registry, tmp_path: Path) -> None:
    """Rule: a refused replacement leaves the registration unchanged."""
    rows = rows_of(3)
    await registry.register(A, "d", write(tmp_path / "f", rows), "auto")
    (tmp_path / "g").write_bytes(b"no Parquet")
    with pytest.raises(ApiError, match="InvalidDigestFile"):
        await registry.register(A, "d", tmp_path / "g", "auto")
    registration = registry.find(A, "d")
    assert registration is not None
    assert registration.content.id == id_of(rows)
    assert list((directory / "tmp").iterdir()) == []


async def test_duplicate_rows_are_items(registry: Registry, tmp_path: Path) -> None:
    """Rule: the same bytes listed twice are two items; both are found by the digest."""
    registration, _ = await registry.register(A, "d", write(tmp_path / "f", [Row(sha("x")), Row(sha("x"))]), "auto")
    assert registration.content.items == 2
    assert registration.content.indices_of(sha("x")).tolist() == [0, 1]


def test_folders_of_tenants_differ(tmp_path: Path) -> None:
    """Rule: two tenants never share a folder, however alike their names are to a file system."""
    folders = Folders(tmp_path)
    names = ["a", "A", "a ", "a\0", "ä", "a\u0308"]
    assert len({folders.of_tenant(name) for name in names}) == len(names)


class HungDisk:
    """A disk that hangs once ``hung`` is set."""

    hung = False

    async def glance(self, work: Callable[[], T]) -> T:
        """Small work."""
        return await self.chore(work)

    async def chore(self, work: Callable[[], T]) -> T:
        """Work that may take long."""
        if self.hung:
            raise DiskFault(FailureKind.HUNG)
        return work()


async def test_a_registry_on_a_disk_that_hangs(directory: Path, tmp_path: Path, clock: Clock) -> None:
    """Rule: while the disk hangs, known datasets are served, and others are neither found nor denied."""
    disk = HungDisk()
    registry = Registry(directory, BOOT, clock=clock, work=disk)
    await registry.register(A, "d", write(tmp_path / "f", rows_of(5)), "auto")
    disk.hung = True
    clock.now += 3600
    for name in ("d", id_of(rows_of(5))):
        found = await registry.get(A, name)
        assert found is not None
        assert found.locations.of(4).key == rows_of(5)[4].key
    with pytest.raises(DiskFault):
        await registry.get(A, "another")
