"""Authentication under ``/-/v1``: the gateway's own access keys, verified as on the S3 side over the request as it arrived.

Requests are signed in the Authorization header. A presigned address would be a lasting right to register or remove, and signed
chunks serve clients that cannot hash beforehand. Neither is needed here, so neither is accepted.
"""

from __future__ import annotations

import hmac
import re
import time
from dataclasses import dataclass
from hashlib import sha256

from gateway.api.s3.auth import Authenticator
from gateway.engine.operations.tenant_rates import TenantRates
from gateway.model.errors import S3Error
from gateway.model.holders import HOLDER
from gateway.model.keys import Principal
from gateway.model.s3.aws_chunked import PayloadForm
from gateway.model.s3.request_headers import PAYER, REQUESTER
from gateway.model.s3.sigv4 import WireRequest
from gateway.server.asgi_types import Scope
from gateway.server.callers import authenticated

_NEEDED = re.compile(r"GET /v1/fleet|PUT /v1/datasets/[^/]+|POST /v1/jobs(/[^/]+/heartbeat)?")
"""The few requests that a training run needs to start and to stay registered: if they were refused, it would fail or seem
dead."""
CALLER = "larder.caller"
"""Key of the ``Principal`` in the scope of a verified request."""


@dataclass(frozen=True, slots=True)
class Caller:
    """A verified caller; ``payload_hash`` is the signed SHA-256 of the body in hex, empty for an unsigned body."""

    principal: Principal
    payload_hash: str

    def confirm(self, computed: str) -> None:
        """Refuse a body whose hash (SHA-256, hex) differs from the signed one.

        Raises:
            S3Error: XAmzContentSHA256Mismatch.
        """
        if self.payload_hash and not hmac.compare_digest(self.payload_hash, computed):
            raise S3Error("XAmzContentSHA256Mismatch")

    def confirm_body(self, body: bytes) -> None:
        """``confirm`` for a complete body."""
        if self.payload_hash:
            self.confirm(sha256(body).hexdigest())


class Identities:
    """Verifies callers.

    Args:
        authenticator: knows the access keys.
        rates: the limits of tenants, for every request.
    """

    def __init__(self, authenticator: Authenticator, rates: TenantRates) -> None:
        self._authenticator = authenticator
        self._rates = rates

    def admit(self, scope: Scope) -> Caller:
        """Verify the head of a request; the caller confirms the body later.

        Raises:
            S3Error: as ``Authenticator.authenticate``; AccessDenied for anonymous callers; InvalidRequest for forms of signing
                that are not accepted here; RateLimited if the tenant must wait.
        """
        request = WireRequest(
            scope["method"], scope["raw_path"], scope["query_string"], scope["headers"], scope["scheme"]
        )
        verified = self._authenticator.authenticate(request, time.time())
        if verified.principal.anonymous:
            raise S3Error(
                "AccessDenied", explain="Requests under /-/v1 must be signed with an access key of this gateway."
            )
        authenticated(scope, verified.principal.tenant)
        HOLDER.set(verified.principal.tenant)
        if verified.presigned:
            raise S3Error(
                "InvalidRequest", explain="Sign requests under /-/v1 in the Authorization header, not in the query."
            )
        if verified.payload_form.chunked:
            raise S3Error(
                "InvalidRequest",
                explain="Under /-/v1, x-amz-content-sha256 must be the hash of the body or UNSIGNED-PAYLOAD.",
            )
        scope[CALLER] = principal = _paying(verified.principal, request)
        if self._rates.limits:
            needed = _NEEDED.fullmatch(f"{scope['method']} {scope['path']}")
            (self._rates.count if needed else self._rates.admit)(verified.principal.tenant)
        hashed = verified.payload_form is PayloadForm.HASHED
        return Caller(principal, verified.payload_hash.lower() if hashed else "")


def _paying(principal: Principal, request: WireRequest) -> Principal:
    """The caller, who may accept the charges of requester-pays buckets."""
    return principal.paying() if request.fields.get(PAYER, b"").strip() == REQUESTER else principal
