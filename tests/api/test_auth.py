"""Authentication: SigV4 in the header, anonymous requests, tokens, addresses, refusals."""

from __future__ import annotations

import calendar
import time

import pytest

from gateway.api.s3.accounts import Account
from gateway.api.s3.auth import Authenticated, Authenticator, split_address
from gateway.base.config import Credential, Origin, Settings
from gateway.base.config_server import ServerSettings
from gateway.model.errors import ConfigError, S3Error
from gateway.model.keys import OriginIdentity, Principal
from gateway.model.s3 import sigv4
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.sigv4 import WireRequest
from rig.signed_requests import ClientSigner, with_headers

URL = "http://127.0.0.1:9000/bucket/dir/a%20b%2Bc"


def settings(*credentials: Credential, **server: object) -> Settings:
    """A configuration with one origin."""
    return Settings(
        server=ServerSettings.model_validate(server),
        origins=(Origin(endpoint="http://127.0.0.1:5000", access_key_id="OK", secret_access_key="os"),),
        credentials=credentials,
    )


PLAIN = Credential(access_key_id="AK", secret_access_key="secret")
TEMPORARY = Credential(access_key_id="AK", secret_access_key="secret", session_token="tok/en==")


def authenticate(request: WireRequest, *credentials: Credential, now: float | None = None) -> Authenticated:
    """Verify with the given credentials, or with a plain one."""
    return Authenticator(settings(*(credentials or (PLAIN,)))).authenticate(
        request, time.time() if now is None else now
    )


def refusal(request: WireRequest, *credentials: Credential, now: float | None = None) -> S3Error:
    """The error with which a request is refused."""
    with pytest.raises(S3Error) as refused:
        authenticate(request, *credentials, now=now)
    return refused.value


def changed(request: WireRequest, name: bytes, value: bytes | None) -> WireRequest:
    """The same request with one header replaced, added or (``None``) removed after signing."""
    headers = [pair for pair in request.headers if pair[0] != name]
    if value is not None:
        headers.append((name, value))
    return WireRequest(request.method, request.raw_path, request.query, headers)


@pytest.mark.parametrize(
    "url",
    [
        URL,
        "http://127.0.0.1:9000/",
        "http://127.0.0.1:9000/bucket?list-type=2&prefix=a%2Fb%20c&delimiter=%2F",
        "http://127.0.0.1:9000/bucket/k?versionId=",
        "http://127.0.0.1:9000/bucket/k?uploads",
        "http://127.0.0.1:9000/bucket//x/../y",
        "http://127.0.0.1:9000/b/%E2%9C%93~(!*')",
        "http://127.0.0.1:9000/b/k?b=2&a=1&c=0",
    ],
)
def test_botocore_signature_is_accepted(url: str) -> None:
    """A request signed by botocore is accepted, for any path and query."""
    found = authenticate(ClientSigner().header("GET", url))
    assert found.principal.access_key_id == "AK"
    assert not found.presigned
    assert found.signature_parameters == frozenset()


def test_extra_signed_headers_are_accepted() -> None:
    """Clients choose what they sign: accept-encoding, expect, content-length and amz-sdk-* occur."""
    headers = {"Accept-Encoding": "gzip,  br", "Range": "bytes=0-9", "amz-sdk-request": "attempt=1; max=3"}
    request = ClientSigner().header("GET", URL, headers)
    assert authenticate(request).principal.access_key_id == "AK"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"host", b"other:9000"),
        (b"range", b"bytes=0-1"),
        (b"x-amz-meta-a", b"other"),
        (b"x-amz-content-sha256", b"UNSIGNED-PAYLOAD"),
    ],
)
def test_changed_header_is_refused(name: bytes, value: bytes) -> None:
    """A signed header that was changed on the way does not match."""
    request = ClientSigner().header("PUT", URL, {"Range": "bytes=0-9", "x-amz-meta-a": "b"})
    assert refusal(changed(request, name, value)).code == "SignatureDoesNotMatch"


