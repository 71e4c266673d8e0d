"""The origin performs exactly the verified request. It is a real radosgw, which folds header names and decodes differently."""

from __future__ import annotations

import http.client
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import pytest

from gateway.model.s3.sigv4 import WireRequest
from rig.gateways import Running, Settings, gateway, s3_client
from rig.radosgw import Radosgw
from rig.signed_requests import ClientSigner
from rig.world import credentials
from tests.fuzz.corpus import raw

_ROLE = {"origin_access_key_id": "origin-key-a", "origin_secret_access_key": "origin-secret-a", "tenant": "p"}
A = ClientSigner("GWA", "gateway-secret-a")
B = ClientSigner("GWB", "gateway-secret-b")
P = ClientSigner("GWP", "gateway-secret-p")


@pytest.fixture(scope="module")
def running(radosgw: Radosgw, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Returns a gateway with tenants A and B, each with its own origin key, and P, who uses A's key but is limited to p/."""
    limited = {"access_key_id": "GWP", "secret_access_key": "gateway-secret-p", "allow": ["*/p/**"], **_ROLE}
    settings = Settings(
        radosgw.endpoint, tmp_path_factory.mktemp("cache"), credentials=(*credentials("a", "b"), limited)
    )
    with gateway(settings, tmp_path_factory.mktemp("home")) as running:
        yield running


@dataclass
class Target:
    """A bucket of A with two versions each of ``p/k`` and ``q/secret``, and its state at the origin."""

    running: Running
    owner: Any
    bucket: str

    def url(self, rest: str = "") -> str:
        """An address in the bucket."""
        return f"{self.running.endpoint}/{self.bucket}/{rest}"

    def send(self, request: WireRequest, *more: tuple[bytes, bytes], body: bytes = b"") -> tuple[int, bytes]:
        """Status and body of an answer; ``more`` are unsigned headers."""
        port = urlsplit(self.running.endpoint).port
        connection = http.client.HTTPConnection("127.0.0.1", port or 0, timeout=60)
        connection.connect()
        request.headers += more
        connection.sock.sendall(raw(request, body))
        response = http.client.HTTPResponse(connection.sock, method=request.method)
        response.begin()
        answer = response.status, response.read()
        connection.close()
        return answer

    @property
    def first(self) -> str:
        """The oldest version of ``p/k``."""
        return str(self.state()[0][1])

    def state(self) -> list[tuple[Any, ...]]:
        """Everything an attack could have changed: versions, bytes and rights."""
        listed = self.owner.list_object_versions(Bucket=self.bucket)
        versions = [*listed.get("Versions", ()), *listed.get("DeleteMarkers", ())]
        found = [
            (one["Key"], one["VersionId"], one.get("ETag"), self._grants(Key=one["Key"], VersionId=one["VersionId"]))
            for one in reversed(versions)
        ]
        bucket = self.owner.get_bucket_acl(Bucket=self.bucket)["Grants"]
        return [*found, ("", str(bucket), "", "")]

    def _grants(self, **which: str) -> str:
        return str(self.owner.get_object_acl(Bucket=self.bucket, **which)["Grants"])


@pytest.fixture
def target(running: Running, radosgw: Radosgw) -> Target:
    """A new bucket."""
    _, key, secret = radosgw.users[0]
    owner = s3_client(radosgw.endpoint, key, secret)
    bucket = f"r-{uuid.uuid4().hex[:12]}"
    owner.create_bucket(Bucket=bucket)
    owner.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    for key in ("p/k", "q/secret"):
        for version in (1, 2):
            owner.put_object(Bucket=bucket, Key=key, Body=f"{key} {version}".encode())
    return Target(running, owner, bucket)


def put(signer: ClientSigner, target: Target, header: bytes, value: str) -> tuple[int, bytes]:
    """A signed PUT of ``p/k``, with one unsigned header."""
    return target.send(signer.header("PUT", target.url("p/k")), (header, value.format(target.bucket).encode()))


def presigned(
    method: str, rest: str, added: str, *headers: tuple[bytes, bytes]
) -> Callable[[Target], tuple[int, bytes]]:
    """Requests that a holder of A's SigV2 address of ``rest`` may try."""

    def attack(target: Target) -> tuple[int, bytes]:
        request = A.presigned_v2(method, target.url(rest))
        text = added.format(first=target.first)
        request.query = text.encode() + b"&" + request.query
        return target.send(request, *headers)

    return attack


def made_public(target: Target) -> tuple[int, bytes]:
    """A's SigV4 address for an upload, used with an ACL."""
    return target.send(A.presigned("PUT", target.url("p/k")), (b"x_amz_acl", b"public-read"), body=b"mine")


def made_private(target: Target) -> tuple[int, bytes]:
    """A condition that A signed, taken away by Connection."""
    request = A.presigned("PUT", target.url("p/k"), {"x-amz-tagging": "keep=1"})
    return target.send(request, (b"connection", b"x-amz-tagging"), body=b"mine")


def copied_by_query(target: Target) -> tuple[int, bytes]:
    """A copy source where allow-lists did not look."""
    return target.send(P.header("PUT", target.url(f"p/k?x-amz-copy-source=%2F{target.bucket}%2Fq%2Fsecret")))


def not_a_path(target: Target) -> tuple[int, bytes]:
    """radosgw lists all buckets of A's for a path that it cannot decode."""
    request = P.header("GET", target.url("p/k%25zz"))
    request.raw_path = request.raw_path.replace(b"%25zz", b"%zz")
    return target.send(request)


ATTACKS: dict[str, Callable[[Target], tuple[int, bytes]]] = {
    "copy past the allow-list": lambda target: put(P, target, b"x_amz_copy_source", "/{}/q/secret"),
    "copy, one underscore": lambda target: put(P, target, b"x-amz-copy_source", "/{}/q/secret"),
    "copy by query": copied_by_query,
    "copy from another tenant": lambda target: put(B, target, b"x_amz_copy_source", "/{}/q/secret"),
    "acl by header": made_public,
    "acl by header, tenant p": lambda target: put(P, target, b"x_amz-acl", "public-read-write"),
    "signed header taken away": made_private,
    "acl by %61cl": presigned("PUT", "p/k", "%61cl", (b"x_amz_acl", b"public-read")),
    "acl by %61cl, its body empty": presigned("PUT", "p/k", "%61cl"),
    "version by %76ersionId": presigned("DELETE", "p/k", "%76ersionId={first}"),
    "version by =": presigned("DELETE", "p/k", "versionId%3D{first}"),
    "version by ?": presigned("DELETE", "p/k", "?versionId={first}"),
    "acl read by %61cl": presigned("GET", "p/k", "%61cl"),
    "acl read by =": presigned("GET", "p/k", "acl%3D"),
    "acl read by ?": presigned("GET", "p/k", "?acl"),
    "type by %72esponse": presigned("GET", "p/k", "%72esponse-content-type=text%2Fhtml"),
    "acl in capitals": presigned("POST", "p/k", "ACL="),
    "acl twice": presigned("PUT", "p/k", "acl&acl"),
    "unsigned parameter": presigned("GET", "p/k", "usage"),
    "all buckets": not_a_path,
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_nobody_signed_changes_nothing(target: Target, attack: str) -> None:
    """Rule: an attack is refused by the gateway, and every version, byte and right at the origin is as before."""
    before = target.state()
    status, body = ATTACKS[attack](target)
    assert status in (400, 403, 501), body
    assert b"<RequestId>tx0" not in body, "the origin was asked"
    assert target.state() == before


def test_user_metadata_with_underscores_is_what_it_is_directly(target: Target) -> None:
    """Rule: names of metadata are the origin's business; radosgw gives "_" back as "-"."""
    client = target.running.client()
    metadata = {"my_key": "1", "other-key": "2"}
    for door, key in ((client, "p/meta"), (target.owner, "p/direct")):
        door.put_object(Bucket=target.bucket, Key=key, Body=b"", Metadata=metadata)
    stored = [target.owner.head_object(Bucket=target.bucket, Key=key)["Metadata"] for key in ("p/meta", "p/direct")]
    assert stored[0] == stored[1] == {"my-key": "1", "other-key": "2"}


def test_headers_that_boto3_moves_into_an_address_are_honoured(target: Target) -> None:
    """Rule: ACL, type and metadata of a SigV2 address hold for the upload, though radosgw reads them in headers only."""
    moved = {"ACL": "public-read", "ContentType": "image/png", "Metadata": {"colour": "blue"}}
    client = target.running.client(signature_version="s3")
    address = urlsplit(client.generate_presigned_url("put_object", {"Bucket": target.bucket, "Key": "p/up", **moved}))
    host = (b"host", address.netloc.encode())
    request = WireRequest("PUT", address.path.encode(), address.query.encode(), [host])
    assert target.send(request, body=b"x") == (200, b"")
    found = target.owner.head_object(Bucket=target.bucket, Key="p/up")
    assert (found["ContentType"], found["Metadata"]) == ("image/png", {"colour": "blue"})
    assert "AllUsers" in str(target.owner.get_object_acl(Bucket=target.bucket, Key="p/up"))


@pytest.mark.parametrize("way", [A.presigned, A.presigned_v2], ids=["sigv4", "sigv2"])
def test_the_preflight_of_a_presigned_address_is_the_origins_to_answer(target: Target, way: Any) -> None:
    """Rule: OPTIONS is not verified: browsers send it without credentials, for an address that is signed for a PUT."""
    rule = {"AllowedMethods": ["PUT"], "AllowedOrigins": ["http://page"], "AllowedHeaders": ["*"]}
    target.owner.put_bucket_cors(Bucket=target.bucket, CORSConfiguration={"CORSRules": [rule]})
    for page, status in ((b"http://page", 200), (b"http://other", 403)):
        request = way("PUT", target.url("p/k"))
        request.method = "OPTIONS"
        asked = ((b"origin", page), (b"access-control-request-method", b"PUT"))
        assert target.send(request, *asked)[0] == status


def test_head_of_a_sub_resource_is_what_the_origin_says(target: Target) -> None:
    """Rule: radosgw sends a body after it, at once or a little later, and neither spoils the answer."""
    statuses = {target.send(A.header("HEAD", target.url("p/k?acl")))[0] for _ in range(30)}
    assert statuses == {200}
