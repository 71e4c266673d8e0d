"""Presigned requests: SigV4 and SigV2 in the query string, as botocore makes them."""

from __future__ import annotations

import time
from base64 import b64encode
from hashlib import md5
from typing import Any
from urllib.parse import urlsplit

import boto3
import pytest
from botocore.config import Config

from gateway.api.s3.auth import Authenticated, Authenticator
from gateway.base.config import Credential, Origin, Settings
from gateway.base.config_server import ServerSettings
from gateway.model.errors import S3Error
from gateway.model.keys import OriginIdentity
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.sigv4 import WireRequest
from rig.signed_requests import ClientSigner, with_headers

URL = "http://127.0.0.1:9000/bucket/dir/a%20b"
HOST = (b"host", b"127.0.0.1:9000")
PLAIN = Credential(access_key_id="AK", secret_access_key="secret")
TEMPORARY = Credential(access_key_id="AK", secret_access_key="secret", session_token="tok/en==")


def authenticator(credential: Credential = PLAIN, **server: object) -> Authenticator:
    """An authenticator that knows one credential."""
    return Authenticator(
        Settings(
            server=ServerSettings.model_validate(server),
            origins=(Origin(endpoint="http://127.0.0.1:5000"),),
            credentials=(credential,),
        )
    )


def authenticate(request: WireRequest, credential: Credential = PLAIN, later: float = 0.0) -> Authenticated:
    """Verify ``later`` seconds from now."""
    return authenticator(credential).authenticate(request, time.time() + later)


def refusal(request: WireRequest, credential: Credential = PLAIN, later: float = 0.0) -> S3Error:
    """The error with which a request is refused."""
    with pytest.raises(S3Error) as refused:
        authenticate(request, credential, later)
    return refused.value


def presigned_by_boto3(version: str, operation: str, token: str | None = None, **parameters: Any) -> WireRequest:
    """The GET or PUT that a boto3 presigned address leads to; ``version`` is "s3" (SigV2) or "s3v4"."""
    client = boto3.client(
        "s3",
        endpoint_url="http://127.0.0.1:9000",
        region_name="us-east-1",
        aws_access_key_id="AK",
        aws_secret_access_key="secret",
        aws_session_token=token,
        config=Config(signature_version=version, s3={"addressing_style": "path"}),
    )
    url = urlsplit(client.generate_presigned_url(operation, Params=parameters))
    method = "PUT" if operation in ("put_object", "upload_part") else "GET"
    return WireRequest(method, url.path.encode(), url.query.encode(), [HOST, (b"user-agent", b"curl/8")])


@pytest.mark.parametrize("version", ["s3", "s3v4"])
@pytest.mark.parametrize(
    ("operation", "parameters"),
    [
        ("get_object", {"Bucket": "b", "Key": "dir/ü +%.txt"}),
        ("get_object", {"Bucket": "b", "Key": "k", "VersionId": "v/1+2"}),
        ("get_object", {"Bucket": "b", "Key": "k", "ResponseContentDisposition": 'attachment; filename="a b.txt"'}),
        ("get_object", {"Bucket": "b", "Key": "k", "SSECustomerAlgorithm": "AES256", "SSECustomerKey": "k" * 32}),
        ("list_objects_v2", {"Bucket": "b", "Prefix": "a b/", "Delimiter": "/"}),
        ("put_object", {"Bucket": "b", "Key": "k"}),
        ("upload_part", {"Bucket": "b", "Key": "k", "PartNumber": 3, "UploadId": "abc~_-."}),
        ("get_object_tagging", {"Bucket": "b", "Key": "k"}),
    ],
)
def test_boto3_presigned_addresses(version: str, operation: str, parameters: dict[str, Any]) -> None:
    """boto3's presigned addresses, SigV2 by default and SigV4 on request, are accepted."""
    request = presigned_by_boto3(version, operation, **parameters)
    if "SSECustomerKey" in parameters and version == "s3v4":
        # With SigV4 these stay headers that the client must send.
        request = with_headers(
            request,
            (b"x-amz-server-side-encryption-customer-algorithm", b"AES256"),
            (b"x-amz-server-side-encryption-customer-key", b64encode(b"k" * 32)),
            (b"x-amz-server-side-encryption-customer-key-md5", b64encode(md5(b"k" * 32).digest())),
        )
    found = authenticate(request)
    assert found.principal.access_key_id == "AK"
    assert found.presigned


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_changed_presigned_request_is_refused(version: str) -> None:
    """Method, path and signed parameters of a presigned address cannot be changed."""
    for change in ("method", "path", "parameter"):
        request = presigned_by_boto3(version, "get_object", Bucket="b", Key="k", VersionId="1")
        if change == "method":
            request.method = "PUT"
        elif change == "path":
            request.raw_path = b"/b/other"
        else:
            request.query = request.query.replace(b"versionId=1", b"versionId=2")
        assert refusal(request).code == "SignatureDoesNotMatch"