@pytest.mark.parametrize("part", ["method", "raw_path", "query"])
def test_changed_request_line_is_refused(part: str) -> None:
    """Method, path and query are covered by the signature."""
    request = ClientSigner().header("GET", URL + "?a=1")
    setattr(request, part, {"method": "PUT", "raw_path": b"/bucket/other", "query": b"a=2"}[part])
    assert refusal(request).code == "SignatureDoesNotMatch"


def test_wrong_secret_is_refused() -> None:
    """A signature made with another secret does not match."""
    assert refusal(ClientSigner(secret_access_key="guess").header("GET", URL)).code == "SignatureDoesNotMatch"


def test_garbage_signature_is_refused() -> None:
    """A right claim with a junk signature, even not ASCII, is refused."""
    request = ClientSigner().header("GET", URL)
    value = request.fields.get(b"authorization") or b""
    for junk in (b"0" * 64, b"", b"\xff" * 64):
        forged = changed(request, b"authorization", value[: value.rindex(b"=") + 1] + junk)
        assert refusal(forged).status in (400, 403)


def test_unknown_access_key_is_refused() -> None:
    """An unknown access key is InvalidAccessKeyId; the message for a key of the store says whose keys to use."""
    error = refusal(ClientSigner("nobody").header("GET", URL))
    assert (error.code, "a key of the gateway, not of the store" in str(error.message)) == ("InvalidAccessKeyId", True)


def test_unsigned_amz_header_is_refused() -> None:
    """An x-amz-* header that was added after signing could change the meaning of the request."""
    request = changed(ClientSigner().header("GET", URL), b"x-amz-copy-source", b"/b/secret")
    error = refusal(request)
    assert error.code == "AccessDenied"
    assert error.extra == {"HeadersNotSigned": "x-amz-copy-source"}


def test_unsigned_ordinary_header_is_ignored() -> None:
    """Unsigned ordinary headers, as proxies add them, are accepted."""
    request = changed(ClientSigner().header("GET", URL), b"x-forwarded-for", b"10.0.0.1")
    assert authenticate(request).principal.access_key_id == "AK"


def test_white_space_in_values_is_collapsed() -> None:
    """Runs of spaces in a signed value are signed as one space, and verified so."""
    request = ClientSigner().header("GET", URL, {"x-amz-meta-a": "one   two"})
    assert (b"x-amz-meta-a", b"one   two") in request.headers
    assert authenticate(request).principal.access_key_id == "AK"


def test_repeated_signed_header() -> None:
    """A header that comes several times is signed as its values joined by commas."""
    request = ClientSigner().header("GET", URL, {"x-amz-meta-a": "one,two"})
    headers = [pair for pair in request.headers if pair[0] != b"x-amz-meta-a"]
    headers += [(b"x-amz-meta-a", b"one "), (b"x-amz-meta-a", b" two")]
    request = WireRequest("GET", request.raw_path, b"", headers)
    assert authenticate(request).principal.access_key_id == "AK"


@pytest.mark.parametrize("name", [b"authorization", b"host", b"x-amz-content-sha256"])
def test_repeated_single_header_is_refused(name: bytes) -> None:
    """Two Host or Authorization headers could be read differently by router and verifier."""
    request = ClientSigner().header("GET", URL)
    request = with_headers(request, (name, request.fields.get(name) or b""))
    assert refusal(request).code == "InvalidArgument"


@pytest.mark.parametrize("path", [b"/bucket/dir/a b+c", b"/bucket/dir/%61%20b%2bc"])
def test_unusual_escaping_is_accepted(path: bytes) -> None:
    """Clients that escape less, or in lower case, on the wire still sign the canonical path."""
    request = ClientSigner().header("GET", URL)
    request.raw_path = path
    assert authenticate(request).principal.access_key_id == "AK"


