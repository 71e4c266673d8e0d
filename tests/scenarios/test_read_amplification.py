"""Bytes read from the origin for ranges of a large object. The origin is a real radosgw; the gateway has two workers."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from boto3.s3.transfer import TransferConfig

from rig.clients import Client, Got
from rig.gateways import Running, Settings, gateway, s3_client
from rig.processes import wait_until
from rig.radosgw import Radosgw
from rig.world import KIB, MIB, SOON, content

SIZE = 64 * MIB
BLOCK = 4 * MIB
RANGE = 64 * KIB


@cache
def whole() -> bytes:
    """The large object. Not made at import: every worker imports every test."""
    return content(SIZE)


@pytest.fixture(scope="module")
def running(radosgw: Radosgw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with blocks of the usual size."""
    rule = {"match": "**", "freshness": "immutable"}
    cache = tmp_path_factory.mktemp("cache")
    settings = Settings(radosgw.endpoint, cache, capacity="1GB", block_size="4MiB", workers=2, rules=(rule,))
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


@dataclass
class Large:
    """A large object that no gateway has read."""

    running: Running
    bucket: str

    def read(self, start: int, stop: int, **headers: str) -> Got:
        """Read a range over a new connection, so that either worker may answer."""
        with Client(self.running.endpoint) as client:
            got = client.ask("GET", f"/{self.bucket}/large", {"Range": f"bytes={start}-{stop - 1}", **headers})
        assert (got.status, got.body) == (206, whole()[start:stop])
        return got

    def received(self) -> float:
        """Bytes that the gateway has read from the origin."""
        return self.running.metric("larder_origin_received_bytes_total")


@pytest.fixture
def large(running: Running, radosgw: Radosgw) -> Large:
    """Returns a large object in a new bucket."""
    owner = s3_client(radosgw.endpoint, "origin-key-a", "origin-secret-a")
    bucket = f"large-{uuid.uuid4().hex[:8]}"
    owner.create_bucket(Bucket=bucket)
    owner.put_object(Bucket=bucket, Key="large", Body=whole())
    return Large(running, bucket)


def test_random_ranges_that_are_seen_once(large: Large) -> None:
    """Rule: random ranges read once cost at most 1.5 bytes of the origin per requested byte."""
    before = large.received()
    starts = [RANGE * place for place in random.Random(15).sample(range(SIZE // RANGE), 15)]
    status = [large.read(start, start + RANGE).cache for start in starts]
    assert large.received() - before <= 1.5 * RANGE * len(starts)
    assert "MISS; reason=range" in status


def test_a_sequential_scan(large: Large) -> None:
    """Rule: a sequential scan reads at most 1.05 bytes of the origin per requested byte."""
    before = large.received()
    for start in range(0, SIZE, RANGE):
        large.read(start, start + RANGE)
    assert large.received() - before <= 1.05 * SIZE


def test_small_ranges_of_a_block_that_either_worker_has_stored(large: Large) -> None:
    """Rule: no range of a stored block is read alone, not even by a worker that knew the object before its sibling stored it."""
    last = SIZE - BLOCK
    for start in range(last, last + 24 * RANGE, 3 * RANGE):
        large.read(start, start + RANGE)
    large.read(0, BLOCK)
    wait_until(lambda: large.running.metric("larder_fills_active") == 0, SOON, "the stored block")
    status = [large.read(start, start + RANGE).cache for start in range(RANGE, BLOCK, 3 * RANGE)]
    assert "MISS; reason=range" not in status


def test_what_is_read_again_through_either_worker_is_cached(large: Large) -> None:
    """Rule: the workers of a node share the record of small ranges, so the second touch fills through either."""
    before = large.received()
    for _ in range(20):
        large.read(MIB, MIB + RANGE)
    assert large.received() - before <= 4 * MIB + 2 * RANGE


def test_a_parallel_download(large: Large, tmp_path: Path) -> None:
    """Rule: parts of 8 MiB, ten at a time, read each byte of the origin once."""
    before = large.received()
    transfer = TransferConfig(multipart_threshold=8 * MIB, multipart_chunksize=8 * MIB)
    large.running.client().download_file(large.bucket, "large", str(tmp_path / "copy"), Config=transfer)
    assert (tmp_path / "copy").read_bytes() == whole()
    assert large.received() - before <= 1.05 * SIZE


def test_a_presigned_small_range(large: Large) -> None:
    """Rule: an address that was signed before reads alone as well."""
    before = large.received()
    url = large.running.client().generate_presigned_url("get_object", Params={"Bucket": large.bucket, "Key": "large"})
    with Client(large.running.endpoint, key="") as client:
        got = client.ask("GET", url.removeprefix(large.running.endpoint), {"Range": "bytes=9000000-9000999"})
    assert (got.status, got.body, got.cache) == (206, whole()[9_000_000:9_001_000], "MISS; reason=range")
    assert large.received() - before == 1000
