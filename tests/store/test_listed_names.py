"""Names of cached objects, level by level, page by page."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import StaticPool, create_engine

from gateway.model.keys import ObjectKey
from gateway.store.index.names import CachedName, names
from gateway.store.index.schema import metadata

KEYS = st.sets(st.text(alphabet="a/0\U0010ffff é", min_size=1, max_size=6), max_size=200)


def index_of(keys: set[str]) -> Any:
    """A connection to an index that has these objects in a bucket."""
    engine = create_engine("sqlite://", poolclass=StaticPool)
    metadata.create_all(engine)
    connection = engine.raw_connection()
    connection.executemany(
        "INSERT INTO objects (origin, bucket, key, slot, etag, size, last_modified, headers, block_size, confirmed_at) "
        "VALUES ('origin', 'bucket', ?, 0, '', ?, '', '', 1, 0)",
        [(key, len(key)) for key in keys],
    )
    return connection


def level(keys: set[str], prefix: str) -> list[CachedName]:
    """What a listing with the delimiter shows."""
    shown = {}
    for key in keys:
        if key.startswith(prefix):
            slash = key.find("/", len(prefix))
            name = CachedName(key, len(key)) if slash < 0 else CachedName(key[: slash + 1])
            shown[name.name] = name
    return sorted(shown.values(), key=lambda name: name.name)


@given(KEYS, st.sampled_from(["", "a", "a/", "/", "a//", "\U0010ffff"]), st.integers(1, 5))
def test_pages_together_are_the_level(keys: set[str], prefix: str, limit: int) -> None:
    """Rule: the pages of a place, each begun after the last name of the one before, name every folder and object below the prefix
    once, in their order."""
    connection = index_of(keys)
    shown: list[CachedName] = []
    while page := names(connection, ObjectKey("origin", "bucket", prefix), shown[-1].name if shown else "", limit):
        assert len(page) <= limit
        shown += page
    assert shown == level(keys, prefix)


@pytest.mark.parametrize("last", ["", "a"])
def test_buckets_are_named_once(last: str) -> None:
    """Rule: without a bucket, those that have a cached object are named, of the asked origin only."""
    connection = index_of({"x", "y/z"})
    assert names(connection, ObjectKey("origin", "", ""), last, 10) == [CachedName("bucket")]
    assert names(connection, ObjectKey("other", "", ""), last, 10) == []
    assert names(connection, ObjectKey("origin", "", ""), "bucket", 10) == []
