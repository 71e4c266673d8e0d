"""What is said of credentials: to whom asks, in the audit log, and in the catalog."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import Field, SecretStr, Strict, ValidationError

from gateway.admin.catalog.merging import Names, names_of, refused, unusable
from gateway.admin.catalog.snapshot import CredentialRow, Snapshot
from gateway.admin.catalog.vault import Vault
from gateway.admin.documents import Answer, Asked, Name, Source, Text, moment
from gateway.admin.preconditions import etag_of
from gateway.config import Credential as Configured
from gateway.config import Settings
from gateway.model.problems import invalid_request

_SECRETS = (
    "secret_access_key",
    "previous_secret_access_key",
    "origin_secret_access_key",
    "origin_session_token",
)
_PUBLIC = ("tenant", "origin", "origin_access_key_id", "allow", "read_only", "expires", "previous_expires")

_ALLOW = Field(
    description='bucket/key globs that the key may touch, as "bucket/train/**"; empty: all', examples=[["datasets/**"]]
)
Globs = Annotated[tuple[Text, ...], Strict(False)]


class _Fields(Asked):
    """What can be said of a credential at its creation and later."""

    @staticmethod
    def plain(values: dict[str, Any]) -> dict[str, Any]:
        """The values as the configuration takes them."""
        return {
            name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()
        }


class NewCredential(_Fields):
    """A credential to be."""

    access_key_id: Name | None = Field(None, description="chosen by the gateway when left out", examples=["vision"])
    secret_access_key: SecretStr | None = Field(
        None,
        min_length=16,
        max_length=128,
        description="made by the gateway when left out",
        examples=["a long random string"],
    )
    description: Text = Field("", examples=["nightly training"])
    tenant: Text = Field(
        "", description="one that exists; the access key is its own tenant when empty", examples=["vision"]
    )
    origin: Text = Field(
        "default", description="name of the origin that the key reads and writes", examples=["default"]
    )
    origin_access_key_id: Text = Field("", description="own key at the origin, instead of the origin's", examples=[""])
    origin_secret_access_key: SecretStr = Field(SecretStr(""), description="its secret", examples=[""])
    origin_session_token: SecretStr = Field(SecretStr(""), description="its session token", examples=[""])
    allow: Globs = Field((), max_length=200, description=_ALLOW.description, examples=_ALLOW.examples)
    read_only: bool = Field(False, description="refuse every write of this key", examples=[True])
    expires: Text = Field(
        "", description="ISO 8601 time after which it is refused; empty: never", examples=["2030-01-31T12:00:00Z"]
    )

    def configured(self, key: str, secret: SecretStr | str) -> Configured:
        """The credential, as a configuration has it.

        Raises:
            ApiError: InvalidRequest, naming what is wrong.
        """
        values = self.plain(self.model_dump(exclude={"access_key_id", "secret_access_key", "description"}))
        return _checked({**values, "access_key_id": key, **self.plain({"secret_access_key": secret})})


class CredentialChange(_Fields):
    """What to change; what is left out stays."""

    description: Text | None = Field(None, examples=["nightly training"])
    tenant: Text | None = Field(None, description="one that exists, or empty", examples=["vision"])
    origin: Text | None = Field(None, description="name of an origin", examples=["default"])
    origin_access_key_id: Text | None = Field(None, description="with origin_secret_access_key", examples=[""])
    origin_secret_access_key: SecretStr | None = Field(None, description="with origin_access_key_id", examples=[""])
    origin_session_token: SecretStr | None = Field(None, examples=[""])
    allow: Globs | None = Field(None, max_length=200, description=_ALLOW.description, examples=_ALLOW.examples)
    read_only: bool | None = Field(None, description="refuse every write of this key", examples=[True])
    expires: Text | None = Field(None, description="ISO 8601; empty: never", examples=["2030-01-31T12:00:00Z"])

    def applied(self, row: CredentialRow, revision: int) -> CredentialRow:
        """The credential after the change of this number.

        Raises:
            ApiError: InvalidRequest, naming what is wrong.
        """
        values = self.plain(self.model_dump(exclude_none=True))
        description = values.pop("description", row.description)
        changed = _checked({**row.credential.model_dump(), **values})
        return CredentialRow(changed, description, row.created_at, row.rotated_at, revision)


class Rotation(Asked):
    """How to rotate."""

    grace: float = Field(
        0.0, ge=0, le=30 * 86_400, description="seconds that the old secret is accepted too", examples=[3600]
    )
    secret_access_key: SecretStr | None = Field(
        None,
        min_length=16,
        max_length=128,
        description="made by the gateway when left out",
        examples=["a long random string"],
    )

    def applied(self, row: CredentialRow, secret: str, now: float, revision: int) -> CredentialRow:
        """The credential with ``secret``, or the one that was asked for, after the change of this number.

        Raises:
            ApiError: InvalidRequest, naming what is wrong.
        """
        old, end = row.credential, datetime.fromtimestamp(now + self.grace, UTC).isoformat()
        changes = {
            "secret_access_key": self.secret_access_key.get_secret_value() if self.secret_access_key else secret,
            "previous_secret_access_key": old.secret_access_key if self.grace else "",
            "previous_expires": end if self.grace else "",
        }
        # Checked, not only copied: what cannot be read again would keep all gateways from reading anything.
        changed = _checked({**old.model_dump(), **changes})
        return CredentialRow(changed, row.description, row.created_at, now, revision)


class Credential(Answer):
    """A credential, without its secret."""

    access_key_id: str = Field(examples=["vision"])
    description: str = Field(examples=["nightly training"])
    tenant: str = Field(description="whose it is", examples=["vision"])
    origin: str = Field(examples=["default"])
    origin_access_key_id: str = Field(description="own key at the origin; empty: the origin's", examples=[""])
    allow: list[str] = Field(description=_ALLOW.description, examples=[["datasets/**"]])
    read_only: bool = Field(examples=[True])
    expires: str = Field(description="ISO 8601; empty: never", examples=["2030-01-31T12:00:00Z"])
    revoked: bool = Field(examples=[False])
    revoked_at: str | None = Field(description="ISO 8601", examples=[None])
    previous_expires: str = Field(
        description="until when the secret before the last rotation is accepted too", examples=[""]
    )
    rotated_at: str | None = Field(description="ISO 8601", examples=[None])
    created_at: str | None = Field(
        description="ISO 8601; null for one of the file", examples=["2026-03-01T09:30:00.000Z"]
    )
    source: Source = Field(examples=["catalog"])
    problem: str = Field(description="why it is not in force; empty when it is", examples=[""])
    etag: str = Field(description="for If-Match", examples=['"17"'])


class NewSecret(Credential):
    """A credential with its secret: told in this answer only."""

    secret_access_key: str = Field(examples=["vQ0GgT5yZ1uK8nWcE2rXbA7dJ4hLfM9sPoRiNt3q"])


def credential_documents(file: Settings, catalog: Snapshot) -> dict[str, Credential]:
    """Every credential by its access key, the file's where both have one."""
    names = names_of(file, catalog)
    found = {key: _of_catalog(row, names, catalog) for key, row in catalog.credentials.items()}
    for credential in file.credentials:
        found[credential.access_key_id] = _of_file(credential, catalog)
    return found


