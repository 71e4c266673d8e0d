"""Errors as outside suites and clients read them: S3's sentences and elements, from the gateway itself."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.s3suite.forms import BODY, BUCKET, Target


@pytest.fixture
def cached(target: Target) -> Any:
    """A client that has read an object, so that the gateway answers from its cache."""
    client = target.gateway.client()
    client.put_object(Bucket=BUCKET, Key="cached", Body=BODY)
    for _ in range(2):
        client.get_object(Bucket=BUCKET, Key="cached")["Body"].read()
    return client


@pytest.mark.parametrize(
    ("condition", "header"),
    [
        ({"IfMatch": '"another"'}, "If-Match"),
        ({"IfUnmodifiedSince": "Thu, 01 Jan 1970 00:00:00 GMT"}, "If-Unmodified-Since"),
        ({"IfMatch": '"another"', "IfUnmodifiedSince": "Thu, 01 Jan 2099 00:00:00 GMT"}, "If-Match"),
    ],
)
def test_a_failed_precondition_names_itself(cached: Any, condition: dict[str, str], header: str) -> None:
    """Rule: S3's sentence to the letter, which s3fs looks for, and the header that failed."""
    with pytest.raises(ClientError) as failed:
        cached.get_object(Bucket=BUCKET, Key="cached", **condition)
    error = failed.value.response["Error"]
    assert error["Message"] == "At least one of the pre-conditions you specified did not hold"
    assert error["Condition"] == header


def test_a_range_beyond_the_end(cached: Any) -> None:
    """Rule: InvalidRange has the requested range and the object's size."""
    with pytest.raises(ClientError) as failed:
        cached.get_object(Bucket=BUCKET, Key="cached", Range="bytes=1000-2000")
    error = failed.value.response["Error"]
    assert (error["Code"], error["Message"]) == ("InvalidRange", "The requested range is not satisfiable")
    assert (error["RangeRequested"], error["ActualObjectSize"]) == ("bytes=1000-2000", str(len(BODY)))


def test_errors_have_a_host_id(target: Target) -> None:
    """Rule: RequestId and HostId are in every error, and in the headers that SDKs read; the HostId names no machine."""
    reply = target.post("/-bad-", b"", {})
    assert reply.element("RequestId") == reply.headers["x-amz-request-id"]
    assert reply.element("HostId") == reply.headers["x-amz-id-2"]
    assert len(reply.headers["x-amz-id-2"]) == 44


def test_a_refused_request_is_logged_with_what_it_claims(target: Target) -> None:
    """Rule: the log has bucket, key and access key as claimed, before authentication."""
    for access_key, key, code in (
        ("NOBODY", "a/claim é", "InvalidAccessKeyId"),
        ("GWA", "wrong", "SignatureDoesNotMatch"),
    ):
        with pytest.raises(ClientError):
            target.gateway.client(access_key, "another secret").get_object(Bucket=BUCKET, Key=key)
        line = target.line_of(f" REST.GET.OBJECT {key.replace(' ', '%20').replace('é', '%C3%A9')} ")
        assert f"- {BUCKET} [" in line
        assert f" {access_key} " in line
        assert f" {code} " in line
        assert " SigV4 - AuthHeader " in line


def test_digests_and_customer_keys_stay_out_of_the_log(target: Target) -> None:
    """Rule: malformed blob addresses and unknown parameters are logged without digest or value."""
    digest = "0123456789abcdef" * 4
    paths = [
        f"//-/v1/blobs/{digest}",
        f"/%2d/v1/blobs/{digest}",
        f"/-/v1/%62lobs/{digest}",
        f"/bad%0aname/x?sse-key={digest}",
    ]
    for path in paths:
        connection = target.gateway.connection()
        connection.request("GET", path, headers={"Referer": f"http://h{path}"})
        assert digest.encode() not in connection.getresponse().read()
        connection.close()
    target.line_of("sse-key=REDACTED")
    assert digest not in target.log.read_text() + target.gateway.log.read_text()
    assert all(line.startswith("- ") for line in target.log.read_text().splitlines())


def test_a_presigned_request_of_anothers_making_is_logged_too(target: Target) -> None:
    """Rule: the access key of a presigned address is known before it is verified, its signature is not shown."""
    client = target.gateway.client("GONE", "secret", signature_version="s3")
    address = client.generate_presigned_url("get_object", {"Bucket": BUCKET, "Key": "presigned"})
    connection = target.gateway.connection()
    connection.request("GET", address.partition(f":{target.gateway.port}")[2])
    assert connection.getresponse().status == 403
    connection.close()
    line = target.line_of(" GONE ")
    assert " SigV2 - QueryString " in line
    assert "Signature=REDACTED" in line
