"""The parameters of a request: read once, and forwarded as they were read."""

from __future__ import annotations

import botocore.session
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.errors import S3Error
from gateway.model.s3.query import PAGING, SUB_RESOURCES, Query, query_pairs

NAMES = st.text("abcXYZ09-_.~*'", min_size=1, max_size=8).map(str.encode)


def refusal(query: bytes) -> str:
    """The code with which a query is refused."""
    with pytest.raises(S3Error) as refused:
        Query.read(query)
    return refused.value.code


@pytest.mark.parametrize(
    ("query", "text"),
    [
        (b"", ""),
        (b"%61cl", "acl"),
        (b"acl=", "acl="),
        (b"&acl&&x=1&", "acl&x=1"),
        (b"prefix=a+b", "prefix=a%20b"),
        (b"prefix=a;acl", "prefix=a%3Bacl"),
        (b"prefix=%2561&marker=%26%3d%2b", "prefix=%2561&marker=%26%3D%2B"),
        (b"prefix=a=b?c/d#e", "prefix=a%3Db%3Fc%2Fd%23e"),
    ],
)
def test_what_is_forwarded_is_what_was_read(query: bytes, text: str) -> None:
    """A query is forwarded in one canonical spelling, for any spelling of the client."""
    assert Query.read(query).text == text


@given(st.dictionaries(NAMES, st.text(max_size=4).map(str.encode), max_size=5))
def test_reading_what_was_written_gives_the_same(parameters: dict[bytes, bytes]) -> None:
    """The origin decodes the very names and values that were verified and classified."""
    query = Query(tuple(parameters.items()))
    assert Query.read(query.text.encode()).pairs == query.pairs
    assert tuple(query_pairs(query.text.encode())) == query.pairs


@pytest.mark.parametrize("query", [b"a=%", b"a=%4", b"a=%zz", b"%zz=1", b"prefix=%%41"])
def test_an_escape_that_is_none_is_refused(query: bytes) -> None:
    """Some decode it, some keep it, some end the text there."""
    assert refusal(query) == "InvalidURI"


@pytest.mark.parametrize("query", [b"prefix=%80", b"acl&a=%c3", b"marker=%ed%a0%80"])
def test_a_value_that_is_not_utf_8_is_refused(query: bytes) -> None:
    """Some stores replace such bytes before they check the signature, and seem to refuse the gateway's key."""
    assert refusal(query) == "InvalidURI"


@pytest.mark.parametrize(
    "query",
    [b"=", b"=x", b"acl%3Dx", b"?acl", b"%3Facl", b"%2561cl", b"a%26acl", b"acl%00", b"a+cl", b"acl;x", b"%c3%a4"],
)
def test_a_name_that_could_be_read_as_another_is_refused(query: bytes) -> None:
    """radosgw decodes before it looks for "=", and skips a second "?"; others decode twice or know ";"."""
    assert refusal(query) == "InvalidRequest"


@pytest.mark.parametrize(
    "query", [b"acl&acl", b"uploadId=&uploadId=x", b"prefix=a&%70refix=b", b"a=1&a=1", b"X-Amz-Date=1&X-Amz-Date=2"]
)
def test_a_name_is_there_once(query: bytes) -> None:
    """Stores differ in which of two counts."""
    assert refusal(query) == "InvalidRequest"


@pytest.mark.parametrize(
    "query", [b"ACL", b"ACL=", b"versionid=1", b"Prefix=a", b"Uploads", b"signature=x", b"EXPIRES=1"]
)
def test_a_known_name_has_one_case(query: bytes) -> None:
    """A known name in another case is refused: a case-insensitive store would act on an unclassified parameter."""
    assert refusal(query) == "InvalidRequest"


def test_moved_headers_are_there_once_whatever_their_case() -> None:
    """Header names have no case."""
    with pytest.raises(S3Error, match="InvalidRequest"):
        Query.read(b"x-amz-acl=a&X-Amz-Acl=b").divided(frozenset())


@pytest.mark.parametrize("query", [b"x-amz-unheard-of=1", b"x-amz-date=1", b"X-Amz-Expires=1", b"x-amz-signature=1"])
def test_an_amz_parameter_that_is_no_header_of_s3_is_refused(query: bytes) -> None:
    """A signature's parameters of another scheme included."""
    with pytest.raises(S3Error, match="NotImplemented"):
        Query.read(query).divided(frozenset())


def test_s3s_own_parameters_are_known() -> None:
    """A sub-resource that SigV2 does not sign could be added by any holder of an address, so it is refused."""
    model = botocore.session.get_session().get_service_model("s3")
    found = set()
    for name in model.operation_names:
        operation = model.operation_model(name)
        query = operation.http["requestUri"].partition("?")[2]
        found |= {piece.partition("=")[0] for piece in query.split("&") if piece}
        shape = operation.input_shape
        members = shape.members.values() if shape is not None else ()
        found |= {
            str(member.serialization["name"])
            for member in members
            if member.serialization.get("location") == "querystring"
        }
    # What SigV2 refuses: details of sub-resources, and of the list of buckets.
    details = {
        "annotation-prefix",
        "annotationName",
        "bucket-region",
        "id",
        "max-annotation-results",
        "max-directory-buckets",
    }
    assert {name.encode() for name in found - details} - SUB_RESOURCES - PAGING == set()
