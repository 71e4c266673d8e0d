"""The readers of formats that `make clients` tries: their scripts, and how a reader is judged."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.s3compat.reading import RULES, Reader, Seen, Try, course, readers
from tests.s3compat.world import World, world

PAGE = Path(__file__).resolve().parents[2] / "docs/s3-compatibility.md"
SCRIPT = """
import obstore
from obstore.store import S3Store
from place import BUCKET, ENDPOINT, PREFIX, content, run, version_of_content

store = S3Store(BUCKET, prefix=PREFIX, endpoint=ENDPOINT, client_options={"allow_http": True})

def write(version):
    obstore.put(store, "object", content(version, 300_000))

def read():
    READ
    return version_of_content(bytes(obstore.get(store, "object").bytes()), 300_000)

run(write, read)
"""
ASKING = """
    headers = {"Cache-Control": "no-cache"}
    options = {"allow_http": True, "default_headers": headers}
    obstore.get(S3Store(BUCKET, prefix=PREFIX, endpoint=ENDPOINT, client_options=options), "object")
    list(store.list())
    try:
        obstore.get(store, "missing")
    except FileNotFoundError:
        pass
"""


@pytest.mark.parametrize("reader", readers(), ids=lambda reader: reader.script.stem)
def test_a_reader_names_its_packages(reader: Reader):
    """Rule: a reader's packages are pinned, and its script parses and says what it reads."""
    assert [
        package for package in reader.packages if not re.fullmatch(r"[\w.\-]+(\[[\w,\-]+\])?==[\w.+]+", package)
    ] == []
    assert ast.get_docstring(ast.parse(reader.script.read_text(encoding="utf-8")))


def test_every_reader_is_in_the_table():
    """Rule: the page has one row for each reader, with the version that its script names."""
    table = PAGE.read_text(encoding="utf-8").partition("<!-- measured: readers -->")[2].partition("<!-- end -->")[0]
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| \d", table, re.MULTILINE)
    pinned = {reader.name: reader.packages for reader in readers()}
    assert [name for name, _ in rows] == list(pinned)
    assert [name for name, version in rows if pinned[name] and not pinned[name][0].endswith(f"=={version}")] == []


@pytest.fixture
def place_to_read(moto: str, tmp_path: Path) -> Iterator[World]:
    """A gateway with the rules of the readers."""
    with world(moto, tmp_path / "world", None, record=True, rules=RULES) as made:
        yield made


def _seen(made: World, script: Path, reading: str) -> Seen:
    script.write_text(SCRIPT.replace("READ", reading))
    seen = Seen()
    course(Try(Reader(script), Path(sys.executable), made), seen)
    return seen


def test_a_plain_reader_asks_the_store_once(place_to_read: World, tmp_path: Path):
    """Rule: an object is read from the store once, and each overwrite is seen: past the gateway by a rule that checks."""
    seen = _seen(place_to_read, tmp_path / "plain.py", "pass")
    assert seen == Seen({"cold": "1 read", "warm": "0", "through": "new", "past": "old", "checked": "new"}, [])


def test_reads_of_a_warm_run_are_faults(place_to_read: World, tmp_path: Path):
    """Rule: listings and missing keys are the store's; a warm read that reaches the store is a fault that names the requests."""
    seen = _seen(place_to_read, tmp_path / "asking.py", ASKING)
    assert seen.steps["warm"] == "1 listing, 1 missing, 1 read"
    assert len([fault for fault in seen.faults if fault.startswith("warm: at the store: ")]) == 3
