"""SigV4: published vectors, botocore as an independent signer, and what malformed claims are answered with."""

from __future__ import annotations

import hmac
from urllib.parse import quote, unquote_to_bytes

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from gateway.model.errors import S3Error
from gateway.model.s3 import sigv4
from gateway.model.s3.query import query_pairs
from gateway.model.s3.sigv4_claims import parse_authorization, parse_query_claim

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
_MALFORMED = "AuthorizationHeaderMalformed"
SCOPE = b"20130524/us-east-1/s3/aws4_request"


def _example(method: str, path: str, query: str, headers: list[tuple[str, str]], payload_hash: str) -> str:
    """Sign as in the examples of "Signature Calculations for the Authorization Header" (2013-05-24, us-east-1)."""
    everything = [
        ("Host", "examplebucket.s3.amazonaws.com"),
        ("x-amz-date", "20130524T000000Z"),
        ("x-amz-content-sha256", payload_hash),
        *headers,
    ]
    key = sigv4.signing_key(SECRET, "20130524", "us-east-1")
    value = sigv4.prepare(everything, payload_hash, "AKIAIOSFODNN7EXAMPLE", key, "20130524T000000Z", "us-east-1").sign(
        method, path, query
    )
    return value.rpartition("Signature=")[2]


def test_example_get_object() -> None:
    """AWS's example "GET Object" has the published signature."""
    signature = _example("GET", "/test.txt", "", [("Range", "bytes=0-9")], sigv4.EMPTY_SHA256)
    assert signature == "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"


def test_example_put_object() -> None:
    """AWS's example "PUT Object", whose key has a "$", has the published signature."""
    signature = _example(
        "PUT",
        "/test%24file.text",
        "",
        [("Date", "Fri, 24 May 2013 00:00:00 GMT"), ("x-amz-storage-class", "REDUCED_REDUNDANCY")],
        "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
    )
    assert signature == "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"


def test_example_sub_resource_without_value() -> None:
    """AWS's example "GET Bucket Lifecycle": a parameter without "=" is signed with an empty value."""
    signature = _example("GET", "/", "lifecycle", [], sigv4.EMPTY_SHA256)
    assert signature == "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"


def test_example_list_with_parameters() -> None:
    """AWS's example "Get Bucket (List Objects)": parameters are sorted by name."""
    signature = _example("GET", "/", "prefix=J&max-keys=2", [], sigv4.EMPTY_SHA256)
    assert signature == "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"


def test_sign_agrees_with_botocore() -> None:
    """``sign`` and botocore give the same signature, with repeated spaces, upper-case names, unusual characters in the query."""
    request = AWSRequest(
        "GET",
        "http://127.0.0.1:9000/b/k%20%2B%C3%BC",
        params={"prefix": "a b/ü+~", "empty": ""},
        headers={"Host": "127.0.0.1:9000", "X-Amz-Meta-Note": "  two   spaces ", "Range": "bytes=0-"},
    )
    S3SigV4Auth(Credentials("AK", SECRET), "s3", "eu-west-1").add_auth(request)
    sent = request.prepare()
    date = sent.headers["X-Amz-Date"]
    date = date.decode() if isinstance(date, bytes) else date
    path, _, query = sent.url.removeprefix("http://127.0.0.1:9000").partition("?")
    headers = [
        ("host", "127.0.0.1:9000"),
        ("range", "bytes=0-"),
        ("X-Amz-Meta-Note", "  two   spaces "),
        ("x-amz-date", date),
        ("x-amz-content-sha256", sigv4.EMPTY_SHA256),
    ]
    key = sigv4.signing_key(SECRET, date[:8], "eu-west-1")
    ours = sigv4.prepare(headers, sigv4.EMPTY_SHA256, "AK", key, date, "eu-west-1").sign("GET", path, query)
    theirs = sent.headers["Authorization"]
    assert ours == (theirs.decode() if isinstance(theirs, bytes) else theirs)


def test_transport_headers_are_not_signed() -> None:
    """Headers that a transport may rewrite are left out of the signature even when they are given."""
    key = sigv4.signing_key(SECRET, "20130524", "us-east-1")
    value = sigv4.prepare(
        [("Host", "h"), ("Expect", "100-continue"), ("Connection", "close"), ("x-amz-date", "20130524T000000Z")],
        sigv4.UNSIGNED_PAYLOAD,
        "AK",
        key,
        "20130524T000000Z",
        "us-east-1",
    ).sign("PUT", "/b/k", "")
    assert "SignedHeaders=host;x-amz-date," in value


@given(st.binary(max_size=40))
def test_canonical_path_does_not_depend_on_spelling(key: bytes) -> None:
    """However a client escapes a key on the wire, the canonical path is the fully escaped one."""
    fully = "/b/" + "".join(f"%{byte:02x}" if byte != 0x2F else "/" for byte in key)
    canonical = "/b/" + quote(key, safe="/~")
    assert sigv4.canonical_path(fully.encode()) == canonical.encode()
    assert sigv4.canonical_path(canonical.encode()) == canonical.encode()


