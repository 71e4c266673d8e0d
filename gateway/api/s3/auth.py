"""Authentication: verifies the signature of every request, over the bytes that arrived.

Accepted are SigV4 in the Authorization header, SigV4 and SigV2 in the query string and over the policy of an HTML form, and
anonymous requests. The checks run in S3's order: parse the claim, look up the key, check the time, compare the signature, and
only then compare the session token, so that no one can probe for tokens without the secret.

The signature must cover every x-amz-* header; otherwise a relay could change the meaning of a request. The one exception is
x-amz-content-sha256: its value is itself a line of the canonical request. Headers and parameters that two servers could read
differently are refused first (``model/s3/request_headers.py``, ``model/s3/query.py``).

A CORS preflight is not verified: browsers send it without credentials (Fetch standard, "CORS-preflight fetch"), and a
presigned address is signed for another method.

When the canonical form does not match, the path and query are tried once more exactly as sent: clients sign a ready-made URL as
it is. Both spell the same resource, so the proof is as strong.

Sources: "Authenticating Requests (AWS Signature Version 4)" in the Amazon S3 API reference; its error messages.
"""

from __future__ import annotations

import hmac
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import repeat
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from gateway.api.s3.accounts import Account, accounts_of
from gateway.api.s3.errors import CredentialsUnknown
from gateway.base.config import Settings
from gateway.model.errors import S3Error
from gateway.model.keys import OriginIdentity, Principal
from gateway.model.s3 import sigv2, sigv4, sigv4_claims
from gateway.model.s3.aws_chunked import FORMS, ChunkSigner, PayloadForm, payload_form
from gateway.model.s3.post_policy import PostPolicy, parse_policy
from gateway.model.s3.query import Pair, Query
from gateway.model.s3.request_headers import ORDINARY, require_unambiguous
from gateway.model.s3.sigv4 import WireRequest
from gateway.model.s3.sigv4_claims import (
    LONGEST_CACHED_CLAIM,
    SCHEME_NOT_SUPPORTED,
    X_AMZ_DATE_FORM,
    Claim,
    dated_claim,
)
from gateway.origin.credentials import identity_of

MAX_SKEW = 900.0
"""The accepted clock skew of a client, in seconds: 15 minutes."""

_CONTENT_SHA256 = b"x-amz-content-sha256"
_TOKEN = b"x-amz-security-token"
_V4_NAMES = frozenset({b"X-Amz-Algorithm", b"X-Amz-Credential", b"X-Amz-Signature"})
_V2_NAMES = frozenset({b"AWSAccessKeyId", b"Signature"})
_SIGNATURES = sigv4_claims.QUERY_PARAMETERS | sigv2.QUERY_PARAMETERS
_FORM_V4_NAMES = frozenset({"x-amz-algorithm", "x-amz-credential", "x-amz-date", "x-amz-signature"})
_FORM_V2_NAMES = frozenset({"awsaccesskeyid", "signature"})
_MAX_SIGNING_KEYS = 1024
_ABSENT = repeat(b"")
"""The values of signed headers that did not arrive."""
_OWN_KEYS = "Clients of this gateway sign with a key of the gateway, not of the store behind it."

Fields = Mapping[bytes, bytes]


class Authenticated(NamedTuple):
    """A verified request.

    ``payload_hash`` is x-amz-content-sha256 as claimed, empty when absent; ``chunk_signer`` verifies a body in signed
    chunks and is ``None`` for every other form; ``signature_parameters`` are the query parameters to drop before
    forwarding.
    """

    principal: Principal
    payload_form: PayloadForm
    payload_hash: str
    chunk_signer: ChunkSigner | None = None
    presigned: bool = False
    signature_parameters: frozenset[str] = frozenset()