def test_added_parameter_is_refused_by_sigv4() -> None:
    """SigV4 covers every parameter."""
    request = ClientSigner().presigned("GET", URL)
    request.query += b"&response-content-type=text%2Fhtml"
    assert refusal(request).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "added", [b"acl", b"tagging", b"retention", b"attributes", b"uploads", b"legal-hold", b"x-amz-acl=public-read"]
)
def test_added_sub_resource_is_refused_by_sigv2(added: bytes) -> None:
    """SigV2 covers every sub-resource and x-amz-* parameter, those newer than botocore's list included."""
    request = ClientSigner().presigned_v2("GET", URL)
    request.query += b"&" + added
    assert refusal(request).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("added", [b"%61cl", b"%76ersionId=1", b"%72esponse-content-type=text%2Fhtml", b"ac%6C="])
def test_an_escaped_sub_resource_is_a_sub_resource(added: bytes) -> None:
    """SigV2 is verified over the decoded names, the ones that the store reads."""
    request = ClientSigner().presigned_v2("GET", URL)
    request.query += b"&" + added
    assert refusal(request).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("added", [b"usage", b"taging", b"rgwx-stat=1", b"append"])
def test_a_parameter_that_sigv2_does_not_sign_is_refused(added: bytes) -> None:
    """An unsigned parameter is refused, because a store may interpret it; parameters of a listing are known and harmless."""
    request = ClientSigner().presigned_v2("GET", URL)
    request.query += b"&" + added
    assert refusal(request).code == "AccessDenied"
    request = ClientSigner().presigned_v2("GET", URL)
    request.query += b"&prefix=a&x-id=ListObjects"
    assert authenticate(request).presigned


@pytest.mark.parametrize(
    "sign", [ClientSigner().presigned, ClientSigner().presigned_v2, ClientSigner("nobody").presigned]
)
def test_a_preflight_is_nobodys(sign: Any) -> None:
    """A preflight to any presigned address passes unverified as anonymous, and its signature is dropped."""
    request = sign("PUT", URL)
    found = authenticator().preflight(request)
    names = {name.decode() for name, _ in request.parameters.pairs}
    assert found.principal.anonymous
    assert not found.presigned
    assert names <= found.signature_parameters


def test_a_preflight_goes_to_the_origin_of_the_key_it_names() -> None:
    """The only trace of where the address leads."""
    origins = (Origin(endpoint="http://127.0.0.1:5000"), Origin(name="other", endpoint="http://127.0.0.1:5001"))
    known = Credential(access_key_id="AK", secret_access_key="secret", origin="other")
    both = Authenticator(Settings(origins=origins, credentials=(known,)))
    for request in (ClientSigner().presigned("PUT", URL), ClientSigner().presigned_v2("PUT", URL)):
        assert both.preflight(request).principal.identity == OriginIdentity("other", "")
    assert both.preflight(WireRequest("OPTIONS", b"/b/k", b"", [HOST])).principal.identity.origin == origins[0].name


def test_unsigned_amz_header_is_refused() -> None:
    """An x-amz-* header beside a presigned address must have been signed."""
    request = ClientSigner().presigned("GET", URL)
    request = with_headers(request, (b"x-amz-copy-source", b"/b/secret"))
    assert refusal(request).code == "AccessDenied"
    request = ClientSigner().presigned_v2("GET", URL)
    request = with_headers(request, (b"x-amz-copy-source", b"/b/secret"))
    assert refusal(request).code == "SignatureDoesNotMatch"


def test_content_hash_header_may_be_unsigned() -> None:
    """The header that declares the form of the body may be unsigned."""
    request = ClientSigner().presigned("PUT", URL)
    request = with_headers(request, (b"x-amz-content-sha256", b"STREAMING-UNSIGNED-PAYLOAD-TRAILER"))
    assert authenticate(request).payload_form is PayloadForm.UNSIGNED_CHUNKS_TRAILER


def test_presigned_payload_is_unsigned() -> None:
    """A presigned request says nothing about its body."""
    found = authenticate(ClientSigner().presigned("PUT", URL))
    assert found.payload_form is PayloadForm.UNSIGNED


@pytest.mark.parametrize("later", [61, 7200])
def test_expired_sigv4(later: float) -> None:
    """After X-Amz-Expires seconds: AccessDenied, "Request has expired"."""
    error = refusal(ClientSigner().presigned("GET", URL, expires=60), later=later)
    assert (error.code, error.message) == ("AccessDenied", "Request has expired")


def test_expired_sigv2() -> None:
    """After the Expires time: AccessDenied, "Request has expired"."""
    error = refusal(ClientSigner().presigned_v2("GET", URL, expires=60), later=62)
    assert (error.code, error.message) == ("AccessDenied", "Request has expired")


def test_long_lived_sigv4_is_good_for_its_whole_life() -> None:
    """The 15 minutes of skew do not apply to presigned requests."""
    assert authenticate(ClientSigner().presigned("GET", URL, expires=604800), later=604000).presigned


def test_presigned_for_later_is_refused() -> None:
    """A presigned request from the future is not valid yet."""
    assert refusal(ClientSigner().presigned("GET", URL), later=-1000).code == "AccessDenied"


