"""Uploads whose bytes are kept as they pass, and what must never be kept."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call
from gateway.api.s3.forward import Forwarder, Spooling
from gateway.api.s3.payload import SMALL as GATHERED
from gateway.api.s3.payload import PayloadForm
from gateway.api.s3.spool import SpoolPlace
from gateway.model.errors import DiskUnavailable, S3Error
from gateway.model.keys import ObjectKey, Principal
from gateway.model.outcomes import Outcome, Reason
from gateway.model.s3 import checksums
from gateway.model.s3.sigv4 import RawHeader, WireRequest
from gateway.policies.reads.rules import Caching, Rules
from gateway.store.files.threads import closer
from rig.origin_faults import ChangedEtag, Hang, Refuse
from tests.engine.conftest import BLOCK, Bench, Homes

KEY = ObjectKey("default", "b", "k")
SMALL, LARGE = os.urandom(5_000), os.urandom(GATHERED + 3 * BLOCK + 123)
GATHER = os.urandom(3 * BLOCK + 123)
WHOLE = pytest.mark.parametrize("body", [SMALL, GATHER, LARGE, b""], ids=["small", "gathered", "large", "empty"])


@pytest.fixture(autouse=True)
def warmed(bench: Bench) -> None:
    """A bucket whose objects are kept when they are written."""
    bench.engine.services.rules = Rules([Caching(match="**", warm_on_write=True)])
    bench.origin.put("b", "other", b"")


async def put(
    bench: Bench, folder: Path, pieces: Sequence[bytes], headers: Sequence[RawHeader] = (), length: int | None = None
) -> None:
    """Write ``b/k`` through the gateway, in pieces."""

    async def arriving() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    size = sum(map(len, pieces)) if length is None else length
    given = [(b"host", b"h"), (b"content-length", b"%d" % size), *headers]
    auth = Authenticated(Principal("AK", "t", bench.identity), PayloadForm.UNSIGNED, "")
    call = S3Call(WireRequest("PUT", b"/b/k", b"", given), auth, "b", b"k", KEY, "", frozenset())

    forwarder = Forwarder(bench.engine, Spooling(lambda: SpoolPlace(folder), 1024**3), Homes(bench))
    await forwarder.forward(call, arriving(), Outcome.BYPASS, Reason.NOT_A_READ)


def cut(body: bytes, size: int = 10_000) -> list[bytes]:
    """A body in pieces that end at no block's end."""
    return [body[start : start + size] for start in range(0, len(body), size)]


def requests(bench: Bench) -> list[str]:
    """The methods that the origin saw for the object."""
    return [seen.method for seen in bench.origin.seen if seen.raw_path == "/b/k"]


async def files(bench: Bench) -> list[str]:
    """What is on the disk when all is done: blobs, and those being written."""
    await bench.settle()
    await closer.done()
    root = bench.store.directory.root
    return sorted(path.name for folder in ("blobs", "tmp") for path in (root / folder).rglob("*") if path.is_file())


@WHOLE
async def test_the_next_read_is_a_hit_without_a_read_of_the_store(bench: Bench, tmp_path: Path, body: bytes) -> None:
    """Rule: what passed is kept as the store describes it, headers included; a HEAD is all that it costs."""
    await put(bench, tmp_path, cut(body), [(b"x-amz-meta-a", b"1"), (b"content-type", b"text/plain")])
    assert await bench.read("k") == body
    found = await bench.find(bench.ask("k"))
    assert requests(bench) == ["PUT", "HEAD"]
    assert found.outcome is Outcome.HIT
    assert {"x-amz-meta-a": "1", "content-type": "text/plain"}.items() <= {
        name.lower(): value for name, value in found.entry.record.meta.headers
    }.items()


@WHOLE
async def test_a_refused_upload_keeps_nothing(bench: Bench, tmp_path: Path, body: bytes) -> None:
    """Rule 1: what the store does not accept leaves no bytes on the disk."""
    bench.origin.inject(Refuse(path="/b/k", status=503, code="SlowDown", method="PUT"))
    await put(bench, tmp_path, cut(body))
    assert (requests(bench), await files(bench)) == (["PUT"], [])


async def test_an_upload_that_breaks_off_keeps_nothing(bench: Bench, tmp_path: Path) -> None:
    """Rule 1: so does one whose client leaves in the middle."""
    with pytest.raises(S3Error):
        await put(bench, tmp_path, cut(LARGE)[:5], length=len(LARGE))
    assert (await files(bench), bench.store.status().filling) == ([], 0)


