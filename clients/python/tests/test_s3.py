"""The small S3 reader, against a scripted store; the repository's tests use real stores."""

import base64
import hashlib
from contextlib import suppress
from urllib.parse import quote, unquote
from xml.sax.saxutils import escape

import pytest
from fake_gateway import FakeBatchGateway, Store, serving

import larder
from larder import S3, ListedObject, ObjectHead

KEY = larder.Credentials("key", "secret")
AT_ONCE = larder.Retry(attempts=3, base=0)
KEYS = [
    "a b",
    "ü/é",
    "x%2Fy",
    "../up",
    "dir/../z",
    "a//b",
    "new\nline",
    "+ +",
    "~'()*!",
    "k" * 1024,
    "é" * 512,
    "t/",
    "q?x=1&y#f",
]
BODY = bytes(range(100))


def _error(handler, status, code):
    body = f"<Error><Code>{code}</Code><Message>told so</Message></Error>".encode()
    handler.send(status, b"" if handler.command == "HEAD" else body, Content_Type="application/xml")


def _object(handler, asked):
    """GET and HEAD of one object under any key but "missing", with ranges and If-Match."""
    headers = {"ETag": '"etag"', "x_amz_checksum_sha256": base64.b64encode(hashlib.sha256(BODY).digest()).decode()}
    if unquote(asked.path).endswith("/missing"):
        return _error(handler, 404, "NoSuchKey")
    if asked.headers.get("If-Match", '"etag"') != '"etag"':
        return _error(handler, 412, "PreconditionFailed")
    if asked.method == "HEAD":
        handler.send(200, Content_Length=str(len(BODY)), **{name: headers[name] for name in headers})
        return None
    if "Range" not in asked.headers:
        return handler.send(200, BODY, **headers)
    first, _, last = asked.headers["Range"].removeprefix("bytes=").partition("-")
    if int(first) >= len(BODY):
        return _error(handler, 416, "InvalidRange")
    return handler.send(206, BODY[int(first) : int(last) + 1 if last else None], **headers)


@pytest.fixture
def server():
    """A store that has ``BODY`` under every key but "missing"."""
    with serving(FakeBatchGateway(Store({}))) as server:
        server.other = _object
        yield server


@pytest.fixture
def s3(server):
    """A reader of that store."""
    return S3(server.endpoint, credentials=KEY, retry=AT_ONCE)


@pytest.mark.parametrize("key", KEYS)
def test_keys_reach_the_store_unchanged(s3, server, key):
    """The path decodes to the key, for any characters."""
    assert s3.get("bucket", key) == BODY
    assert unquote(server.asked[0].path) == f"/bucket/{key}"


@pytest.mark.parametrize(
    ("offset", "length", "expected"),
    [
        (None, None, BODY),
        (0, None, BODY),
        (0, 10, BODY[:10]),
        (None, 10, BODY[:10]),
        (90, None, BODY[90:]),
        (5, 1, BODY[5:6]),
    ],
)
def test_ranges(s3, offset, length, expected):
    """Any part of an object can be read."""
    assert s3.get("bucket", "key", offset=offset, length=length) == expected


def test_no_bytes_cost_no_request(s3, server):
    """HTTP has no empty range."""
    assert s3.get("bucket", "key", offset=5, length=0) == b""
    assert server.asked == []


def test_a_store_that_ignores_ranges(s3, server):
    """A whole object in answer to a range is cut to the range."""
    server.other = lambda handler, asked: handler.send(200, BODY)
    assert s3.get("bucket", "key", offset=5, length=3) == BODY[5:8]


@pytest.mark.parametrize(("offset", "length"), [(95, 10), (200, 1), (200, None)])
def test_an_object_that_is_too_short(s3, offset, length):
    """An object without the requested bytes is reported as changed."""
    with pytest.raises(larder.ObjectChanged):
        s3.get("bucket", "key", offset=offset, length=length)


def test_typed_errors(s3):
    """Missing and changed objects raise different errors, with bucket, key and S3's code."""
    with pytest.raises(larder.ObjectMissing, match=r"bucket/'missing': NoSuchKey \(404\): told so"):
        s3.get("bucket", "missing")
    with pytest.raises(larder.ObjectMissing, match="NoSuchKey"):
        s3.head("bucket", "missing")
    with pytest.raises(larder.ObjectChanged, match="PreconditionFailed"):
        s3.get("bucket", "key", if_match='"other"')


def test_a_store_that_ignores_what_is_asked(s3, server):
    """A part sent with status 200 is that part, and another ETag than If-Match is a changed object, as with rclone serve s3."""

    def answer(handler, asked):
        return handler.send(200, BODY[5:9], ETag='"etag"', Content_Range="bytes 5-8/100")

    server.faults = [answer, answer, answer]
    assert s3.get("bucket", "key", offset=5, length=4) == BODY[5:9]
    assert s3.get("bucket", "key", offset=5, length=4, if_match="etag") == BODY[5:9]
    with pytest.raises(larder.ObjectChanged, match="its ETag is"):
        s3.get("bucket", "key", offset=5, length=4, if_match='"other"')


def test_a_refusal(s3, server):
    """A 403 is not retried."""
    server.faults = [lambda handler, asked: _error(handler, 403, "AccessDenied")]
    with pytest.raises(larder.S3Error, match="AccessDenied") as caught:
        s3.get("bucket", "key")
    assert (caught.value.status, caught.value.bucket, caught.value.key, len(server.asked)) == (403, "bucket", "key", 1)


def test_a_bucket_of_another_region(s3, server):
    """The error names the region and what to set."""
    header = {"x_amz_bucket_region": "eu-west-3"}
    server.faults = [lambda handler, asked: handler.send(301, b"", **header)]
    with pytest.raises(larder.S3Error, match="the bucket is in eu-west-3; set AWS_REGION"):
        s3.get("bucket", "key")


