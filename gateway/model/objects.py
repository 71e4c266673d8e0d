"""The metadata of cached objects: frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

Header = tuple[str, str]


@dataclass(frozen=True, slots=True)
class ObjectMeta:
    """An object's metadata exactly as the origin sent it.

    ``headers`` are the entity headers to replay on a hit (Content-Type, Last-Modified, x-amz-meta-*, ...), in the
    origin's order and spelling, without Content-Length, Content-Range, ETag, Date, Server, request ids, hop-by-hop
    headers and checksums. ``checksums`` is ``None`` if the answer could not carry them (a ranged one), in contrast to an empty
    tuple: "the origin has none".
    """

    etag: str
    size: int
    last_modified: str
    headers: tuple[Header, ...] = ()
    checksums: tuple[Header, ...] | None = None


class BlobRef(NamedTuple):
    """Immutable bytes named by their SHA-256 digest (32 raw bytes); ``size`` in bytes; ``crc32`` of the whole blob."""

    digest: bytes
    size: int
    crc32: int


class BlobPart(NamedTuple):
    """A part of a blob: its first byte, its bytes, and their CRC-32."""

    start: int
    length: int
    crc32: int


@dataclass(frozen=True, slots=True)
class ObjectRecord:
    """One row of the index: an object and the facts common to all its blocks.

    An object of at most ``block_size`` bytes is one blob, at block number 0. ``confirmed_at`` is the time of the origin's last
    confirmation (seconds since the epoch). ``row_id`` is 0 for a record that exists in memory only.
    """

    row_id: int
    meta: ObjectMeta
    block_size: int
    confirmed_at: float
    block_count: int = field(init=False, repr=False, compare=False)
    """The number of blocks; an empty object is one empty block."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "block_count", max(1, -(-self.meta.size // self.block_size)))
