"""Larder before stores that answer in other ways than AWS: reads are exact, and only what reads can confirm is cached."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path

import pytest

from gateway.base.config import Origin
from gateway.model.s3.ranges import parse_range
from gateway.origin.examination import examine
from larder import digest
from larder.http.credentials import Credentials
from rig.gateways import Running, gateway
from rig.radosgw import Radosgw
from rig.stores import NAMES, store
from tests.differential.asks import Ask, Door, Reply
from tests.differential.conftest import settings
from tests.differential.corpus import BLOCK, Object
from tests.differential.generator import Known, ranges
from tests.differential.sameness import Ledger
from tests.differential.sides import ORIGIN_KEYS, Sides, gateway_door, origin_door
from tests.differential.store_table import Shop, cells, shown

KEY, SECRET = ORIGIN_KEYS["a"]
SIZES = (1, 500, BLOCK - 1, BLOCK + 1, 5 * BLOCK + 77)


@dataclass
class Front:
    """A store, and a gateway in front of it."""

    name: str
    endpoint: str
    running: Running


@pytest.fixture(scope="module", params=NAMES)
def front(request: pytest.FixtureRequest, home: Path) -> Iterator[Front]:
    """Each store, with a gateway."""
    with store(request.param, home) as endpoint:
        place = home / request.param
        with gateway(settings(endpoint, place / "cache"), place) as running:
            yield Front(request.param, endpoint, running)


@pytest.fixture
def sides(front: Front, request: pytest.FixtureRequest) -> Iterator[Sides]:
    """The store, asked directly and through the gateway, and a new bucket."""
    bucket = "b" + hashlib.md5(request.node.name.encode()).hexdigest()[:12]
    with closing(origin_door(front.endpoint)) as direct, closing(gateway_door(front.running.endpoint)) as through:
        assert direct.send(Ask("PUT", bucket)).status == 200
        yield Sides(direct, through, bucket, Ledger(()))


def stored(sides: Sides, body: bytes, key: str = "k") -> Known:
    """One object at the store, put there behind the gateway's back."""
    return sides.store([Object(key, body)])[0]


def ranged(door: Door, known: Known, value: str, **headers: str) -> Reply:
    """A range of an object."""
    named = tuple((name.replace("_", "-"), text) for name, text in headers.items())
    return door.send(Ask("GET", known.bucket, known.raw_key, headers=(("Range", value), *named)))


@pytest.mark.parametrize("size", SIZES)
def test_ranges_are_exact_in_every_state(sides: Sides, rng: random.Random, size: int) -> None:
    """Rule: a range has its bytes and status 206, or 416 if there are none, cold, partly cached and warm."""
    body = rng.randbytes(size)
    known = stored(sides, body)
    plain = [value for value in ranges(size) if parse_range(value) is not None]
    for state in ("cold", "partial", "warm"):
        for value in rng.sample(plain, min(len(plain), 12)):
            if state == "cold":
                sides.forget(known)
            elif state == "partial" and size > BLOCK:
                sides.warm_block(known, 1)
            elif state == "warm":
                sides.warm(known)
            wanted = parse_range(value)
            assert wanted is not None
            span = wanted.resolve(size)
            reply = ranged(sides.through, known, value)
            if span is None:
                # The suffix of no bytes is the store's to interpret while nothing is cached.
                assert reply.status == 416 or (value.endswith("=-0") and reply.body == body), (state, value)
            else:
                assert (reply.status, reply.body) == (206, body[slice(*span)]), (state, value, reply)
                assert reply.headers["content-range"] == f"bytes {span[0]}-{span[1] - 1}/{size}"


def test_several_ranges_are_the_stores(sides: Sides, rng: random.Random) -> None:
    """Rule: what a store sends for several ranges reaches the client, and nothing of it is kept."""
    body = rng.randbytes(3 * BLOCK)
    known = stored(sides, body)
    for value in ("bytes=0-0,9-20", "bytes=5-1", "items=0-1"):
        direct, through = (ranged(door, known, value) for door in (sides.direct, sides.through))
        assert (direct.status, direct.body if direct.status < 300 else b"") == (
            through.status,
            through.body if through.status < 300 else b"",
        )
    assert sides.through.send(known.ask()).body == body


def test_an_overwrite_past_the_gateway_never_mixes(front: Front, sides: Sides, rng: random.Random) -> None:
    """Rule: a read of missing blocks gives one version whole or breaks off, though a store ignores If-Match."""
    old, new = (rng.randbytes(4 * BLOCK) for _ in range(2))
    known = stored(sides, old)
    sides.warm_block(known, 0)
    stored(sides, new)
    with suppress(ConnectionError, HTTPException), closing(gateway_door(front.running.endpoint)) as through:
        assert ranged(through, known, f"bytes=0-{3 * BLOCK - 1}").body in (old[: 3 * BLOCK], new[: 3 * BLOCK])
    assert ranged(sides.through, known, f"bytes=0-{3 * BLOCK - 1}", Cache_Control="no-cache").body == new[: 3 * BLOCK]


