"""Requests to announce writes for another node: they round-trip, and nothing else is accepted."""

from __future__ import annotations

import json

import pytest

from gateway.model.keys import ObjectKey
from gateway.model.peer.announcements import LONGEST, read_written, written

KEYS = [ObjectKey("default", "b", "schön/\n😀"), ObjectKey("default", "b", "")]


@pytest.mark.parametrize("keys", [KEYS, [], None])
def test_what_is_written_is_read(keys: list[ObjectKey] | None) -> None:
    """Rule: keys of any characters, the rights in a bucket, and everything."""
    assert read_written(written(keys)) == keys


def test_the_longest_announcement_fits() -> None:
    """Rule: a thousand keys of 1,024 bytes, however they are escaped."""
    assert len(written([ObjectKey("o" * 64, "b" * 255, "\0" * 1024)] * 1000)) <= LONGEST


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'[["o", "b"]]', b'[["o", "b", 1]]', b"[" * 100_000, b"\xff"])
def test_anything_else_is_refused(body: bytes) -> None:
    """Rule: an announcement of another form is refused."""
    with pytest.raises(ValueError):
        read_written(body)


def test_the_form_is_plain_json() -> None:
    """Rule: an array of arrays."""
    assert json.loads(written(KEYS[1:])) == [["default", "b", ""]]
