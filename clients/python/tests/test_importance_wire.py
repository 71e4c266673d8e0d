"""Encoding of importance: the golden vectors that the gateway decodes, and the budget of a million items."""

import json
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest

from larder.planner.draw import DrawRule, draw
from larder.planner.scores import ItemScores, rank_scores
from larder.training.importance_wire import HEADER, STEPS, ImportancePart, coarse, encode

GOLDEN = json.loads((Path(__file__).parent / "wire" / "importance.json").read_text())["parts"]


def part_of(vector) -> ImportancePart:
    """The part that a golden vector describes."""
    kinds = {"scored": np.uint32, "scores": np.float16, "listed": np.uint32, "counts": np.int64}
    columns = {name: np.array(vector[name]).astype(kind) for name, kind in kinds.items()}
    facts = {name: vector[name] for name in ("sequence", "base", "epoch", "items", "whole", "of_all")}
    return ImportancePart(**facts, **columns)


@pytest.mark.parametrize("vector", GOLDEN, ids=lambda vector: str(vector["sequence"]))
def test_the_golden_vectors(vector):
    """Rule: the header and the arrays are byte for byte those of the vectors; zlib may compress them in its own way."""
    body, golden = encode(part_of(vector)), bytes.fromhex(vector["body"])
    assert body[: HEADER.size] == golden[: HEADER.size]
    assert zlib.decompress(body[HEADER.size :]) == zlib.decompress(golden[HEADER.size :])


def test_the_layout():
    """Rule: a row per item, ids as differences from 0 on, float16 scores, counts that saturate; columns in byte planes."""
    scored, scores = np.array([3, 1000], np.uint32), np.array([2.5, 0.0], np.float16)
    body = encode(ImportancePart(9, 8, 2, 1200, scored, scores, np.array([3, 5], np.uint32), np.array([1, 300])))
    assert body[:36] == struct.pack("<4sHHQQIII", b"LDIM", 2, 0, 9, 8, 2, 1200, 3)
    ids = bytes([3, 2, 995 & 255]), bytes([0, 0, 995 >> 8]), bytes(3), bytes(3)
    assert zlib.decompress(body[36:]) == b"".join([*ids, b"\x00\xff\x00", b"\x41\xff\x00", bytes([1, 255, 0])])


def report(items, batch, unseen):
    """Scores of all items after an epoch of random losses, and how often the next list has each."""
    scores, generator = ItemScores(items), np.random.default_rng(1)
    order = generator.permutation(items)
    for start in range(0, items, batch):
        scores.set(order[start : start + batch], rank_scores(generator.random(batch)), 0)
    return scores.values, draw(scores.weights(1), items, DrawRule(unseen), 1.0, "budget").counts()


@pytest.mark.parametrize("batch", [8, 256, 1000])
def test_coarse_scores_keep_the_order(batch):
    """Rule: sent scores are off by half a step at most, order ranks that differ by more than 2 %, and keep NaN."""
    exact = rank_scores(np.arange(batch, dtype=np.float32))
    sent = coarse(exact)
    assert np.abs(sent.astype(np.float64) - exact).max() <= 0.5 / STEPS
    assert (np.diff(sent.astype(np.float64)) >= 0).all()
    ranks = np.exp(exact.astype(np.float64))
    clear = ranks[None, :] > 1.02 * ranks[:, None]
    assert (sent[None, :] > sent[:, None])[clear].all()
    assert np.isnan(coarse(np.array([np.nan, 2.0], np.float16))).tolist() == [True, False]


@pytest.mark.parametrize(("batch", "unseen", "homes"), [(250, 0.0, 1), (250, 0.25, 8), (1000, None, 8)])
def test_a_million_items_fit_the_budget(batch, unseen, homes):
    """Budget: all scores and the list of a million items take at most 2 MB, also in parts for several homes."""
    items = 1_000_000
    scores, counts = report(items, batch, unseen)
    scores = coarse(scores)
    home = np.random.default_rng(2).integers(0, homes, items)
    size = 0
    for number in range(homes):
        ids = np.flatnonzero(home == number).astype(np.uint32)
        listed = ids[counts[ids] > 0]
        part = ImportancePart(1, 0, 1, items, ids, scores[ids], listed, counts[listed], whole=True)
        size += len(encode(part))
    assert size <= 2_000_000