def test_conditions_are_met_by_the_gateway(sides: Sides) -> None:
    """Rule: a reader's condition holds for what it gets, cold and warm, also where the store ignores it."""
    known = stored(sides, b"body" * 100)
    for state in ("cold", "warm"):
        if state == "cold":
            sides.forget(known)
        else:
            sides.warm(known)
        other, same = '"0123456789abcdef0123456789abcdef"', known.etag
        for name, value, status in (("If-Match", other, 412), ("If-Match", same, 200), ("If-None-Match", same, 304)):
            reply = sides.through.send(Ask("GET", known.bucket, known.raw_key, headers=((name, value),)))
            assert reply.status == status, (state, name, value, reply)
            sides.forget(known) if state == "cold" else None


def test_what_is_cached_has_the_etag_of_reads(front: Front, sides: Sides) -> None:
    """Rule: an upload in parts is cached under the ETag that reads show, whatever Complete says, and listings leave it cached."""
    with closing(gateway_door(front.running.endpoint)) as through:
        shop = Shop(through)
        shop.uploaded()
        path = shop.source("m").strip("/").partition("/")
        direct = sides.direct.send(Ask("HEAD", path[0], "m"))
        known = Known(path[0], "m", int(direct.headers["content-length"]), direct.headers["etag"], 0.0)
        sides.warm(known)
        assert shop.ask("GET", query="list-type=2").status == 200
        again = shop.ask("GET", "m")
    # On a busy machine it is revalidated by then.
    assert (again.cache.partition(";")[0], again.headers["etag"]) == ("HIT", direct.headers["etag"])


def test_digest_files_do_not_depend_on_the_order_of_listings(front: Front, sides: Sides, tmp_path: Path) -> None:
    """Rule: a build, directly or through the gateway, has its items by key, and finds them unchanged later."""
    names = ["a/b", "a-b", "a.b", "a0", "z/1", "z-1"]
    for name in names:
        stored(sides, name.encode() * 50, name)
    for endpoint, keys in ((front.endpoint, (KEY, SECRET)), (front.running.endpoint, ("GWA", "gateway-secret-a"))):
        source, file = f"s3://{sides.bucket}/", tmp_path / "digest"
        report = digest.build(source, file, endpoint=endpoint, credentials=Credentials(*keys))
        assert report.items == len(names)
        read = digest.read(file)
        assert [read.location(at).key for at in range(len(read))] == sorted(names)
        assert digest.build(source, file, endpoint=endpoint, credentials=Credentials(*keys)).unchanged == len(names)


def _agree(endpoint: str, name: str) -> None:
    """Compare a store with its column of the page, and that with an examination of the store."""
    column = cells(endpoint)
    assert column == shown()[name]
    with closing(origin_door(endpoint)) as door:
        bucket = f"examined-{name}"
        assert door.send(Ask("PUT", bucket)).status == 200
        door.send(Ask("PUT", bucket, "k", headers=(("x-amz-checksum-crc32", "NhCmhg=="),), body=b"hello"))
        outcome = asyncio.run(examine(Origin(endpoint=endpoint, access_key_id=KEY, secret_access_key=SECRET), bucket))
        assert re.findall(rb"<Key>([^<]*)", door.send(Ask("GET", bucket, query="list-type=2")).body) == [b"k"]
    assert outcome.read == f"{bucket}/k"
    lacks = " ".join(outcome.lacks)
    ignored = {
        row.partition(", ")[2] for row, cell in column.items() if row.startswith("GET, If") and cell == "ignored"
    }
    assert set(re.findall(r"If-[A-Za-z-]+", lacks)) == ignored
    said = {
        "each read of a part reads the whole": column["a range"] == "200, the whole",
        "longer than the object": column["the last bytes, more than there are"] != "206",
        "several ranges": column["several ranges"] != "206, all",
        "checksum": column["a checksum"] == "none",
        "equal times": column["times in listings and reads"] != "equal",
        "versions": not column["versions"].startswith("yes"),
    }
    assert {words: words in lacks for words in said} == said


def test_the_page_and_an_examination_say_what_the_store_does(front: Front) -> None:
    """Rule: the column of the store in docs/s3-compatibility.md is what it answers (`make stores` writes it anew); an examination
    names the ranges, conditions, checksums, times and versions that it lacks, and writes nothing."""
    _agree(front.endpoint, front.name)


def test_the_page_and_an_examination_say_what_moto_does(moto: str) -> None:
    """Rule: as above."""
    _agree(moto, "moto")


def test_the_page_and_an_examination_say_what_radosgw_does(radosgw: Radosgw) -> None:
    """Rule: as above."""
    _agree(radosgw.endpoint, "radosgw")
