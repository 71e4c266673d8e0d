"""Signatures: AWS's published examples, and keys that are hard to write."""

from datetime import datetime, timedelta, timezone

import pytest

from larder.http import signing
from larder.http.credentials import Credentials

# "Signature Calculations for the Authorization Header: Transferring Payload in a Single Chunk", Amazon S3 API reference.
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
HOST = {"Host": "examplebucket.s3.amazonaws.com"}
MOMENT = datetime(2013, 5, 24, tzinfo=timezone.utc)
PUT_HASH = "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"
PUT_HEADERS = {"Date": "Fri, 24 May 2013 00:00:00 GMT", "x-amz-storage-class": "REDUCED_REDUNDANCY"}


@pytest.mark.parametrize(
    ("method", "path", "parameters", "headers", "payload_hash", "signature"),
    [
        (
            "GET", "/test.txt", {}, {"Range": "bytes=0-9"}, signing.EMPTY_SHA256,
            "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41",
        ),
        (
            "PUT", "/test%24file.text", {}, PUT_HEADERS, PUT_HASH,
            "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd",
        ),
        (
            "GET", "/", {"lifecycle": ""}, {}, signing.EMPTY_SHA256,
            "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543",
        ),
        (
            "GET", "/", {"prefix": "J", "max-keys": "2"}, {}, signing.EMPTY_SHA256,
            "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7",
        ),
    ],
    ids=["GET Object", "PUT Object", "GET Bucket Lifecycle", "List Objects"],
)  # fmt: skip
def test_published_examples(method, path, parameters, headers, payload_hash, signature):
    """Each of AWS's examples has the published signature."""
    query = signing.encode_query(parameters.items())
    sent = signing.sign(EXAMPLE, method, path, query, {**HOST, **headers}, payload_hash, MOMENT)
    assert sent["Authorization"].endswith(f"Signature={signature}")


def test_the_authorization_header():
    """The Authorization header names key, day, region and the signed headers in their order."""
    sent = signing.sign(EXAMPLE, "GET", "/", "", {**HOST, "Accept": "x"}, signing.EMPTY_SHA256, MOMENT)
    start = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
    assert sent["Authorization"].startswith(f"{start}SignedHeaders=accept;host;x-amz-content-sha256;x-amz-date, ")
    assert sent["x-amz-date"] == "20130524T000000Z"


def test_a_session_token_is_sent_and_signed():
    """Temporary credentials carry their token, under the signature."""
    temporary = Credentials("AK", "secret", "the token")
    sent = signing.sign(temporary, "GET", "/", "", HOST, signing.EMPTY_SHA256, MOMENT)
    assert sent["x-amz-security-token"] == "the token"
    assert "x-amz-security-token" in sent["Authorization"]


def test_the_time_is_in_utc():
    """A moment of another time zone is signed as the same moment."""
    there = MOMENT.astimezone(timezone(timedelta(hours=5)))
    assert signing.sign(EXAMPLE, "GET", "/", "", HOST, signing.EMPTY_SHA256, there) == signing.sign(
        EXAMPLE, "GET", "/", "", HOST, signing.EMPTY_SHA256, MOMENT
    )


def test_the_signing_key_of_a_day_is_derived_once():
    """Requests of one day and region share a key."""
    signing.signing_key.cache_clear()
    for hour in range(5):
        signing.sign(EXAMPLE, "GET", "/", "", HOST, signing.EMPTY_SHA256, MOMENT + timedelta(hours=hour))
    assert (signing.signing_key.cache_info().misses, signing.signing_key.cache_info().hits) == (1, 4)


@pytest.mark.parametrize(
    ("key", "path"),
    [
        ("a b", "/b/a%20b"),
        ("100%2F", "/b/100%252F"),
        ("../up//x", "/b/../up//x"),
        ("ü/\n", "/b/%C3%BC/%0A"),
        ("a+b~c?d#e", "/b/a%2Bb~c%3Fd%23e"),
    ],
)
def test_paths(key, path):
    """Keys are encoded byte by byte, and never normalised."""
    assert signing.object_path("b", key) == path


def test_queries_are_in_signing_order():
    """Parameters are encoded and sorted before sending, so the sent query is the signed one."""
    assert signing.encode_query([("prefix", "a b/ü"), ("list-type", "2")]) == "list-type=2&prefix=a%20b%2F%C3%BC"
