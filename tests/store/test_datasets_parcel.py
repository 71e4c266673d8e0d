"""Registrations sent between nodes arrive complete and unchanged, or not at all."""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from gateway.model.datasets import ApiError
from gateway.store.datasets import layout, parcel
from gateway.store.datasets.announced import Mark, inventory, known_of, read_marks, write_marks
from gateway.store.datasets.folders import read_document
from gateway.store.datasets.parcel import Unfit
from gateway.store.datasets.registry import Registry
from rig.digests import SCHEMA, Row, sha, write
from rig.near import NearRegistry

OUTPUT = 1 << 24
Files = dict[str, bytearray]


async def registry_with(home: Path, count: int = 40, alike: int = 2, members: str = "") -> Registry:
    """A node that has a dataset "d" of tenant "t", of which so many items have the same bytes each; perhaps of samples."""
    registry = NearRegistry(home, 1)
    rows = [
        Row(sha(b"%d" % (n // alike)), "bkt", f"key/{n}", n if n % 3 else None, 5 if n % 5 else None)
        for n in range(count)
    ]
    schema = SCHEMA.with_metadata({"larder.members": members}) if members else SCHEMA
    await registry.register("t", "d", write(home.parent / f"{home.name}.parquet", rows, schema), "static")
    return registry


def sent(registry: Registry) -> bytes:
    """The bytes that a node sends for its registration ``d``."""
    made = registry.parcel("t", "d")
    assert made is not None
    pieces = [piece if isinstance(piece, bytes) else os.pread(piece[0], piece[2], piece[1]) for piece in made.pieces]
    made.close()
    assert sum(map(len, pieces)) == made.size
    return b"".join(pieces)


async def take(registry: Registry, data: bytes, tag: str = "", output: int = OUTPUT) -> None:
    """Receive, check and adopt a registration, as another node does."""
    stream = io.BytesIO(data)

    async def next_chunk() -> bytes:
        return stream.read(777)

    async with registry.draft() as draft:
        document = await parcel.receive(next_chunk, draft, output, 0)
        parcel.check(draft, tag or document["content"])
        await registry.adopt(draft, document)


def files_of(data: bytes) -> Files:
    """The members of a parcel."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {name: bytearray(archive.extractfile(name).read()) for name in archive.getnames()}  # type: ignore[union-attr]


def packed(files: Files) -> bytes:
    """A parcel of these members."""
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            archive.addfile(member, io.BytesIO(bytes(body)))
    return target.getvalue()


@pytest.mark.parametrize(("count", "alike"), [(0, 1), (1, 1), (40, 2), (40, 1), (40, 40), (9000, 3)])
async def test_what_arrives_is_what_was_sent(tmp_path: Path, count: int, alike: int) -> None:
    """Rule: a registration that was copied has the same items, places and mode, and is the same one to the fleet's table."""
    registry, other = await registry_with(tmp_path / "a", count, alike), Registry(tmp_path / "b", 2)
    await take(other, sent(registry))
    mine, copy = registry.find("t", "d"), other.find("t", "d")
    assert mine is not None
    assert copy is not None
    assert (copy.content.tag, copy.caching, copy.registered_at) == (mine.content.tag, mine.caching, mine.registered_at)
    assert copy.content.digests[:].tobytes() == mine.content.digests[:].tobytes()
    assert copy.content.lengths[:].tobytes() == mine.content.lengths[:].tobytes()
    assert list(copy.locations.between(0, count)) == list(mine.locations.between(0, count))
    assert all(
        copy.content.indices_of(mine.content.digest(n)).tolist()
        == mine.content.indices_of(mine.content.digest(n)).tolist()
        for n in range(count)
    )
    assert inventory(other.folders) == inventory(registry.folders)


async def test_samples_arrive_as_samples(tmp_path: Path) -> None:
    """Rule: the copy of a dataset of samples has as many members; a parcel that says otherwise is refused."""
    registry, other = await registry_with(tmp_path / "a", members="jpg,cls"), Registry(tmp_path / "b", 2)
    files = files_of(sent(registry))
    await take(other, packed(files))
    copy = other.find("t", "d")
    assert copy is not None
    assert copy.content.members == 2
    files["index"][layout.HEADER + layout.INDEX_FORM.size - 55] = 4
    with pytest.raises(Unfit, match="another dataset"):
        await take(Registry(tmp_path / "c", 3), packed(files))


def _document(**changes: object) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        document = json.loads(files["registration.json"]) | changes
        files["registration.json"] = bytearray(json.dumps(document).encode())

    return change


def _flip(name: str, position: int) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        files[name][position] ^= 1

    return change


def _flip_row(position: int) -> Callable[[Files], None]:
    """A bit in the head of the first page of rows."""

    def change(files: Files) -> None:
        body = files["locations"]
        places = layout.LOCATIONS_HEADER.unpack_from(body)[2]
        body[int.from_bytes(body[places : places + 8], "little") + position] ^= 1

    return change


def _cut(name: str) -> Callable[[Files], None]:
    def change(files: Files) -> None:
        del files[name][-8:]

    return change


def _swap_order(files: Files) -> None:
    order = np.frombuffer(files["index"], "<u4", 40, PAIRS.second)
    order[:] = order[::-1].copy()


PAIRS, PLAIN = layout.IndexForm(40, 20, 1), layout.IndexForm(40, 40, 1)
MISTAKES = {
    "version": _document(version=2),
    "caching": _document(caching="some"),
    "field": _document(more=1),
    "kind": _document(allow="x"),
    "path": _document(locations="../../../x"),
    "tag": _document(content="0" * 64 + "-" + "0" * 16),
    "digest": _flip("index", PAIRS.digests),
    "number": _flip("index", PAIRS.third),
    "length": _flip("index", PAIRS.lengths),
    "items": _flip("index", 8),
    "size": _flip("index", 16),
    "distinct": _flip("index", layout.HEADER),
    "width": _flip("index", layout.HEADER + 8),
    "order": _flip("index", PAIRS.second + 3),
    "order-of-others": _swap_order,
    "short-index": _cut("index"),
    "short-locations": _cut("locations"),
    "magic": _flip("locations", 0),
    "places": _flip("locations", 8),
    "row-pages": _flip("locations", 16),
    "keys": _flip("locations", 25),
    "key-pages": _flip("locations", 32),
    "key": _flip("locations", layout.HEADER),
    "key-number": _flip_row(1),
    "bucket": _flip_row(8),
}
PLAIN_MISTAKES = {
    "digest": _flip("index", PLAIN.digests),
    "prefix": _flip("index", PLAIN.second),
    "order": _flip("index", PLAIN.third + 3),
}


@pytest.mark.parametrize("mistake", PLAIN_MISTAKES)
async def test_nothing_is_believed_of_the_plain_form(tmp_path: Path, mistake: str) -> None:
    """Rule: an index without repetitions is checked as the other is."""
    registry, other = await registry_with(tmp_path / "a", alike=1), Registry(tmp_path / "b", 2)
    files = files_of(sent(registry))
    PLAIN_MISTAKES[mistake](files)
    with pytest.raises(Unfit):
        await take(other, packed(files))
    assert other.find("t", "d") is None


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_nothing_is_believed(tmp_path: Path, mistake: str) -> None:
    """Rule: a contradictory parcel, or one of another version, is refused, and leaves no file."""
    registry, other = await registry_with(tmp_path / "a"), Registry(tmp_path / "b", 2)
    files = files_of(sent(registry))
    MISTAKES[mistake](files)
    with pytest.raises(Unfit):
        await take(other, packed(files))
    assert other.find("t", "d") is None
    assert inventory(other.folders) == {}
    assert list(other.folders.contents.iterdir()) == []


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
async def test_a_parcel_that_is_cut_off(tmp_path: Path, part: float) -> None:
    """Rule: a copy that ends early is refused."""
    registry, other = await registry_with(tmp_path / "a"), Registry(tmp_path / "b", 2)
    data = sent(registry)
    with pytest.raises(Unfit):
        await take(other, data[: int(part * (len(data) - 1024))])
    assert other.find("t", "d") is None


async def test_a_parcel_is_bounded(tmp_path: Path) -> None:
    """Rule: a copy may take no more room than a digest file's own conversion."""
    registry, other = await registry_with(tmp_path / "a"), Registry(tmp_path / "b", 2)
    with pytest.raises((Unfit, ApiError)):
        await take(other, sent(registry), output=1000)
    assert other.find("t", "d") is None


async def test_only_what_was_meant_is_dropped(tmp_path: Path) -> None:
    """Rule: a removal drops only the registration that it was meant for, not one made since."""
    registry = await registry_with(tmp_path / "a")
    before = inventory(registry.folders)["t", "d"]
    await registry.register("t", "d", write(tmp_path / "new.parquet", [Row(sha(b"new"), "bkt", "k", None, 3)]), "full")
    assert not await registry.drop("t", "d", before)
    now = inventory(registry.folders)["t", "d"]
    assert now != before
    assert await registry.drop("t", "d", now)
    assert registry.find("t", "d", now=True) is None


async def test_marks_are_kept_for_what_is_there(tmp_path: Path) -> None:
    """Rule: announcements survive a restart; those of another epoch last as long as their registration."""
    registry = await registry_with(tmp_path / "a")
    marks = {("t", "d"): Mark("e1", "s"), ("t", "gone/\u00fc"): Mark("e1", "s")}
    write_marks(registry.folders, marks, "e1")
    assert read_marks(registry.folders) == marks
    write_marks(registry.folders, {("t", "new"): Mark("e2", "s")}, "e2")
    assert read_marks(registry.folders) == {("t", "d"): Mark("e1", "s"), ("t", "new"): Mark("e2", "s")}
    (registry.folders.root / "announced.json").write_text("[1]")
    assert read_marks(registry.folders) == {}
    document = read_document(registry.folders.of_tenant("t") / "d" / "registration.json")
    assert document is not None
    assert known_of(document).id == registry.find("t", "d").content.id  # type: ignore[union-attr]
