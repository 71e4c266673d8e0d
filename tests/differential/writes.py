"""Writes at random. Each is made twice, in twin buckets: in one directly, in the other through the gateway."""

from __future__ import annotations

import hashlib
import random
import re
import zlib
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, replace
from urllib.parse import quote
from xml.sax.saxutils import escape

from tests.differential.asks import Ask, Header, Reply
from tests.differential.corpus import BLOCK
from tests.differential.generator import raw
from tests.differential.sides import Sides

KEYS = ("one", "two words", "a%2Fb", "schön/näh", "deep/er/key")
SIZES = (0, 1, 300, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17)
_NAMES_OF_THIS_TRY = re.compile(
    rb"<(LastModified|UploadId|Bucket|Location|RequestId|HostId|Resource|BucketName|Initiated|Name)>[^<]*</\1>"
)
_ROWS = re.compile(rb"(?=<Deleted>)|(?<=</Deleted>)")
_UPLOAD_ID = re.compile(rb"<UploadId>([^<]*)<")
_FOLLOWS_THE_TRY = ("last-modified", "location", "x-amz-version-id")


@dataclass
class Twins:
    """Two buckets of one origin: ``direct`` is written directly, ``sides.bucket`` through the gateway."""

    sides: Sides
    direct: str

    def both(self, make: Callable[[str], Ask]) -> tuple[Reply, Reply]:
        """Make one write in both buckets and hold the two answers against each other."""
        ask = make(self.sides.bucket)
        through = self.sides.through.send(ask)
        direct = self.sides.direct.send(make(self.direct))
        self.sides.ledger.compare("write", ask, _told(direct), _told(through))
        return direct, through

    def look(self, rng: random.Random, key: str) -> None:
        """Read a key of the bucket that is written through the gateway both ways, and compare it with its twin."""
        ask = Ask("GET", self.sides.bucket, raw(key))
        direct = self.sides.direct.send(ask)
        first, last = sorted(rng.randrange(4 * BLOCK) for _ in range(2))
        self.sides.compare("after a write", replace(ask, headers=(("Range", f"bytes={first}-{last}"),)))
        self.sides.compare("after a write", replace(ask, method="HEAD"))
        for _ in range(2):
            self.sides.compare("after a write", ask, direct)
        twin = self.sides.direct.send(replace(ask, bucket=self.direct))
        self.sides.ledger.compare("twin", ask, _told(twin), _told(direct))


def _told(reply: Reply) -> Reply:
    """A reply without what differs from one try to the next: times, ids, and the bucket's name."""
    kept = {name: value for name, value in reply.headers.items() if name not in _FOLLOWS_THE_TRY}
    if not reply.body.startswith(b"<?xml"):
        return Reply(reply.status, kept, reply.body)
    kept.pop("content-length", None)
    told = _NAMES_OF_THIS_TRY.sub(rb"<\1/>", reply.body)
    # radosgw deletes several keys concurrently, and lists them in the order of completion.
    return Reply(reply.status, kept, b"".join(sorted(_ROWS.split(told))))


def _headers(rng: random.Random, body: bytes) -> tuple[Header, ...]:
    summed = b64encode(zlib.crc32(body).to_bytes(4, "big")).decode()
    return rng.choice(
        [
            (),
            (("Content-Type", "text/plain"), ("x-amz-meta-Colour", "Blue")),
            (("Cache-Control", "max-age=5"), ("Content-Encoding", "gzip")),
            (("x-amz-checksum-crc32", summed), ("x-amz-sdk-checksum-algorithm", "CRC32")),
            (("Content-MD5", b64encode(hashlib.md5(body).digest()).decode()),),
            (("Content-MD5", b64encode(bytes(16)).decode()),),
        ]
    )


def _body(rng: random.Random) -> bytes:
    return rng.randbytes(rng.choice(SIZES))