def credential_document(key: str, file: Settings, catalog: Snapshot) -> Credential | None:
    """One credential; ``None`` when there is none of this access key."""
    of_file = next((credential for credential in file.credentials if credential.access_key_id == key), None)
    if of_file is not None:
        return _of_file(of_file, catalog)
    row = catalog.credentials.get(key)
    return None if row is None else described(row, file, catalog)


def described(row: CredentialRow, file: Settings, catalog: Snapshot) -> Credential:
    """The document of a credential of the catalog; ``catalog`` may be older than the row."""
    return _of_catalog(row, names_of(file, catalog), catalog)


def _of_catalog(row: CredentialRow, names: Names, catalog: Snapshot) -> Credential:
    revocation = catalog.revocations.get(row.credential.access_key_id)
    return Credential(
        **_public(row.credential),
        description=row.description,
        revoked=revocation is not None,
        revoked_at=moment(revocation.revoked_at) if revocation else None,
        rotated_at=None if row.rotated_at is None else moment(row.rotated_at),
        created_at=moment(row.created_at),
        source="catalog",
        problem=unusable(row, names, catalog),
        etag=etag_of(max(row.revision, revocation.revision if revocation else 0)),
    )


def _of_file(credential: Configured, catalog: Snapshot) -> Credential:
    revocation = catalog.revocations.get(credential.access_key_id)
    return Credential(
        **_public(credential),
        description="",
        revoked=revocation is not None,
        revoked_at=moment(revocation.revoked_at) if revocation else None,
        rotated_at=None,
        created_at=None,
        source="file",
        problem=refused(credential, catalog),
        etag=etag_of(revocation.revision if revocation else 0),
    )


def ended(credential: Configured, now: float) -> bool:
    """Whether a credential is past its end at ``now``, in seconds since the epoch; a time without a zone is UTC."""
    if not credential.expires:
        return False
    end = datetime.fromisoformat(credential.expires)
    return (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp() <= now


def audited(row: CredentialRow) -> dict[str, Any]:
    """What the audit log keeps of a credential: nothing secret, and when its secret was made."""
    public = _public(row.credential)
    del public["access_key_id"]
    return {**public, "description": row.description, "rotated_at": row.rotated_at and moment(row.rotated_at)}


def row_values(row: CredentialRow, vault: Vault) -> dict[str, Any]:
    """The columns of a credential."""
    credential = row.credential
    secrets = {name: getattr(credential, name) for name in _SECRETS}
    return {
        "access_key_id": credential.access_key_id,
        **{name: getattr(credential, name) for name in _PUBLIC},
        "allow": json.dumps(credential.allow),
        "description": row.description,
        "created_at": row.created_at,
        "rotated_at": row.rotated_at,
        "revision": row.revision,
        "secrets": vault.seal(f"credentials/{credential.access_key_id}", secrets),
    }


def _public(credential: Configured) -> dict[str, Any]:
    values = {name: getattr(credential, name) for name in ("access_key_id", *_PUBLIC)}
    return {**values, "tenant": credential.tenant or credential.access_key_id, "allow": list(credential.allow)}


def _checked(values: dict[str, Any]) -> Configured:
    try:
        return Configured(**values)
    except ValidationError as error:
        raise invalid_request(error.errors()) from None
