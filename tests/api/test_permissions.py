"""Permissions that the gateway checks itself: allow-lists and read-only keys."""

from __future__ import annotations

import pytest

from gateway.api.s3.auth import Authenticated
from gateway.api.s3.call import S3Call, resource_of
from gateway.api.s3.payload import PayloadForm
from gateway.api.s3.permissions import check
from gateway.model.errors import S3Error
from gateway.model.keys import ObjectKey, OriginIdentity, Principal
from gateway.model.s3.sigv4 import WireRequest


def allowed(
    method: str,
    bucket: str,
    key: str | None,
    query: str = "",
    *,
    allow: tuple[str, ...] = ("b/train/**",),
    read_only: bool = False,
    copy_source: bytes | None = None,
) -> bool:
    """True if a request by a key with this allow-list passes."""
    principal = Principal("AK", "t", OriginIdentity("default", "OK"), allow, read_only)
    headers = [(b"x-amz-copy-source", copy_source)] if copy_source else []
    request, kept, names = resource_of(WireRequest(method, b"/", query.encode(), headers), frozenset())
    target = ObjectKey("default", bucket, key) if key else None
    call = S3Call(request, Authenticated(principal, PayloadForm.UNSIGNED, ""), bucket, b"", target, kept, names)
    try:
        check(call)
    except S3Error as error:
        if error.code == "AccessDenied":
            return False
        raise
    return True


def test_without_an_allow_list_the_origin_decides() -> None:
    """An empty list covers everything."""
    assert allowed("GET", "any", "thing", allow=())


def test_keys_outside_the_list_are_refused() -> None:
    """The list is about bucket and key together."""
    assert allowed("GET", "b", "train/1")
    assert not allowed("GET", "b", "test/1")
    assert not allowed("GET", "c", "train/1")


def test_a_copy_needs_its_source_too() -> None:
    """The allow-list must cover the source too, or a copy would bypass it."""
    assert allowed("PUT", "b", "train/x", copy_source=b"/b/train/y?versionId=1")
    assert not allowed("PUT", "b", "train/x", copy_source=b"b/secret/y")
    assert not allowed("PUT", "b", "train/x", copy_source=b"%2Fb%2Fsecret%2Fy")


def test_a_copy_source_in_the_query_is_one() -> None:
    """Presigning moves the header there."""
    assert allowed("PUT", "b", "train/x", "x-amz-copy-source=%2Fb%2Ftrain%2Fy")
    assert not allowed("PUT", "b", "train/x", "x-amz-copy-source=%2Fb%2Fsecret%2Fy")


@pytest.mark.parametrize("source", [b"b/secret?/public", b"b/a/public?versionId=1&versionId=2", b"b/a/public?x=1"])
def test_a_copy_source_that_stores_read_differently_is_refused(source: bytes) -> None:
    """radosgw ends the key at the first "?", so a source with anything but one ``versionId`` after it is refused."""
    assert allowed("PUT", "b", "a/public", allow=("b/*/public", "b/*?*"), copy_source=b"b/a/public?versionId=1")
    assert not allowed("PUT", "b", "a/public", allow=("b/*/public", "b/*?*"), copy_source=source)


def test_a_copy_source_names_a_bucket() -> None:
    """radosgw reads "tenant:bucket", and S3 an access point, where a bucket would stand."""
    for source in (b"tenant:b/train/x", b"arn:aws:s3:r:1:accesspoint/p/object/train/x"):
        with pytest.raises(S3Error, match="InvalidBucketName"):
            allowed("PUT", "b", "train/x", allow=("**",), copy_source=source)


def test_a_bare_plus_in_a_copy_source_is_judged_as_both_readings() -> None:
    """Stores differ in whether it is a space."""
    assert allowed("PUT", "b", "train/x", copy_source=b"b/train/a+b")
    assert not allowed("PUT", "b", "train/x", allow=("b/train/x", "b/a+b"), copy_source=b"b/a+b")
    assert allowed("PUT", "b", "train/x", allow=("b/train/x", "b/a+b"), copy_source=b"b/a%2Bb")


@pytest.mark.parametrize(
    ("query", "passes"),
    [
        ("list-type=2&prefix=train/", True),
        ("list-type=2&prefix=train%2Fdeep%2F", True),
        ("list-type=2&prefix=tra", False),
        ("list-type=2", False),
        ("location", True),
        ("policy", False),
        ("acl", False),
    ],
)
def test_listings_are_covered_by_their_prefix(query: str, passes: bool) -> None:
    """A listing must not reveal names outside the list."""
    assert allowed("GET", "b", None, query) is passes


@pytest.mark.parametrize(
    "query",
    [
        "list-type=2&%70refix=test/",
        "policy&prefix=train/",
        "acl&prefix=train/",
    ],
)
def test_what_only_looks_like_a_covered_listing_is_refused(query: str) -> None:
    """The prefix counts decoded, and other sub-resources ignore it."""
    assert not allowed("GET", "b", None, query)
    assert allowed("GET", "b", None, query, allow=("b/**",))


def test_the_list_of_buckets_needs_a_list_of_everything() -> None:
    """ListBuckets shows all buckets of the origin's owner."""
    assert not allowed("GET", "", None)
    assert allowed("GET", "", None, allow=("**",))


def test_buckets_are_changed_only_by_who_may_touch_all_of_them() -> None:
    """Deleting a bucket or setting its policy concerns every key in it."""
    assert not allowed("DELETE", "b", None)
    assert allowed("DELETE", "b", None, allow=("b/**",))


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE"])
def test_read_only_keys_write_nothing(method: str) -> None:
    """A read-only key is refused every write, for any method and target."""
    assert not allowed(method, "b", "train/1", read_only=True)
    assert allowed("GET", "b", "train/1", read_only=True)