def test_path_signed_as_sent_is_accepted() -> None:
    """A client that signs its path exactly as sent, unescaped, is accepted too."""
    key = sigv4.signing_key("secret", "20130524", "us-east-1")
    headers = {b"host": b"h", b"x-amz-date": b"20130524T000000Z", b"x-amz-content-sha256": b"UNSIGNED-PAYLOAD"}
    names = sorted(headers)
    canonical = sigv4.canonical_request(b"GET", b"/b/a(b)", b"q=(", headers, names, b"UNSIGNED-PAYLOAD")
    signature = sigv4.signature(key, "20130524T000000Z", b"20130524/us-east-1/s3/aws4_request", canonical)
    credential = b"Credential=AK/20130524/us-east-1/s3/aws4_request"
    value = b"AWS4-HMAC-SHA256 %b,SignedHeaders=%b,Signature=%b" % (credential, b";".join(names), signature)
    request = WireRequest("GET", b"/b/a(b)", b"q=(", [*headers.items(), (b"authorization", value)])
    assert authenticate(request, now=1369353600.0).principal.access_key_id == "AK"
    request.raw_path = b"/b/a(c)"
    assert refusal(request, now=1369353600.0).code == "SignatureDoesNotMatch"


def signed_at(request: WireRequest) -> int:
    """The second in which a request was signed, since the epoch."""
    date = request.fields[b"x-amz-date"].decode()
    return calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ"))


@pytest.mark.parametrize("off", [-901, 901])
def test_skewed_clock_is_refused(off: int) -> None:
    """More than 15 minutes apart, in either direction, is RequestTimeTooSkewed."""
    request = ClientSigner().header("GET", URL)
    assert refusal(request, now=signed_at(request) + off).code == "RequestTimeTooSkewed"


@pytest.mark.parametrize("off", [-900, 900])
def test_some_skew_is_accepted(off: int) -> None:
    """Up to 15 minutes apart is accepted."""
    request = ClientSigner().header("GET", URL)
    assert authenticate(request, now=signed_at(request) + off).principal.access_key_id == "AK"


def test_credential_of_another_day_is_refused() -> None:
    """The day in the credential is the day of the request."""
    request = ClientSigner().header("GET", URL)
    value = (request.fields.get(b"authorization") or b"").replace(
        time.strftime("%Y%m%d", time.gmtime()).encode(), b"20130524"
    )
    assert refusal(changed(request, b"authorization", value)).code == "AuthorizationHeaderMalformed"


def test_any_region_is_accepted() -> None:
    """The gateway is in no region: clients keep theirs."""
    assert authenticate(ClientSigner(region="eu-north-1").header("GET", URL)).principal.access_key_id == "AK"


def test_missing_content_hash_is_refused() -> None:
    """SigV4 in the header needs x-amz-content-sha256, as S3 does."""
    request = changed(ClientSigner().header("GET", URL), b"x-amz-content-sha256", None)
    assert refusal(request).code == "InvalidRequest"


def test_sigv2_header_is_told_to_change() -> None:
    """SigV2 in the header is refused with a hint."""
    error = refusal(changed(ClientSigner().header("GET", URL), b"authorization", b"AWS AK:c2lnbmF0dXJl"))
    assert error.code == "InvalidRequest"
    assert "AWS4-HMAC-SHA256" in error.message


def test_two_mechanisms_are_refused() -> None:
    """A request is signed in the header or in the query, not in both."""
    request = ClientSigner().header("GET", URL)
    request.query = b"X-Amz-Algorithm=AWS4-HMAC-SHA256"
    assert refusal(request).code == "InvalidArgument"


def test_session_token_is_accepted() -> None:
    """Temporary credentials come with their token."""
    assert (
        authenticate(ClientSigner(session_token="tok/en==").header("GET", URL), TEMPORARY).principal.access_key_id
        == "AK"
    )


@pytest.mark.parametrize(
    ("sent", "credential"), [(None, TEMPORARY), ("other", TEMPORARY), ("tok/en==", PLAIN), ("tok/en=", TEMPORARY)]
)
def test_wrong_session_token_is_refused(sent: str | None, credential: Credential) -> None:
    """A missing, wrong or superfluous token is InvalidToken, although the signature is right."""
    assert refusal(ClientSigner(session_token=sent).header("GET", URL), credential).code == "InvalidToken"


