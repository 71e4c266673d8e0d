"""Authorization of the admin endpoints by bearer tokens, never by credentials that a browser sends on its own.

``admin.token`` may do everything. ``admin.read_token`` may read: GET, and POSTs that change nothing. There are no cookies
and no stored passwords, so pages of other sites have nothing to abuse. Cross-site requests are refused all the same, in case a
proxy adds the token. The head of a request is checked before its body is read.

Sources: RFC 6750 (bearer tokens); "Fetch Metadata Request Headers" (W3C) and RFC 6454 for how a browser names its origin.
"""

from __future__ import annotations

import hmac
import uuid
from collections.abc import Mapping
from hashlib import sha256
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.security import HTTPBearer

from gateway.admin.catalog.changes import Actor
from gateway.config_catalog import AdminSettings
from gateway.model.datasets import ApiError

ACTOR = "larder.actor"
"""Key of the ``Actor`` in a request's scope."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="larder admin"'}
_SAFE = frozenset({"GET", "HEAD"})
_ASKING = frozenset({"/admin/rules/check"})
"""POST endpoints that only query, because their input is too long for a URL."""


class Tokens:
    """Checks the heads of requests against the configured tokens."""

    def __init__(self, settings: AdminSettings) -> None:
        named = (("admin", settings.token), ("read", settings.read_token))
        # Compare digests: their fixed length hides the length of the token.
        self._digests = tuple((name, sha256(token.encode()).digest()) for name, token in named if token)

    @property
    def open(self) -> bool:
        """Whether any token is configured."""
        return bool(self._digests)

    def admit(self, scope: Mapping[str, Any]) -> Actor:
        """The caller of a request.

        Raises:
            ApiError: AdminDisabled if no token is configured; CrossSite for a request of another site; Unauthorized if the
                token is missing or wrong; ReadOnlyToken if it does not allow changes.
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
            raise ApiError("ReadOnlyToken", "admin.read_token may only read; changes need admin.token.")
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
                "Unknown token; compare it with admin.token in the configuration of this gateway.",
                headers={"WWW-Authenticate": f'{_CHALLENGE["WWW-Authenticate"]}, error="invalid_token"'},
            )
        return found[0]


def _headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Headers by name. A repeated header among those checked here is refused."""
    found: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in (b"authorization", b"origin", b"host") and name in found:
            raise ApiError("InvalidRequest", f"The header {name.decode()} is given more than once.")
        found[name] = value
    return found


def _refuse_other_sites(headers: Mapping[bytes, bytes]) -> None:
    origin = headers.get(b"origin")
    same = origin is None or origin.partition(b"://")[2].lower() == headers.get(b"host", b"").lower() != b""
    if not same or headers.get(b"sec-fetch-site", b"").lower() == b"cross-site":
        raise ApiError(
            "CrossSite",
            "The admin endpoints answer programs and this gateway's own pages. A proxy must pass the header Host on unchanged.",
        )


def _address(scope: Mapping[str, Any]) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


_bearer = HTTPBearer(auto_error=False, scheme_name="token", description="admin.token, or admin.read_token for GET")


async def _actor(request: Request, _described: Annotated[Any, Depends(_bearer)]) -> Actor:
    actor: Actor = request.scope[ACTOR]
    return actor


Reader = Annotated[Actor, Depends(_actor)]
"""The caller of an endpoint that changes nothing."""


async def _changer(actor: Reader) -> Actor:
    # Defence in depth: the gate refuses by method, this also covers a changing endpoint under GET.
    if not actor.may_change:
        raise ApiError("ReadOnlyToken")
    return actor


Admin = Annotated[Actor, Depends(_changer)]
"""The caller of an endpoint that changes something."""