def test_canonical_path_is_not_normalised() -> None:
    """ "//", "." and ".." are part of the key in S3."""
    assert sigv4.canonical_path(b"/b//x/../y/./") == b"/b//x/../y/./"


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=8), st.binary(max_size=8)), max_size=6), st.randoms())
def test_canonical_query_does_not_depend_on_order_or_spelling(pairs: list[tuple[bytes, bytes]], order: object) -> None:
    """Parameters in any order and any escaping have one canonical form, sorted by escaped name, then value."""

    def escaped(text: bytes) -> str:
        return "".join(f"%{byte:02x}" for byte in text)

    expected = sorted((quote(name, safe="~"), quote(value, safe="~")) for name, value in pairs)
    shuffled = list(pairs)
    order.shuffle(shuffled)  # type: ignore[attr-defined]
    query = "&".join(f"{escaped(name)}={escaped(value)}" for name, value in shuffled).encode()
    assert sigv4.canonical_query(query_pairs(query)) == "&".join(f"{n}={v}" for n, v in expected).encode()


def test_names_are_sorted_before_values() -> None:
    """A name that begins another sorts first, although "=" sorts after "-"."""
    assert sigv4.canonical_query(query_pairs(b"a-b=1&a=2")) == b"a=2&a-b=1"


def test_plus_is_a_space() -> None:
    """ "+" in a query is a space, as S3 and radosgw read it."""
    assert sigv4.canonical_query(query_pairs(b"prefix=a+b")) == b"prefix=a%20b"


def test_tabs_and_runs_of_spaces_collapse() -> None:
    """Header values are trimmed, and white space within them is one space."""
    headers = {b"host": b"h", b"x-amz-meta-a": b" a \t  b "}
    text = sigv4.canonical_request(b"GET", b"/", b"", headers, (b"host", b"x-amz-meta-a"), b"UNSIGNED-PAYLOAD")
    assert text == b"GET\n/\n\nhost:h\nx-amz-meta-a:a b\n\nhost;x-amz-meta-a\nUNSIGNED-PAYLOAD"


def test_absent_signed_header_counts_as_empty() -> None:
    """A header that is signed but did not arrive has an empty value in the canonical request."""
    text = sigv4.canonical_request(b"GET", b"/", b"", {b"host": b"h"}, (b"expect", b"host"), b"x")
    assert text == b"GET\n/\n\nexpect:\nhost:h\n\nexpect;host\nx"


@pytest.mark.parametrize("names", [(b"host",), (b"host", b"x-amz-date"), (b"%s", b"a%", b"host"), (b"absent", b"host")])
def test_a_filled_template_is_the_canonical_request(names: tuple[bytes, ...]) -> None:
    """Rule: the template equals ``canonical_request``, for names with "%" and absent headers too."""
    fields = {b"host": b"h:1", b"x-amz-date": b"20130524T000000Z", b"%s": b"%b", b"a%": b"1"}
    values = [fields.get(name, b"") for name in names]
    filled = sigv4.canonical_form(names) % (b"GET", b"/b/k%20", b"a=1", *values, b"UNSIGNED-PAYLOAD")
    assert filled == sigv4.canonical_request(b"GET", b"/b/k%20", b"a=1", fields, names, b"UNSIGNED-PAYLOAD")


def test_claim_is_read_with_and_without_spaces() -> None:
    """Clients separate the fields of Authorization by ", " or by ","; both read the same."""
    fields = (
        b"Credential=AK/20130524/us-east-1/s3/aws4_request",
        b"SignedHeaders=host;range",
        b"Signature=" + b"0" * 64,
    )
    spaced = parse_authorization(b"AWS4-HMAC-SHA256 " + b", ".join(fields))
    assert spaced == parse_authorization(b"AWS4-HMAC-SHA256 " + b",".join(fields))
    assert spaced == parse_authorization(b"AWS4-HMAC-SHA256 " + b",".join((fields[2], fields[0], fields[1])))
    claim, signature = spaced
    assert (claim.access_key_id, claim.region, claim.scope, claim.names) == (
        "AK",
        "us-east-1",
        SCOPE,
        (b"host", b"range"),
    )
    assert signature == b"0" * 64


