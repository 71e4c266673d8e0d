"""Classification: requests that the cache may answer, and keys that a request writes."""

from __future__ import annotations

import pytest

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call, check_bucket, decode_key, resource_of
from gateway.api.s3.classify import (
    changes_object,
    changes_rights,
    not_cacheable,
    refuse_large_metadata,
    refuse_unknown_write,
    uploads_bytes,
)
from gateway.api.s3.objects import is_forced
from gateway.api.s3.payload import PayloadForm
from gateway.model.errors import S3Error
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.outcomes import Reason
from gateway.model.s3.sigv4 import WireRequest

HOST = (b"host", b"h")


def call(
    method: str = "GET",
    key: str | None = "k",
    query: str = "",
    headers: list[tuple[bytes, bytes]] | None = None,
    raw: bytes = b"k",
) -> S3Call:
    """A verified request about ``b/key``."""
    principal = Principal("AK", "t", OriginIdentity("default", "OK"))
    request = WireRequest(method, b"/b/k", query.encode(), headers or [])
    request, kept, names = resource_of(request, frozenset())
    return S3Call(
        request,
        Authenticated(principal, PayloadForm.UNSIGNED, ""),
        "b",
        raw if key else b"",
        ObjectKey("default", "b", key) if key else None,
        kept,
        names,
    )


@pytest.mark.parametrize("query", ["", "x-id=GetObject", "x-amz-checksum-mode=ENABLED&x-id=GetObject"])
def test_plain_reads_are_for_the_cache(query: str) -> None:
    """No parameter, or those that only name the operation again and ask for checksums."""
    assert not_cacheable(call(query=query)) is None


@pytest.mark.parametrize(
    "query",
    [
        "versionId=abc",
        "versionId=",
        "partNumber=1",
        "response-content-type=text/plain",
        "acl",
        "tagging",
        "torrent",
        "anything",
    ],
)
def test_a_parameter_that_changes_the_meaning_goes_to_the_origin(query: str) -> None:
    """The plain cached object never answers for a version, a part, an ACL or an unknown sub-resource."""
    assert not_cacheable(call(query=query)) is Reason.SUBRESOURCE


@pytest.mark.parametrize(
    "name",
    [
        b"x-amz-server-side-encryption-customer-key",
        b"x-amz-request-payer",
        b"x-amz-optional-object-attributes",
        b"access-control-request-method",
    ],
)
def test_a_header_that_changes_the_meaning_goes_to_the_origin(name: bytes) -> None:
    """Unknown x-amz headers may mean anything, so they are the origin's to judge."""
    assert not_cacheable(call(headers=[(name, b"x")])) is Reason.HEADER


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-amz-expected-bucket-owner", b"123456789012"),
        (b"x-amz-request-payer", b"requester"),
        (b"x-amz-cf-id", b"abc=="),
        (b"x-amz-trailer", b"x-amz-checksum-crc32"),
        (b"origin", b"https://viewer.example.org"),
    ],
)
def test_a_header_that_leaves_the_bytes_the_same_does_not(name: bytes, value: bytes) -> None:
    """What is about the bucket, the payer, or the gateway alone does not keep a read from the cache."""
    assert not_cacheable(call(headers=[(name, value)])) is None


def test_a_bare_plus_goes_to_the_origin() -> None:
    """Stores disagree whether a bare "+" in a path is a space."""
    assert not_cacheable(call(raw=b"a+b")) is Reason.ENCODING


