"""The request headers that have a meaning, those that the origin may see, and the requests refused for ambiguous headers.

Two servers can read one header differently. Where header names become variables, as in CGI (RFC 3875, 4.1.18), WSGI and Ceph's
radosgw, ``x_amz_acl`` and ``x-amz-acl`` are one name; of a repeated header, one server takes the first line and another the last;
and headers named in ``Connection`` are dropped by some servers. Signatures and allow-lists are worthless if the origin does not
read the request that was verified. So a header with a meaning here must have one spelling and one line, and only listed headers
are ever sent to the origin.

Names are in lower case, as the parser gives them.

Sources: the request headers in the "Actions" pages of the Amazon S3 API reference; RFC 9110, sections 5.3 and 7.6.1; the Fetch
standard for the headers of a CORS preflight.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.model.errors import S3Error

METADATA = b"x-amz-meta-"
EXPECTED_OWNER = b"x-amz-expected-bucket-owner"
"""The account that must own the bucket; otherwise the request is refused."""
PAYER, REQUESTER = b"x-amz-request-payer", b"requester"
"""The caller of a requester-pays bucket accepts the charge (AWS, "Using Requester Pays buckets")."""
_CHECKSUM = b"x-amz-checksum-"
_AMZ = b"x-amz-"

FORWARDED = frozenset(
    b"cache-control content-disposition content-encoding content-language content-md5 content-type expires range if-match "
    b"if-none-match if-modified-since if-unmodified-since if-range origin access-control-request-method "
    b"access-control-request-headers referer "
    b"x-amz-acl x-amz-grant-full-control x-amz-grant-read x-amz-grant-read-acp x-amz-grant-write x-amz-grant-write-acp "
    b"x-amz-object-ownership x-amz-expected-bucket-owner x-amz-source-expected-bucket-owner x-amz-request-payer x-amz-mfa "
    b"x-amz-confirm-remove-self-bucket-access x-amz-bypass-governance-retention x-amz-bucket-namespace "
    b"x-amz-bucket-object-lock-enabled x-amz-bucket-object-lock-token x-amz-client-token x-amz-create-session-mode "
    b"x-amz-copy-source x-amz-copy-source-range x-amz-copy-source-if-match x-amz-copy-source-if-none-match "
    b"x-amz-copy-source-if-modified-since x-amz-copy-source-if-unmodified-since "
    b"x-amz-copy-source-server-side-encryption-customer-algorithm x-amz-copy-source-server-side-encryption-customer-key "
    b"x-amz-copy-source-server-side-encryption-customer-key-md5 x-amz-metadata-directive x-amz-tagging "
    b"x-amz-tagging-directive x-amz-object-annotation-directive x-amz-storage-class x-amz-website-redirect-location "
    b"x-amz-server-side-encryption x-amz-server-side-encryption-aws-kms-key-id "
    b"x-amz-server-side-encryption-bucket-key-enabled x-amz-server-side-encryption-context "
    b"x-amz-server-side-encryption-customer-algorithm x-amz-server-side-encryption-customer-key "
    b"x-amz-server-side-encryption-customer-key-md5 x-amz-object-lock-mode x-amz-object-lock-retain-until-date "
    b"x-amz-object-lock-legal-hold x-amz-object-lock-event-hold x-amz-object-lock-event-hold-duration-days "
    b"x-amz-object-lock-event-hold-duration-years x-amz-object-if-match x-amz-if-match-initiated-time "
    b"x-amz-if-match-last-modified-time x-amz-if-match-size x-amz-mp-object-size x-amz-write-offset-bytes "
    b"x-amz-max-parts x-amz-part-number-marker x-amz-object-attributes x-amz-optional-object-attributes "
    b"x-amz-sdk-checksum-algorithm x-amz-skip-destination-validation "
    b"x-amz-transition-default-minimum-object-size".split()
)
"""Headers about the object and the request; user metadata and ``x-amz-checksum-*`` are forwarded too."""

FOR_THE_GATEWAY = frozenset(
    b"authorization connection content-length date expect host te trailer transfer-encoding upgrade x-amz-api-version "
    b"x-amz-cf-id x-amz-content-sha256 x-amz-date x-amz-decoded-content-length x-amz-security-token x-amz-trailer "
    b"x-amz-user-agent".split()
)
"""Headers for the gateway alone, from a client or a proxy in front of it."""

_LISTS = frozenset(
    b"access-control-request-headers cache-control connection content-encoding content-language expect if-match "
    b"if-none-match te trailer transfer-encoding upgrade x-amz-object-attributes "
    b"x-amz-optional-object-attributes".split()
)
"""Comma-separated lists: several lines are one list (RFC 9110, 5.3)."""

_COMMON = frozenset(b"accept accept-encoding accept-language amz-sdk-invocation-id amz-sdk-request user-agent".split())
_MEANING = FORWARDED | FOR_THE_GATEWAY
_SINGLE = _MEANING - _LISTS
_PLAIN = _MEANING | _COMMON
_FOLDED = bytes(
    byte if chr(byte).isascii() and (chr(byte).isdigit() or chr(byte).islower()) else ord("-") for byte in range(256)
)
ORDINARY = _PLAIN - {b"connection"}
"""Headers that ``require_unambiguous`` accepts, if each has one line."""
_ORDINARY_CONNECTIONS = frozenset((b"keep-alive", b"Keep-Alive", b"close", b"Close"))


FORWARDED_PREFIXES = (METADATA, _CHECKSUM)


def is_forwarded(name: bytes) -> bool:
    """Whether the origin may see a header of the client."""
    return name in FORWARDED or name.startswith(FORWARDED_PREFIXES)


def require_unambiguous(headers: Sequence[tuple[bytes, bytes]], fields: Mapping[bytes, bytes]) -> None:
    """Refuse headers that two servers could read differently.

    Args:
        headers: of a request, names in lower case.
        fields: the same, combined by name.

    Raises:
        S3Error: InvalidArgument for an alternative spelling of a header with a meaning, for a repeated single-valued header,
            and for a ``Connection`` that names a header of the request itself; NotImplemented for an
            ``x-amz-*`` header that S3 does not define.
    """
    if len(fields) != len(headers):
        _require_single_lines(headers)
    if not fields.keys() <= _PLAIN:
        for name in fields.keys() - _PLAIN:
            _require_known_meaning(name)
    connection = fields.get(b"connection", b"close")
    if connection not in _ORDINARY_CONNECTIONS:
        for token in connection.split(b","):
            if (name := token.strip().lower()).startswith(_AMZ) or is_forwarded(name):
                raise S3Error("InvalidArgument", explain=f"Connection must not name the header {_text(name)}.")


def _require_single_lines(headers: Sequence[tuple[bytes, bytes]]) -> None:
    seen = set()
    for name, _ in headers:
        if name in seen and (name in _SINGLE or name.startswith(_CHECKSUM)):
            raise S3Error("InvalidArgument", explain=f"The header {_text(name)} appears more than once.")
        seen.add(name)


def _require_known_meaning(name: bytes) -> None:
    # Names of user metadata may contain any character, and remain user metadata in every spelling.
    if name.startswith(METADATA):
        return
    folded = name.translate(_FOLDED)
    if folded != name and (folded in _MEANING or folded.startswith(_AMZ)):
        raise S3Error("InvalidArgument", explain=f"The header {_text(name)} could be read as {_text(folded)}.")
    if folded.startswith(_AMZ) and not folded.startswith(_CHECKSUM):
        raise S3Error("NotImplemented", extra={"Header": _text(name)})


def _text(name: bytes) -> str:
    return name.decode("latin-1")
