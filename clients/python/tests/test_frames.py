"""Decoding batch answers: golden vectors, every possible cut, every possible flipped byte, and hostile numbers."""

import io
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from batch_wire import (
    CHANGED,
    END_SIZE,
    HIT,
    JOINED,
    MISSING,
    ORIGIN_ERROR,
    STREAMED,
    Answer,
    Item,
    failure,
    frames_form,
    index_form,
)

from larder.base.errors import TruncatedBatch, UnexpectedAnswer
from larder.reading.frames import Decoder, Received

VECTORS = sorted((Path(__file__).parent / "wire").glob("batch_*.json"))
REQUEST = [10, 11, 12, 13, 10]
ITEMS = [Item(1, 11, b"eleven"), Item(4, 10, b"ten"), Item(0, 10, b"ten", JOINED), Item(3, 13, b"")]
MIXED = [
    ITEMS[0],
    failure(2, 12, MISSING, "bucket", "a key"),
    Item(4, 10, b"ten", STREAMED),
    Item(3, 13, b"", STREAMED),
    ITEMS[2],
]
FORMS = {"index": index_form(ITEMS), "frames": frames_form(MIXED)}
EXPECTED = {1: b"eleven", 4: b"ten", 0: b"ten", 3: b""}


class Trickle(io.BytesIO):
    """A source that gives one byte at a time."""

    def readinto(self, buffer: memoryview) -> int:
        """Read."""
        return super().readinto(buffer[:1])


class Resetting(io.BytesIO):
    """A source that fails instead of ending."""

    def readinto(self, buffer: memoryview) -> int:
        """Read."""
        count = super().readinto(buffer)
        if count == 0 and len(buffer):
            raise ConnectionResetError
        return count


def _decoder(request: list[int] = REQUEST, *, length: int | None = None, **options: int) -> Decoder:
    return Decoder(np.array(request, dtype="<u4"), length=length, **options)


def _length(answer: Answer) -> int | None:
    return len(answer.body) if answer.body.startswith(b"LRDI") else None


def _content(received: Received) -> dict[int, bytes]:
    assert len(set(received.positions)) == len(received.positions)
    return {position: bytes(data) for position, data in zip(received.positions, received.data, strict=True)}


@pytest.mark.parametrize("path", VECTORS, ids=lambda path: path.stem)
def test_golden_vectors(path):
    """Frames of earlier versions of the gateway's encoder are still read."""
    vector = json.loads(path.read_text(encoding="utf-8"))
    body = bytes.fromhex("".join(vector["body"]))
    length = len(body) if body.startswith(b"LRDI") else None
    received = _decoder(vector["request"], length=length).decode(io.BytesIO(body))
    assert received.positions == [item["position"] for item in vector["items"]]
    assert received.flags == [item["flags"] for item in vector["items"]]
    assert [bytes(data).hex() for data in received.data] == [item["data"] for item in vector["items"]]
    told = [
        {"position": position, **{name: getattr(failure, name) for name in failure.__dataclass_fields__}}
        for position, failure in received.failures.items()
    ]
    of_keys = {"code": "", "http_status": 0, "retry_after": 0}  # of batches of keys only
    assert told == [{**failure, **of_keys} for failure in vector["failures"]]
    assert (received.corrupt, received.status) == (0, vector["status"])


