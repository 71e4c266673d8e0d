"""Names of datasets. A content name holds the dataset's id: no other dataset displaces it, and it expires when unused."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from gateway.model.datasets import ApiError
from gateway.store.datasets.opened import Registration
from gateway.store.datasets.registry import DigestSource, RegistrationRules, Registry
from rig.digests import files_below, id_of, rows_of, write
from rig.near import NearRegistry

A = "tenant a"
BY_CONTENT = DigestSource(content_name=True)
OLD, NEW = rows_of(5), rows_of(7, seed=2)


@pytest.fixture
async def registry(tmp_path: Path) -> Registry:
    """A node."""
    return NearRegistry(tmp_path / "datasets", 1)


async def register(
    registry: Registry, tmp_path: Path, rows: list, name: str = "train", source: DigestSource = BY_CONTENT
) -> str:  # type: ignore[type-arg]
    """Register some rows; the name that they got."""
    registration, _ = await registry.register(A, name, write(tmp_path / "f", rows), "auto", source)
    return registration.name


def unused(registry: Registry, seconds: float) -> None:
    """Age all registrations by ``seconds`` without use."""
    for path in registry.folders.tenants.glob("*/*/locations-*"):
        os.utime(path, (path.stat().st_mtime - seconds,) * 2)


async def test_equal_stems_do_not_displace_each_other(registry: Registry, tmp_path: Path) -> None:
    """Rule: two files of one stem, or a rebuilt one, are two registrations, each with its dataset's id in its name."""
    assert await register(registry, tmp_path, OLD) == f"train-{id_of(OLD)[:16]}"
    assert await register(registry, tmp_path, NEW) == f"train-{id_of(NEW)[:16]}"
    for rows in (OLD, NEW):
        found = registry.find(A, id_of(rows), now=True)
        assert isinstance(found, Registration)
        assert found.content.items == len(rows)


async def test_a_longer_stem_is_another_name(registry: Registry, tmp_path: Path) -> None:
    """Rule: the same file under a name that only begins alike is registered anew, and does not change the other."""
    source = DigestSource("fingerprint", (), True)
    path = write(tmp_path / "f", OLD)
    longer, _ = await registry.register(A, "train-all", path, "auto", source)
    found, new = await registry.register(A, "train", path, "full", source)
    assert (found.name, new) == (f"train-{id_of(OLD)[:16]}", True)
    kept = registry.find(A, longer.name, now=True)
    assert kept is not None
    assert kept.caching == "auto"


async def test_the_same_file_is_not_read_twice(registry: Registry, tmp_path: Path) -> None:
    """Rule: registering the registered file again returns that registration."""
    source = DigestSource("fingerprint", (), True)
    first = await registry.register(A, "train", write(tmp_path / "f", OLD), "auto", source)
    again = await registry.register(A, "train", tmp_path / "gone", "auto", source)
    assert (first[1], again[1]) == (True, False)
    assert again[0].name == first[0].name


async def test_a_content_name_is_one_datasets(registry: Registry, tmp_path: Path) -> None:
    """Rule: no other dataset gets a name that holds the id of a registered one, so a file that has changed is refused there."""
    name = await register(registry, tmp_path, OLD)
    with pytest.raises(ApiError, match="Conflict"):
        await register(registry, tmp_path, NEW, name, DigestSource())
    assert await register(registry, tmp_path, OLD, name, DigestSource()) == name


async def test_a_name_that_looks_like_a_content_name(tmp_path: Path) -> None:
    """Rule: a name whose digits are no registered dataset's id is plain: it is reassigned, never expires, and hides no other."""
    time, source = [1000.0], DigestSource("fingerprint")
    registry = NearRegistry(tmp_path / "datasets", 1, RegistrationRules(keep_unused=86_400), clock=lambda: time[0])
    looks = f"run-{id_of(NEW)[:16]}"
    assert await register(registry, tmp_path, rows_of(3), looks, DigestSource()) == looks
    assert await register(registry, tmp_path, OLD, looks, source) == looks
    by_content = dataclasses.replace(source, content_name=True)
    assert await register(registry, tmp_path, OLD, "run", by_content) == f"run-{id_of(OLD)[:16]}"
    unused(registry, 2 * 86_400)
    time[0] += 700
    await registry.get(A, "another")
    await registry.swept()
    assert [found.name async for found in registry.of_tenant(A)] == [looks]