@pytest.mark.parametrize(
    "fault",
    [
        lambda handler, asked: _error(handler, 503, "SlowDown"),
        lambda handler, asked: _error(handler, 500, "InternalError"),
        lambda handler, asked: _error(handler, 400, "RequestTimeout"),
        lambda handler, asked: handler.reset(),
        lambda handler, asked: (
            handler.send(200, BODY[:50], Content_Length="100") or setattr(handler, "close_connection", True)
        ),
    ],
    ids=["503", "500", "timeout", "reset", "cut"],
)
def test_passing_trouble_is_retried(s3, server, fault):
    """Temporary failures, including cut bodies, are retried."""
    server.faults = [fault] * 2
    assert s3.get("bucket", "key") == BODY
    assert len(server.asked) == 3


def test_a_store_that_is_gone(s3, server):
    """After the last attempt the error names the failure and the store."""
    server.faults = [lambda handler, asked: handler.reset()] * 3
    with pytest.raises(larder.S3Error, match=r"ConnectionResetError .*127\.0\.0\.1") as caught:
        s3.get("bucket", "key")
    assert caught.value.status == 0


def test_stream(s3):
    """A body can be read in pieces, and be left half-read."""
    with s3.stream("bucket", "key", offset=10) as response:
        assert (response.status, response.read(5), response.headers["ETag"]) == (206, BODY[10:15], '"etag"')
    with s3.stream("bucket", "key") as response:
        assert response.read() == BODY
    with pytest.raises(larder.ObjectMissing), s3.stream("bucket", "missing"):
        pass


def test_head(s3, server):
    """HEAD requests checksums, and returns size, ETag and the checksum of the whole object."""
    assert s3.head("bucket", "key") == ObjectHead(100, '"etag"', hashlib.sha256(BODY).digest())
    assert server.asked[0].headers["x-amz-checksum-mode"] == "ENABLED"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x_amz_checksum_sha256": "AAAA-3"},
        {"x_amz_checksum_sha256": base64.b64encode(bytes(32)).decode(), "x_amz_checksum_type": "COMPOSITE"},
        {"x_amz_checksum_sha256": "AAAA"},
        {"x_amz_checksum_sha256": "no base64!"},
    ],
)
def test_checksums_that_are_not_of_the_object(s3, server, headers):
    """A checksum over parts, a missing one and an invalid one do not count as the object's hash."""
    server.other = lambda handler, asked: handler.send(200, Content_Length="3", **headers)
    assert s3.head("bucket", "key").sha256 is None


def _listing(handler, asked, *, size=5, encoded=True):
    """ListObjectsV2 over ``KEYS`` in pages, keys form-encoded as S3 does it."""
    keys = sorted((key for key in KEYS if key.startswith(asked.query.get("prefix", ""))), key=str.encode)
    start = int(asked.query.get("continuation-token", "0"))
    rows = "".join(
        f"<Contents><Key>{quote(key, safe='/').replace('%20', '+') if encoded else escape(key)}</Key>"
        f"<Size>{len(key)}</Size><ETag>&quot;e&quot;</ETag></Contents>"
        for key in keys[start : start + size]
    )
    more = start + size < len(keys)
    token = f"<NextContinuationToken>{start + size}</NextContinuationToken>" if more else ""
    body = (
        '<?xml version="1.0"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"{'<EncodingType>url</EncodingType>' if encoded else ''}<IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}"
        "</ListBucketResult>"
    )
    handler.send(200, body.encode(), Content_Type="application/xml")


@pytest.mark.parametrize("encoded", [True, False])
def test_list(s3, server, encoded):
    """All pages are read, and keys are returned decoded, whether or not the store encodes them."""
    server.other = lambda handler, asked: _listing(handler, asked, encoded=encoded)
    listed = list(s3.list("bucket"))
    assert [entry.key for entry in listed] == sorted(KEYS, key=str.encode)
    assert listed[0] == ListedObject(listed[0].key, len(listed[0].key), '"e"')
    assert len(server.asked) == 3


def test_list_parameters(s3, server):
    """A prefix and a key to begin after are the store's business."""
    server.other = _listing
    assert [entry.key for entry in s3.list("bucket", "a", start_after="0")] == ["a b", "a//b"]
    assert server.asked[0].query == {"encoding-type": "url", "list-type": "2", "prefix": "a", "start-after": "0"}


@pytest.mark.parametrize("body", [b"hello", b"", b'<!DOCTYPE x [<!ENTITY y "z">]><ListBucketResult/>'])
def test_a_listing_that_is_none(s3, server, body):
    """An answer that is not a listing is an error, not an empty bucket."""
    server.other = lambda handler, asked: handler.send(200, body)
    with pytest.raises(larder.S3Error, match="MalformedXML"):
        list(s3.list("bucket"))


def test_a_listing_that_is_cut(s3, server):
    """A page that ends early is read again."""

    def cut(handler, asked):
        handler.send(200, b"<ListBucketResult>", Content_Length="500")
        handler.close_connection = True

    server.faults = [cut]
    server.other = _listing
    assert len(list(s3.list("bucket"))) == len(KEYS)


def test_the_endpoint_of_aws(monkeypatch, tmp_path):
    """Without a configured endpoint, the client uses AWS's for the region."""
    for name in ("LARDER_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_PROFILE", "AWS_CONFIG_FILE"):
        with suppress(KeyError):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert (
        S3(credentials=larder.Credentials("a", "b", region="eu-west-1")).endpoint
        == "https://s3.eu-west-1.amazonaws.com"
    )
