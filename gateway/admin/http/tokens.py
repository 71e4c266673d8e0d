"""Who may use the admin addresses: bearer tokens of the configuration, and nothing that a browser sends by itself.

``admin.token`` may do everything, ``admin.read_token`` may look: GET, and POST where that only asks. There are no cookies and no
passwords that browsers keep, so a page of another site has nothing to abuse; a request that says that it comes from one is
refused all the same, in case a proxy adds the token. The head of a request is judged before any of its body is read.

Sources: RFC 6750 (bearer tokens); "Fetch Metadata Request Headers" (W3C) and RFC 6454 for what a browser says of its origin.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from gateway.admin.catalog.changes import Actor
from gateway.config_catalog import AdminSettings
from gateway.model.datasets import ApiError

ACTOR = "larder.actor"
"""Where the scope of a request has its ``Actor``."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="larder admin"'}
_SAFE = frozenset({"GET", "HEAD"})
_ASKING = frozenset({"/admin/rules/check"})
"""What is asked by POST, because it is too long for an address, and changes nothing."""


class Tokens:
    """Judges the heads of requests by the tokens that are configured."""

    def __init__(self, settings: AdminSettings) -> None:
        named = (("admin", settings.token), ("read", settings.read_token))
        # Digests have one length, so a comparison tells nothing of the token's.
        self._digests = tuple((name, sha256(token.encode()).digest()) for name, token in named if token)

    @property
    def open(self) -> bool:
        """Whether any token is configured."""
        return bool(self._digests)

    def admit(self, scope: Mapping[str, Any]) -> Actor:
        """The caller of a request.

        Raises:
            ApiError: AdminDisabled, no token is configured; CrossSite, a page of another site asks; Unauthorized, the token is
                missing or wrong; ReadOnlyToken, it may not do this.
        """
        if not self._digests:
            raise ApiError(
                "AdminDisabled",
                "Set admin.token, or admin.read_token, in the configuration (LARDER_ADMIN__TOKEN in the environment) and "
                "restart the gateway.",
            )
        headers = _headers(scope)
        _refuse_other_sites(headers)
        actor = Actor(self._name_of(headers.get(b"authorization", b"")), _address(scope), uuid.uuid4().hex)
        asks = scope["method"] in _SAFE or (scope["method"] == "POST" and scope["path"] in _ASKING)
        if not asks and not actor.may_change:
            raise ApiError("ReadOnlyToken", "This is admin.read_token, which may only look; changes need admin.token.")
        return actor

    def _name_of(self, authorization: bytes) -> str:
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            raise ApiError(
                "Unauthorized", 'Send the header "Authorization: Bearer TOKEN" with admin.token.', headers=_CHALLENGE
            )
        given = sha256(token.strip()).digest()
        found = [name for name, digest in self._digests if hmac.compare_digest(digest, given)]
        if not found:
            raise ApiError(
                "Unauthorized",
                "The token is not one of this gateway's; compare it with admin.token in its configuration.",
                headers={"WWW-Authenticate": f'{_CHALLENGE["WWW-Authenticate"]}, error="invalid_token"'},
            )
        return found[0]


def _headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """The last of each name; a second one of what is judged here makes the request nobody's."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in (b"authorization", b"origin", b"host") and name in found:
            raise ApiError("InvalidRequest", f"The header {name.decode()} is there more than once.")
        found[name] = value
    return found


def _refuse_other_sites(headers: Mapping[bytes, bytes]) -> None:
    origin = headers.get(b"origin")
    same = origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower() != b""
    if not same or headers.get(b"sec-fetch-site", b"").lower() == b"cross-site":
        raise ApiError(
            "CrossSite",
            "The admin addresses answer programs, and the pages of this gateway itself. Behind a proxy, have it pass the header "
            "Host on as it came.",
        )


def _address(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="admin.token, or admin.read_token for GET")


async def _actor(request: Request, _described: Annotated[Any, Depends(_bearer)]) -> Actor:
    actor: Actor = request.scope[ACTOR]
    return actor


Reader = Annotated[Actor, Depends(_actor)]
"""The caller of an address that changes nothing."""


async def _changer(actor: Reader) -> Actor:
    # The gate has refused this by the method; an endpoint that changes on GET would be a mistake of ours.
    if not actor.may_change:
        raise ApiError("ReadOnlyToken")
    return actor


Admin = Annotated[Actor, Depends(_changer)]
"""The caller of an address that changes something."""

Judge = Callable[[Mapping[str, Any]], Actor]
