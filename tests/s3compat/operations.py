"""Twelve operations of clients, each with the objects that it needs and the state that it must leave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from tests.s3compat.clients.base import PART, Client, fetch

SMALL = Random(1).randbytes(5_000)
LARGE = Random(2).randbytes(2 * PART + 12_345)
OLD = Random(3).randbytes(700)

Objects = Mapping[str, bytes]
After = Mapping[str, bytes | None]


@dataclass(frozen=True)
class Place:
    """The place of an operation: a bucket, and a directory used by no other test."""

    bucket: str
    stem: str

    def key(self, name: str) -> str:
        """A key in the directory."""
        return f"{self.stem}/{name}"


@dataclass(frozen=True)
class Operation:
    """One thing that clients do.

    Attributes:
        name: as in the table.
        needs: the client's method.
        act: performs it, and asserts the client's own result.
        there: objects that must exist before, by name.
        replaced: objects that a write replaces, if they exist.
        after: the objects afterwards, ``None`` for deleted ones; reads change nothing.
        reads: True if the gateway may answer it from its cache.
    """

    name: str
    needs: str
    act: Callable[[Client, Place], None]
    there: Objects
    replaced: Objects
    after: After
    reads: bool

    def before(self, place: Place, *, replace: bool) -> dict[str, bytes]:
        """The objects to begin with, by key; with those that are replaced when asked for."""
        chosen = {**self.there, **(self.replaced if replace else {})}
        return {place.key(name): body for name, body in chosen.items()}

    def left(self, place: Place) -> dict[str, bytes | None]:
        """The expected objects afterwards, by key."""
        return {place.key(name): body for name, body in self.after.items()}


def _reading(name: str, needs: str, act: Callable[[Client, Place], None], body: bytes = SMALL) -> Operation:
    return Operation(name, needs, act, {"one": body}, {}, {"one": body}, reads=True)


def _writing(
    name: str, needs: str, act: Callable[[Client, Place], None], after: After, there: Objects, replaced: Objects
) -> Operation:
    return Operation(name, needs, act, there, replaced, after, reads=False)


def _put(client: Client, place: Place) -> None:
    client.put(place.bucket, place.key("one"), SMALL)


def _get(client: Client, place: Place) -> None:
    assert client.get(place.bucket, place.key("one")) == SMALL


def _head(client: Client, place: Place) -> None:
    assert client.head(place.bucket, place.key("one")) == len(SMALL)


def _range(client: Client, place: Place) -> None:
    assert client.read_range(place.bucket, place.key("one"), 1_000, 1_777) == SMALL[1_000:1_777]


def _list(client: Client, place: Place) -> None:
    found = sorted(client.list_keys(place.bucket, place.key("")))
    assert found == [place.key("one"), place.key("two")]


def _upload(client: Client, place: Place) -> None:
    source = client.scratch / "upload"
    source.write_bytes(LARGE)
    client.upload(place.bucket, place.key("one"), source)


def _download(client: Client, place: Place) -> None:
    target = client.scratch / "download"
    target.unlink(missing_ok=True)
    client.download(place.bucket, place.key("one"), target)
    assert target.read_bytes() == LARGE


def _presign_get(client: Client, place: Place) -> None:
    assert fetch(client.access, client.presign_get(place.bucket, place.key("one"))) == SMALL


def _presign_put(client: Client, place: Place) -> None:
    fetch(client.access, client.presign_put(place.bucket, place.key("one")), SMALL)


def _copy(client: Client, place: Place) -> None:
    client.copy(place.bucket, place.key("one"), place.key("two"))


def _delete(client: Client, place: Place) -> None:
    client.delete(place.bucket, place.key("one"))


def _delete_many(client: Client, place: Place) -> None:
    client.delete_many(place.bucket, [place.key("one"), place.key("two")])


_ONE = {"one": SMALL}
_BOTH = {"one": SMALL, "two": OLD}

OPERATIONS = (
    _writing("put", "put", _put, _ONE, {}, {"one": OLD}),
    _reading("get", "get", _get),
    _reading("head", "head", _head),
    _reading("range", "read_range", _range),
    _writing("list", "list_keys", _list, _BOTH, _BOTH, {}),
    _writing("multipart upload", "upload", _upload, {"one": LARGE}, {}, {"one": OLD}),
    _reading("download in parts", "download", _download, LARGE),
    _reading("presigned GET", "presign_get", _presign_get),
    _writing("presigned PUT", "presign_put", _presign_put, _ONE, {}, {"one": OLD}),
    _writing("copy", "copy", _copy, {"one": SMALL, "two": SMALL}, _ONE, {"two": OLD}),
    _writing("delete", "delete", _delete, {"one": None}, _ONE, {}),
    _writing("batch delete", "delete_many", _delete_many, {"one": None, "two": None}, _BOTH, {}),
)
