"""Access keys prepared for verification: parsed once, so that a request only compares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gateway.base.config import Credential, Origin, Settings
from gateway.model.errors import ConfigError
from gateway.model.keys import Principal
from gateway.origin.credentials import identity_of


@dataclass(frozen=True, slots=True)
class Account:
    """One access key of the gateway.

    If ``session_token`` is not empty, requests must carry it. ``expires_at`` is in seconds since the epoch, infinite for
    permanent keys. ``previous`` is the secret before a rotation, and when it stops being valid in seconds since the epoch.
    """

    principal: Principal
    secret_access_key: str = field(repr=False)
    session_token: bytes = field(default=b"", repr=False)
    expires_at: float = float("inf")
    previous: tuple[str, float] | None = field(default=None, repr=False)

    def secrets(self, now: float) -> tuple[str, ...]:
        """The secrets that are valid now, the current one first."""
        if self.previous is None or now >= self.previous[1]:
            return (self.secret_access_key,)
        return (self.secret_access_key, self.previous[0])


def account_of(credential: Credential, origin: Origin) -> Account:
    """The account of a configured credential; ``origin`` is the one it names.

    Raises:
        ConfigError: ``expires`` is not an ISO 8601 time.
    """
    principal = Principal(
        access_key_id=credential.access_key_id,
        tenant=credential.tenant or credential.access_key_id,
        identity=identity_of(origin, credential),
        allow=credential.allow,
        read_only=credential.read_only,
    )
    previous = credential.previous_secret_access_key
    return Account(
        principal,
        credential.secret_access_key,
        credential.session_token.encode(),
        _expires_at(credential.expires),
        (previous, _expires_at(credential.previous_expires)) if previous else None,
    )


def accounts_of(settings: Settings) -> Mapping[str, Account]:
    """The accounts of a configuration by access key.

    Raises:
        ConfigError: a credential's ``expires`` is not an ISO 8601 time.
    """
    origins = {origin.name: origin for origin in settings.origins}
    return {
        credential.access_key_id: account_of(credential, origins[credential.origin])
        for credential in settings.credentials
    }


def _expires_at(text: str) -> float:
    if not text:
        return float("inf")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"credentials.expires: {text!r} is not an ISO 8601 time such as 2030-01-31T12:00:00Z"
        ) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