def test_token_is_not_looked_at_before_the_signature() -> None:
    """A wrong signature is refused before the session token is checked, so a caller without the secret cannot test tokens."""
    request = ClientSigner(secret_access_key="guess", session_token="other").header("GET", URL)
    assert refusal(request, TEMPORARY).code == "SignatureDoesNotMatch"


def test_expired_credential_is_refused() -> None:
    """A credential is accepted until its expiry, and gets ExpiredToken after it."""
    credential = PLAIN.model_copy(update={"expires": "2013-05-24T00:00:00Z"})
    assert refusal(ClientSigner().header("GET", URL), credential).code == "ExpiredToken"
    later = PLAIN.model_copy(update={"expires": "2999-01-01T00:00:00+02:00"})
    assert authenticate(ClientSigner().header("GET", URL), later).principal.access_key_id == "AK"


def test_unreadable_expiry_is_a_configuration_error() -> None:
    """A credential with an invalid expiry is refused at the start with the field's name."""
    with pytest.raises(ConfigError, match=r"credentials\.expires"):
        Authenticator(settings(PLAIN.model_copy(update={"expires": "tomorrow"})))


def test_principal_of_a_plain_credential() -> None:
    """Without a tenant the access key is the tenant; the origin's own key is the identity."""
    principal = authenticate(ClientSigner().header("GET", URL)).principal
    assert principal == Principal("AK", "AK", OriginIdentity("default", "OK"))


def test_principal_of_a_tenant_with_own_keys() -> None:
    """A tenant's own origin key is the identity; allow-list and read-only flag are carried along."""
    credential = PLAIN.model_copy(
        update={
            "tenant": "vision",
            "origin_access_key_id": "TK",
            "origin_secret_access_key": "ts",
            "allow": ("bucket/**",),
            "read_only": True,
        }
    )
    principal = authenticate(ClientSigner().header("GET", URL), credential).principal
    assert principal == Principal("AK", "vision", OriginIdentity("default", "TK"), ("bucket/**",), True)


def test_anonymous_request() -> None:
    """Without any signature the caller is anonymous, and is forwarded unsigned to the first origin."""
    found = authenticate(WireRequest("GET", b"/bucket/k", b"list-type=2", [(b"host", b"h")]))
    assert found.principal.anonymous
    assert found.principal.identity == OriginIdentity("default", "")
    assert found.payload_form is PayloadForm.ABSENT


def test_payload_form_and_hash_are_carried() -> None:
    """The claimed hash of the body is passed to the body's reader."""
    found = authenticate(ClientSigner().header("PUT", URL, body=b"hello"))
    assert found.payload_form is PayloadForm.HASHED
    assert found.payload_hash == "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
    assert found.chunk_signer is None


def test_signed_chunks_come_with_their_signer() -> None:
    """A request in signed chunks carries the seed of the chain: its own signature."""
    headers = {"X-Amz-Content-SHA256": "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"}
    key = sigv4.signing_key("secret", time.strftime("%Y%m%d", time.gmtime()), "us-east-1")
    date = sigv4.format_amz_date(time.time())
    signed = [("host", "h"), ("x-amz-date", date), *headers.items()]
    value = sigv4.prepare(signed, headers["X-Amz-Content-SHA256"], "AK", key, date, "us-east-1").sign("PUT", "/b/k", "")
    raw = [(name.lower().encode(), text.encode()) for name, text in [*signed, ("authorization", value)]]
    found = authenticate(WireRequest("PUT", b"/b/k", b"", raw))
    assert found.payload_form is PayloadForm.SIGNED_CHUNKS
    assert found.chunk_signer is not None
    assert found.chunk_signer.seed == value[-64:].encode()
    assert found.chunk_signer.key == key


