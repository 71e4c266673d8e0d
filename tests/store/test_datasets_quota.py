"""The registrations of a tenant take a bounded part of the disk, for any digest files."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gateway.model.datasets import MAX_ITEMS, ApiError
from gateway.policies.items.dataset_quota import Limit, Quota
from gateway.store.datasets import layout
from gateway.store.datasets.conversion import Converted, Grant
from gateway.store.datasets.convert import ConversionJob, convert
from gateway.store.datasets.registry import DigestSource, RegistrationRules, Registry
from gateway.store.datasets.usage import disk_bytes, usage_of
from rig.digests import files_below, rows_of, sha, write
from rig.near import NearRegistry

A, B = "tenant a", "tenant b"
LARGE = 1 << 40


def registry_of(
    home: Path, registrations: int = 9, items: int = 10**6, size: int = LARGE, common: int = LARGE
) -> Registry:
    """A node with this quota."""
    home.mkdir(exist_ok=True)
    return NearRegistry(home / "datasets", 1, RegistrationRules(quota=Quota(registrations, items, size, common)))


def file(folder: Path, count: int, seed: int = 0) -> Path:
    """A digest file of so many items."""
    return write(folder / f"{seed}-{count}.parquet", rows_of(count, seed=seed))


async def refusal(registry: Registry, tenant: str, name: str, path: Path) -> ApiError:
    """The refusal of a registration, which leaves nothing behind."""
    before = files_below(registry.folders.root)
    with pytest.raises(ApiError) as caught:
        await registry.register(tenant, name, path, "auto")
    assert files_below(registry.folders.root) == before
    assert (caught.value.code, caught.value.status) == ("TooLarge", 413)
    assert str(caught.value.extra["limit"]) in caught.value.detail
    return caught.value


async def test_registrations_are_counted(tmp_path: Path) -> None:
    """Rule: a tenant's registrations are bounded; an existing name can be replaced, and each tenant has its own quota."""
    registry = registry_of(tmp_path, registrations=2)
    await registry.register(A, "a", file(tmp_path, 1), "auto")
    await registry.register(A, "b", file(tmp_path, 1), "auto")
    assert (await refusal(registry, A, "c", file(tmp_path, 1))).extra["limit"] == Limit.REGISTRATIONS
    await registry.register(A, "b", file(tmp_path, 1), "full")
    await registry.register(B, "c", file(tmp_path, 1), "auto")


async def test_items_are_counted(tmp_path: Path) -> None:
    """Rule: the items of all of a tenant's registrations count, before a file is unpacked."""
    registry = registry_of(tmp_path, items=100)
    await registry.register(A, "a", file(tmp_path, 60), "auto")
    assert (await refusal(registry, A, "b", file(tmp_path, 41, 1))).extra["limit"] == Limit.ITEMS
    await registry.register(A, "b", file(tmp_path, 40, 1), "auto")


async def test_bytes_on_the_disk_are_counted(tmp_path: Path) -> None:
    """Rule: the converted size counts, not the digest file's, and the conversion ends when the quota is reached."""
    registry = registry_of(tmp_path, size=200_000)
    await registry.register(A, "a", file(tmp_path, 1000), "auto")
    used = usage_of(registry.folders, A)
    assert used.bytes == disk_bytes(registry.folders.contents) + disk_bytes(registry.folders.tenants)
    assert (await refusal(registry, A, "b", file(tmp_path, 3000, 1))).extra["limit"] == Limit.BYTES
    await registry.register(B, "b", file(tmp_path, 1500, 1), "auto")


async def test_all_tenants_together_are_bounded(tmp_path: Path) -> None:
    """Rule: many tenants with a quota each cannot take the whole cache."""
    registry = registry_of(tmp_path, common=200_000)
    await registry.register(A, "a", file(tmp_path, 1000), "auto")
    assert (await refusal(registry, B, "b", file(tmp_path, 3000, 1))).extra["limit"] == Limit.CAPACITY


async def test_a_restart_forgets_no_usage(tmp_path: Path) -> None:
    """Rule: a restart counts the usage on the disk."""
    await registry_of(tmp_path, items=100).register(A, "a", file(tmp_path, 60), "auto")
    assert (await refusal(registry_of(tmp_path, items=100), A, "b", file(tmp_path, 41, 1))).extra[
        "limit"
    ] == Limit.ITEMS


async def test_unused_content_names_make_room(tmp_path: Path) -> None:
    """Rule: unused content names leave before a registration is refused."""
    registry = registry_of(tmp_path, registrations=3)
    for seed in range(3):
        await _by_content(registry, file(tmp_path, 1, seed))
    await refusal(registry, A, "d", file(tmp_path, 1, 9))
    for path in registry.folders.tenants.glob("*/*/locations-*"):
        _age(path, 2 * 3600)
    await registry.register(A, "d", file(tmp_path, 1, 9), "auto")
    assert [found.name async for found in registry.of_tenant(A)] == ["d"]