def test_changed_expiry_is_refused() -> None:
    """The expiry is covered by both signatures."""
    request = ClientSigner().presigned("GET", URL, expires=60)
    request.query = request.query.replace(b"X-Amz-Expires=60", b"X-Amz-Expires=600")
    assert refusal(request).code == "SignatureDoesNotMatch"
    request = ClientSigner().presigned_v2("GET", URL, expires=60)
    request.query = request.query.replace(b"Expires=", b"Expires=9")
    assert refusal(request).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_session_token_in_the_query(version: str) -> None:
    """Temporary credentials presign with their token in the query."""
    request = presigned_by_boto3(version, "get_object", "tok/en==", Bucket="b", Key="k")
    assert authenticate(request, TEMPORARY).principal.access_key_id == "AK"
    assert refusal(request, PLAIN).code == "InvalidToken"
    without = presigned_by_boto3(version, "get_object", Bucket="b", Key="k")
    assert refusal(without, TEMPORARY).code == "InvalidToken"


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_signature_parameters_are_named(version: str) -> None:
    """Every parameter added by presigning is listed, so that none reaches the origin."""
    request = presigned_by_boto3(version, "get_object", "tok/en==", Bucket="b", Key="k", VersionId="1")
    names = {piece.partition(b"=")[0].decode() for piece in request.query.split(b"&")}
    assert names - authenticate(request, TEMPORARY).signature_parameters == {"versionId"}


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def test_unknown_access_key(version: str) -> None:
    """An unknown access key is InvalidAccessKeyId."""
    signer = ClientSigner("nobody")
    request = signer.presigned("GET", URL) if version == "s3v4" else signer.presigned_v2("GET", URL)
    assert refusal(request).code == "InvalidAccessKeyId"


def test_two_mechanisms_in_the_query() -> None:
    """A query signed twice is refused."""
    request = ClientSigner().presigned("GET", URL)
    request.query += b"&AWSAccessKeyId=AK&Signature=x&Expires=9999999999"
    assert refusal(request).code == "InvalidArgument"


def test_sigv2_can_be_switched_off() -> None:
    """With server.sigv2 = false SigV2 is refused and SigV4 still accepted."""
    strict = authenticator(sigv2=False)
    with pytest.raises(S3Error, match="InvalidRequest"):
        strict.authenticate(ClientSigner().presigned_v2("GET", URL), time.time())
    assert strict.authenticate(ClientSigner().presigned("GET", URL), time.time()).presigned


@pytest.mark.parametrize(
    "query",
    [
        b"AWSAccessKeyId=AK&Expires=9999999999",
        b"Signature=x",
        b"AWSAccessKeyId=AK&Signature=x&Expires=",
        b"AWSAccessKeyId=AK&Signature=x&Expires=soon",
        b"AWSAccessKeyId=AK&Signature=x&Expires=" + b"9" * 5000,
    ],
)
def test_malformed_sigv2(query: bytes) -> None:
    """An incomplete or unreadable SigV2 claim is AccessDenied."""
    assert refusal(WireRequest("GET", b"/b/k", query, [HOST])).code == "AccessDenied"


def test_sigv2_with_virtual_host() -> None:
    """SigV2 signs the bucket of a virtual host in front of the path."""
    request = ClientSigner().presigned_v2("GET", "http://bucket.s3.local/k", auth_path="/bucket/k")
    virtual = authenticator(domain="s3.local")
    assert virtual.authenticate(request, time.time()).presigned
    elsewhere = WireRequest("GET", request.raw_path, request.query, [(b"host", b"other.s3.local")])
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        virtual.authenticate(elsewhere, time.time())


def test_sigv2_published_example() -> None:
    """The SigV2 example "Query String Request Authentication" of the S3 developer guide has its published signature."""
    query = b"AWSAccessKeyId=AKIAIOSFODNN7EXAMPLE&Signature=NpgCjnDzrM%2BWFzoENXmpNDUsSn8%3D&Expires=1175139620"
    request = WireRequest("GET", b"/photos/puppy.jpg", query, [(b"host", b"johnsmith.s3.amazonaws.com")])
    secret = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
    example = authenticator(
        Credential(access_key_id="AKIAIOSFODNN7EXAMPLE", secret_access_key=secret), domain="s3.amazonaws.com"
    )
    assert example.authenticate(request, 1175139600.0).presigned


def test_malformed_sigv4_query() -> None:
    """An incomplete SigV4 query is AuthorizationQueryParametersError."""
    request = WireRequest("GET", b"/b/k", b"X-Amz-Signature=" + b"0" * 64, [HOST])
    assert refusal(request).code == "AuthorizationQueryParametersError"


@pytest.mark.parametrize("date", [b"20130524", b"19990101T000000Z"])
def test_wrong_date_in_the_query(date: bytes) -> None:
    """X-Amz-Date is readable and of the day in the credential."""
    request = ClientSigner().presigned("GET", URL)
    pieces = [piece for piece in request.query.split(b"&") if not piece.startswith(b"X-Amz-Date=")]
    request.query = b"&".join([*pieces, b"X-Amz-Date=" + date])
    assert refusal(request).code == "AuthorizationQueryParametersError"
