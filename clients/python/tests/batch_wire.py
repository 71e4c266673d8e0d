"""An encoder of batch answers, independent of the gateway's code, for the fake gateway and the decoder's tests."""

import json
import struct
from dataclasses import dataclass
from zlib import crc32

OK, MISSING, CHANGED, ORIGIN_ERROR, NOT_RESIDENT, REFUSED = range(6)
HIT, JOINED, STREAMED = 1, 2, 4
END_SIZE = 32


@dataclass(frozen=True)
class Item:
    """One item of an answer. With ``status`` it is a failure, whose ``data`` is the explanation."""

    position: int
    index: int
    data: bytes = b""
    flags: int = HIT
    status: int = OK


@dataclass(frozen=True)
class Answer:
    """A body, and for each position that it delivers the length of the beginning that holds it whole."""

    body: bytes
    whole_at: dict[int, int]

    def positions_in(self, size: int) -> set[int]:
        """The positions that the first ``size`` bytes deliver."""
        return {position for position, end in self.whole_at.items() if end <= size}


def failure(position: int, index: int, status: int, bucket: str = "b", key: str = "k", detail: str = "") -> Item:
    """An item that is not delivered."""
    told = json.dumps({"bucket": bucket, "key": key, "detail": detail}).encode()
    return Item(position, index, told, 0, status)


def index_form(items: list[Item]) -> Answer:
    """Preamble, entries, bodies, end record. An entry alone delivers nothing: the item is whole with its last byte."""
    entries, offset = b"", 0
    for item in items:
        entries += struct.pack(
            "<IIQQIHH",
            item.position, item.index, offset, len(item.data), crc32(item.data), item.status, item.flags,
        )  # fmt: skip
        offset += len(item.data)
    body = struct.pack("<4sHHII", b"LRDI", 1, 0, len(items), 0) + entries
    whole_at = {}
    for item in items:
        body += item.data
        whole_at[item.position] = len(body)
    return Answer(body + end_record(items, crc32(entries)), whole_at)


def attached_form(items: list[Item], offsets: list[int] | None = None) -> bytes:
    """Preamble with the flag for files, entries with offsets in these, end record."""
    entries = b""
    for item, offset in zip(items, offsets or [0] * len(items), strict=True):
        entries += struct.pack(
            "<IIQQIHH",
            item.position, item.index, offset, len(item.data), crc32(item.data), item.status, item.flags,
        )  # fmt: skip
    return struct.pack("<4sHHII", b"LRDI", 1, 1, len(items), 0) + entries + end_record(items, crc32(entries))


def frames_form(items: list[Item], status: int = OK) -> Answer:
    """Preamble, a frame for each item, end record. A streamed item is whole with its trailer."""
    body, crc, whole_at = struct.pack("<4sHHII", b"LRDF", 1, 0, 0, 0), 0, {}
    for item in items:
        streamed = bool(item.flags & STREAMED)
        header = struct.pack(
            "<IIQIHH",
            item.position, item.index, len(item.data), 0 if streamed else crc32(item.data),
            OK if streamed else item.status, item.flags,
        )  # fmt: skip
        trailer = struct.pack("<IHH", crc32(item.data), item.status, 0) if streamed else b""
        body += header + item.data + trailer
        crc = crc32(trailer, crc32(header, crc))
        whole_at[item.position] = len(body)
    return Answer(body + end_record(items, crc, status), whole_at)


def end_record(items: list[Item], crc: int, status: int = OK) -> bytes:
    """The end record of an answer with these items."""
    good = [item for item in items if item.status == OK]
    size = sum(len(item.data) for item in good)
    return struct.pack("<I4sQIIIHH", 0xFFFFFFFF, b"LEND", size, len(good), len(items) - len(good), crc, status, 0)
