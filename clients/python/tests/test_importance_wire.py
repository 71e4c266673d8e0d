"""Encoding of importance: the golden vectors that the gateway decodes, and the budget of a million items."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from larder.importance_wire import HEADER, ImportancePart, encode
from larder.planner.draw import DrawRule, draw
from larder.planner.scores import ItemScores, rank_scores

GOLDEN = json.loads((Path(__file__).parent / "wire" / "importance.json").read_text())["parts"]


def part_of(vector) -> ImportancePart:
    """The part that a golden vector describes."""
    kinds = {"scored": np.uint32, "scores": np.float16, "listed": np.uint32, "counts": np.int64}
    columns = {name: np.array(vector[name]).astype(kind) for name, kind in kinds.items()}
    facts = {name: vector[name] for name in ("sequence", "base", "epoch", "items", "whole")}
    return ImportancePart(**facts, **columns)


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: str(vector["sequence"]))
def test_the_golden_vectors(vector):
    """Rule: the header and the arrays are byte for byte those of the vectors; zlib may compress them in its own way."""
    body, golden = encode(part_of(vector)), bytes.fromhex(vector["body"])
    assert body[: HEADER.size] == golden[: HEADER.size]
    assert zlib.decompress(body[HEADER.size :]) == zlib.decompress(golden[HEADER.size :])


def test_the_layout():
    """Rule: ids are differences from 0 on, scores are float16, counts saturate; all little-endian, in this order."""
    scored, scores = np.array([3, 10], np.uint32), np.array([2.5, 0.0], np.float16)
    body = encode(ImportancePart(9, 8, 2, 12, scored, scores, np.array([5], np.uint32), np.array([300])))
    assert body[:40] == struct.pack("<4sHHQQIIII", b"LDIM", 1, 0, 9, 8, 2, 12, 2, 1)
    assert zlib.decompress(body[40:]) == struct.pack("<II2eIB", 3, 7, 2.5, 0.0, 5, 255)


@pytest.mark.parametrize("unseen", [0.0, 0.25, None])
def test_a_million_items_fit_the_budget(unseen):
    """Budget: all scores and the list of a million items take at most 2 MB."""
    items, scores = 1_000_000, ItemScores(1_000_000)
    generator = np.random.default_rng(1)
    order = generator.permutation(items)
    for start in range(0, items, 250):
        scores.set(order[start : start + 250], rank_scores(generator.random(250)), 0)
    counts = draw(scores.weights(1), items, DrawRule(unseen), 1.0, "budget").counts()
    ids = np.arange(items, dtype=np.uint32)
    listed = ids[counts > 0]
    assert (
        len(encode(ImportancePart(1, 0, 1, items, ids, scores.values, listed, counts[listed], whole=True))) <= 2_000_000
    )
