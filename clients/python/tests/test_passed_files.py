"""Entries in open files: places in them, every cut, every flipped byte, missing files and impossible places."""

import io
import os
import struct
from zlib import crc32

import numpy as np
import pytest
from batch_wire import HIT, MISSING, STREAMED, Item, end_record, failure

from larder.base.errors import TruncatedBatch, UnexpectedAnswer
from larder.reading.frames import Decoder
from larder.reading.passed import PassedFiles

INLINE = 0xFFFFFFFE
CONTENTS = [b"0123456789", b"abcdefghij", b"ABCDEFGHIJ"]
KEPT = 2
ENTRIES = {0: b"123", 1: b"0123456789", 2: b"789abc", 4: b"not in a file", 5: b"HIJ+bcd"}


def places(*parts):
    """The records of an entry: (file, offset, count), or bytes."""
    return b"".join(
        struct.pack("<IIQQ", INLINE, 0, 0, len(part)) + part
        if isinstance(part, bytes)
        else struct.pack("<IIQQ", part[0], 0, part[1], part[2])
        for part in parts
    )


def arrival(count):
    """The record with which files come."""
    return struct.pack("<I4sQQ", 0xFFFFFFFF, b"LFIL", count, 0)


class Answer:
    """An answer in frames whose files come with the byte of their record."""

    def __init__(self):
        self.body = struct.pack("<4sHHII", b"LRDF", 1, 1, 0, 0)
        self.arrivals = {}
        self._items = []
        self._crc = 0

    def files(self, *contents, announced=None):
        """Files come."""
        self.arrivals[len(self.body)] = contents
        count = sum(map(len, self.arrivals.values())) if announced is None else announced
        self.body += arrival(count)
        return self

    def entry(self, position, data, records):
        """An entry in files."""
        item = Item(position, position, data, HIT | STREAMED | 8)
        head = struct.pack("<IIQIHH", position, position, len(data), 0, 0, item.flags)
        trailer = struct.pack("<IHH", crc32(head + records.replace(arrival(3), b"")), 0, 0)
        self.body += head + records + trailer
        self._crc = crc32(trailer, crc32(head, self._crc))
        self._items.append(item)
        return self

    def item(self, item):
        """An entry in bytes, or a failure."""
        head = struct.pack(
            "<IIQIHH", item.position, item.index, len(item.data), crc32(item.data), item.status, item.flags
        )
        self.body += head + item.data
        self._crc = crc32(head, self._crc)
        self._items.append(item)
        return self

    def end(self):
        """The end record."""
        self.body += end_record(self._items, self._crc)
        return self


class Source(io.RawIOBase):
    """Reads an answer; files arrive with the byte at their place."""

    def __init__(self, answer, body=None):
        self._body = answer.body if body is None else body
        self._arrivals = dict(answer.arrivals)
        self._at = 0
        self._arrived = []
        self.open = []

    def readinto(self, buffer):
        """Read."""
        count = min(len(buffer), len(self._body) - self._at)
        buffer[:count] = self._body[self._at : self._at + count]
        self._at += count
        for place in [place for place in self._arrivals if place < self._at]:
            for content in self._arrivals.pop(place):
                file = os.memfd_create("content")
                os.write(file, content)
                self._arrived.append(file)
                self.open.append(file)
        return count

    def take_descriptors(self):
        """Those that have arrived since."""
        taken, self._arrived = self._arrived, []
        return taken


def answer():
    """All forms of an entry: from one file, several, one that comes in its middle, none; and a failure."""
    made = Answer().files(*CONTENTS[:2])
    made.entry(0, b"123", places((0, 1, 3))).entry(1, CONTENTS[0], places((0, 0, 10)))
    made.entry(2, b"789abc", places((0, 7, 3), (1, 0, 3))).item(failure(3, 3, MISSING))
    made.item(Item(4, 4, b"not in a file"))
    late = len(made.body) + 24
    made.entry(5, b"HIJ+bcd", arrival(3) + places((2, 7, 3), b"+", (1, 1, 3)))
    made.arrivals[late] = CONTENTS[2:]
    return made.end()