def test_replaced_credentials_count_from_the_next_request() -> None:
    """After a reload the old key is unknown, and a rotated secret does not verify under the old one."""
    authenticator = Authenticator(settings(PLAIN))
    request = ClientSigner().header("GET", URL)
    assert authenticator.authenticate(request, time.time()).principal.access_key_id == "AK"
    authenticator.replace(settings(PLAIN.model_copy(update={"secret_access_key": "rotated"})))
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        authenticator.authenticate(request, time.time())
    authenticator.replace(settings())
    with pytest.raises(S3Error, match="InvalidAccessKeyId"):
        authenticator.authenticate(request, time.time())


def test_bad_reload_keeps_the_old_credentials() -> None:
    """A configuration that cannot be used changes nothing."""
    authenticator = Authenticator(settings(PLAIN))
    with pytest.raises(ConfigError):
        authenticator.replace(settings(PLAIN.model_copy(update={"expires": "never"})))
    assert authenticator.authenticate(ClientSigner().header("GET", URL), time.time()).principal.access_key_id == "AK"


def test_accounts_from_elsewhere() -> None:
    """Access keys that the configuration does not have are looked up elsewhere, at each request."""
    principal = Principal("DB", "db", OriginIdentity("default", "OK"))
    secrets = {"DB": "one"}
    authenticator = Authenticator(
        settings(PLAIN), lambda name: Account(principal, secrets[name]) if name in secrets else None
    )
    assert authenticator.authenticate(ClientSigner("DB", "one").header("GET", URL), time.time()).principal is principal
    secrets["DB"] = "two"
    with pytest.raises(S3Error, match="SignatureDoesNotMatch"):
        authenticator.authenticate(ClientSigner("DB", "one").header("GET", URL), time.time())
    with pytest.raises(S3Error, match="InvalidAccessKeyId"):
        authenticator.authenticate(ClientSigner("XX", "one").header("GET", URL), time.time())


@pytest.mark.parametrize(
    ("host", "domain", "path", "expected"),
    [
        (b"127.0.0.1:9000", "", b"/bucket/a/b", ("bucket", b"a/b")),
        (b"127.0.0.1:9000", "", b"/bucket", ("bucket", b"")),
        (b"127.0.0.1:9000", "", b"/bucket/", ("bucket", b"")),
        (b"h", "", b"/", ("", b"")),
        (b"h", "", b"/bucket//a%2Fb/", ("bucket", b"/a%2Fb/")),
        (b"h", "", b"/my%2Dbucket/k", ("my-bucket", b"k")),
        (b"bucket.s3.local", "s3.local", b"/a/b", ("bucket", b"a/b")),
        (b"BUCKET.S3.Local:9000", "s3.local", b"/a", ("bucket", b"a")),
        (b"my.dotted.bucket.s3.local:9000", "s3.local", b"/", ("my.dotted.bucket", b"")),
        (b"bucket.s3.local", "s3.local:9000", b"/a", ("bucket", b"a")),
        (b"s3.local:9000", "s3.local", b"/bucket/k", ("bucket", b"k")),
        (b".s3.local", "s3.local", b"/bucket/k", ("bucket", b"k")),
        (b"evils3.local", "s3.local", b"/bucket/k", ("bucket", b"k")),
        (b"other.example", "s3.local", b"/bucket/k", ("bucket", b"k")),
        (b"[::1]:9000", "s3.local", b"/bucket/k", ("bucket", b"k")),
        (b"[::1]", "s3.local", b"/bucket/k", ("bucket", b"k")),
        (b"bucket.s3.local", "", b"/other/k", ("other", b"k")),
        (b"bucket.s3.local.", "s3.local", b"/a", ("bucket", b"a")),
    ],
)
def test_addresses(host: bytes, domain: str, path: bytes, expected: tuple[str, bytes]) -> None:
    """The bucket is in the Host if that is under the domain, else in the path; the key keeps its escapes."""
    assert split_address(WireRequest("GET", path, b"", [(b"host", host)]), domain) == expected


def test_address_without_host() -> None:
    """A request without Host is path style."""
    assert split_address(WireRequest("GET", b"/bucket/k", b"", []), "s3.local") == ("bucket", b"k")