@pytest.mark.parametrize("query", ["taging", "foo=bar"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST"])
def test_an_unknown_sub_resource_never_becomes_the_plain_write(method: str, query: str) -> None:
    """DELETE /key?taging must not delete the object."""
    with pytest.raises(S3Error) as refused:
        refuse_unknown_write(call(method, query=query))
    assert refused.value.code == "NotImplemented"


METADATA_WRITES = [
    ("PUT", "abac"), ("POST", "metadataConfiguration"), ("POST", "metadataTable"), ("PUT", "metadataInventoryTable"),
    ("PUT", "metadataJournalTable"), ("PUT", "metadataAnnotationTable"),
]  # fmt: skip
DESTRUCTIVE = [
    ("DELETE", None, "metadataConfiguration"), ("DELETE", None, "metadataTable"), ("PUT", "k", "annotation&annotationName=a"),
    ("DELETE", "k", "annotation&annotationName=a"), ("PUT", "k", "renameObject"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "query"), METADATA_WRITES)
def test_operations_on_metadata_tables_pass(method: str, query: str) -> None:
    """They are writes to a bucket, which may change rights, as any other."""
    made = call(method, None, query)
    refuse_unknown_write(made)
    assert changes_rights(made)


@pytest.mark.parametrize(("method", "key", "query"), DESTRUCTIVE)
def test_an_operation_that_other_stores_take_for_a_deletion_is_refused(
    method: str, key: str | None, query: str
) -> None:
    """A store that ignores the parameter would delete or overwrite the object or the bucket."""
    with pytest.raises(S3Error) as refused:
        refuse_unknown_write(call(method, key, query))
    assert refused.value.code == "NotImplemented"


@pytest.mark.parametrize(
    ("method", "query", "changes"),
    [
        ("PUT", "", True),
        ("DELETE", "", True),
        ("DELETE", "versionId=1", True),
        ("PUT", "acl", True),
        ("PUT", "tagging", True),
        ("POST", "restore", True),
        ("POST", "uploadId=1", True),
        ("PUT", "partNumber=1&uploadId=1", False),
        ("DELETE", "uploadId=1", False),
        ("PUT", "uploadId=1", True),
        ("PUT", "partNumber=&uploadId=1", True),
        ("PUT", "partNumber=1&uploadId=", True),
        ("DELETE", "uploadId=", True),
        ("POST", "uploads", False),
        ("POST", "select&select-type=2", False),
        ("GET", "", False),
    ],
)
def test_which_requests_make_the_caches_forget(method: str, query: str, changes: bool) -> None:
    """Requests that may change reads or rights make the caches forget; those invisible until completion do not."""
    assert changes_object(call(method, query=query)) is changes


def test_a_write_to_a_path_with_a_bare_plus_is_one_to_both_readings() -> None:
    """The caches forget, and the allow-list must cover, whichever object the store takes it for."""
    assert [key.key for key in call("PUT", key="a+b", raw=b"a+b").keys] == ["a+b", "a b"]
    assert [key.key for key in call("PUT", key="a+b", raw=b"a%2Bb").keys] == ["a+b"]
    assert call("PUT", key=None).keys == ()


@pytest.mark.parametrize("bucket", ["..", ".", "a..b", "a/b", "a\\b", "", "ä", "a b", "x" * 256, "-x", "a@b"])
def test_what_can_be_no_bucket_is_refused(bucket: str) -> None:
    """A bucket name can be neither a path nor another host."""
    with pytest.raises(S3Error) as refused:
        check_bucket(bucket)
    assert refused.value.code == "InvalidBucketName"


def test_keys_are_decoded_once_and_never_normalised() -> None:
    """Dots, double slashes, encoded slashes and encoded percent signs are part of the key."""
    assert decode_key(b"../a//b/./c%2Fd%252F%E2%82%AC%0A") == "../a//b/./c/d%2F€\n"


def test_a_key_of_1024_bytes_is_the_longest() -> None:
    """Bytes count, not characters."""
    assert len(decode_key(b"%C3%A4" * 512)) == 512
    with pytest.raises(S3Error) as refused:
        decode_key(b"%C3%A4" * 512 + b"a")
    assert refused.value.code == "KeyTooLongError"


def test_a_key_must_be_utf8() -> None:
    """S3 keys are UTF-8."""
    with pytest.raises(S3Error) as refused:
        decode_key(b"%FF%FE")
    assert refused.value.code == "InvalidURI"


def test_only_the_signature_leaves_the_query() -> None:
    """The remaining parameters keep their order and are encoded again."""
    request = WireRequest("GET", b"/b", b"list-type=2&X-Amz-Signature=s&%70refix=a/b+c&&marker", [])
    _, kept, names = resource_of(request, frozenset({"X-Amz-Signature"}))
    assert (kept, names) == ("list-type=2&prefix=a%2Fb%20c&marker", {"list-type", "prefix", "marker"})


def test_a_header_that_presigning_moved_into_the_query_is_a_header_again() -> None:
    """Permissions, classification and the origin see it where they look for it; the order of other headers stays."""
    request = WireRequest(
        "PUT", b"/b/k", b"X-Amz-Acl=private&x-amz-meta-a_b=1&content-type=a%2Fb&x-id=PutObject", [HOST]
    )
    found, kept, _ = resource_of(request, frozenset())
    assert found.headers == [HOST, (b"x-amz-acl", b"private"), (b"x-amz-meta-a_b", b"1"), (b"content-type", b"a/b")]
    assert kept == "x-id=PutObject"


def test_a_header_and_its_moved_twin_must_say_the_same() -> None:
    """Signatures cover one of them, and stores differ in which one counts."""
    twice = [HOST, (b"x-amz-acl", b"private")]
    found, _, _ = resource_of(WireRequest("PUT", b"/b/k", b"x-amz-acl=private", twice), frozenset())
    assert found.headers == twice
    with pytest.raises(S3Error) as refused:
        resource_of(WireRequest("PUT", b"/b/k", b"x-amz-acl=public-read", twice), frozenset())
    assert refused.value.code == "InvalidArgument"


def test_a_checksum_in_the_query_stays_there() -> None:
    """The JavaScript SDK presigns the checksum of an empty body, which a store would compare with the real one."""
    query = b"x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32"
    found, kept, _ = resource_of(WireRequest("PUT", b"/b/k", query, [HOST]), frozenset())
    assert (found.headers, kept) == ([HOST], query.decode())


def test_a_read_that_must_not_be_stored_goes_to_the_origin() -> None:
    """Cache-Control: no-store sends a read to the origin, in any letter case and on any line (RFC 9111, 5.2.1.5)."""
    for lines in ([b"no-store"], [b"max-age=5, No-Store"], [b"max-age=5", b"NO-STORE"]):
        headers = [(b"cache-control", line) for line in lines]
        assert not_cacheable(call(headers=headers)) is Reason.HEADER
    assert not_cacheable(call(headers=[(b"cache-control", b"max-age=5")])) is None


@pytest.mark.parametrize(
    ("lines", "forced"),
    [
        ([b"no-cache"], True),
        ([b"No-Cache"], True),
        ([b"MAX-AGE=0"], True),
        ([b'max-age="0"'], True),
        ([b"max-stale=5", b"no-cache"], True),
        ([b"max-age=01"], False),
        ([b"max-age=60"], False),
        ([b"x=no-cache"], False),
        ([], False),
    ],
)
def test_a_read_that_must_be_checked(lines: list[bytes], forced: bool) -> None:
    """Cache-Control: no-cache or max-age=0 forces a check, in any case and on any line (RFC 9111, 5.2.1; RFC 9110, 5.3)."""
    assert is_forced(call(headers=[(b"cache-control", line) for line in lines])) is forced


@pytest.mark.parametrize("query", ["", "x-id=PutObject", "partNumber=1&uploadId=u"])
def test_a_put_of_a_key_uploads_bytes(query: str) -> None:
    """An object or a part: S3 wants to know its length."""
    assert uploads_bytes(call("PUT", query=query))


@pytest.mark.parametrize(
    "request_",
    [
        call("PUT", headers=[(b"x-amz-copy-source", b"/b/other")]),
        call("PUT", query="partNumber=1&uploadId=u", headers=[(b"x-amz-copy-source", b"/b/other")]),
        call("PUT", query="acl"),
        call("PUT", query="tagging"),
        call("PUT", key=None),
        call("POST", query="uploads"),
        call("DELETE"),
    ],
    ids=["copy", "copy of a part", "acl", "tagging", "bucket", "post", "delete"],
)
def test_what_brings_no_bytes_uploads_none(request_: S3Call) -> None:
    """Copies, descriptions and everything about buckets: their body, if any, is a document."""
    assert not uploads_bytes(request_)


@pytest.mark.parametrize(
    ("query", "headers", "wanted"),
    [
        ("", [], False),
        ("", [(b"x-amz-checksum-mode", b"enabled")], True),
        ("x-amz-checksum-mode=ENABLED", [], True),
        ("x-amz-checksum-mode=DISABLED&x-id=GetObject", [], False),
        ("x-amz-checksum-modes=ENABLED", [], False),
    ],
)
def test_checksums_are_asked_for_in_header_or_query(
    query: str, headers: list[tuple[bytes, bytes]], wanted: bool
) -> None:
    """The header or, in a presigned address, the query asks for checksums."""
    assert call(query=query, headers=headers).wants_checksums is wanted


def test_user_metadata_ends_at_two_kilobytes() -> None:
    """Names and values count together, without the prefix; S3's limit is 2,048 bytes."""
    refuse_large_metadata(call("PUT", headers=[(b"x-amz-meta-a", b"x" * 2047)]))
    with pytest.raises(S3Error) as refused:
        refuse_large_metadata(call("PUT", headers=[(b"x-amz-meta-a", b"x" * 1000), (b"x-amz-meta-b", b"x" * 1047)]))
    assert (refused.value.code, refused.value.extra["Size"]) == ("MetadataTooLarge", "2049")


@pytest.mark.parametrize(
    ("method", "key", "changes"),
    [("PUT", None, True), ("DELETE", None, True), ("POST", None, True), ("GET", None, False), ("PUT", "k", False)],
)
def test_every_write_to_a_bucket_may_change_rights(method: str, key: str | None, changes: bool) -> None:
    """Rule: the store decides which sub-resources set rights, today and tomorrow."""
    assert changes_rights(call(method, key, query="policy")) is changes