class Authenticator:
    """Verifies requests against the credentials of a configuration.

    Args:
        settings: credentials, origins, ``server.domain`` and ``server.sigv2``.
        find: looks up access keys that the configuration does not have; ``None`` means unknown.
    """

    def __init__(self, settings: Settings, find: Callable[[str], Account | None] | None = None) -> None:
        self._find = find
        self.closed = ""
        """Why no request can be verified at present; empty when requests can be verified."""
        self._signing_keys: dict[tuple[str, str, str], bytes] = {}
        self.replace(settings)

    def replace(self, settings: Settings) -> None:
        """Use another configuration from the next request on.

        Raises:
            ConfigError: a credential is invalid; the current configuration stays in force.
        """
        accounts = accounts_of(settings)
        self.accounts = accounts
        self._settings = settings.server
        self._anonymous = Principal("", "", identity_of(settings.origins[0], None))
        self._signing_keys.clear()

    def find(self, access_key_id: str) -> Account | None:
        """The account of an access key, or ``None`` if the key is unknown."""
        account = self.accounts.get(access_key_id)
        return self._find(access_key_id) if account is None and self._find else account

    def authenticate(self, request: WireRequest, now: float) -> Authenticated:
        """Verify one request.

        Args:
            request: as it arrived.
            now: seconds since the epoch.

        Raises:
            S3Error: AccessDenied, AuthorizationHeaderMalformed, AuthorizationQueryParametersError, ExpiredToken,
                InvalidAccessKeyId, InvalidArgument, InvalidRequest, InvalidToken, InvalidURI, NotImplemented,
                RequestTimeTooSkewed, ServiceUnavailable, SignatureDoesNotMatch.
        """
        if self.closed:
            raise CredentialsUnknown(self.closed)
        fields = request.fields
        if len(fields) != len(request.headers) or not fields.keys() <= ORDINARY:
            require_unambiguous(request.headers, fields)
        authorization = fields.get(b"authorization")
        if not request.query:
            if authorization is None:
                return self._unsigned(fields)
            return self._by_header(request, fields, (), authorization, now)
        query = request.parameters
        pairs = query.pairs
        names = {name for name, _ in pairs}
        v4, v2 = not names.isdisjoint(_V4_NAMES), not names.isdisjoint(_V2_NAMES)
        if v4 + v2 + (authorization is not None) > 1:
            raise _several_mechanisms()
        if authorization is not None:
            return self._by_header(request, fields, pairs, authorization, now)
        if v4:
            return self._by_query(request, fields, pairs, now)
        return self._by_sigv2(request, fields, query, now) if v2 else self._unsigned(fields)

    def preflight(self, request: WireRequest) -> Authenticated:
        """Admit an OPTIONS request without verification, as anonymous, for the origin of the access key that it names.

        Raises:
            S3Error: InvalidArgument, InvalidRequest, InvalidURI, NotImplemented, ServiceUnavailable.
        """
        if self.closed:
            raise CredentialsUnknown(self.closed)
        require_unambiguous(request.headers, request.fields)
        anonymous = self._anonymous
        pairs = dict(request.parameters.pairs)
        named = pairs.get(b"AWSAccessKeyId") or pairs.get(b"X-Amz-Credential", b"").rsplit(b"/", 4)[0]
        account = self.find(named.decode("utf-8", "replace")) if named else None
        if account is not None:
            anonymous = Principal("", "", OriginIdentity(account.principal.identity.origin, ""))
        return Authenticated(anonymous, payload_form(""), "", signature_parameters=_SIGNATURES)

    def authenticate_form(self, fields: Mapping[str, str], now: float) -> tuple[Authenticated, PostPolicy | None]:
        """Verify an HTML form by the signature over its policy; a form without a policy is anonymous.

        Args:
            fields: of the form, by lower-case name.
            now: seconds since the epoch.

        Returns:
            The uploader, and the policy, which the caller must still compare with the form.

        Raises:
            S3Error: AuthorizationQueryParametersError, ExpiredToken, InvalidAccessKeyId, InvalidArgument,
                InvalidPolicyDocument, InvalidRequest, InvalidToken, NotImplemented, SignatureDoesNotMatch.
        """
        v4 = not fields.keys().isdisjoint(_FORM_V4_NAMES)
        v2 = not fields.keys().isdisjoint(_FORM_V2_NAMES)
        text = fields.get("policy", "")
        if not text:
            if v4 or v2:
                raise sigv4_claims.missing_field("policy")
            return self._unsigned({}), None
        if v4 and v2:
            raise _several_mechanisms()
        account = self._by_form_v4(fields, text, now) if v4 else self._by_form_v2(fields, text, now)
        _check_token(account, fields.get("x-amz-security-token", "").encode(), now)
        try:
            document = b64decode(text, validate=True)
        except ValueError:
            raise S3Error("InvalidPolicyDocument", "Invalid Policy: Invalid Base64.") from None
        return Authenticated(account.principal, payload_form(""), ""), parse_policy(document)

    def _by_form_v4(self, fields: Mapping[str, str], policy: str, now: float) -> Account:
        claim, claimed = sigv4_claims.parse_form_claim(fields)
        account = self._known(claim.access_key_id)
        if claim.date != fields["x-amz-date"][:8]:
            raise _other_day(claim, fields["x-amz-date"], "AuthorizationQueryParametersError")
        for secret in account.secrets(now):
            key = self._signing_key(secret, claim)
            if hmac.compare_digest(hmac.digest(key, policy.encode(), "sha256").hex().encode(), claimed):
                return account
        raise _mismatch(claim.access_key_id)

    def _by_form_v2(self, fields: Mapping[str, str], policy: str, now: float) -> Account:
        for name in ("AWSAccessKeyId", "Signature"):
            if not fields.get(name.lower()):
                raise sigv4_claims.missing_field(name)
        if not self._settings.sigv2:
            raise S3Error("InvalidRequest", SCHEME_NOT_SUPPORTED)
        account = self._known(fields["awsaccesskeyid"])
        claimed = fields["signature"].encode()
        if any(hmac.compare_digest(sigv2.signature(each, policy.encode()), claimed) for each in account.secrets(now)):
            return account
        raise _mismatch(fields["awsaccesskeyid"])

    def _unsigned(self, fields: Fields) -> Authenticated:
        content = fields.get(_CONTENT_SHA256, b"").decode("latin-1")
        return Authenticated(self._anonymous, payload_form(content), content)

    def _by_header(
        self, request: WireRequest, fields: Fields, pairs: Sequence[Pair], authorization: bytes, now: float
    ) -> Authenticated:
        head, _, claimed = authorization.rpartition(b"Signature=")
        date = fields.get(b"x-amz-date", b"")
        if len(claimed) == 64 and len(head) <= LONGEST_CACHED_CLAIM and len(date) == 16:
            claim, amz_date, signed_at = dated_claim(head, date)
        else:
            claim, claimed = sigv4_claims.parse_authorization(authorization)
            amz_date, signed_at = "", None
        account = self.accounts.get(claim.access_key_id) or self._known(claim.access_key_id)
        content = fields.get(_CONTENT_SHA256)
        if not content:
            raise S3Error("InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
        if signed_at is None:
            amz_date, signed_at = sigv4.signing_time(fields)
            if claim.date != amz_date[:8]:
                raise _other_day(claim, amz_date, "AuthorizationHeaderMalformed")
        if not -MAX_SKEW <= now - signed_at <= MAX_SKEW:
            raise S3Error(
                "RequestTimeTooSkewed",
                extra={
                    "RequestTime": amz_date,
                    "ServerTime": sigv4.format_amz_date(now),
                    "MaxAllowedSkewMilliseconds": str(int(MAX_SKEW * 1000)),
                },
            )
        key = self._verify(request, pairs, (claim, amz_date, content, claimed), account, now)
        token = fields.get(_TOKEN, b"")
        if token or account.session_token or now >= account.expires_at:
            _check_token(account, token, now)
        stated = content.decode("latin-1")
        form = FORMS.get(stated) or payload_form(stated)
        signer = ChunkSigner(key, amz_date, claim.scope, claimed) if form.signed else None
        return Authenticated(account.principal, form, stated, signer)

    def _by_query(self, request: WireRequest, fields: Fields, pairs: Sequence[Pair], now: float) -> Authenticated:
        parsed = sigv4_claims.parse_query_claim(pairs)
        claim, amz_date = parsed.claim, parsed.amz_date
        account = self._known(claim.access_key_id)
        signed_at = sigv4.parse_amz_date(amz_date)
        if signed_at is None:
            raise S3Error(
                "AuthorizationQueryParametersError",
                X_AMZ_DATE_FORM,
            )
        if claim.date != amz_date[:8]:
            raise _other_day(claim, amz_date, "AuthorizationQueryParametersError")
        if signed_at > now + MAX_SKEW:
            raise S3Error("AccessDenied", "Request is not valid yet")
        if now > signed_at + parsed.expires:
            raise _expired(signed_at + parsed.expires, now, {"X-Amz-Expires": str(parsed.expires)})
        header = fields.get(_CONTENT_SHA256, b"")
        covered = header if _CONTENT_SHA256 in claim.signed else b""
        content = parsed.payload_hash or covered or sigv4.UNSIGNED_PAYLOAD.encode()
        key = self._verify(request, pairs, (claim, amz_date, content, parsed.signature), account, now)
        _check_token(account, parsed.session_token or fields.get(_TOKEN, b""), now)
        stated = (header or content).decode("latin-1")
        form = payload_form(stated)
        signer = ChunkSigner(key, amz_date, claim.scope, parsed.signature) if form.signed else None
        return Authenticated(account.principal, form, stated, signer, True, sigv4_claims.QUERY_PARAMETERS)

    def _by_sigv2(self, request: WireRequest, fields: Fields, query: Query, now: float) -> Authenticated:
        if not self._settings.sigv2:
            raise S3Error("InvalidRequest", SCHEME_NOT_SUPPORTED)
        claim = sigv2.parse_query_claim(query.pairs)
        account = self._known(claim.access_key_id)
        if now > claim.expires:
            raise _expired(claim.expires, now, {})
        secrets = account.secrets(now)
        if not any(self._sigv2_matches(request, fields, claim.signature, secret) for secret in secrets):
            raise _mismatch(claim.access_key_id)
        token = next((value for name, value in query.pairs if name == _TOKEN), fields.get(_TOKEN, b""))
        _check_token(account, token, now)
        content = fields.get(_CONTENT_SHA256, b"").decode("latin-1")
        return Authenticated(account.principal, payload_form(content), content, None, True, sigv2.QUERY_PARAMETERS)

    def _sigv2_matches(self, request: WireRequest, fields: Fields, claimed: bytes, secret: str) -> bool:
        bucket = _host_bucket(request, self._settings.domain) or ""
        paths = [request.raw_path]
        if not bucket and request.raw_path.count(b"/") == 1:
            # botocore sends "/bucket" and signs "/bucket/".
            paths.append(request.raw_path + b"/")
        texts = [
            sigv2.string_to_sign(request.method.encode(), path, request.parameters, fields, bucket) for path in paths
        ]
        return any(hmac.compare_digest(sigv2.signature(secret, text), claimed) for text in texts)

    def _known(self, access_key_id: str) -> Account:
        account = self.find(access_key_id)
        if account is None:
            raise S3Error("InvalidAccessKeyId", explain=_OWN_KEYS, extra={"AWSAccessKeyId": access_key_id})
        return account

    def _verify(
        self,
        request: WireRequest,
        pairs: Sequence[Pair],
        statement: tuple[Claim, str, bytes, bytes],
        account: Account,
        now: float,
    ) -> bytes:
        """The key that a request was signed with."""
        claim, amz_date, content, claimed = statement
        fields = request.fields
        if not fields.keys() <= claim.covered:
            _require_signed(fields.keys() - claim.signed)
        method = request.method.encode()
        path = request.raw_path
        if path.translate(None, sigv4.PLAIN_PATH):
            path = sigv4.canonical_path(path)
        query = sigv4.canonical_query(pairs) if pairs else b""
        canonical = claim.form % (method, path, query, *map(fields.get, claim.names, _ABSENT), content)
        if b" " in canonical or b"\t" in canonical:
            canonical = sigv4.canonical_request(method, path, query, fields, claim.names, content)
        secrets = (account.secret_access_key,) if account.previous is None else account.secrets(now)
        for secret in secrets:
            key = self._signing_keys.get((secret, claim.date, claim.region)) or self._signing_key(secret, claim)
            if hmac.compare_digest(sigv4.signature(key, amz_date, claim.scope, canonical), claimed):
                return key
        as_sent = sigv4.canonical_request(
            method, request.raw_path, sigv4.raw_canonical_query(request.query), fields, claim.names, content
        )
        for secret in secrets:
            key = self._signing_key(secret, claim)
            if hmac.compare_digest(sigv4.signature(key, amz_date, claim.scope, as_sent), claimed):
                return key
        raise _mismatch(claim.access_key_id)

    def _signing_key(self, secret: str, claim: Claim) -> bytes:
        # Cached by the secret, not by the access key: after a rotation, the old signing key must not verify.
        name = (secret, claim.date, claim.region)
        key = self._signing_keys.get(name)
        if key is None:
            if len(self._signing_keys) >= _MAX_SIGNING_KEYS:
                self._signing_keys.clear()
            key = self._signing_keys[name] = sigv4.signing_key(secret, claim.date, claim.region)
        return key


def split_address(request: WireRequest, domain: str) -> tuple[str, bytes]:
    """The bucket and the percent-encoded key (without leading "/", empty for a request about the bucket) of a request.

    Args:
        request: as it arrived.
        domain: ``server.domain``; a Host of ``bucket.domain`` names the bucket, else the path does. Empty: the path.

    Source: "Virtual hosting of buckets" in the Amazon S3 user guide.
    """
    raw_path = request.raw_path.removeprefix(b"/")
    if domain and (bucket := _host_bucket(request, domain)) is not None:
        return bucket, raw_path
    raw_bucket, _, raw_key = raw_path.partition(b"/")
    return unquote_to_bytes(raw_bucket).decode("utf-8", "replace"), raw_key


def _host_bucket(request: WireRequest, domain: str) -> str | None:
    name = _without_port((request.fields.get(b"host") or b"").decode("latin-1"))
    suffix = "." + _without_port(domain)
    return name.removesuffix(suffix) if name.endswith(suffix) and len(name) > len(suffix) else None


def _without_port(host: str) -> str:
    host = host.strip().lower()
    if not host.endswith("]"):
        name, colon, port = host.rpartition(":")
        # "::1" has colons too; a port follows a name or a closing bracket.
        if colon and port.isdigit() and (":" not in name or name.endswith("]")):
            host = name
    return host.rstrip(".")


def _other_day(claim: Claim, amz_date: str, code: str) -> S3Error:
    return S3Error(
        code, f'Invalid credential date "{claim.date}". This date is not the same as X-Amz-Date: "{amz_date[:8]}".'
    )


def _require_signed(unsigned: Iterable[bytes]) -> None:
    for name in unsigned:
        if name.startswith(b"x-amz-") and name != _CONTENT_SHA256:
            raise S3Error(
                "AccessDenied",
                "There were headers present in the request which were not signed",
                extra={"HeadersNotSigned": name.decode("latin-1")},
            )


def _check_token(account: Account, token: bytes, now: float) -> None:
    if not hmac.compare_digest(account.session_token, token):
        raise S3Error("InvalidToken")
    if now >= account.expires_at:
        raise S3Error("ExpiredToken")


def _expired(expires_at: float, now: float, extra: Mapping[str, str]) -> S3Error:
    times = {"Expires": sigv4.format_amz_date(expires_at), "ServerTime": sigv4.format_amz_date(now)}
    return S3Error("AccessDenied", "Request has expired", extra={**extra, **times})


def _several_mechanisms() -> S3Error:
    return S3Error(
        "InvalidArgument",
        "Only one auth mechanism allowed; only the X-Amz-Algorithm query parameter, Signature query string "
        "parameter or the Authorization header should be specified",
        extra={"ArgumentName": "Authorization"},
    )


def _mismatch(access_key_id: str) -> S3Error:
    return S3Error("SignatureDoesNotMatch", extra={"AWSAccessKeyId": access_key_id})
