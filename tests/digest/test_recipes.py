"""The recipes of docs/digest-files.md, as they stand there, give files that reader and gateway accept."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from larder import Client, digest
from larder.http.credentials import Credentials
from rig.gateways import Running, Settings, gateway

PAGE = Path(__file__).resolve().parents[2] / "docs/digest-files.md"
FILES = {"train/1.jpg": b"one", "train/ü/2 b.jpg": b"two" * 1000, "a.txt": b"\xff\0", "train/0.jpg": b"one"}
BLOCKS = {
    title: (language, code)
    for title, language, code in re.findall(
        r"^### ([^\n]+)\n[^#]*?```(sql|python)\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
}
RECIPES = [title for title in BLOCKS if title.startswith(("DuckDB", "Polars"))]


@pytest.fixture(scope="module")
def running(tmp_path_factory) -> Iterator[Running]:
    """A gateway; its origin is not needed."""
    home = tmp_path_factory.mktemp("recipes")
    with gateway(Settings("http://127.0.0.1:9", home / "cache"), home) as started:
        yield started


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """Returns the working directory of the recipes, with their manifest and files."""
    rows = [f"s3://photos/{key},{hashlib.sha256(body).hexdigest()},{len(body)}" for key, body in FILES.items()]
    (tmp_path / "manifest.csv").write_text("\n".join(["path,sha256,size", *rows, ""]), encoding="utf-8")
    for key, body in FILES.items():
        path = tmp_path / "photos" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_there_are_recipes_for_both_tools():
    """The page has a recipe of each tool for each kind of source."""
    assert len(RECIPES) == 4


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_gives_a_digest_file(recipe, folder, running):
    """Our reader finds every item with its digest and place, and a gateway registers it under the same id."""
    language, code = BLOCKS[recipe]
    if language == "sql":
        duckdb.sql(code)
    else:
        subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    file = digest.read(folder / "train.digest")
    found = {(file.location(index), file.digest(index)) for index in range(len(file))}
    assert found == {(("photos", key, None, len(body)), hashlib.sha256(body).digest()) for key, body in FILES.items()}
    assert [file.location(index).key for index in range(len(file))] == sorted(FILES, key=str.encode)
    client = Client(running.endpoint, credentials=Credentials("GWA", "gateway-secret-a"))
    registered = client.register("train", folder / "train.digest")
    assert (registered.id, registered.items) == (file.id, len(FILES))


def test_the_function_of_the_page_finds_records(store, tmp_path, monkeypatch):
    """The example of `--index` can be used as it stands."""
    (tmp_path / "records.py").write_text(BLOCKS["Other formats"][1], encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    body = (100).to_bytes(8, "little") + bytes(92) + b"r" * 10_000
    store.put("k", body)
    store.build(items="records:items")
    assert list(store.items()) == [("k", 100, 4096), ("k", 4196, 4096), ("k", 8292, 1808)]