def read(source, kept=KEPT):
    """Decode; returns the decoder and the error, if any. All files are closed in any case."""
    decoder = Decoder(np.arange(6, dtype="<u4"), files=PassedFiles(source, kept))
    error = None
    try:
        decoder.decode(source)
    except (TruncatedBatch, UnexpectedAnswer) as raised:
        error = raised
    for file in source.open:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(file)
    return decoder, error


def taken(decoder):
    """Bytes by position."""
    received = decoder.received
    return {at: bytes(data) for at, data in zip(received.positions, received.data, strict=True)}


def test_entries_are_read_at_their_places():
    """Rule: entries come from places of one file or of several, beside bytes and failures; no file stays open."""
    decoder, error = read(Source(answer()))
    assert error is None
    assert taken(decoder) == ENTRIES
    assert decoder.received.attached == 4
    assert decoder.received.failures.keys() == {3}


def test_every_cut_keeps_whole_entries_only():
    """Rule: wherever an answer ends early, it is truncated, and what is taken from it is right."""
    whole = answer()
    for size in range(len(whole.body)):
        decoder, error = read(Source(whole, whole.body[:size]))
        assert isinstance(error, TruncatedBatch), size
        assert taken(decoder).items() <= ENTRIES.items()


def test_every_flipped_byte_is_noticed():
    """Rule: no damage of the answer makes an entry from a wrong place."""
    whole = answer()
    for at in range(len(whole.body)):
        damaged = bytearray(whole.body)
        damaged[at] ^= 0x41
        decoder, _ = read(Source(whole, bytes(damaged)))
        for position, data in taken(decoder).items():
            assert data == ENTRIES[position], at


@pytest.mark.parametrize(
    ("records", "words"),
    [
        (places((3, 0, 3)), "file 3, of 2"),
        (places((0, 0, 4)), "4 bytes of an entry"),
        (places((0, 0, 0)), "0 bytes of an entry"),
    ],
)
def test_impossible_places_are_refused(records, words):
    """Rule: a place names a file that is open, and has some of the bytes that the entry lacks."""
    decoder, error = read(Source(Answer().files(*CONTENTS[:2]).entry(0, b"123", records).end()))
    assert words in str(error)
    assert taken(decoder) == {}


def test_a_file_that_was_closed_is_not_named():
    """Rule: only the last files stay open, as many as were asked for."""
    made = Answer().files(*CONTENTS[:2]).files(CONTENTS[2])
    made.entry(0, b"123", places((1, 0, 3))).entry(1, b"012", places((0, 0, 3)))
    decoder, error = read(Source(made.end()))
    assert "file 0, of 3" in str(error)
    assert taken(decoder) == {}


def test_files_that_did_not_come_end_the_answer():
    """Rule: with fewer files than announced, nothing more is read: every later number would be that of another file."""
    made = Answer().files(CONTENTS[0]).entry(0, b"012", places((0, 0, 3)))
    made.files(CONTENTS[1], announced=3).entry(1, b"abc", places((1, 0, 3)))
    decoder, error = read(Source(made.end()))
    assert "only 2 open files" in str(error)
    assert taken(decoder) == {0: b"012"}


def test_a_file_that_is_too_short_gives_no_entry():
    """Rule: an entry whose file lacks bytes has not been received; the others have."""
    made = Answer().files(b"0123").entry(0, b"0123456", places((0, 0, 7))).entry(1, b"12", places((0, 1, 2)))
    decoder, error = read(Source(made.end()))
    assert error is None
    assert taken(decoder) == {1: b"12"}
    assert decoder.received.corrupt == 1


def test_files_that_were_not_asked_for_are_refused():
    """Rule: an answer with files to a request without the header is not an answer to it."""
    decoder, error = read(Source(answer()), kept=0)
    assert isinstance(error, UnexpectedAnswer)
    assert taken(decoder) == {}
