"""Headers of requests: forwarded, kept back, refused."""

from __future__ import annotations

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.errors import S3Error
from gateway.model.s3.request_headers import FORWARDED, is_forwarded, require_unambiguous
from gateway.model.s3.sigv4 import WireRequest

# Object Lambda answers, renaming and the body's length are not requests that are forwarded with these headers.
_NOT_FORWARDED = ("x-amz-fwd-", "x-amz-request-", "x-amz-rename-source", "content-length")


def require(*headers: tuple[bytes, bytes]) -> None:
    """Check a request with these headers."""
    request = WireRequest("PUT", b"/b/k", b"", [(b"host", b"h"), *headers])
    require_unambiguous(request.headers, request.fields)


def refusal(*headers: tuple[bytes, bytes]) -> str:
    """The code with which these headers are refused."""
    with pytest.raises(S3Error) as refused:
        require(*headers)
    return refused.value.code


def test_what_s3_defines_is_forwarded() -> None:
    """Every header that an operation of botocore's model sends reaches the origin."""
    model = botocore.session.get_session().get_service_model("s3")
    shapes = [model.operation_model(name).input_shape for name in model.operation_names]
    members = [member for shape in shapes if shape is not None for member in shape.members.values()]
    names = {
        str(member.serialization["name"]).lower()
        for member in members
        if member.serialization.get("location") == "header"
    }
    names -= {name for name in names if name.startswith(_NOT_FORWARDED) and name != "x-amz-request-payer"}
    assert len(names) > 80
    assert {name for name in names if not is_forwarded(name.encode())} == set()
    require(*((name.encode(), b"v") for name in names))


@pytest.mark.parametrize(
    "name",
    [
        "authorization", "host", "connection", "te", "trailer", "transfer-encoding", "upgrade", "content-length", "expect",
        "date", "x-amz-date", "x-amz-security-token", "x-amz-content-sha256", "x-amz-decoded-content-length", "x-amz-trailer",
        "accept-encoding", "user-agent", "forwarded", "x-forwarded-for", "x-original-url", "via", "cookie", "x-larder-peer",
        "x-http-method-override", "x-minio-force-delete", "x-goog-acl", "x-rgw-acl", "x_amz_acl", "x-amz-meta_a", "anything",
    ],
)  # fmt: skip
def test_nothing_else_is_forwarded(name: str) -> None:
    """Headers for the gateway, of proxies, of other vendors, and unknown ones."""
    assert not is_forwarded(name.encode())


@pytest.mark.parametrize(
    "name",
    [
        b"x_amz_acl", b"x_amz-copy-source", b"x-amz_copy_source", b"x.amz.acl", b"x-amz-meta_a", b"x_amz_meta_a",
        b"content_length", b"content_type", b"transfer_encoding", b"if_none_match", b"access_control_request_method",
        b"x_amz_unheard_of", b"x-amz-checksum_crc32", b"x-amz-server-side-encryption-customer_key",
    ],
)  # fmt: skip
def test_a_name_that_folds_into_one_with_a_meaning_is_refused(name: bytes) -> None:
    """CGI, WSGI and radosgw read "_" and "-" as one character."""
    assert refusal((name, b"1")) == "InvalidArgument"


@given(st.sampled_from(sorted(FORWARDED)).filter(lambda name: b"-" in name), st.sampled_from(b"_.!~'*+|^`$#&"))
def test_every_name_with_a_meaning_has_one_spelling(name: bytes, other: int) -> None:
    """A known name with any other character in place of a hyphen is refused."""
    assert refusal((name.replace(b"-", bytes([other]), 1), b"1")) == "InvalidArgument"


def test_user_metadata_may_have_any_name() -> None:
    """boto3's ``Metadata={"my_key": ...}`` is ``x-amz-meta-my_key``: however it is read, it is metadata."""
    for name in (b"x-amz-meta-my_key", b"x-amz-meta-a.b", b"x-amz-meta-x_amz_acl"):
        require((name, b"1"))
        assert is_forwarded(name)


def test_names_without_a_meaning_pass_and_stay_here() -> None:
    """Headers of tracing and proxies are accepted in any form."""
    require((b"x_request_id", b"1"), (b"traceparent", b"2"), (b"x-forwarded-for", b"a"), (b"x-forwarded-for", b"b"))


def test_an_unknown_amz_header_is_refused() -> None:
    """An unknown x-amz header is refused, because it may change the request's meaning unseen by cache and allow-list."""
    assert refusal((b"x-amz-new-thing", b"1")) == "NotImplemented"


@pytest.mark.parametrize(
    "name",
    [
        b"authorization", b"host", b"date", b"range", b"content-length", b"content-type", b"content-md5", b"x-amz-copy-source",
        b"x-amz-acl", b"x-amz-tagging", b"x-amz-date", b"x-amz-content-sha256", b"x-amz-checksum-crc32", b"if-modified-since",
        b"x-amz-server-side-encryption-customer-key", b"if-range", b"origin",
    ],
)  # fmt: skip
def test_a_header_with_one_value_has_one_line(name: bytes) -> None:
    """A repeated single-value header is refused, because servers differ in the line that they use."""
    assert refusal((name, b"1"), (name, b"1")) == "InvalidArgument"


def test_lines_of_a_list_are_one_list() -> None:
    """RFC 9110, 5.3; user metadata too, as S3 says."""
    lists = (b"if-match", b"if-none-match", b"cache-control", b"content-encoding", b"x-amz-meta-a")
    for name in lists:
        require((name, b"1"), (name, b"2"))
        assert WireRequest("GET", b"/", b"", [(name, b"1 "), (b"x", b""), (name, b" 2")]).fields.get(name) == b"1,2"


@pytest.mark.parametrize("value", [b"x-amz-acl", b"close, X-Amz-Copy-Source", b"If-None-Match", b"keep-alive,range"])
def test_connection_cannot_take_a_header_away(value: bytes) -> None:
    """Proxies drop what Connection names (RFC 9110, 7.6.1): a signed condition would be lost without a trace."""
    assert refusal((b"connection", value)) == "InvalidArgument"


@pytest.mark.parametrize("value", [b"keep-alive", b"Close", b"Upgrade, HTTP2-Settings", b"close, TE"])
def test_connection_may_name_what_is_its_own(value: bytes) -> None:
    """Clients that offer HTTP/2 do."""
    require((b"connection", value))