def test_there_are_vectors_of_both_forms():
    """The golden vectors were found."""
    assert [path.stem for path in VECTORS] == ["batch_frames", "batch_index"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("source", [io.BytesIO, Trickle, Resetting])
def test_whole_answers(form, source):
    """A whole answer is read completely from sources that give much, give little, or break after the last byte."""
    answer = FORMS[form]
    received = _decoder(length=_length(answer)).decode(source(answer.body))
    assert _content(received) == EXPECTED
    assert list(received.failures) == ([2] if form == "frames" else [])


def test_index_form_without_a_length():
    """A proxy may turn a Content-Length into chunks; the index says enough."""
    assert _content(_decoder().decode(io.BytesIO(FORMS["index"].body))) == EXPECTED


def test_items_share_one_buffer_in_the_index_form():
    """One allocation holds all items; the results are views of it with format "B"."""
    received = _decoder().decode(io.BytesIO(FORMS["index"].body))
    assert len({id(view.obj) for view in received.data if view.nbytes}) == 1
    assert {view.format for view in received.data} == {"B"}


@pytest.mark.parametrize("form", FORMS)
def test_a_cut_at_every_byte(form):
    """An answer cut at any byte raises an error, and exactly the items before the cut are received."""
    answer = FORMS[form]
    for size in range(len(answer.body)):
        decoder = _decoder(length=_length(answer))
        with pytest.raises(TruncatedBatch) as caught:
            decoder.decode(io.BytesIO(answer.body[:size]))
        assert set(decoder.received.positions) == answer.positions_in(size) & EXPECTED.keys(), size
        assert caught.value.received == len(decoder.received.positions)
        assert all(
            _content(decoder.received)[position] == EXPECTED[position] for position in decoder.received.positions
        )


def test_a_reset_keeps_what_came_before():
    """A failing connection raises its own error, and complete frames are kept."""
    answer = FORMS["frames"]
    decoder = _decoder()
    with pytest.raises(ConnectionResetError):
        decoder.decode(Resetting(answer.body[:-END_SIZE]))
    assert _content(decoder.received) == EXPECTED


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_every_byte(form, bit):
    """Damage at any byte never leads to wrong bytes, misplaced items, or failures that were not sent."""
    answer = FORMS[form]
    for byte in range(len(answer.body)):
        damaged = bytearray(answer.body)
        damaged[byte] ^= 1 << bit
        decoder = _decoder(length=_length(answer))
        try:
            decoder.decode(io.BytesIO(bytes(damaged)))
        except (TruncatedBatch, UnexpectedAnswer):
            complete = False
        else:
            complete = True
        content = _content(decoder.received)
        assert content.items() <= EXPECTED.items(), byte
        assert decoder.received.failures.keys() <= ({2} if complete else set()), byte
        if complete:
            untold = form == "frames" and not decoder.received.failures
            assert len(EXPECTED) - len(content) + untold == decoder.received.corrupt, byte


def test_a_wrong_crc_costs_one_item():
    """An item with damaged bytes is counted and dropped; the batch continues after it."""
    body = FORMS["frames"].body.replace(b"eleven", b"twelve")
    received = _decoder().decode(io.BytesIO(body))
    assert received.corrupt == 1
    assert _content(received) == {position: data for position, data in EXPECTED.items() if position != 1}


def test_a_streamed_item_that_failed_is_a_failure():
    """Bytes whose trailer has a status are thrown away."""
    received = _decoder().decode(io.BytesIO(frames_form([Item(0, 10, b"ten", STREAMED, CHANGED)]).body))
    assert received.positions == []
    assert received.failures[0].status == CHANGED


def test_the_end_records_status_is_told():
    """A complete answer may report that the origin failed before all items were tried."""
    assert _decoder().decode(io.BytesIO(frames_form([], ORIGIN_ERROR).body)).status == ORIGIN_ERROR


@pytest.mark.parametrize("field", range(3))
def test_an_end_record_that_miscounts(field):
    """An end record whose counts of bytes, delivered and missing items are wrong is refused."""
    body = bytearray(FORMS["frames"].body)
    counts = list(struct.unpack_from("<QII", body, len(body) - 24))
    counts[field] += 1
    struct.pack_into("<QII", body, len(body) - 24, *counts)
    with pytest.raises(TruncatedBatch, match="end record counts"):
        _decoder().decode(io.BytesIO(bytes(body)))


@pytest.mark.parametrize("form", FORMS)
def test_bytes_after_the_end_record(form):
    """An answer ends with its end record."""
    with pytest.raises(TruncatedBatch, match="after the end record"):
        _decoder().decode(io.BytesIO(FORMS[form].body + b"x"))


def _index(count: int, *entries: tuple[int, ...], tail: bytes = b"") -> bytes:
    packed = b"".join(struct.pack("<IIQQIHH", *entry) for entry in entries)
    return struct.pack("<4sHHII", b"LRDI", 1, 0, count, 0) + packed + tail


def _frame(*header: int) -> bytes:
    return struct.pack("<4sHHII", b"LRDF", 1, 0, 0, 0) + struct.pack("<IIQIHH", *header)


@pytest.mark.parametrize(
    "body",
    [
        b"<html><body>504</body></html>",
        struct.pack("<4sHHII", b"LRDI", 2, 0, 0, 0),
        struct.pack("<4sHHII", b"LRDI", 1, 1, 0, 0),
        _index(2**32 - 1),
        _index(1, (0, 10, 0, 2**60, 0, 0, 0)),
        _index(2, (0, 10, 0, 2**63, 0, 0, 0), (1, 11, 2**63, 2**63, 0, 0, 0)),
        _index(1, (9, 10, 0, 1, 0, 0, 0), tail=b"x" * 33),
        _index(1, (0, 99, 0, 1, 0, 0, 0), tail=b"x" * 33),
        _index(2, (0, 10, 0, 1, 0, 0, 0), (0, 10, 1, 1, 0, 0, 0), tail=b"x" * 34),
        _index(2, (0, 10, 0, 1, 0, 0, 0), (1, 11, 0, 1, 0, 0, 0), tail=b"x" * 34),
        _index(1, (0, 10, 0, 2, 0, 0, 0), tail=b"x" * 33),
        _frame(0, 10, 2**60, 0, 0, 0),
        _frame(9, 10, 1, 0, 0, 0),
        _frame(0, 99, 1, 0, 0, 0),
        frames_form([ITEMS[0], ITEMS[0]]).body,
    ],
    ids=[
        "html", "version", "flags", "count 2^32-1", "length 2^60", "lengths that wrap around", "position outside",
        "index not asked", "index position twice", "bodies overlap", "lengths not the answer's", "frame length 2^60",
        "frame position outside", "frame index not asked", "frame twice",
    ],
)  # fmt: skip
def test_hostile_answers(body):
    """Numbers beyond the request are refused before any allocation."""
    decoder = _decoder(length=len(body) if body.startswith(b"LRDI") else None, limit=1 << 20)
    with pytest.raises(UnexpectedAnswer):
        decoder.decode(io.BytesIO(body))
    assert decoder.received.positions == []


@pytest.mark.parametrize("build", [index_form, frames_form])
def test_more_items_than_wanted(build):
    """In substitute mode more than ``take`` items would be delivered but never used."""
    with pytest.raises(UnexpectedAnswer, match="more than 1"):
        _decoder(take=1).decode(io.BytesIO(build([Item(0, 10, b"ten"), Item(1, 11, b"eleven")]).body))


@pytest.mark.parametrize("told", [b"", b"not JSON", b"[1]", b'{"bucket": 3}', b"\xff"])
def test_explanations_that_explain_nothing(told):
    """A failure counts even if its explanation cannot be read."""
    received = _decoder().decode(io.BytesIO(frames_form([Item(0, 10, told, 0, MISSING)]).body))
    assert (received.failures[0].index, received.failures[0].status) == (10, MISSING)


def test_large_items_come_in_groups():
    """Items larger than one read, and many small ones, arrive whole and in order."""
    sizes = [3 << 20, 0, 1, (1 << 20) - 1, 1 << 20, *[1000] * 2000]
    items = [Item(at, at, bytes([at % 251]) * size) for at, size in enumerate(sizes)]
    answer = index_form(items)
    received = _decoder(list(range(len(items))), length=len(answer.body)).decode(io.BytesIO(answer.body))
    assert received.positions == list(range(len(items)))
    assert all(bytes(view) == item.data for view, item in zip(received.data, items, strict=True))
    assert set(received.flags) == {HIT}
