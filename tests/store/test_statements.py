"""The statements that connections to the index keep prepared: a long one takes 100 KB, so there are few."""

from __future__ import annotations

import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import gateway.store.index
from gateway.model.access import Access
from gateway.model.keys import ObjectKey
from gateway.policies.pools import DEFAULT
from gateway.store.index import blob_rows, objects, pool_rows
from gateway.store.index.schema import ROWS, create_schema, insert, listed, open_engine
from gateway.store.shared.accesses import Folded, Use

MOST = 500
"""The longest list of one statement."""
LENGTHS = 10
"""1, 2, 4, ... 512."""
PLACE = ObjectKey("origin", "bucket", "")


class Remembering(sqlite3.Connection):
    """A connection that knows the statements it was given."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self.statements: set[str] = set()

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        """Remember the statement, and execute it."""
        self.statements.add(statement)
        return super().execute(statement, *values)


@pytest.fixture
def connection(tmp_path: Path) -> Iterator[Remembering]:
    """To an empty index."""
    with open_engine(tmp_path / "index.db", patience=1).connect() as first:
        create_schema(first, 1)
    remembering = sqlite3.connect(tmp_path / "index.db", isolation_level=None, factory=Remembering)
    yield remembering
    remembering.close()


def digests(count: int) -> list[bytes]:
    """Different ones."""
    return [number.to_bytes(32, "big") for number in range(count)]


def keys(count: int) -> list[ObjectKey]:
    """Different ones of one bucket, in their order."""
    return [PLACE._replace(key=f"{number:04}") for number in range(count)]


def uses(count: int) -> Folded:
    """One use of each of ``digests``."""
    return Folded({digest: Use(1, Access(PLACE, 0, digest, True, 1.0, "")) for digest in digests(count)}, {})


def insert_objects(connection: sqlite3.Connection, count: int) -> int:
    """Store objects with one blob each; returns the row of the last object."""
    table = "objects (origin, bucket, key, slot, etag, size, last_modified, headers, block_size, seal, confirmed_at)"
    rows = [(key.origin, key.bucket, key.key, 0, "e", 1, "", "[]", 1, 0, 0) for key in keys(count)]
    last = insert(connection, table, rows)
    blobs = [(digest, 1, 0, 0.0, 0, 0) for digest in digests(count)]
    insert(connection, "blobs (digest, size, crc32, rank, mtime_ns, boot)", blobs)
    ties = [(last - count + 1 + number, 0, digest, 0) for number, digest in enumerate(digests(count))]
    insert(connection, "object_blocks (object_id, no, digest, seal)", ties)
    return last


LISTS: dict[str, Callable[[sqlite3.Connection, int], object]] = {
    "find_many": lambda connection, count: blob_rows.find_many(connection, digests(count)),
    "held": lambda connection, count: blob_rows.held(connection, digests(count)),
    "evict_items": lambda connection, count: blob_rows.evict_items(connection, digests(count)),
    "present": lambda connection, count: objects.present(connection, keys(count)),
    "versions": lambda connection, count: objects.versions(connection, keys(count)),
    "charge": lambda connection, count: pool_rows.charge(connection, digests(count), DEFAULT, 1.0),
    "note_uses": lambda connection, count: pool_rows.note_uses(connection, uses(count), 1.0),
}


@pytest.mark.parametrize("name", LISTS)
def test_lists_of_any_length_take_few_statements(connection: Remembering, name: str) -> None:
    """Each statement with a list exists in as many lengths as there are powers of two up to the longest list."""
    connection.statements.clear()
    for count in range(1, MOST + 1, 7):
        LISTS[name](connection, count)
    lengths = Counter(re.sub(r"IN \([?,]+", "IN (", statement) for statement in connection.statements)
    assert 1 < max(lengths.values()) <= LENGTHS


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 63, 64, 65, MOST])
def test_a_list_has_its_values_and_no_others(count: int) -> None:
    """The places that are left over have the last value again, which changes no answer."""
    values = digests(count)
    marks, filled = listed(values)
    assert set(filled) == set(values)
    assert marks.count("?") == len(filled)
    assert tuple(values) == filled[:count]


@pytest.mark.parametrize("count", [1, 3, ROWS - 1, ROWS, ROWS + 1, 3 * ROWS + 5])
def test_every_row_is_inserted_once(connection: Remembering, count: int) -> None:
    """Rows keep their order, also if several statements insert them; the number of the last one is returned."""
    last = insert_objects(connection, count)
    stored = connection.execute("SELECT id, key FROM objects ORDER BY id").fetchall()
    assert stored == [(last - count + 1 + number, key.key) for number, key in enumerate(keys(count))]


def test_insertions_of_any_length_take_few_statements(connection: Remembering) -> None:
    """A table has one insertion for each power of two up to ``ROWS``."""
    for count in range(1, 2 * ROWS):
        insert(connection, "meta (name, value)", [(f"{count} {number}", number) for number in range(count)])
    insertions = [statement for statement in connection.statements if statement.startswith("INSERT")]
    assert 1 < len(insertions) <= ROWS.bit_length()


def test_lists_are_made_in_one_place() -> None:
    """No other module of the index makes a statement whose text depends on how many values it has."""
    folder = Path(gateway.store.index.__file__).parent
    making = {path.name for path in folder.glob("*.py") if re.search(r"""["']\?["'] \*""", path.read_text())}
    assert making == {"schema.py"}
