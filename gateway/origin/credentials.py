"""The keys that sign a request to the origin.

An identity with an access key, the origin's or a tenant's, signs with that key. An identity with ``CHAIN_KEY`` signs with the
keys of the AWS credential chain (environment, profile, SSO, IMDS, ...), or sends unsigned requests if the chain has no keys.
Requests of an anonymous caller (an identity with an empty access key) are never signed: the gateway does not lend its rights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from gateway.base.config import Credential, Origin
from gateway.model.keys import OriginIdentity

CHAIN_KEY = "aws-credential-chain"
"""``access_key_id`` of identities that sign with the AWS credential chain. No real key has this form."""


@dataclass(frozen=True, slots=True)
class Keys:
    """An access key of the origin. ``session_token`` is empty for permanent keys."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str = field(default="", repr=False)


def identity_of(origin: Origin, credential: Credential | None) -> OriginIdentity:
    """The identity under which a caller's requests reach the origin; no credential means an anonymous caller."""
    if credential is None:
        return OriginIdentity(origin.name, "")
    return OriginIdentity(origin.name, credential.origin_access_key_id or origin.access_key_id or CHAIN_KEY)


class KeySource(Protocol):
    """A source of keys outside the configuration."""

    async def current(self) -> Keys | None:
        """Keys that are valid now, or ``None`` if there are none."""
        ...


def is_chained(origins: Sequence[Origin]) -> bool:
    """Whether any origin has no keys in the configuration."""
    return any(not origin.access_key_id for origin in origins)


class KeyRing:
    """The keys of every identity that the configuration allows."""

    def __init__(self, origins: Sequence[Origin], credentials: Sequence[Credential], chain: KeySource) -> None:
        self._chain = chain
        self.fixed: dict[OriginIdentity, Keys] = {}
        """The keys in the configuration; for any other identity, call ``keys``."""
        for origin in origins:
            if origin.access_key_id:
                keys = Keys(origin.access_key_id, origin.secret_access_key, origin.session_token)
                self.fixed[OriginIdentity(origin.name, origin.access_key_id)] = keys
        self._own: set[OriginIdentity] = set()
        for own in credentials:
            if own.origin_access_key_id:
                keys = Keys(own.origin_access_key_id, own.origin_secret_access_key, own.origin_session_token)
                identity = OriginIdentity(own.origin, own.origin_access_key_id)
                if identity not in self.fixed:
                    self._own.add(identity)
                self.fixed[identity] = keys
        # Tuples of strings are hashed without a Python call; every read from another node looks one up.
        self._known = {(fixed.origin, fixed.access_key_id) for fixed in self.fixed}
        self._known |= {(origin.name, "") for origin in origins}
        self._known |= {(origin.name, CHAIN_KEY) for origin in origins if not origin.access_key_id}

    def has(self, identity: OriginIdentity) -> bool:
        """Whether requests may be sent as this identity."""
        return (identity.origin, identity.access_key_id) in self._known

    def owns(self, identity: OriginIdentity) -> bool:
        """Whether the keys belong to a credential alone and not to the origin."""
        return OriginIdentity(identity.origin, identity.access_key_id) in self._own

    async def keys(self, identity: OriginIdentity) -> Keys | None:
        """The keys to sign with, or ``None`` to send the request unsigned.

        Raises:
            KeyError: the identity is not configured; do not send the request unsigned instead.
            OriginUnavailable: the credential chain no longer has keys.
        """
        if not identity.access_key_id:
            return None
        if identity.access_key_id == CHAIN_KEY:
            return await self._chain.current()
        return self.fixed[OriginIdentity(identity.origin, identity.access_key_id)]
