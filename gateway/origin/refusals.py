"""Answers of an origin that refuse the gateway itself rather than a reader.

A reader signs with a key of the gateway, and cannot correct the gateway's key, clock, region or address. If the reader got the
origin's answer, such as ``SignatureDoesNotMatch``, it would suspect its own key. So the client raises ``GatewayRefused``
instead: cached objects are served within ``stale_if_error``, and other requests get a 503. The log has the origin's words, and
the list of problems names the setting, until the origin accepts the gateway or has not refused it for a while. The list can be
read without a key, so it contains no key. ``AccessDenied`` concerns an object and its reader, and does not count as a refusal of
the gateway.

Redirects count: the gateway sends signed requests only to the configured address, and a redirect means that a bucket is
elsewhere.

An answer to HEAD has no document, and its status alone is ambiguous. So the client asks again by GET, unless the origin has
accepted the key since, or has just denied the object itself.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from html import unescape
from typing import NamedTuple

from gateway.model.errors import GatewayRefused, OriginUnavailable
from gateway.model.keys import OriginIdentity

_KEYS = (
    "correct origins.access_key_id and origins.secret_access_key, or origin_access_key_id and origin_secret_access_key of the "
    "credential"
)
_RENEW = (
    "renew the keys and origins.session_token, or those of the credential, or leave origins.access_key_id empty, so that the AWS "
    "credential chain renews them"
)
NO_KEYS = "NoKeys"
"""The code for a gateway that no longer has keys to sign with. It sends no request, so no origin answers with it."""
_PLACE = "correct origins.endpoint and origins.region"
_REMEDIES = {
    "AccountProblem": "the store's owner must restore the account",
    "AuthorizationHeaderMalformed": "the region of the origin is another: correct origins.region",
    "ExpiredToken": _RENEW,
    "IncorrectEndpoint": _PLACE,
    "InvalidAccessKeyId": _KEYS,
    "InvalidSecurity": _KEYS,
    "InvalidToken": _RENEW,
    NO_KEYS: "give the AWS credential chain keys again: a login, the role of this machine, or the profile that names them",
    "NotSignedUp": "the store's owner must sign the account up",
    "PermanentRedirect": _PLACE,
    "Redirect": _PLACE,
    "RequestExpired": "set the clock of this machine",
    "RequestTimeTooSkewed": "set the clock of this machine",
    "SignatureDoesNotMatch": _KEYS,
    "TemporaryRedirect": "wait, as a new bucket is not known everywhere at once; if it stays, " + _PLACE,
    "TokenRefreshRequired": _RENEW,
    "UserSuspended": "the store's owner must restore the user of the keys",
}
"""What to do, by the origin's code ("Error responses", Amazon S3 API reference; ``UserSuspended`` is Ceph's)."""
_WITHDRAWN = frozenset(
    {"AccountProblem", "InvalidAccessKeyId", "InvalidSecurity", "NotSignedUp", "SignatureDoesNotMatch", "UserSuspended"}
)
"""Codes with which a store's owner withdraws a key from a tenant. A wrong clock or region does not count."""
_REDIRECTS = {
    301: "PermanentRedirect",
    302: "Redirect",
    303: "Redirect",
    307: "TemporaryRedirect",
    308: "PermanentRedirect",
}
UNCLEAR = frozenset({400, 401, 403})
"""Statuses whose document decides whether they refuse the gateway."""
SUSPECT = UNCLEAR | _REDIRECTS.keys()
"""Statuses of answers that may refuse the gateway."""
_REMEMBERED = 300.0
"""Seconds for which a refusal is a problem, unless the gateway is refused again."""
TRUSTED = 2.0
"""Seconds for which an accepted key is not in doubt, if nothing cached depends on it."""
DENIED = 10.0
"""Seconds for which an object denied to a reader is not requested again to explain a refused HEAD."""
log = logging.getLogger("larder.origin")


