"""Records of batch answers: the gateway's encoders produce the client's golden vectors."""

from __future__ import annotations

import json
from itertools import starmap
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from numpy.typing import NDArray

from gateway.model.frames import (
    ATTACHED,
    END,
    END_POSITION,
    ENTRY,
    FRAME,
    PREAMBLE,
    TRAILER,
    AttachedIndex,
    FrameEntry,
    FrameSequence,
    ItemFlag,
    ItemStatus,
    index_head,
    resident_head,
)

WIRE = Path(__file__).parents[2] / "clients" / "python" / "tests" / "wire"


def vector(name: str) -> tuple[dict[str, Any], bytes]:
    """A golden vector, and its body."""
    document = json.loads((WIRE / name).read_text())
    return document, bytes.fromhex("".join(document["body"]))


def test_records_have_the_sizes_of_the_protocol() -> None:
    """Rule: preamble 16, entry 32, frame header 24, trailer 8, end 32 bytes."""
    assert [form.size for form in (PREAMBLE, ENTRY, FRAME, TRAILER, END)] == [16, 32, 24, 8, 32]


def test_the_index_form_is_that_of_the_golden_vector() -> None:
    """Rule: head, bodies back to back and end record are made byte for byte as the client expects them."""
    document, expected = vector("batch_index.json")
    bodies = [bytes.fromhex(item["data"]) for item in document["items"]]
    crcs = [ENTRY.unpack_from(expected, 16 + 32 * number)[4] for number in range(len(bodies))]
    head, end, size = index_head(
        FrameEntry(item["position"], item["index"], len(body), crc, ItemFlag(item["flags"]))
        for item, body, crc in zip(document["items"], bodies, crcs, strict=True)
    )
    assert head + b"".join(bodies) + end == expected
    assert size == sum(map(len, bodies))


ROWS = [(0, 7, 5, 1), (2, 9, 0, 2**32 - 1), (1, 2**32 - 2, 2**33, 3)]
Columns = tuple[list[int], NDArray[np.uint32], list[int], list[int]]


def columns(rows: list[tuple[int, int, int, int]]) -> Columns:
    """Positions, indices, lengths and CRCs."""
    positions, indices, lengths, crcs = ([row[at] for row in rows] for at in range(4))
    return positions, np.array(indices, np.uint32), lengths, crcs


@pytest.mark.parametrize("rows", [[], ROWS])
def test_an_index_by_columns_is_the_same(rows: list[tuple[int, int, int, int]]) -> None:
    """Rule: items of the cache have the index that their entries make."""
    assert resident_head(*columns(rows)) == index_head(starmap(FrameEntry, rows))


def test_an_index_in_parts() -> None:
    """Rule: with open files, a flag is set, all offsets are 0, and the end record counts opened and missing files."""
    index = AttachedIndex(4)
    made = index.preamble() + index.items(*columns(ROWS[:2])) + index.gone([3], np.array([8], np.uint32))
    made += index.items(*columns(ROWS[2:])) + index.end()
    assert len(made) == index.length
    assert PREAMBLE.unpack_from(made)[2:4] == (ATTACHED, 4)
    entries = made[PREAMBLE.size : -END.size]
    first, second, third = ((position, item, 0, size, crc, 0, ItemFlag.HIT) for position, item, size, crc in ROWS)
    gone = (3, 8, 0, 0, 0, ItemStatus.NOT_RESIDENT, 0)
    assert list(ENTRY.iter_unpack(entries)) == [first, second, gone, third]
    assert END.unpack(made[-END.size :])[2:6] == (5 + 2**33, 3, 1, crc32(entries))


def test_frames_are_those_of_the_golden_vector() -> None:
    """Rule: items, failures, streamed items and the end record are made byte for byte as the client expects them."""
    document, expected = vector("batch_frames.json")
    failures = {failure["position"]: failure for failure in document["failures"]}
    frames = FrameSequence()
    made, at = frames.preamble(), PREAMBLE.size
    while FRAME.unpack_from(expected, at)[0] != END_POSITION:
        position, index, length, crc, status, flags = FRAME.unpack_from(expected, at)
        body = expected[at + FRAME.size : at + FRAME.size + length]
        at += FRAME.size + length
        if status:
            failure = failures[position]
            made += frames.failure(
                position, index, ItemStatus(status), failure["bucket"], failure["key"], failure["detail"]
            )
            continue
        entry = FrameEntry(position, index, length, crc, ItemFlag(flags))
        made += frames.item(entry) + body
        if flags & ItemFlag.STREAMED:
            crc, verdict, _ = TRAILER.unpack_from(expected, at)
            at += TRAILER.size
            made += frames.trailer(entry, crc, ItemStatus(verdict))
    made += frames.end(ItemStatus(document["status"]))
    assert made == expected


@pytest.mark.parametrize("detail", ["", 'quotes " and \n lines', "ü"])
def test_a_failure_says_what_and_why_in_json(detail: str) -> None:
    """Rule: the body of a failed item's frame is JSON in UTF-8 with bucket, key and detail."""
    frame = FrameSequence().failure(1, 2, ItemStatus.MISSING, "b", "k/ü", detail)
    assert json.loads(frame[FRAME.size :]) == {"bucket": "b", "key": "k/ü", "detail": detail}
    assert FRAME.unpack_from(frame)[2] == len(frame) - FRAME.size
