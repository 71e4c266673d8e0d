"""Registrations of an earlier version are read unchanged."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from gateway.store.datasets import layout
from gateway.store.datasets.content import Content
from gateway.store.datasets.folders import Folders
from gateway.store.datasets.layout import NONE, Damaged
from gateway.store.datasets.locations import open_locations
from gateway.store.datasets.registry import Registry
from gateway.store.datasets.writing import sort_digests
from rig.digests import Row, id_of, sha

ROWS = [
    Row(sha(f"{n // 2}"), "data" if n % 3 else "more", f"key/{n}", n if n % 2 else None, n or None) for n in range(50)
]


def write_1(folders: Folders, tenant: str, name: str, rows: list[Row]) -> None:
    """A registration as version 1 wrote it."""
    folders.create()
    count = len(rows)
    digests = np.frombuffer(b"".join(row.digest for row in rows), np.uint8).reshape(-1, 32)
    lengths = np.array([NONE if row.length is None else row.length for row in rows], np.uint64)
    tag = f"{id_of(rows)}-{sha256(lengths.tobytes()).hexdigest()[:16]}"
    size = sum(row.length or 0 for row in rows).to_bytes(16, "little")
    prefixes, order = sort_digests(digests)
    head = layout.INDEX_HEADER.pack(layout.INDEX_MAGIC_1, count, size, bytes.fromhex(id_of(rows)))
    content = folders.contents / tag
    content.mkdir()
    arrays = b"".join(array.tobytes() for array in (digests, lengths, prefixes, order))
    (content / layout.INDEX).write_bytes(head + arrays)
    states = layout.STATES_HEADER.pack(layout.STATES_MAGIC, count, 0)
    (content / layout.STATES).write_bytes(states.ljust(layout.states_size(count), b"\0"))
    folder = folders.of_tenant(tenant) / name
    folder.mkdir(parents=True)
    (folder / "locations-0123456789abcdef").write_bytes(locations_1(rows))
    document = {
        "version": 1, "tenant": tenant, "name": name, "caching": "full", "registered_at": 1.0, "fingerprint": "", "allow": [],
        "content": tag, "locations": "locations-0123456789abcdef",
    }  # fmt: skip
    (folder / "registration.json").write_text(json.dumps(document))


def locations_1(rows: list[Row]) -> bytes:
    """Their locations."""
    buckets = sorted({row.bucket for row in rows})
    records, keys = b"", b""
    for row in rows:
        key = row.key.encode()
        offset, length = (NONE if number is None else number for number in (row.offset, row.length))
        records += layout.RECORD.pack(len(keys), offset, length, buckets.index(row.bucket), len(key))
        keys += key
    names = json.dumps(buckets).encode()
    return (
        layout.LOCATIONS_HEADER_1.pack(layout.LOCATIONS_MAGIC_1, len(rows), len(keys), len(names))
        + records
        + keys
        + names
    )


async def test_a_registration_of_version_1_is_read(tmp_path: Path) -> None:
    """Rule: every item is unchanged, by index, by digest and by place."""
    write_1(Folders(tmp_path / "datasets"), "t", "d", ROWS)
    registration = Registry(tmp_path / "datasets", 1).find("t", "d")
    assert registration is not None
    content, locations = registration.content, registration.locations
    assert (content.id, content.items, content.size) == (id_of(ROWS), 50, sum(row.length or 0 for row in ROWS))
    assert [content.digest(n) for n in range(50)] == [row.digest for row in ROWS]
    assert content.lengths[:].tolist() == [NONE if row.length is None else row.length for row in ROWS]
    assert content.indices_of(ROWS[7].digest).tolist() == [6, 7]
    wanted = [(row.bucket, row.key, row.offset, row.length) for row in ROWS]
    assert list(locations.between(0, 50)) == wanted
    assert [locations.of(n) for n in range(50)] == wanted
    locations.check()


@pytest.mark.parametrize("version", [0, 3])
def test_another_version_is_not_guessed(tmp_path: Path, version: int) -> None:
    """Rule: a file of an unknown version counts as damaged."""
    folders = Folders(tmp_path / "datasets")
    write_1(folders, "t", "d", ROWS)
    (index,) = folders.contents.glob("*/index")
    index.write_bytes(b"LRDINDX%d" % version + index.read_bytes()[8:])
    with pytest.raises(Damaged):
        Content(index.parent, 1)
    (locations,) = folders.tenants.glob("*/*/locations-*")
    locations.write_bytes(b"LRDLOCS%d" % version + locations.read_bytes()[8:])
    with pytest.raises(Damaged):
        open_locations(locations)