async def test_items_of_unused_content_names_make_room(tmp_path: Path) -> None:
    """Rule: they leave whichever limit is near, not only that of registrations."""
    registry = registry_of(tmp_path, items=100)
    await _by_content(registry, file(tmp_path, 60, 1))
    await refusal(registry, A, "d", file(tmp_path, 60, 2))
    for path in registry.folders.tenants.glob("*/*/locations-*"):
        _age(path, 2 * 3600)
    await registry.register(A, "d", file(tmp_path, 60, 2), "auto")
    assert [found.name async for found in registry.of_tenant(A)] == ["d"]


async def test_a_tenants_conversions_do_not_keep_another_waiting(tmp_path: Path) -> None:
    """Rule: a tenant has one conversion at a time; a slow one does not delay another tenant's."""
    hanging, begun = asyncio.Event(), asyncio.Event()

    class Slow(NearRegistry):
        running = 0

        async def _convert(self, tenant: str, parquet: Path, draft: Path, grant: Grant) -> Converted:
            if tenant == A:
                Slow.running += 1
                begun.set()
                await hanging.wait()
            return await super()._convert(tenant, parquet, draft, grant)

    registry = Slow(tmp_path / "datasets", 1)

    async def register(tenant: str, name: str, seed: int) -> None:
        async with registry.registering(tenant):
            await registry.register(tenant, name, file(tmp_path, 2, seed), "auto")

    mine = [asyncio.create_task(register(A, f"a{seed}", seed)) for seed in range(4)]
    await begun.wait()
    await register(B, "b", 7)
    assert Slow.running == 1
    hanging.set()
    await asyncio.gather(*mine)
    assert len([each async for each in registry.of_tenant(A)]) == 4
    assert registry._turns == {}
    assert not registry._waiting


CHEAP = {
    "one row again and again": ([sha("a")], ["k"], 13.2),
    "two digests, long keys": (
        [sha("a"), sha("b")],
        ["x" * 1000 + "a", "x" * 1000 + "b", "x" * 1000 + "c"],
        layout.ROW_COST,
    ),
    "keys of a dictionary": ([sha("a"), sha("b")], [f"{sha(str(n)).hex() * 15}" for n in range(100)], layout.ROW_COST),
}


@pytest.mark.parametrize("trick", CHEAP)
def test_repetitions_stay_small(tmp_path: Path, trick: str) -> None:
    """Rule: a row that repeats others costs at most ``ROW_COST`` bytes, and 13 if all are equal."""
    digests, keys, most = CHEAP[trick]
    count = 200_000
    columns = {
        "digest": pa.array([digests[n % len(digests)] for n in range(count)], pa.binary(32)),
        "bucket": ["data"] * count,
        "key": [keys[n % len(keys)] for n in range(count)],
        "offset": pa.nulls(count, pa.int64()),
        "length": pa.nulls(count, pa.int64()),
    }
    pq.write_table(pa.table(columns), tmp_path / "f", compression="zstd")
    (tmp_path / "out").mkdir()
    convert(tmp_path / "f", tmp_path / "out", ConversionJob())
    distinct = sum(map(len, keys))
    assert disk_bytes(tmp_path / "out") <= most * count + distinct + 64 * 1024


def test_keys_that_differ_in_their_beginning_are_deflated(tmp_path: Path) -> None:
    """Rule: keys that a Parquet file compresses do not come out at their full length."""
    count = 50_000
    columns = {
        "digest": pa.array([sha("a")] * count, pa.binary(32)),
        "bucket": ["data"] * count,
        "key": [f"{n:07d}" + "x" * 1000 for n in range(count)],
        "offset": pa.nulls(count, pa.int64()),
        "length": pa.nulls(count, pa.int64()),
    }
    pq.write_table(pa.table(columns), tmp_path / "f", compression="zstd", use_dictionary=False)
    (tmp_path / "out").mkdir()
    done = convert(tmp_path / "f", tmp_path / "out", ConversionJob())
    assert done["items"] <= MAX_ITEMS
    assert disk_bytes(tmp_path / "out") <= layout.ROW_COST * count


async def _by_content(registry: Registry, path: Path) -> None:
    await registry.register(A, "train", path, "auto", DigestSource(content_name=True))


def _age(path: Path, seconds: float) -> None:
    os.utime(path, (path.stat().st_mtime - seconds,) * 2)
