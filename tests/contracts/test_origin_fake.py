"""The fake origin's own features: faults, rights, records, and a thread for blocking clients."""

from __future__ import annotations

import asyncio
import time
import urllib.request

import boto3
import pytest
from botocore.config import Config

from gateway.model.errors import OriginUnavailable
from gateway.model.keys import OriginIdentity
from gateway.model.objects import Header
from gateway.net.exchange import StreamedResponse
from gateway.origin.client import OriginClient
from rig import origin_faults as faults
from rig.origin import ALICE, BOB, FakeOrigin, OriginThread
from tests.origin.test_origin_client import AS_ALICE, origin_at


async def ask(
    origin: FakeOrigin,
    method: str = "GET",
    query: str = "",
    headers: tuple[Header, ...] = (),
    body: bytes | None = None,
) -> tuple[StreamedResponse, bytes]:
    """One request for ``/b/k`` and its whole answer."""
    client = OriginClient([origin_at(origin.endpoint)], [], now=time.time)
    try:
        response = await client.send(AS_ALICE, method, "/b/k", query, headers, body=body)
        return response, await response.read(1 << 20)
    finally:
        await client.close()


@pytest.mark.parametrize(
    "fault",
    [faults.DieAfter(size=0), faults.DieAfter(size=999), faults.DieAfter(size=1000), faults.DieBeforeHeaders(times=2)],
)
async def test_death_is_seen_as_such(fault: faults.Fault) -> None:
    """The connection breaks at the requested byte; an answer is complete only with its last byte."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", bytes(1000))
        origin.inject(fault)
        if fault == faults.DieAfter(size=1000):
            assert len((await ask(origin))[1]) == 1000
        else:
            with pytest.raises(OriginUnavailable):
                await ask(origin)
        assert len((await ask(origin))[1]) == 1000


async def test_faults_happen_as_often_and_where_they_were_told() -> None:
    """503 for the next two GETs, and for nothing else."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        origin.inject(faults.Refuse(times=2, method="GET", path="/b/"))
        statuses = [(await ask(origin, method))[0].status for method in ("HEAD", "GET", "GET", "GET")]
        assert statuses == [200, 503, 503, 200]


async def test_wrong_answers_are_wrong_as_told() -> None:
    """A false Content-Range and a changed ETag, each once."""
    async with FakeOrigin() as origin:
        stored = origin.put("b", "k", b"0123456789")
        origin.inject(faults.WrongContentRange(value="bytes 5-6/10"))
        wanted = (("Range", "bytes=0-1"),)
        assert (await ask(origin, headers=wanted))[0].header("content-range") == "bytes 5-6/10"
        assert (await ask(origin, headers=wanted))[0].header("content-range") == "bytes 0-1/10"
        changed = origin.inject(faults.ChangedEtag())
        assert [(await ask(origin))[0].header("etag") for _ in range(2)] == [changed.etag, stored.etag]


async def test_a_trickle_delivers_everything() -> None:
    """Slow is not broken."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", bytes(range(256)))
        origin.inject(faults.Trickle(piece=100, pause=0.001))
        assert (await ask(origin))[1] == bytes(range(256))


async def test_a_copy_may_fail_with_status_200() -> None:
    """S3 documents it for CopyObject and CompleteMultipartUpload; nothing is copied then."""
    async with FakeOrigin() as origin:
        origin.put("b", "source", b"x")
        origin.inject(faults.ErrorIn200(method="PUT"))
        response, document = await ask(origin, "PUT", headers=(("x-amz-copy-source", "/b/source"),))
        assert response.status == 200
        assert b"<Code>InternalError</Code>" in document
        assert "k" not in origin.buckets.objects["b"]


async def test_rights_are_per_user_and_prefix() -> None:
    """Denying a prefix to one user does not affect others, and unsigned requests may read public objects."""
    bob = {"access_key_id": BOB.access_key_id, "secret_access_key": BOB.secret_access_key}
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        origin.public.append("b/*")
        origin.deny(BOB.access_key_id, "b/k*")
        client = OriginClient(
            [origin_at(origin.endpoint), origin_at(origin.endpoint, name="bobs", **bob)], [], now=time.time
        )
        found = []
        for identity in (AS_ALICE, OriginIdentity("bobs", BOB.access_key_id), OriginIdentity("default", "")):
            response = await client.send(identity, "GET", "/b/k", "", ())
            await response.read(1000)
            found.append((response.status, origin.seen[-1].access_key_id))
        await client.close()
    assert found == [(200, ALICE.access_key_id), (403, BOB.access_key_id), (200, "")]


async def test_a_deleted_query_never_deletes_the_object() -> None:
    """DELETE ?tagging is not DELETE."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        assert (await ask(origin, "DELETE", query="tagging"))[0].status == 501
        assert (await ask(origin))[1] == b"x"


async def test_checksums_come_when_asked_for() -> None:
    """x-amz-checksum-mode: ENABLED, and never with a range."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x", [("x-amz-checksum-crc32", "jNwqBA==")])
        mode = ("x-amz-checksum-mode", "ENABLED")
        asked = [(), (mode,), (mode, ("Range", "bytes=0-0"))]
        told = [(await ask(origin, headers=headers))[0].header("x-amz-checksum-crc32") for headers in asked]
        assert told == [None, "jNwqBA==", None]


def test_a_thread_of_its_own_serves_blocking_clients() -> None:
    """boto3 and a plain URL library work against it; a presigned URL is verified too."""
    with OriginThread() as origin:
        s3 = boto3.client(
            "s3",
            endpoint_url=origin.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ALICE.access_key_id,
            aws_secret_access_key=ALICE.secret_access_key,
            config=Config(signature_version="s3v4", s3={"addressing_style": "path"}),
        )
        s3.create_bucket(Bucket="b")
        s3.put_object(Bucket="b", Key="a b/é", Body=b"hello", Metadata={"a": "1"})
        got = s3.get_object(Bucket="b", Key="a b/é", Range="bytes=1-2")
        assert (got["Body"].read(), got["Metadata"]) == (b"el", {"a": "1"})
        url = s3.generate_presigned_url("get_object", Params={"Bucket": "b", "Key": "a b/é"})
        with urllib.request.urlopen(url) as response:
            assert response.read() == b"hello"
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(url[:-1] + ("0" if url[-1] != "0" else "1"))
        assert origin.count("GET") == 3
        s3.close()


async def test_a_gate_can_be_waited_for_without_a_loop() -> None:
    """Blocking tests wait for the arrival as a concurrent future."""
    async with FakeOrigin() as origin:
        origin.put("b", "k", b"x")
        gate = origin.inject(faults.Hang()).gate
        asking = asyncio.create_task(ask(origin))
        await asyncio.to_thread(gate.arrival.result, 10)
        assert not asking.done()
        gate.open()
        assert (await asking)[1] == b"x"
