"""SigV4 towards the origin.

Only the headers required by S3 are signed: Host, Content-Type, Content-MD5 and every ``x-amz-*`` header (AWS, "Authenticating
Requests: Using the Authorization Header"). A short canonical request is cheap, and a proxy between the gateway and its origin
can rewrite unsigned headers without breaking the request.

Results are cached across requests: the signing key, four HMACs per key, day and region; and for one second the time stamp, and
the canonical form of the headers, which most reads have in common.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from gateway.model import sigv4
from gateway.model.objects import Header
from gateway.origin.credentials import Keys

_KEPT_KEYS = 1024
_KEPT_FORMS = 64
"""Kinds of requests, by signer and headers, that are kept within one second."""
_SIGNED = ("host", "content-type", "content-md5")


class Signer:
    """Signs requests of one gateway worker; ``now`` returns seconds since the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._second = -1
        self._stamp = ""
        self._prepared: dict[tuple[object, ...], sigv4.Prepared] = {}
        self._signing_keys: dict[tuple[Keys, str, str], bytes] = {}

    def sign(
        self,
        method: str,
        raw_path: str,
        query: str,
        headers: list[Header],
        *,
        payload_hash: str,
        keys: Keys,
        region: str,
    ) -> None:
        """Append the headers that authenticate the request as ``keys`` to ``headers``, which must name the host.

        Args:
            method: upper-case HTTP method.
            raw_path: percent-encoded path, as it goes to the wire.
            query: percent-encoded query, as it goes to the wire, without "?".
            headers: changed in place.
            payload_hash: hex SHA-256 of the body, or one of S3's markers such as ``UNSIGNED-PAYLOAD``.
            keys: sign the request.
            region: of the origin.
        """
        second = int(self._now())
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
            self._prepared.clear()
        stamp = self._stamp
        given = (keys, region, payload_hash, *headers)
        headers.append(("x-amz-date", stamp))
        headers.append(("x-amz-content-sha256", payload_hash))
        if keys.session_token:
            headers.append(("x-amz-security-token", keys.session_token))
        prepared = self._prepared.get(given)
        if prepared is None:
            if len(self._prepared) >= _KEPT_FORMS:
                self._prepared.clear()
            signed = [pair for pair in headers if pair[0][:6].lower() == "x-amz-" or pair[0].lower() in _SIGNED]
            key = self._signing_key(keys, stamp[:8], region)
            prepared = sigv4.prepare(signed, payload_hash, keys.access_key_id, key, stamp, region)
            self._prepared[given] = prepared
        headers.append(("Authorization", prepared.sign(method, raw_path, query)))

    def _signing_key(self, keys: Keys, day: str, region: str) -> bytes:
        name = (keys, day, region)
        found = self._signing_keys.get(name)
        if found is None:
            if len(self._signing_keys) >= _KEPT_KEYS:
                self._signing_keys.clear()
            found = sigv4.signing_key(keys.secret_access_key, day, region)
            self._signing_keys[name] = found
        return found
