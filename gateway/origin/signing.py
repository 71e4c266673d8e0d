"""SigV4 signatures of the gateway's own requests to origins."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gateway.model.objects import Header
from gateway.model.s3 import sigv4
from gateway.net.requests import OWN_HEADERS
from gateway.origin.credentials import Keys

_KEPT_KEYS = 1024
_KEPT_FORMS = 64
"""Kinds of requests, by signer and headers, that are kept within one second."""
_SIGNED = ("host", "content-type", "content-md5")


class Signer:
    """Signs requests of one gateway worker by SigV4; ``now`` returns seconds since the epoch.

    Only the headers required by S3 are signed: Host, Content-Type, Content-MD5 and every ``x-amz-*`` header (AWS,
    "Authenticating Requests: Using the Authorization Header"). A short canonical request is cheap, and a proxy between the
    gateway and its origin can rewrite unsigned headers without breaking the request.

    Results are cached across requests: the signing key (four HMACs) per key, day and region; and, for one second, the time stamp
    and the canonical headers, which most reads share.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._second = -1
        self._stamp = ""
        self._forms: dict[tuple[object, ...], tuple[list[Header], sigv4.Prepared]] = {}
        """The headers shared by requests of this second, by their inputs."""
        self._signing_keys: dict[tuple[Keys, str, str], bytes] = {}

    def signed(
        self,
        method: str,
        raw_path: str,
        query: str,
        headers: Sequence[Header],
        keys: Keys | None,
        host: str,
        region: str,
        payload: str,
    ) -> list[Header]:
        """The headers of a request, with this client's own and those that authenticate the request.

        Args:
            method: upper-case HTTP method.
            raw_path: percent-encoded path, as it goes to the wire.
            query: percent-encoded query, as it goes to the wire, without "?".
            headers: of the request itself.
            keys: sign the request; ``None`` to send it unsigned.
            host: see ``own_headers``.
            region: of the origin.
            payload: hex SHA-256 of the body, or one of S3's markers such as ``UNSIGNED-PAYLOAD``.
        """
        if keys is None:
            return own_headers(headers, host)
        second = int(self._now())
        if second != self._second:
            self._second, self._stamp = second, time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
            self._forms.clear()
        given = (keys, region, host, payload, *headers)
        form = self._forms.get(given)
        if form is None:
            pairs = own_headers(headers, host)
            pairs += ("x-amz-date", self._stamp), ("x-amz-content-sha256", payload)
            if keys.session_token:
                pairs.append(("x-amz-security-token", keys.session_token))
            signed = [pair for pair in pairs if pair[0][:6].lower() == "x-amz-" or pair[0].lower() in _SIGNED]
            key = self._signing_key(keys, self._stamp[:8], region)
            form = pairs, sigv4.prepare(signed, payload, keys.access_key_id, key, self._stamp, region)
            if len(self._forms) >= _KEPT_FORMS:
                self._forms.clear()
            self._forms[given] = form
        return [*form[0], ("Authorization", form[1].sign(method, raw_path, query))]

    def _signing_key(self, keys: Keys, day: str, region: str) -> bytes:
        name = (keys, day, region)
        key = self._signing_keys.get(name)
        if key is None:
            if len(self._signing_keys) >= _KEPT_KEYS:
                self._signing_keys.clear()
            key = sigv4.signing_key(keys.secret_access_key, day, region)
            self._signing_keys[name] = key
        return key


def own_headers(headers: Sequence[Header], host: str) -> list[Header]:
    """The headers of a request, with this client's own. The Host that is sent and signed is the configured one, ``host``."""
    pairs: list[Header] = []
    for pair in headers:
        if pair[0].lower() != "host":
            pairs.append(pair)  # noqa: PERF401  # in Python 3.11 a comprehension is a call
    pairs += *OWN_HEADERS, ("Host", host)
    return pairs
