"""Listings of a store that a digest file is built of: of many pages, and of stores that continue them in their own ways."""

import re
from dataclasses import replace

import pytest

from larder.base import errors
from rig import origin_s3


def fill(store, objects):
    """Store so many empty objects."""
    for number in range(objects):
        store.put(f"k{number:04}", b"")


def test_listings_of_many_pages_are_complete(store):
    """More objects than a page of the listing holds."""
    fill(store, 2345)
    assert store.build(supplied=False).items == 2345


def without_tokens(monkeypatch, *unknown: str) -> None:
    """Have the origin's listings say that more follows without a token, and ignore parameters."""
    real = origin_s3._list

    def answer(bucket, objects, parameters, page):
        known = {name: value for name, value in parameters.items() if name not in unknown}
        found = real(bucket, objects, known, page)
        return replace(found, body=re.sub(rb"<NextContinuationToken>.*</NextContinuationToken>", b"", found.body))

    monkeypatch.setattr(origin_s3, "_list", answer)


def test_a_store_without_tokens_is_listed_all_the_same(store, monkeypatch):
    """A page that says that more follows, and has no token, is followed by the one after its last key."""
    fill(store, 2345)
    without_tokens(monkeypatch)
    assert store.build(supplied=False).items == 2345


def test_a_listing_that_cannot_go_on_is_not_taken_for_all(store, monkeypatch):
    """A store that repeats its first page fails the build, instead of making the dataset smaller."""
    fill(store, 1001)
    without_tokens(monkeypatch, "start-after")
    with pytest.raises(errors.S3Error, match="more follows"):
        store.build(supplied=False)
    assert not store.file.exists()
