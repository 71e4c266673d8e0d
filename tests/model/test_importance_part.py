"""Parts of scores: round trips, and every kind of invalid bytes."""

from __future__ import annotations

import json
import tracemalloc
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.importance import MalformedPart, ScorePart, decode, encode, longest
from tests.scored import Part

VECTORS = json.loads((Path(__file__).parents[1] / "wire" / "importance.json").read_text())["parts"]
ITEMS = 100
GOOD = Part(7, 3, {0: 0.5, 5: 2.0, 99: 0.0}, {4: 1, 5: 255})


def columns(part: ScorePart) -> tuple[Mapping[int, float], Mapping[int, int]]:
    """Scores and draws by index."""
    scores = dict(zip(part.scored.tolist(), part.scores.tolist(), strict=True))
    return scores, dict(zip(part.listed.tolist(), part.draws.tolist(), strict=True))


def test_a_part_is_read_as_it_was_written() -> None:
    """Rule: the bytes of the specification are read, and written again, without loss."""
    part = decode(GOOD.body, ITEMS)
    assert (part.sequence, part.base, part.epoch, part.whole, part.of_all) == (7, 3, 1, False, False)
    assert columns(part) == (GOOD.scores, GOOD.draws)
    again = decode(encode(part, ITEMS), ITEMS)
    assert columns(again) == columns(part)
    whole = decode(Part(1, 0, whole=True, of_all=True).body, ITEMS)
    assert (whole.whole, whole.of_all, columns(whole)) == (True, True, ({}, {}))
    assert encode(whole, ITEMS)[:36] == Part(1, 0, whole=True, of_all=True).header


@given(
    st.dictionaries(st.integers(0, ITEMS - 1), st.floats(0, 60_000, width=16)),
    st.dictionaries(st.integers(0, ITEMS - 1), st.integers(1, 255)),
    st.booleans(),
)
def test_any_part_is_read_as_it_was_written(scores: dict[int, float], draws: dict[int, int], whole: bool) -> None:
    """Rule: decoding an encoded part returns its scores and draws."""
    part = decode(Part(2, 1, scores, draws, whole=whole).body, ITEMS)
    assert columns(part) == (scores, draws)
    assert part.whole is whole
    assert columns(decode(encode(part, ITEMS), ITEMS)) == (scores, draws)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b"", "body"),
        (GOOD.body[:35], "body"),
        (GOOD.header, "body"),
        (GOOD.body[:-5], "body"),
        (GOOD.body + b"x", "body"),
        (GOOD.header + zlib.compress(GOOD.raw + b"x"), "body"),
        (GOOD.header + zlib.compress(GOOD.raw[:-1]), "body"),
        (GOOD.but(magic=b"LDIX").body, "magic"),
        (GOOD.but(version=1).body, "version"),
        (GOOD.but(flags=4).body, "flags"),
        (GOOD.but(items=101).body, "items"),
        (GOOD.but(sequence=0).body, "sequence"),
        (GOOD.but(rows=101).body, "rows"),
        (Part(scores={100: 1.0}).body, "rows"),
        (Part(draws={2**32 - 1: 1}).body, "rows"),
        (Part(draws={4: 0}).body, "rows"),
        (Part(scores={4: -1.0}).body, "scores"),
        (Part(scores={4: float("nan")}).body, "scores"),
        (Part(scores={4: float("inf")}).body, "scores"),
    ],
)
def test_what_is_wrong_is_named(body: bytes, field: str) -> None:
    """Rule: a part that is cut off, too long, of another dataset, out of range or not a number is refused by its field."""
    with pytest.raises(MalformedPart) as refused:
        decode(body, ITEMS)
    assert refused.value.field == field


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: str(vector["sequence"]))
def test_what_the_client_writes_is_read(vector: dict[str, Any]) -> None:
    """Rule: bytes of the client's encoder have the same meaning here."""
    part = decode(bytes.fromhex(vector["body"]), vector["items"])
    for name in ("sequence", "base", "epoch", "whole"):
        assert getattr(part, name) == vector[name]
    assert columns(part) == (
        dict(zip(vector["scored"], vector["scores"], strict=True)),
        dict(zip(vector["listed"], vector["counts"], strict=True)),
    )


def test_an_index_that_comes_twice_is_refused() -> None:
    """Rule: indices ascend, so only the first may have a difference of 0."""
    doubled = GOOD.but(rows=2)
    raw = bytes([3, 0] + 3 * [0, 0] + 2 * [1, 1] + [1, 1])
    with pytest.raises(MalformedPart, match="ascend"):
        decode(doubled.header + zlib.compress(raw), ITEMS)


@given(st.binary(max_size=200), st.sampled_from(["all", "stream", "raw"]))
def test_garbage_is_refused(garbage: bytes, where: str) -> None:
    """Rule: any input is either decoded or refused as malformed; no other error is raised."""
    body = {
        "all": garbage,
        "stream": GOOD.header + garbage,
        "raw": GOOD.header + zlib.compress((garbage + GOOD.raw)[: len(GOOD.raw)]),
    }[where]
    try:
        part = decode(body, ITEMS)
    except MalformedPart:
        return
    assert max([0, *part.scored.tolist(), *part.listed.tolist()]) < ITEMS
    assert np.isfinite(part.scores).all()


def test_a_bomb_is_not_inflated() -> None:
    """Rule: the header bounds decompression, so 64 MB of zeros in a small body cost less than 1 MB."""
    bomb = GOOD.header + zlib.compress(bytes(64 * 1024**2))
    tracemalloc.start()
    try:
        with pytest.raises(MalformedPart):
            decode(bomb, ITEMS)
        assert tracemalloc.get_traced_memory()[1] < 1024**2
    finally:
        tracemalloc.stop()


def test_the_longest_part_is_long_enough() -> None:
    """Rule: a badly compressible part of all of a million items fits the body's limit and is decoded."""
    items, chance = 1_000_000, np.random.default_rng(3)
    scores = chance.uniform(0, 6, items).astype(np.float16)
    everything = np.arange(items, dtype=np.uint32)
    draws = chance.integers(1, 256, items).astype(np.uint8)
    body = encode(ScorePart(1, 0, 1, True, False, everything, scores, everything, draws), items)
    assert len(body) <= longest(items)
    part = decode(body, items)
    assert (part.scores == scores).all()
    assert (part.draws == draws).all()