class Refusal(NamedTuple):
    """An answer that refuses the gateway: the origin's code, and its message with a remedy."""

    code: str
    said: str

    @property
    def withdraws(self) -> bool:
        """Whether the key was withdrawn."""
        return self.code in _WITHDRAWN

    @property
    def redirects(self) -> bool:
        """Whether the origin sends the gateway elsewhere."""
        return self.code in _REDIRECTS.values()


def refusal_of(status: int, body: bytes, region: str = "", remedy: str = "") -> Refusal | None:
    """The refusal at the beginning of an answer; ``None`` if the answer concerns the reader.

    Args:
        status: of the answer.
        body: the beginning of its document.
        region: ``x-amz-bucket-region`` of the answer.
        remedy: replaces the remedy for keys.
    """
    code = _element(body, "Code")
    if code not in _REMEDIES:
        if status not in _REDIRECTS:
            return None
        code = _REDIRECTS[status]
    advice = remedy if remedy and _REMEDIES[code] in (_KEYS, _RENEW) else _REMEDIES[code]
    place = [f"the bucket is in region {region}"] if (region := region or _element(body, "Region")) else []
    place += [f"at {endpoint}"] if (endpoint := _element(body, "Endpoint")) else []
    return Refusal(code, "; ".join(filter(None, [code, _element(body, "Message"), *place, advice])))


class Refusals:
    """How origins refuse the gateway now.

    Args:
        now: a clock in seconds.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self.current: dict[OriginIdentity, tuple[float, Refusal]] = {}
        """By identity: until when the refusal is a problem, and the refusal. Remove those whose origin accepts a request."""

    def refused(self, identity: OriginIdentity, refusal: Refusal) -> None:
        """Note a refusal, and log the identity if it was not refused before."""
        if identity not in self.current:
            log.warning(
                "the origin %(origin)r refuses the gateway's key %(access_key_id)s: %(error)s",
                {"origin": identity.origin, "access_key_id": identity.access_key_id, "error": refusal.said},
            )
        self.current[identity] = self._now() + _REMEMBERED, refusal

    def without_keys(self, identity: OriginIdentity, failure: OriginUnavailable) -> GatewayRefused:
        """Record that the gateway no longer has keys for an identity; returns the error of the request.

        Grants stay, because no reader lost a right. The request is not sent unsigned, which would change its meaning.
        """
        refusal = Refusal(NO_KEYS, f"{failure}; {_REMEDIES[NO_KEYS]}")
        if identity not in self.current:
            log.warning(
                "no keys for the origin %(origin)r: %(error)s", {"origin": identity.origin, "error": refusal.said}
            )
        self.current[identity] = self._now() + _REMEMBERED, refusal
        return GatewayRefused(f"the gateway has no keys for the origin {identity.origin!r}: {failure}")

    @property
    def problem(self) -> str:
        """The origins, their codes and the remedies, in words; empty if the gateway is not refused."""
        now = self._now()
        self.current = {identity: entry for identity, entry in self.current.items() if entry[0] > now}
        refused = sorted({(identity.origin, entry[1]) for identity, entry in self.current.items()})
        if not refused:
            return ""
        what = [
            f"the gateway has no keys for the origin {origin!r}"
            if refusal.code == NO_KEYS
            else f"the origin {origin!r} {'redirects the gateway' if refusal.redirects else 'refuses a key of the gateway'}: "
            f"{refusal.code}"
            for origin, refusal in refused
        ]
        remedies = dict.fromkeys(_REMEDIES[refusal.code] for _, refusal in refused)
        return "; ".join([*dict.fromkeys(what), "the log names it", *remedies])


def _element(body: bytes, name: str) -> str:
    """The text of an element of an error document; empty without one."""
    match = re.search(rf"<{name}>([^<]*)</{name}>".encode(), body)
    return unescape(match[1].decode("utf-8", "replace")).rstrip(". ") if match else ""
