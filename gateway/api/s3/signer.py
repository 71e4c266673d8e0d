"""The signer of a request, for its log line: the verified one, or the claimed one if it was refused before verification."""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.api.s3.auth import Authenticated
from gateway.model.s3.query import query_pairs
from gateway.model.s3.sigv4 import WireRequest

_LONGEST_ACCESS_KEY = 128
"""Characters of a claimed access key that are logged; the value is untrusted."""
_BY_HEADER = re.compile(rb"AWS4-[A-Z0-9-]+ +(?:.*?[ ,])?Credential=([^/, ]+)|AWS ([^: ]+):")
_SIGV2, _SIGV4 = "SigV2", "SigV4"


class LoggedSigner(NamedTuple):
    """An access key, the signature version and the place of the signature, in the terms of S3's access log; "" if none."""

    access_key_id: str = ""
    version: str = ""
    place: str = ""


def signer_of(request: WireRequest, auth: Authenticated | None) -> LoggedSigner:
    """The verified signer of a request, or the one that a refused request claims."""
    if auth is None:
        return _claimed(request)
    if auth.principal.anonymous:
        return LoggedSigner()
    version = _SIGV2 if "AWSAccessKeyId" in auth.signature_parameters else _SIGV4
    return LoggedSigner(auth.principal.access_key_id, version, "QueryString" if auth.presigned else "AuthHeader")


def form_signer(fields: dict[str, str]) -> LoggedSigner:
    """The signer that the fields of a form claim; S3's log has no term for the place."""
    if "x-amz-credential" in fields:
        return LoggedSigner(fields["x-amz-credential"].partition("/")[0][:_LONGEST_ACCESS_KEY], _SIGV4)
    if "awsaccesskeyid" in fields:
        return LoggedSigner(fields["awsaccesskeyid"][:_LONGEST_ACCESS_KEY], _SIGV2)
    return LoggedSigner()


def _claimed(request: WireRequest) -> LoggedSigner:
    authorization = request.fields.get(b"authorization")
    if authorization is not None:
        found = _BY_HEADER.match(authorization[:1024])
        if found is None:
            return LoggedSigner()
        return LoggedSigner(_name(found[1] or found[2]), _SIGV4 if found[1] else _SIGV2, "AuthHeader")
    for name, value in query_pairs(request.query):
        if name == b"X-Amz-Credential":
            return LoggedSigner(_name(value.partition(b"/")[0]), _SIGV4, "QueryString")
        if name == b"AWSAccessKeyId":
            return LoggedSigner(_name(value), _SIGV2, "QueryString")
    return LoggedSigner()


def _name(access_key_id: bytes) -> str:
    return access_key_id[:_LONGEST_ACCESS_KEY].decode("utf-8", "replace")
