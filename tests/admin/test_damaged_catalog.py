"""A damaged catalog.db is named as that. Nothing is mended: only a backup has the revocations."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path

import pytest
from sqlalchemy import make_url

from gateway.admin.catalog.catalog import Catalog
from gateway.model.errors import CatalogUnavailable, ConfigError
from tests.admin.admin_world import Clock


@pytest.mark.parametrize("seed", range(12))
async def test_damaged_bytes_are_named(seed: int, begun: str) -> None:
    """Rule: whatever bytes change, a catalog is read, or refused as one that cannot be reached or read."""
    path = Path(make_url(begun).database or "")
    data, chance = bytearray(path.read_bytes()), random.Random(seed)
    for _ in range(200):
        data[chance.randrange(100, len(data))] = chance.randrange(256)
    path.write_bytes(data)
    catalog = Catalog(begun, "", Clock())
    with suppress(CatalogUnavailable, ConfigError):
        assert (await catalog.look()).version >= 0
    await catalog.close()


@pytest.mark.parametrize("text", [b"CREATE TABLE credentials", b"CREATE TABLE tenants"])
async def test_a_schema_that_is_not_utf8_is_damage(text: bytes, begun: str) -> None:
    """Rule: SQLite's message quotes the schema; that it cannot be decoded is no failure of the gateway."""
    path = Path(make_url(begun).database or "")
    data = bytearray(path.read_bytes())
    data[data.find(text) + len(text) - 2] = 0x8E
    path.write_bytes(data)
    catalog = Catalog(begun, "", Clock())
    with pytest.raises((CatalogUnavailable, ConfigError), match="damaged"):
        await catalog.look()
    await catalog.close()
