"""The keys that sign a request to the origin.

An identity with an access key signs with that key: the origin's or a tenant's. An identity with ``CHAIN_KEY`` signs with the
keys of the AWS credential chain (environment, profile, SSO, IMDS, ...), or sends unsigned requests if the chain has no keys.
Requests of an anonymous caller, an identity with an empty access key, are never signed: the gateway does not lend its rights.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiobotocore.session import AioSession
from botocore.exceptions import BotoCoreError, ClientError

from gateway.config import Credential, Origin
from gateway.flight import SingleFlight
from gateway.model.errors import OriginUnavailable
from gateway.model.keys import OriginIdentity

CHAIN_KEY = "aws-credential-chain"
"""``access_key_id`` of identities that sign with the AWS credential chain. No real key has this form."""

_TRUSTED_FOR = 60.0
"""Seconds for which the chain's keys are used without asking it."""
_USABLE_FOR = 300.0
"""Seconds for which keys are used while the chain renews them."""


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
    """A source of keys that are not in the configuration."""

    async def current(self) -> Keys | None:
        """Keys that are valid now, or ``None`` if there are none."""
        ...


class CredentialChain:
    """The AWS credential chain: environment, files, IMDS, SSO, STS, by aiobotocore.

    It renews temporary keys 15 minutes before they expire, and blocks until renewed 10 minutes before. So keys are used for a
    minute without asking, renewed in the background for four more, and waited for after that. The chain is set up at
    the first use. If it has no keys, it is not asked again.
    """

    def __init__(self, now: Callable[[], float], session: Callable[[], Any] = AioSession) -> None:
        self._now = now
        self._session = session
        self._source: Any = None
        self._keys: Keys | None = None
        self._asked_at = float("-inf")
        self._asking: SingleFlight[None, None] = SingleFlight()
        self._problem = ""

    async def current(self) -> Keys | None:
        """Keys that are valid now, or ``None`` if the chain has none.

        Raises:
            OriginUnavailable: the chain has keys but could not renew them.
        """
        age = self._now() - self._asked_at
        if age < _TRUSTED_FOR:
            return self._keys
        asking = self._asking.join(None, self._ask)
        if age >= _USABLE_FOR:
            await asyncio.shield(asking)
            if self._problem:
                raise OriginUnavailable(f"the AWS credential chain failed: {self._problem}")
        return self._keys

    async def _ask(self) -> None:
        try:
            self._keys = await self._look_up()
        except (BotoCoreError, ClientError) as error:
            self._problem = str(error)
            return
        self._problem = ""
        self._asked_at = self._now() if self._keys else float("inf")

    async def _look_up(self) -> Keys | None:
        if self._source is None:
            self._source = await self._session().get_credentials()
        if self._source is None:
            return None
        frozen = await self._source.get_frozen_credentials()
        return Keys(frozen.access_key, frozen.secret_key, frozen.token or "")


class KeyRing:
    """The keys of every identity that the configuration allows."""

    def __init__(self, origins: Sequence[Origin], credentials: Sequence[Credential], chain: KeySource) -> None:
        self._chain = chain
        self._keys: dict[OriginIdentity, Keys] = {}
        self._unsigned = {OriginIdentity(origin.name, "") for origin in origins}
        self._chained = {OriginIdentity(origin.name, CHAIN_KEY) for origin in origins if not origin.access_key_id}
        for origin in origins:
            if origin.access_key_id:
                keys = Keys(origin.access_key_id, origin.secret_access_key, origin.session_token)
                self._keys[OriginIdentity(origin.name, origin.access_key_id)] = keys
        for own in credentials:
            if own.origin_access_key_id:
                keys = Keys(own.origin_access_key_id, own.origin_secret_access_key, own.origin_session_token)
                self._keys[OriginIdentity(own.origin, own.origin_access_key_id)] = keys

    def has(self, identity: OriginIdentity) -> bool:
        """Whether requests may be sent as this identity."""
        return identity in self._keys or identity in self._unsigned or identity in self._chained

    async def keys(self, identity: OriginIdentity) -> Keys | None:
        """The keys to sign with, or ``None`` to send the request unsigned.

        Raises:
            KeyError: the identity is not configured; do not send the request unsigned instead.
        """
        if not identity.access_key_id:
            return None
        if identity.access_key_id == CHAIN_KEY:
            return await self._chain.current()
        return self._keys[identity]
