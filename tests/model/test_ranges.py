"""Range: against a naive model, and which forms are left to the origin."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.s3.ranges import ByteRange, block_span, content_range, parse_range, unsatisfied_range


@given(st.integers(0, 30), st.none() | st.integers(0, 40), st.none() | st.integers(0, 40))
def test_resolve_agrees_with_a_naive_model(size: int, first: int | None, last: int | None) -> None:
    """The bytes selected are those that picking positions one by one selects."""
    if first is None and last is None:
        return
    value = f"bytes={'' if first is None else first}-{'' if last is None else last}"
    parsed = parse_range(value)
    if first is not None and last is not None and last < first:
        assert parsed is None
        return
    assert parsed is not None
    if first is None:
        wanted = [position for position in range(size) if position >= size - (last or 0)]
    else:
        wanted = [position for position in range(size) if first <= position and (last is None or position <= last)]
    resolved = parsed.resolve(size)
    assert resolved == ((wanted[0], wanted[-1] + 1) if wanted else None)


@pytest.mark.parametrize(
    "value",
    [
        "", "bytes", "bytes=", "bytes=-", "bytes=a-b", "bytes=5-4", "bytes=0-1,3-4", "bytes=0-1,", "bytes= 0-1",
        "bytes=0 - 1", "items=0-1", "bytes=--5", "bytes=0-1-2", "bytes=+1-2", "bytes=1_0-20", "0-5", "bytes=\u0661-5",
        "bytes=0-" + "9" * 19, "bytes=" + "9" * 5000 + "-",
    ],
)  # fmt: skip
def test_other_forms_are_the_origins(value: str) -> None:
    """Several ranges, other units, malformed or beyond 64 bits: the origin answers."""
    assert parse_range(value) is None


def test_no_header() -> None:
    """Without a Range header there is no range."""
    assert parse_range(None) is None


@pytest.mark.parametrize("value", ["bytes=0-4", "Bytes=0-4", " bytes=0-4 "])
def test_unit_in_any_case(value: str) -> None:
    """Range units are case-insensitive (RFC 9110, section 14.1)."""
    assert parse_range(value) == ByteRange(0, 4)


def test_empty_suffix_is_unsatisfiable() -> None:
    """ "bytes=-0" asks for no byte at all, which is 416."""
    parsed = parse_range("bytes=-0")
    assert parsed is not None
    assert parsed.resolve(10) is None


def test_huge_end_is_clamped() -> None:
    """An end far beyond the object means its end."""
    parsed = parse_range("bytes=3-" + "9" * 18)
    assert parsed is not None
    assert parsed.resolve(10) == (3, 10)


def test_content_range_values() -> None:
    """The last position in Content-Range is inclusive."""
    assert content_range(2, 5, 10) == "bytes 2-4/10"
    assert unsatisfied_range(10) == "bytes */10"


@given(st.integers(0, 100), st.integers(0, 100), st.integers(1, 17))
def test_block_span_covers_exactly_the_touched_blocks(start: int, length: int, block_size: int) -> None:
    """The blocks are those that hold at least one of the bytes."""
    touched = sorted({position // block_size for position in range(start, start + length)})
    assert list(block_span(start, start + length, block_size)) == touched
