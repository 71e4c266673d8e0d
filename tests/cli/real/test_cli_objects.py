"""``larder ls`` and ``larder cp``, as users type them at a real gateway."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rig.batches import bytes_of, stock
from rig.gateways import Running
from rig.origin import FakeOrigin
from rig.v1 import GWA
from tests.cli.commands import Ran, propose
from tests.cli.real.conftest import Operator

NAMES = [f"{number:02}.jpg" for number in range(12)]


@pytest.fixture
def stored(origin: FakeOrigin) -> bytes:
    """The bytes of the first photo."""
    return origin.buckets.objects["photos"]["train/00.jpg"].body


def rows(ran: Ran) -> list[str]:
    """The lines of a listing."""
    assert ran.status == 0, ran
    return [" ".join(line.split()) for line in ran.out.splitlines()]


def test_buckets_are_listed(user: Operator) -> None:
    """Rule: without an address, the buckets of the key."""
    assert "s3://photos" in rows(user("ls"))


def test_a_prefix_is_listed(user: Operator) -> None:
    """Rule: folders without a size, objects with theirs; -r lists the objects below folders."""
    assert rows(user("ls", "s3://photos")) == ["s3://photos/train/"]
    assert rows(user("ls", "s3://photos/train/")) == [f"10,000 s3://photos/train/{name}" for name in NAMES]
    assert rows(user("ls", "-r", "s3://photos/tr")) == [f"10,000 s3://photos/train/{name}" for name in NAMES]


def test_a_listing_as_json(user: Operator) -> None:
    """Rule: a document for each object, and for each folder."""
    assert user("ls", "s3://photos/", "--json").json == {"bucket": "photos", "folder": "train/"}
    first = json.loads(user("ls", "s3://photos/train/00", "--json").out)
    assert first | {"etag": ""} == {"bucket": "photos", "key": "train/00.jpg", "size": 10_000, "etag": ""}


def test_a_misspelt_prefix(user: Operator) -> None:
    """Rule: exit status 1, with a sentence, if no key begins with it."""
    ran = user("ls", "s3://photos/trian/")
    assert (ran.status, ran.out, ran.err) == (1, "", "larder: no key in photos begins with 'trian/'\n")


def test_an_object_becomes_a_file(user: Operator, stored: bytes, tmp_path: Path) -> None:
    """Rule: the target is a directory or a file, which is replaced; nothing else is left beside it."""
    (tmp_path / "photo").write_text("older")
    for target in (str(tmp_path), str(tmp_path / "photo")):
        assert user("cp", "s3://photos/train/00.jpg", target).status == 0
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"00.jpg": stored, "photo": stored}


def test_a_file_becomes_an_object(user: Operator, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: in a folder it keeps its name, and gets the type of its ending; what is read back is what was written."""
    (tmp_path / "notes.txt").write_text("larder")
    assert user("cp", str(tmp_path / "notes.txt"), "s3://photos/copied/").status == 0
    assert origin.buckets.objects["photos"]["copied/notes.txt"].body == b"larder"
    assert user("cp", "s3://photos/copied/notes.txt", "-").out == "larder"
    origin.buckets.objects["photos"].pop("copied/notes.txt")


def test_standard_input_becomes_an_object(user: Operator, origin: FakeOrigin) -> None:
    """Rule: - is standard input; it needs the whole key."""
    assert user("cp", "-", "s3://photos/typed", given="by hand").status == 0
    assert origin.buckets.objects["photos"].pop("typed").body == b"by hand"
    assert "give the whole key" in user("cp", "-", "s3://photos/", given="by hand").err


def test_a_missing_object_leaves_the_file(user: Operator, tmp_path: Path) -> None:
    """Rule: exit status 1 with S3's code, and the file of that name stays."""
    (tmp_path / "00.jpg").write_text("older")
    ran = user("cp", "s3://photos/train/none.jpg", str(tmp_path / "00.jpg"))
    assert ran.status == 1
    assert "NoSuchKey" in ran.err
    assert [path.read_text() for path in tmp_path.iterdir()] == ["older"]


def test_a_missing_file(user: Operator) -> None:
    """Rule: exit status 1, and the file's name."""
    ran = user("cp", "none.txt", "s3://photos/none.txt")
    assert ran.status == 1
    assert "none.txt" in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("cp", "a", "b"), "one of SOURCE and TARGET must be s3://BUCKET/KEY"),
        (("cp", "s3://photos/a", "s3://photos/b"), "one of SOURCE and TARGET must be s3://BUCKET/KEY"),
        (("cp", "s3://photos", "."), "names no object"),
        (("cp", "s3://photos/train/..", "."), "ends in no file name"),
        (("ls", "photos"), "must look like s3://BUCKET/KEY"),
    ],
)
def test_wrong_usage(user: Operator, words: tuple[str, ...], said: str) -> None:
    """Rule: exit status 2, and what to write instead."""
    ran = user(*words)
    assert ran.status == 2
    assert said in ran.err


@pytest.mark.parametrize(
    ("line", "proposed"),
    [
        ("larder ls s3://pho", ["s3://photos/"]),
        ("larder cp s3://photos/train/00", ["s3://photos/train/00.jpg"]),
        ("larder completion fi", ["fish"]),
    ],
)
def test_places_are_completed(running: Running, line: str, proposed: list[str]) -> None:
    """Rule: a shell completes buckets, folders and keys from the gateway."""
    keys = {"AWS_ACCESS_KEY_ID": GWA[0], "AWS_SECRET_ACCESS_KEY": GWA[1], "LARDER_ENDPOINT": running.endpoint}
    assert [f"s3:{word}" if word.startswith("//") else word for word in propose(line, **keys)] == proposed


def test_names_are_completed(running: Running, origin: FakeOrigin, tmp_path: Path) -> None:
    """Rule: a shell completes the datasets of the caller's tenant."""
    stock(origin, tmp_path, "completed", bytes_of(4, 10, 3)).register(running)
    keys = {"AWS_ACCESS_KEY_ID": GWA[0], "AWS_SECRET_ACCESS_KEY": GWA[1], "LARDER_ENDPOINT": running.endpoint}
    assert propose("larder datasets show comp", **keys) == ["completed"]
    assert propose("larder datasets show comp", **{**keys, "LARDER_ENDPOINT": "http://127.0.0.1:1"}) == []
