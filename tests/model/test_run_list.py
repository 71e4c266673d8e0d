"""Lists of runs: which bytes of an object are which items."""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.run_list import RunPiece, decode_run, encode_run, joined

DIGESTS = st.binary(min_size=32, max_size=32)


@st.composite
def lists(draw: st.DrawFn) -> list[RunPiece]:
    """Pieces without gaps between them."""
    at, pieces = draw(st.integers(0, 2**40)), []
    for kind in draw(st.lists(st.booleans(), min_size=1, max_size=20)):
        data = b"" if kind else draw(st.binary(min_size=1, max_size=50))
        size = draw(st.integers(1, 2**31 - 1)) if kind else len(data)
        pieces.append(RunPiece(at, at + size, draw(DIGESTS) if kind else b"", data))
        at += size
    return pieces


@given(lists())
def test_a_list_is_read_as_written(pieces: list[RunPiece]) -> None:
    """Rule: a list has its pieces, whatever they are."""
    assert decode_run(encode_run(pieces)) == pieces


@given(lists(), st.data())
def test_a_garbled_list(pieces: list[RunPiece], data: st.DataObject) -> None:
    """Rule: damage is a ValueError, or leaves a list of pieces without gaps: nothing else is raised."""
    encoded = bytearray(encode_run(pieces))
    encoded[data.draw(st.integers(0, len(encoded) - 1))] ^= data.draw(st.integers(1, 255))
    with suppress(ValueError):
        read = decode_run(bytes(encoded[: data.draw(st.integers(0, len(encoded)))]))
        assert all(piece.stop == after.start for piece, after in pairwise(read))


def test_other_files_are_no_lists() -> None:
    """Rule: what does not begin as a list is none."""
    with pytest.raises(ValueError, match="not a run list"):
        decode_run(bytes(64))


def test_pieces_with_gaps_are_several_lists() -> None:
    """Rule: a list has no holes; bytes between items without an item beside them belong to none."""
    item, between = RunPiece(0, 10, b"d" * 32), RunPiece(10, 12, data=b"ab")
    later, alone = RunPiece(20, 30, b"e" * 32), RunPiece(40, 41, data=b"x")
    assert joined([item, between, later, alone]) == [[item, between], [later]]
