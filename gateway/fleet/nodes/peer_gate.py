"""Authentication of requests between nodes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from gateway.base import metrics
from gateway.model.datasets import ApiError
from gateway.model.peer.auth import WINDOW, PeerRefused, Verified, verify, verify_get
from gateway.model.s3.sigv4 import RawHeader, WireRequest

WAITS_FOR_DISK = "x-larder-disk-waits"
"""Header of a sign of life: the node's cache disk does not answer. Callers that can read elsewhere should not wait for the
node."""
DISK_WAITS = 2.0
"""Seconds that a disk call may take before the node reports it."""
REFUSED = "x-larder-peer-refused"
"""The header of a refusal that concerns the call itself, not the thing asked for; its value is the reason."""

_CODES = {
    "unsigned": "AccessDenied",
    "protocol": "InvalidRequest",
    "date": "RequestTimeTooSkewed",
    "signature": "SignatureDoesNotMatch",
    "body": "XAmzContentSHA256Mismatch",
}


class PeerGate:
    """Admits nodes that know the secret.

    Args:
        secret: of the fleet; not empty.
        now: seconds since the epoch.

    Attributes:
        once: records a signature with its expiry and returns whether it is new; until it is set, every signature counts as new.
    """

    def __init__(self, secret: str, now: Callable[[], float] = time.time) -> None:
        if not secret:
            raise ValueError("without a secret, every caller would be admitted")
        self._secret = secret
        self._now = now
        self.once: Callable[[bytes, float], bool] = lambda signature, expires: True

    def admit(self, request: WireRequest) -> Verified:
        """Verify the head of a request, as it arrived, before its body is read; ``confirm`` verifies that.

        Raises:
            ApiError: it is not a request of another node; the header ``REFUSED`` has the reason in one word. Counted.
        """
        try:
            return verify(self._secret, request, self._now())
        except PeerRefused as refused:
            raise _refusal(refused) from None

    def reader(self, raw_path: bytes, headers: Sequence[RawHeader]) -> bytes | None:
        """The reader for whom a node asks with a plain GET; ``None`` if ``admit`` must decide. See ``verify_get``."""
        return verify_get(self._secret, raw_path, headers, self._now())

    def confirm(self, caller: Verified, body: bytes) -> None:
        """Verify the whole body of an admitted request. Raises what ``admit`` raises."""
        try:
            caller.confirm(body)
        except PeerRefused as refused:
            raise _refusal(refused) from None

    def admit_once(self, caller: Verified) -> None:
        """Admit a request that changes something, after its body is confirmed, if it is the first with its signature.

        Raises:
            ApiError: it was carried out already. Counted.
        """
        if not self.once(caller.signature, caller.date + WINDOW):
            metrics.PEER_REFUSED.labels("replayed").inc()
            # Without the header REFUSED: a node that repeats a request after its connection broke is not a stranger.
            raise ApiError("Conflict", "A request with this signature was carried out before; sign it again.")


def _refusal(refused: PeerRefused) -> ApiError:
    metrics.PEER_REFUSED.labels(refused.reason).inc()
    return ApiError(_CODES[refused.reason], refused.detail, headers={REFUSED: refused.reason})
