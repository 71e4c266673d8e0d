"""The folders of datasets whose listings are recorded: how they are found, kept in registrations, and read again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.datasets import ApiError
from gateway.store.datasets.announced import known_of
from gateway.store.datasets.folders import REGISTRATION, Folders, read_document
from gateway.store.datasets.listed import ListedRegistrations, folders_to_record
from gateway.store.datasets.locations import Location, PackedLocations
from gateway.store.datasets.parcel import Unfit, _document
from gateway.store.datasets.registry import DigestSource, RegistrationRules, Registry
from rig.digests import Row, rows_of, sha, write
from rig.near import NearRegistry

A, B = "tenant a", "tenant b"
LISTED = DigestSource("fingerprint", listing=True)
PLAIN = DigestSource("fingerprint")


class Node:
    """The registrations of a node, and a number that changes with them."""

    def __init__(self, home: Path) -> None:
        self.registry: Registry = NearRegistry(home / "datasets", 1, RegistrationRules(keep_unused=60))
        self.number = 0
        self.registry.folders.listings_change = self._change
        self.listed = ListedRegistrations(self.registry.folders, lambda: self.number)
        self._file = home / "file"

    def _change(self) -> None:
        self.number += 1

    async def register(self, name: str, rows: list[Row], source: DigestSource = LISTED, tenant: str = A) -> list[str]:
        """Register a dataset; its folders."""
        made, _ = await self.registry.register(tenant, name, write(self._file, rows), "auto", source)
        return list(made.listing)

    def read(self) -> dict[str, list[str]]:
        """The folders of all tenants; they are of the present number."""
        number, tenants = self.listed.read()
        assert number == self.number
        return {tenant: sorted(folders) for tenant, folders in tenants.items()}


@pytest.fixture
async def node(tmp_path: Path) -> Node:
    """A node without registrations."""
    return Node(tmp_path)


def in_places(*places: str) -> list[Row]:
    """Items in objects, given as ``bucket/key``."""
    return [Row(sha(place), *place.split("/", 1)) for place in places]


async def test_a_dataset_has_a_folder_in_each_bucket(node: Node) -> None:
    """Rule: the longest that contains all its objects there; a whole bucket is refused, and so are too many buckets."""
    assert await node.register("one", in_places("b/x/y/1", "b/x/yz/1", "c/d/same", "c/d/same")) == ["b/x/", "c/d/"]
    for places, why in ((["b/x/1", "b/y/1"], "a rule for the bucket"), (["b/1"], "bucket b have no folder")):
        with pytest.raises(ApiError, match=why):
            await node.register("two", in_places(*places))
    with pytest.raises(ApiError, match="at most 16 buckets"):
        await node.register("three", in_places(*(f"b{number}/x/1" for number in range(17))))
    assert node.read() == {A: ["b/x/", "c/d/"]}


@given(st.lists(st.tuples(st.sampled_from("bcd"), st.text("a/é", max_size=5)), min_size=1, max_size=200))
async def test_folders_are_those_of_all_keys(
    tmp_path_factory: pytest.TempPathFactory, keys: list[tuple[str, str]]
) -> None:
    """Rule: pages of keys that several buckets share give the same folders as all keys in order."""
    node = Node(tmp_path_factory.mktemp("node"))
    rows = [Row(sha(str(number)), bucket, f"f/{key}{number % 60}") for number, (bucket, key) in enumerate(keys)]
    starts: dict[str, list[str]] = {}
    for row in rows:
        starts.setdefault(row.bucket, []).append(row.key)
    expected = [f"{bucket}/{_folder(names)}" for bucket, names in sorted(starts.items())]
    assert await node.register("d", rows) == expected
    registration = node.registry.find(A, "d")
    assert registration is not None
    assert isinstance(registration.locations, PackedLocations)
    assert list(folders_to_record(Plainly([row[1:3] for row in rows]), ())) == expected


class Plainly:
    """Locations that are not packed, as in files of version 1."""

    def __init__(self, places: list[tuple[str, str]]) -> None:
        self.items = len(places)
        self._places = places

    def between(self, start: int, stop: int) -> Any:
        """Their places."""
        return (Location(bucket, key, None, None) for bucket, key in self._places[start:stop])


def _folder(names: list[str]) -> str:
    parts = [name.split("/")[:-1] for name in names]
    size = next(
        (at for at, column in enumerate(zip(*parts, strict=False)) if len(set(column)) > 1), min(map(len, parts))
    )
    return "".join(f"{part}/" for part in parts[0][:size])


async def test_an_allow_list_must_cover_the_folder(node: Node) -> None:
    """Rule: who may not list a folder does not have its listings recorded."""
    for allow in (("b/x/*",), ("b/x/1", "b/x/2")):
        with pytest.raises(ApiError, match="does not cover listings of b/x/"):
            await node.register("d", in_places("b/x/1", "b/x/2"), DigestSource(allow=allow, listing=True))
    assert await node.register("d", in_places("b/x/1"), DigestSource(allow=("b/**",), listing=True)) == ["b/x/"]


async def test_every_change_has_a_new_number(node: Node) -> None:
    """Rule: registering, changing the option of the same file, replacing, dropping, expiring and removing are noticed; what
    records no listings is not."""
    rows, others = in_places("b/x/1"), in_places("b/y/1")
    await node.register("d", rows)
    assert (node.number, node.read()) == (1, {A: ["b/x/"]})
    await node.register("d", rows)
    await node.register("plain", others, PLAIN, B)
    assert (node.number, node.read()) == (1, {A: ["b/x/"]})
    await node.register("d", rows, PLAIN)
    assert (node.number, node.read()) == (2, {})
    await node.register("d", rows)
    await node.register("d", others, DigestSource("other", listing=True))
    assert (node.number, node.read()) == (4, {A: ["b/y/"]})
    await node.register("e", others, LISTED, B)
    document = read_document(node.registry.folders.of_tenant(B) / "e" / REGISTRATION)
    assert document is not None
    assert await node.registry.drop(B, "e", known_of(document))
    assert (node.number, node.read()) == (6, {A: ["b/y/"]})
    assert await node.registry.remove(A, "d")
    assert (node.number, node.read()) == (7, {})
    await node.register("f", rows, DigestSource(content_name=True, listing=True))
    assert node.registry._publisher.expire(-60)
    assert (node.number, node.read()) == (9, {})


async def test_the_number_changes_before_the_registration(node: Node) -> None:
    """Rule: a worker that dies in between leaves the others with an old number, never with old folders under the present one."""
    seen: list[bool] = []
    path = node.registry.folders.of_tenant(A) / "d" / REGISTRATION
    node.registry.folders.listings_change = lambda: seen.append(path.exists())
    await node.register("d", in_places("b/x/1"))
    await node.registry.remove(A, "d")
    assert seen == [False, True]


async def test_files_that_did_not_change_are_not_read_again(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rule: reading costs a stat of each registration."""
    await node.register("d", in_places("b/x/1"))
    assert node.read() == {A: ["b/x/"]}
    monkeypatch.setattr("gateway.store.datasets.listed.read_document", None)
    assert node.read() == {A: ["b/x/"]}


async def test_before_the_first_registration(tmp_path: Path) -> None:
    """Rule: a node without any folder of datasets knows that it has none."""
    assert ListedRegistrations(Folders(tmp_path / "datasets"), lambda: 3).read() == (3, {})


@pytest.mark.parametrize("listing", [[], "b/x/", ["b/"], ["/x/"], ["b/x"], [1], ["b/x/"] * 17])
async def test_another_nodes_document_is_checked(node: Node, listing: object) -> None:
    """Rule: folders of a parcel have the form of folders, or the parcel is refused."""
    await node.register("d", rows_of(2))
    body = (node.registry.folders.of_tenant(A) / "d" / REGISTRATION).read_bytes()
    assert _document(body)["listing"] == ["data/items/"]
    document = read_document(node.registry.folders.of_tenant(A) / "d" / REGISTRATION)
    assert document is not None
    with pytest.raises(Unfit, match="which listings"):
        _document(str({**document, "listing": listing}).replace("'", '"').encode())
