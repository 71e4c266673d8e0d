"""The objects that are read: every size that matters to a cache of blocks, every kind of key, every header to be kept."""

from __future__ import annotations

import gzip
import random
from dataclasses import dataclass, field
from urllib.parse import quote

from tests.differential.asks import Header

BLOCK = 16 * 1024

SIZES = {
    "empty": 0,
    "one-byte": 1,
    "block-1": BLOCK - 1,
    "block": BLOCK,
    "block+1": BLOCK + 1,
    "five-blocks": 5 * BLOCK,
    "six-blocks-and-some": 6 * BLOCK + 4321,
}

KEYS = (
    "plain.bin",
    "sch\u00f6n/n\u00e4h.jpg",  # NFC
    "scho\u0308n/na\u0308h.jpg",  # NFD: another key
    "\U0001f600/\U0001f469\u200d\U0001f4bb.png",
    "\u05d0\u05d1\u05d2/\u0633\u0644\u0627\u0645",
    "with space",
    " leading and trailing ",
    "a%2Fb",
    "a/b",
    "a%252Fb",
    "%25",
    "%",
    "100%",
    "plus+plus",
    "plus plus",
    "dots/../up",
    "up",
    "./here",
    "double//slash",
    "double/slash",
    "trailing/",
    "/leading",
    "Case.TXT",
    "case.txt",
    "new\nline",
    "tab\there",
    "nul\x00byte",
    "it's(1)*!~;:@,$[]",
    'q"<>\\^`{|}',
    "ques?tion#hash&and=equals",
    "-/healthz",
    "x" * 1024,
    "\u00e9" * 512,
)


@dataclass(frozen=True)
class Object:
    """One object to be stored."""

    key: str
    body: bytes = field(repr=False)
    headers: tuple[Header, ...] = ()

    @property
    def raw_key(self) -> str:
        """The key as clients spell it."""
        return quote(self.key, safe="/-_.~")


_HEADERS: tuple[tuple[Header, ...], ...] = (
    (),
    (("Content-Type", "image/jpeg"),),
    (("Content-Type", 'text/plain; charset="utf-8"'), ("Content-Language", "de, en")),
    (("Cache-Control", "max-age=60, public"), ("Expires", "Thu, 01 Dec 2033 16:00:00 GMT")),
    (("Content-Disposition", "attachment; filename=\"a b.bin\"; filename*=UTF-8''%C3%A4"),),
    (("x-amz-meta-Mixed-Case", "Kept As It Is"), ("x-amz-meta-empty", ""), ("x-amz-meta-rfc2047", "=?UTF-8?B?w6Q=?=")),
    (("x-amz-meta-long", "m" * 1900), ("Content-Type", "application/x-tar")),
    (("x-amz-checksum-crc32", "jNwqBA=="),),
)


def by_size(rng: random.Random) -> list[Object]:
    """One object of every size, each with different headers."""
    return [
        Object(f"sizes/{name}", rng.randbytes(size), _HEADERS[number % len(_HEADERS)])
        for number, (name, size) in enumerate(SIZES.items())
    ]


def by_header(rng: random.Random) -> list[Object]:
    """One object for every set of headers, and those whose headers forbid or complicate caching."""
    text = b"a text that compresses well " * 900
    objects = [Object(f"headers/{n}", rng.randbytes(BLOCK // 2 + n), head) for n, head in enumerate(_HEADERS)]
    return [
        *objects,
        Object("headers/gzip", gzip.compress(text, mtime=0), (("Content-Encoding", "gzip"), ("Content-Type", "text/plain"))),
        Object("headers/gzip-not-really", text, (("Content-Encoding", "gzip"),)),
        Object("headers/aws-chunked", b"c" * 100, (("Content-Encoding", "identity"),)),
        Object("headers/no-store", rng.randbytes(3000), (("Cache-Control", "no-store"),)),
        Object("headers/private", rng.randbytes(2 * BLOCK), (("Cache-Control", "private, max-age=9"),)),
        Object("headers/no-cache", rng.randbytes(3000), (("Cache-Control", "no-cache"),)),
    ]  # fmt: skip


def by_key(rng: random.Random) -> list[Object]:
    """One object under every kind of key, all with different bytes."""
    return [Object(key, rng.randbytes(200 + number), _HEADERS[number % 3]) for number, key in enumerate(KEYS)]