async def test_a_dataset_takes_its_content_name(registry: Registry, tmp_path: Path) -> None:
    """Rule: a content name goes to its dataset; a dataset that had it before and is in use keeps its own name."""
    looks = f"run-{id_of(NEW)[:16]}"
    await register(registry, tmp_path, OLD, looks, DigestSource())
    assert await register(registry, tmp_path, NEW, "run") == looks
    assert registry.find(A, id_of(OLD), now=True).name == f"{looks}-{id_of(OLD)[:16]}"  # type: ignore[union-attr]


async def test_a_plain_name_does_not_shadow_a_content_name(registry: Registry, tmp_path: Path) -> None:
    """Rule: while a dataset is registered under any name, no other one gets a name that ends in its digits."""
    await register(registry, tmp_path, OLD, "train", DigestSource())
    with pytest.raises(ApiError, match="Conflict"):
        await register(registry, tmp_path, NEW, f"train-{id_of(OLD)[:16]}", DigestSource())


async def test_what_is_displaced_stays_while_it_is_used(registry: Registry, tmp_path: Path) -> None:
    """Rule: a plain name refers to the latest registration; a job that reads the previous dataset by its id continues."""
    await register(registry, tmp_path, OLD, source=DigestSource())
    await register(registry, tmp_path, NEW, source=DigestSource())
    assert registry.find(A, "train", now=True).content.id == id_of(NEW)  # type: ignore[union-attr]
    former = registry.find(A, id_of(OLD), now=True)
    assert former is not None
    assert former.name == f"train-{id_of(OLD)[:16]}"
    assert [place.key for place in former.locations.between(0, 5)] == [row.key for row in OLD]
    assert {found.name async for found in registry.of_tenant(A)} == {"train", former.name}


async def test_what_is_displaced_unused_leaves(registry: Registry, tmp_path: Path) -> None:
    """Rule: a displaced dataset leaves after an hour without use."""
    await register(registry, tmp_path, OLD, source=DigestSource())
    registry.close()
    unused(registry, 3601)
    await register(registry, tmp_path, NEW, source=DigestSource())
    assert registry.find(A, id_of(OLD), now=True) is None
    assert len(files_below(registry.folders.root)) == 4


async def test_a_content_name_expires(tmp_path: Path) -> None:
    """Rule: an unused content name leaves; one in use stays, and so does a plain name."""
    time = [1000.0]
    rules = RegistrationRules(keep_unused=86_400)
    registry = NearRegistry(tmp_path / "datasets", 1, rules, clock=lambda: time[0])
    for rows, name, source in (
        (OLD, "old", BY_CONTENT),
        (NEW, "new", BY_CONTENT),
        (rows_of(3), "plain", DigestSource()),
    ):
        await register(registry, tmp_path, rows, name, source)
    unused(registry, 2 * 86_400)
    time[0] += 700
    await registry.get(A, id_of(NEW))
    await registry.swept()
    assert {found.name async for found in registry.of_tenant(A)} == {f"new-{id_of(NEW)[:16]}", "plain"}
    assert registry.expired == {(A, f"old-{id_of(OLD)[:16]}")}


async def test_a_list_is_no_use(tmp_path: Path) -> None:
    """Rule: listing registrations does not count as use."""
    time = [1000.0]
    registry = NearRegistry(tmp_path / "datasets", 1, RegistrationRules(keep_unused=86_400), clock=lambda: time[0])
    await register(registry, tmp_path, OLD)
    unused(registry, 2 * 86_400)
    time[0] += 700
    assert len([each async for each in registry.of_tenant(A)]) == 1
    await registry.get(A, "another")
    await registry.swept()
    assert [each async for each in registry.of_tenant(A)] == []


async def test_long_names(registry: Registry, tmp_path: Path) -> None:
    """Rule: a content name is a name, however long the stem is."""
    name = await register(registry, tmp_path, OLD, "n" * 128)
    assert (len(name), name[-16:]) == (128, id_of(OLD)[:16])


async def test_what_is_known_of_names_is_bounded(tmp_path: Path) -> None:
    """Rule: removed names leave nothing in memory."""
    time = [1000.0]
    registry = NearRegistry(tmp_path / "datasets", 1, clock=lambda: time[0])
    for seed in range(30):
        name = await register(registry, tmp_path, rows_of(1, seed=seed))
        registry.close()
        assert registry.find(A, id_of(rows_of(1, seed=seed))) is not None
        await registry.remove(A, name)
    time[0] += 61
    await registry.get(A, "another")
    await registry.swept()
    assert registry._opened._known_tags == {}
    assert len(registry._opened._open) == 0