def put(rng: random.Random, twins: Twins, key: str) -> None:
    """Overwrite: signed by a header or in the query, sometimes with a wrong digest."""
    body = _body(rng)
    headers = _headers(rng, body)
    form = rng.choice(["header", "header", "presigned"])
    twins.both(lambda bucket: Ask("PUT", bucket, raw(key), headers=headers, form=form, body=body))


def put_conditionally(rng: random.Random, twins: Twins, key: str) -> None:
    """Write only if there is nothing yet."""
    body = _body(rng)
    twins.both(lambda bucket: Ask("PUT", bucket, raw(key), headers=(("If-None-Match", "*"),), body=body))


def delete(rng: random.Random, twins: Twins, key: str) -> None:
    """Delete what may not be there."""
    form = rng.choice(["header", "presigned"])
    twins.both(lambda bucket: Ask("DELETE", bucket, raw(key), form=form))


def write_about(rng: random.Random, twins: Twins, key: str) -> None:
    """Writes of something about the object, which must never become writes of the object."""
    method, query = rng.choice([("DELETE", "tagging"), ("PUT", "tagging"), ("POST", "restore"), ("PUT", "legal-hold")])
    tags = b"<Tagging><TagSet><Tag><Key>a</Key><Value>b</Value></Tag></TagSet></Tagging>"
    body = tags if (method, query) == ("PUT", "tagging") else b""
    twins.both(lambda bucket: Ask(method, bucket, raw(key), query=query, body=body))


def copy(rng: random.Random, twins: Twins, key: str) -> None:
    """Copy from another key, or from nothing, keeping or replacing the metadata."""
    source = rng.choice([*KEYS, "nothing"])
    replaced: tuple[Header, ...] = (("x-amz-metadata-directive", "REPLACE"), ("x-amz-meta-n", str(rng.random())))
    more = replaced if source == key or rng.random() < 0.5 else ()
    twins.both(
        lambda bucket: Ask(
            "PUT", bucket, raw(key), headers=(("x-amz-copy-source", f"/{bucket}/{quote(source, safe='/-_.~')}"), *more)
        )
    )


def delete_many(rng: random.Random, twins: Twins, key: str) -> None:
    """Delete several keys in one request, some of which are not there."""
    keys = [key, *rng.sample(KEYS, 2), "nothing"]
    objects = "".join(f"<Object><Key>{escape(name)}</Key></Object>" for name in dict.fromkeys(keys))
    body = f"<Delete>{objects}</Delete>".encode()
    md5 = (("Content-MD5", b64encode(hashlib.md5(body).digest()).decode()),)
    twins.both(lambda bucket: Ask("POST", bucket, query="delete", headers=md5, body=body))


def multipart(rng: random.Random, twins: Twins, key: str) -> None:
    """Upload one part; complete it rightly or with a wrong ETag, or abort; then ask about the upload once more."""
    started = twins.both(
        lambda bucket: Ask("POST", bucket, raw(key), query="uploads", headers=(("x-amz-meta-m", "1"),))
    )
    ids = [_UPLOAD_ID.search(reply.body) for reply in started]
    assert all(ids), started
    by_bucket = {
        bucket: found[1].decode()
        for bucket, found in zip((twins.direct, twins.sides.bucket), ids, strict=True)
        if found is not None
    }
    body = _body(rng)
    twins.both(
        lambda bucket: Ask("PUT", bucket, raw(key), query=f"partNumber=1&uploadId={by_bucket[bucket]}", body=body)
    )
    etag = rng.choice([hashlib.md5(body).hexdigest()] * 3 + ["0" * 32])
    listed = f'<Part><PartNumber>1</PartNumber><ETag>"{etag}"</ETag></Part>'
    document = f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
    end = rng.choice([("POST", document), ("POST", document), ("DELETE", b"")])
    twins.both(lambda bucket: Ask(end[0], bucket, raw(key), query=f"uploadId={by_bucket[bucket]}", body=end[1]))
    twins.both(lambda bucket: Ask("GET", bucket, raw(key), query=f"uploadId={by_bucket[bucket]}"))


OPERATIONS = (put, put, put, put_conditionally, delete, write_about, copy, copy, delete_many, multipart)