def test_access_key_may_contain_slashes() -> None:
    """The credential is read from its right end, for an access key may contain "/"."""
    value = b"AWS4-HMAC-SHA256 Credential=a/b/20130524/r/s3/aws4_request,SignedHeaders=host,Signature=" + b"0" * 64
    assert parse_authorization(value)[0].access_key_id == "a/b"


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ("AWS AK:c2ln", "InvalidRequest"),
        ("Bearer token", "InvalidArgument"),
        ("AWS4-HMAC-SHA256", _MALFORMED),
        ("AWS4-ECDSA-P256-SHA256 Credential=x", "NotImplemented"),
        ("AWS4-HMAC-SHA256 Credential={c},SignedHeaders=host", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential={c},Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 SignedHeaders=host,Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential=AK,SignedHeaders=host,Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential={c},SignedHeaders=range,Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential={c},SignedHeaders=host;host,Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential=AK/2013/r/s3/aws4_request,SignedHeaders=host,Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential=AK/20130524/r/ec2/aws4_request,SignedHeaders=host,Signature={s}", _MALFORMED),
        ("AWS4-HMAC-SHA256 Credential=AK/20130524/r/s3/aws5,SignedHeaders=host,Signature={s}", _MALFORMED),
    ],
)
def test_malformed_authorization(value: str, code: str) -> None:
    """Each way in which the header can be wrong has S3's code."""
    filled = value.format(c="AK/20130524/us-east-1/s3/aws4_request", s="0" * 64)
    with pytest.raises(S3Error) as refused:
        parse_authorization(filled.encode())
    assert refused.value.code == code


_QUERY = {
    "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
    "X-Amz-Credential": "AK/20130524/us-east-1/s3/aws4_request",
    "X-Amz-Date": "20130524T000000Z",
    "X-Amz-Expires": "86400",
    "X-Amz-SignedHeaders": "host",
    "X-Amz-Signature": "0" * 64,
}


def _pairs(**changes: str | None) -> list[tuple[bytes, bytes]]:
    merged = {**_QUERY, **{name.replace("_", "-"): value for name, value in changes.items()}}
    return [(name.encode(), value.encode()) for name, value in merged.items() if value is not None]


def test_query_claim_is_read() -> None:
    """The parameters of a presigned request become one value."""
    claim = parse_query_claim(_pairs(X_Amz_Security_Token="tok"))
    assert (claim.claim.access_key_id, claim.expires, claim.amz_date) == ("AK", 86400, "20130524T000000Z")
    assert claim.session_token == b"tok"


@pytest.mark.parametrize("missing", list(_QUERY))
def test_each_query_parameter_is_required(missing: str) -> None:
    """A presigned request without any one of the six parameters is refused."""
    with pytest.raises(S3Error) as refused:
        parse_query_claim([pair for pair in _pairs() if pair[0] != missing.encode()])
    assert refused.value.code == "AuthorizationQueryParametersError"


@pytest.mark.parametrize("expires", ["0", "-1", "604801", "soon", "1.5", "9" * 30])
def test_expires_is_one_second_to_a_week(expires: str) -> None:
    """X-Amz-Expires is a whole number from 1 to 604800."""
    with pytest.raises(S3Error) as refused:
        parse_query_claim(_pairs(X_Amz_Expires=expires))
    assert refused.value.code == "AuthorizationQueryParametersError"


@pytest.mark.parametrize("expires", ["1", "604800"])
def test_expires_bounds_are_included(expires: str) -> None:
    """One second and a week are both accepted."""
    assert parse_query_claim(_pairs(X_Amz_Expires=expires)).expires == int(expires)


@pytest.mark.parametrize("text", ["", "20130524", "2013-05-24T00:00:00Z", "20131324T000000Z", "20130524T000000Ü"])
def test_unreadable_dates(text: str) -> None:
    """Only the ISO 8601 basic form is a date of a signature."""
    assert sigv4.parse_amz_date(text) is None


def test_dates_round_trip() -> None:
    """A moment written and read is the same moment."""
    assert sigv4.parse_amz_date(sigv4.format_amz_date(1369353600.9)) == 1369353600.0


def test_date_header_counts_without_amz_date() -> None:
    """Without x-amz-date, the Date header says when a request was signed."""
    assert sigv4.signing_time({b"date": b"Fri, 24 May 2013 02:00:00 +0200"})[0] == "20130524T000000Z"
    assert sigv4.signing_time({b"date": b"20130524T000000Z"})[0] == "20130524T000000Z"


def test_request_without_date_is_refused() -> None:
    """A signature without a time would be valid forever."""
    for headers in ({}, {b"date": b"yesterday"}, {b"x-amz-date": b"noon"}):
        with pytest.raises(S3Error) as refused:
            sigv4.signing_time(headers)
        assert refused.value.code == "AccessDenied"


def test_percent_decoding_of_pairs() -> None:
    """Empty pieces are dropped, empty values kept, escapes decoded once."""
    assert query_pairs(b"&a&b=&c=%2525&") == [(b"a", b""), (b"b", b""), (b"c", unquote_to_bytes("%2525"))]


@pytest.mark.parametrize("length", [1, 64, 65])
def test_keyed_hash_is_hmac(length: int) -> None:
    """Rule: a keyed hash is HMAC-SHA256 in hex, for keys longer than a block of SHA-256 too (RFC 2104)."""
    key, text = b"k" * length, b"text"
    assert sigv4.keyed_hash(key, text) == hmac.digest(key, text, "sha256").hex()