async def test_a_cancelled_upload_keeps_nothing(bench: Bench, tmp_path: Path) -> None:
    """Rule 1: also one that is cancelled while the store takes its time."""
    hang = bench.origin.inject(Hang(path="/b/k", method="PUT"))
    upload = asyncio.create_task(put(bench, tmp_path, cut(LARGE)))
    await hang.gate.reached()
    upload.cancel()
    with pytest.raises(asyncio.CancelledError):
        await upload
    assert (await files(bench), bench.store.status().filling) == ([], 0)


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
async def test_another_write_before_the_check_is_the_object(bench: Bench, tmp_path: Path, body: bytes) -> None:
    """Rule 2: the bytes of an upload that is overwritten at once are not kept under another entity tag."""
    hang = bench.origin.inject(Hang(path="/b/k", method="PUT"))
    upload = asyncio.create_task(put(bench, tmp_path, cut(body)))
    await hang.gate.reached()
    bench.origin.put("b", "k", b"newer")
    hang.gate.open()
    await upload
    await bench.settle()
    assert await bench.read("k") == b"newer"


@pytest.mark.parametrize("body", [SMALL, LARGE], ids=["small", "large"])
async def test_another_write_after_the_check_fences_the_recording(bench: Bench, tmp_path: Path, body: bytes) -> None:
    """Rule 3: what the store said before another write is not recorded after it."""
    hang = bench.origin.inject(Hang(path="/b/k", method="HEAD"))
    await put(bench, tmp_path, cut(body))
    await hang.gate.reached()
    bench.engine.services.rules = Rules()
    await put(bench, tmp_path, [b"newer"])
    hang.gate.open()
    await bench.settle()
    assert await bench.store.lookup(KEY) is None
    assert await bench.read("k") == b"newer"


async def test_another_write_after_the_recording_ends_it(bench: Bench, tmp_path: Path) -> None:
    """Rule 4: a kept upload is forgotten like any object."""
    await put(bench, tmp_path, [SMALL])
    assert await bench.read("k") == SMALL
    await put(bench, tmp_path, [b"newer"])
    assert await bench.read("k") == b"newer"
    assert "GET" not in requests(bench)


async def test_uploads_in_parallel_never_mix(bench: Bench, tmp_path: Path) -> None:
    """Rule 5: whichever write the store took last, its body is read, and under its own entity tag."""
    bodies = [os.urandom(GATHERED * (number % 2) + BLOCK + number) for number in range(6)]
    await asyncio.gather(*(put(bench, tmp_path, cut(body)) for body in bodies))
    await bench.settle()
    last = bench.origin.buckets.objects["b"]["k"]
    found = await bench.find(bench.ask("k"))
    assert (await bench.read("k"), found.entry.record.meta.etag) == (last.body, last.etag)


async def test_a_read_meanwhile_waits(bench: Bench, tmp_path: Path) -> None:
    """Rule 6: a read before the upload is recorded makes no request of its own."""
    hang = bench.origin.inject(Hang(path="/b/k", method="HEAD"))
    await put(bench, tmp_path, cut(LARGE))
    await hang.gate.reached()
    read = asyncio.create_task(bench.read("k"))
    await asyncio.sleep(0)
    hang.gate.open()
    assert await read == LARGE
    assert requests(bench) == ["PUT", "HEAD"]


@pytest.mark.parametrize("checked", [True, False])
async def test_bytes_that_nothing_proves_are_read_back(bench: Bench, tmp_path: Path, checked: bool) -> None:
    """Rule: an entity tag that is no MD5 proves nothing of the bytes, but a checksum of theirs does."""
    checksum = checksums.start("x-amz-checksum-crc32")
    checksum.update(SMALL)
    headers = [(b"x-amz-checksum-crc32", checksums.encode(checksum).encode())] if checked else []
    for method in ("PUT", "HEAD", "GET"):
        bench.origin.inject(ChangedEtag(path="/b/k", method=method, times=9))
    await put(bench, tmp_path, [SMALL], headers)
    await bench.settle()
    await bench.settle()
    assert await bench.read("k") == SMALL
    assert requests(bench) == ["PUT", "HEAD", *([] if checked else ["GET"])]


async def test_a_full_disk_does_not_fail_the_upload(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rule: the store gets all bytes; what the disk did not take is read back."""

    def full(size: int) -> None:
        raise DiskUnavailable("no-space", f"{size} more bytes do not fit")

    with monkeypatch.context() as patched:
        patched.setattr(bench.store, "begin", full)
        await put(bench, tmp_path, cut(LARGE))
    await bench.settle()
    assert (bench.origin.buckets.objects["b"]["k"].body, requests(bench)) == (LARGE, ["PUT", "GET"])
