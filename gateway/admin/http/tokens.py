"""Authorization of the admin endpoints by bearer tokens, never by credentials that a browser sends on its own.

``admin.token`` has the role admin, ``admin.read_token`` that of a viewer. Tokens of the catalog have names and roles of their
own. ``http/roles.py`` says what each request needs. There are no cookies and no stored passwords, so pages of other sites have
nothing to abuse. Cross-site requests are refused all the same, in case a proxy adds the token. The head of a request is
checked before its body is read.

Sources: RFC 6750 (bearer tokens); "Fetch Metadata Request Headers" (W3C) and RFC 6454 for how a browser names its origin.
"""

from __future__ import annotations

import hmac
import time
import uuid
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

from gateway.admin.catalog.changes import Actor
from gateway.admin.catalog.records import TokenRecord
from gateway.admin.catalog.roles import TokenRole
from gateway.admin.catalog.snapshot import Snapshot
from gateway.admin.http.roles import role_needed
from gateway.base.config_catalog import AdminSettings
from gateway.model.datasets import ApiError

ACTOR = "larder.actor"
"""Key of the ``Actor`` in a request's scope."""
CONFIGURED = ("admin", "read")
"""Names of the configuration's tokens in the audit log."""
_CHALLENGE = {"WWW-Authenticate": 'Bearer realm="larder admin"'}


class Tokens:
    """Checks the heads of requests against the tokens of the configuration and of the catalog.

    Args:
        settings: have the configuration's tokens.
        now: seconds since the epoch.
    """

    def __init__(self, settings: AdminSettings, now: Callable[[], float] = time.time) -> None:
        given = zip(CONFIGURED, (settings.token, settings.read_token), (TokenRole.ADMIN, TokenRole.VIEWER), strict=True)
        # Compare digests: their fixed length hides the length of the token.
        self._digests = tuple((name, sha256(token.encode()).digest(), role) for name, token, role in given if token)
        self._now = now
        self._named: Mapping[bytes, TokenRecord] = {}

    async def use_catalog(self, snapshot: Snapshot) -> None:
        """Accept the tokens of this snapshot of the catalog, in place of an earlier one's."""
        self._named = {record.digest: record for record in snapshot.tokens.values()}

    def admit(self, scope: Mapping[str, Any]) -> Actor:
        """The caller of a request.

        Raises:
            ApiError: AdminDisabled if there is no token at all; CrossSite for a request of another site; Unauthorized if the
                token is missing, wrong or expired; ReadOnlyToken and RoleRequired if its role does not allow the request.
        """
        if not self._digests and not self._named:
            raise ApiError(
                "AdminDisabled",
                "Set admin.token, or admin.read_token, in the configuration (LARDER_ADMIN__TOKEN in the environment) and "
                "restart the gateway.",
            )
        headers = _headers(scope)
        _refuse_other_sites(headers)
        name, role = self._find(headers.get(b"authorization", b""))
        actor = Actor(name, _address(scope), uuid.uuid4().hex, role)
        check_role(actor, scope["method"], scope["path"])
        return actor

    def _find(self, authorization: bytes) -> tuple[str, TokenRole]:
        """Name and role of the token."""
        scheme, _, token = authorization.partition(b" ")
        if scheme.lower() != b"bearer" or not token.strip():
            raise ApiError(
                "Unauthorized", 'Send the header "Authorization: Bearer TOKEN" with admin.token.', headers=_CHALLENGE
            )
        given = sha256(token.strip()).digest()
        for name, digest, role in self._digests:
            if hmac.compare_digest(digest, given):
                return name, role
        # The timing of a look-up by digest reveals nothing: a guesser cannot choose the digest.
        record = self._named.get(given)
        if record is None or record.ended(self._now()):
            why = "Unknown token; compare it with admin.token in the configuration of this gateway."
            raise ApiError(
                "Unauthorized",
                why if record is None else "The token has expired; ask an admin for another.",
                headers={"WWW-Authenticate": f'{_CHALLENGE["WWW-Authenticate"]}, error="invalid_token"'},
            )
        return record.name, TokenRole(record.role)


def check_role(actor: Actor, method: str, path: str) -> None:
    """Refuse a request that the caller's role does not allow.

    Raises:
        ApiError: ReadOnlyToken for a viewer, RoleRequired for others.
    """
    needed = role_needed(method, path)
    if actor.role.allows(needed):
        return
    if actor.role is TokenRole.VIEWER:
        raise ApiError("ReadOnlyToken", f"This token may only read; this change needs the role {needed.value}.")
    raise ApiError(
        "RoleRequired", f"This token has the role {actor.role.value}; this change needs the role {needed.value}."
    )


def _headers(scope: Mapping[str, Any]) -> dict[bytes, bytes]:
    """Headers by name. A repeated header among those checked here is refused."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in (b"authorization", b"origin", b"host") and name in headers:
            raise ApiError("InvalidRequest", f"The header {name.decode()} is given more than once.")
        headers[name] = value
    return headers


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
