"""Requests signed by botocore, as they would arrive on the wire: an oracle that shares no code with the gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit

from botocore.auth import HmacV1QueryAuth, S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

from gateway.model.s3.sigv4 import RawHeader, WireRequest


@dataclass(frozen=True)
class ClientSigner:
    """One client of the gateway."""

    access_key_id: str = "AK"
    secret_access_key: str = field(default="secret", repr=False)
    session_token: str | None = None
    region: str = "us-east-1"

    @property
    def _credentials(self) -> Credentials:
        return Credentials(self.access_key_id, self.secret_access_key, self.session_token)

    def header(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *, body: bytes = b"", **more: Any
    ) -> WireRequest:
        """A request with SigV4 in the Authorization header; ``more`` goes to the request (``auth_path``, ``params``)."""
        request = self._request(method, url, headers, body, more)
        S3SigV4Auth(self._credentials, "s3", self.region).add_auth(request)
        return arrived(request)

    def presigned(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *, expires: int = 3600, **more: Any
    ) -> WireRequest:
        """A request with SigV4 in the query string, valid for ``expires`` seconds from now."""
        request = self._request(method, url, headers, b"", more)
        S3SigV4QueryAuth(self._credentials, "s3", self.region, expires=expires).add_auth(request)
        return arrived(request)

    def presigned_v2(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, *, expires: int = 3600, **more: Any
    ) -> WireRequest:
        """A request with SigV2 in the query string, valid for ``expires`` seconds from now."""
        request = self._request(method, url, headers, b"", more)
        HmacV1QueryAuth(self._credentials, expires=expires).add_auth(request)
        sent = arrived(request)
        # The signer leaves a Date header, which no client sends with a presigned address.
        sent.headers = [pair for pair in sent.headers if pair[0] != b"date" and not pair[0].startswith(b"x-amz-")]
        return sent

    def _request(
        self, method: str, url: str, headers: Mapping[str, str] | None, body: bytes, more: dict[str, Any]
    ) -> AWSRequest:
        return AWSRequest(method, url, headers={"Host": urlsplit(url).netloc, **(headers or {})}, data=body, **more)


def arrived(request: AWSRequest) -> WireRequest:
    """A botocore request as a server sees it."""
    prepared = request.prepare()
    parts = urlsplit(prepared.url)
    headers = [
        (name.lower().encode(), value if isinstance(value, bytes) else str(value).encode())
        for name, value in prepared.headers.items()
    ]
    return WireRequest(str(prepared.method), parts.path.encode(), parts.query.encode(), headers, parts.scheme)


def with_headers(request: WireRequest, *headers: RawHeader) -> WireRequest:
    """The request with additional, unsigned header lines."""
    return replace(request, headers=[*request.headers, *headers])
