"""Tenants, credentials, origins and admin tokens: the records that operators manage, with every field declared once.

The documents that create, change and show a record, its audit entry and its table follow from the declaration. A field is part of
all of them unless its annotation has another ``Role``.
"""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, cached_property
from hashlib import sha256
from typing import Annotated, Any, ClassVar, Literal, Self, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SecretStr,
    Strict,
    TypeAdapter,
    create_model,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from sqlalchemy import BigInteger, Boolean, Column, Double, MetaData, Table
from sqlalchemy import Text as TextColumn

from gateway.admin.catalog.fields import HeaderSecret, HeaderText, Name, RequestModel, Secret, Text
from gateway.admin.catalog.vault import Vault
from gateway.base import config
from gateway.base.config_base import TenantLimit
from gateway.edge.documents import ResponseModel, moment


@dataclass(frozen=True, slots=True)
class Role:
    """Which documents have a field: those that create, change and show a record. Fields that are never shown are sealed."""

    create: bool = True
    change: bool = True
    show: bool = True


KEY = Role(change=False)
KEPT = Role(create=False, change=False)
SECRET = Role(show=False)
OWN_SECRET = Role(change=False, show=False)
KEPT_SECRET = Role(create=False, change=False, show=False)
TIME = object()
"""Marks times in seconds since the epoch; documents show ISO 8601."""

_COLUMNS: Mapping[Any, Any] = {bool: Boolean, float: Double, int: BigInteger}
_LIST = TypeAdapter(tuple[str, ...])
_FROM_FILE = "ISO 8601; null for one of the file"


class Record(BaseModel):
    """A row of the catalog. ``revision`` is the number of the last change that touched it."""

    model_config = ConfigDict(frozen=True)

    singular: ClassVar[str]
    plural: ClassVar[str]
    """The name of the table and of the address."""
    key: ClassVar[str]
    """The field that names a record."""
    origin_keys: ClassVar[tuple[str, ...]] = ()
    """The fields with an access key of an origin, its secret and its session token."""

    created_at: Annotated[float, KEPT, TIME] = Field(description=_FROM_FILE, examples=["2026-03-01T09:30:00.000Z"])
    revision: Annotated[int, KEPT]
    _sealed: str = PrivateAttr("")

    @property
    def id(self) -> str:
        """Its name."""
        named: str = getattr(self, self.key)
        return named

    @classmethod
    @cache
    def fields(cls, **role: bool) -> dict[str, FieldInfo]:
        """Fields with this role, in the order of declaration, ``created_at`` last; never ``revision``."""
        ordered = sorted(cls.model_fields.items(), key=lambda item: item[0] in Record.model_fields)
        return {
            name: field
            for name, field in ordered
            if name != "revision" and all(getattr(_role(field), part) is wanted for part, wanted in role.items())
        }

    @classmethod
    def creation(cls) -> type[RequestModel]:
        """The document that creates a record. Fields with a default factory are optional."""
        fields: dict[str, Any] = {}
        for name, field in cls.fields(create=True).items():
            made = field.default_factory is not None
            annotation = _annotation(field) | None if made else _annotation(field)
            fields[name] = (annotation, _declared(field, None if made else field.default))
        about = f"A new {cls.singular}."
        return create_model(f"New{cls.singular.title()}", __doc__=about, __base__=RequestModel, **fields)

    @classmethod
    def change(cls) -> type[RequestModel]:
        """The document that changes a record."""
        taken = cls.fields(change=True).items()
        fields: dict[str, Any] = {name: (_annotation(field) | None, _declared(field, None)) for name, field in taken}
        about = "The fields to change; omitted fields keep their values."
        return create_model(f"{cls.singular.title()}Change", __doc__=about, __base__=RequestModel, **fields)

    @classmethod
    def answer(cls, state: type[ResponseModel]) -> type[ResponseModel]:
        """The document that shows a record; ``state`` declares further fields."""
        own = cls.fields(show=True).items()
        fields: dict[str, Any] = {name: (_shown_type(field), _declared(field)) for name, field in own}
        fields |= {name: (field.annotation, field) for name, field in state.model_fields.items()}
        return create_model(cls.singular.title(), __doc__=state.__doc__, __base__=ResponseModel, **fields)

    @classmethod
    @cache
    def _lists(cls) -> frozenset[str]:
        return frozenset(name for name, field in cls.model_fields.items() if get_origin(field.annotation) is tuple)

    @classmethod
    def table(cls, metadata: MetaData) -> Table:
        """The table of the records; the column ``secrets`` has the fields that are not shown."""
        shown = {**cls.fields(show=True), "revision": cls.model_fields["revision"]}
        columns = [
            Column(
                name,
                _COLUMNS.get(_required(field.annotation), TextColumn),
                primary_key=name == cls.key,
                nullable=field.annotation != _required(field.annotation),
            )
            for name, field in shown.items()
        ]
        if cls.fields(show=False):
            columns.append(Column("secrets", TextColumn, nullable=False))
        return Table(cls.plural, metadata, *columns)

    @classmethod
    def from_row(cls, row: Mapping[str, Any], vault: Vault, before: Self | None) -> Self:
        """The record of a row, or ``before`` if the row has not changed since.

        Raises:
            ConfigError: its secrets cannot be opened.
            ValidationError: as ``verify``.
        """
        # Sealing the same value gives a different text each time, so equal texts come from the same change.
        sealed = row.get("secrets", "")
        if before is not None and sealed and (before._sealed, before.revision) == (sealed, row["revision"]):
            return before
        values = {name: row[name] for name in cls.model_fields if name in row}
        values |= {name: _LIST.validate_json(values[name]) for name in cls._lists() & values.keys()}
        opened = vault.open(f"{cls.plural}/{row[cls.key]}", sealed) if sealed else {}
        values |= {name: SecretStr(value) for name, value in opened.items()}
        record: Self = cls.model_construct(None, **values)  # type: ignore[assignment]  # the plugin knows Record only
        record._sealed = sealed
        record.verify()
        return record

    def row(self, vault: Vault) -> dict[str, Any]:
        """The columns."""
        values = {name: getattr(self, name) for name in (*self.fields(show=True), "revision")}
        values |= {name: _LIST.dump_json(value).decode() for name, value in values.items() if isinstance(value, tuple)}
        if sealed := self.fields(show=False):
            secret = {name: getattr(self, name).get_secret_value() for name in sealed}
            values["secrets"] = vault.seal(f"{self.plural}/{self.id}", secret)
        return values

    def shown(self) -> dict[str, Any]:
        """The fields of documents and the audit log."""
        return {name: _shown(field, getattr(self, name)) for name, field in self.fields(show=True).items()}

    def audited(self) -> dict[str, Any]:
        """The fields of the audit log."""
        return {name: value for name, value in self.shown().items() if name not in (self.key, "created_at")}

    def changed(self, **values: Any) -> Self:
        """A copy with other values, which are not checked."""
        kept = {name: getattr(self, name) for name in type(self).model_fields}
        changed: Self = type(self).model_construct(None, **{**kept, **values})  # type: ignore[assignment]  # as above
        return changed

    def with_origin_keys(self, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The new values, completed: replacing an access key also drops its session token and, unless a new secret is given, its
        secret."""
        given = values.get(self.origin_keys[0]) if self.origin_keys else None
        if given is None or given == getattr(self, self.origin_keys[0]):
            return values
        _, secret, token = self.origin_keys
        ended = (token,) if given else (secret, token)
        return {**dict.fromkeys(ended, SecretStr("")), **values}

    def verify(self) -> None:
        """Check that a configuration accepts it.

        Raises:
            ValidationError: it does not.
        """


def _role(field: FieldInfo) -> Role:
    return next((mark for mark in field.metadata if isinstance(mark, Role)), Role())


def _annotation(field: FieldInfo) -> Any:
    """The type with its constraints."""
    kept = [mark for mark in field.metadata if mark is not TIME and not isinstance(mark, Role)]
    return Annotated[(field.annotation, *kept)] if kept else field.annotation


def _declared(field: FieldInfo, default: Any = PydanticUndefined) -> Any:
    return Field(default, description=field.description, examples=field.examples)


def _required(annotation: Any) -> Any:
    """The type without ``None``."""
    return next((member for member in get_args(annotation) if type(None) in get_args(annotation)), annotation)


def _shown_type(field: FieldInfo) -> Any:
    """The type in an answer. Values of a configuration file may violate the constraints of requests."""
    if TIME in field.metadata:
        return str | None
    return list[str] if get_origin(field.annotation) is tuple else field.annotation


def _shown(field: FieldInfo, value: Any) -> Any:
    if TIME in field.metadata:
        return None if value is None else moment(value)
    return list(value) if isinstance(value, tuple) else value


def _configured(record: Record, section: type[config.Credential | config.Origin]) -> dict[str, Any]:
    """The values that a section of the configuration takes."""
    values = {name: getattr(record, name) for name in section.model_fields if name in type(record).model_fields}
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()}


class TenantRecord(Record):
    """A tenant; its keys are valid only while it is ``enabled``."""

    singular, plural, key = "tenant", "tenants", "name"

    name: Annotated[Name, KEY] = Field(examples=["vision"])
    description: Text = Field("", examples=["the vision team; ask ops@example.com"])
    enabled: bool = Field(True, description="while false, no key of the tenant is valid", examples=[True])
    requests_per_second: Annotated[float, Field(ge=0, le=1e9)] = Field(
        0.0, description="through all gateways together; more are answered 503 SlowDown; 0: no limit", examples=[2000.0]
    )
    bytes_per_second: Annotated[int, Field(ge=0, le=2**60)] = Field(
        0, description="of answers, through all gateways together; 0: no limit", examples=[2_000_000_000]
    )

    @property
    def limit(self) -> TenantLimit:
        """The limit as a configuration section."""
        return TenantLimit(
            tenant=self.name, requests_per_second=self.requests_per_second, bytes_per_second=self.bytes_per_second
        )


def new_key() -> str:
    """An access key of AWS's length, without characters that look alike."""
    return "LK" + base64.b32encode(os.urandom(12)).decode().rstrip("=")[:18]


def new_secret() -> SecretStr:
    """A secret access key."""
    return SecretStr(secrets.token_urlsafe(30))


OwnSecret = Annotated[Secret, Field(min_length=16, max_length=128)]
"""A secret access key of the gateway."""
OriginSecret = Annotated[Secret, Field(max_length=1000)]
"""A secret access key of an origin."""


class CredentialRecord(Record):
    """An access key of the gateway."""

    singular, plural, key = "credential", "credentials", "access_key_id"
    origin_keys = ("origin_access_key_id", "origin_secret_access_key", "origin_session_token")

    access_key_id: Annotated[Name, KEY] = Field(
        default_factory=new_key,
        description="the name of the key; generated if omitted",
        examples=["vision"],
    )
    secret_access_key: Annotated[OwnSecret, OWN_SECRET] = Field(
        default_factory=new_secret, description="generated if omitted", examples=["a long random string"]
    )
    description: Text = Field("", examples=["nightly training"])
    tenant: Text = Field(
        "", description="an existing tenant; empty: the access key is its own tenant", examples=["vision"]
    )
    origin: Text = Field(
        "default", description="name of the origin that the key reads and writes", examples=["default"]
    )
    origin_access_key_id: HeaderText = Field(
        "", description="the key to use at the origin; empty: the origin's default key", examples=[""]
    )
    origin_secret_access_key: Annotated[OriginSecret, SECRET] = Field(
        SecretStr(""), description="of origin_access_key_id", examples=[""]
    )
    origin_session_token: Annotated[HeaderSecret, SECRET] = Field(
        SecretStr(""), description="of origin_access_key_id", examples=[""]
    )
    allow: Annotated[tuple[Text, ...], Strict(False), Field(max_length=200)] = Field(
        (),
        description='bucket/key globs that the key may access, such as "bucket/train/**"; empty: all',
        examples=[["datasets/**"]],
    )
    read_only: bool = Field(False, description="refuse every write of this key", examples=[True])
    expires: Text = Field(
        "", description="ISO 8601 time after which the key is refused; empty: never", examples=["2030-01-31T12:00:00Z"]
    )
    previous_secret_access_key: Annotated[SecretStr, KEPT_SECRET] = SecretStr("")
    previous_expires: Annotated[str, KEPT] = Field(
        "", description="end of the grace period of the secret before the last rotation", examples=[""]
    )
    rotated_at: Annotated[float | None, KEPT, TIME] = Field(None, description="ISO 8601", examples=[None])

    @cached_property
    def credential(self) -> config.Credential:
        """The credential as a configuration section."""
        return config.Credential(**_configured(self, config.Credential))

    def shown(self) -> dict[str, Any]:
        """The fields of documents and the audit log."""
        return {**super().shown(), "tenant": self.tenant or self.access_key_id}

    def verify(self) -> None:
        """Check that a configuration accepts it."""
        _ = self.credential

    def ended(self, now: float) -> bool:
        """Whether it has expired at ``now``, in seconds since the epoch."""
        return ended(self.expires, now)


def ended(expires: str, now: float) -> bool:
    """Whether a time in ISO 8601 has passed at ``now``, in seconds since the epoch. Without a zone it is UTC; empty: never.

    Raises:
        ValueError: it is not a time.
    """
    if not expires:
        return False
    end = datetime.fromisoformat(expires)
    return (end if end.tzinfo else end.replace(tzinfo=UTC)).timestamp() <= now


_TOKEN = "larder-"  # noqa: S105  # not a whole one
"""Prefix of tokens, so that scanners for secrets recognise them."""


def new_token() -> SecretStr:
    """An admin token."""
    return SecretStr(f"{_TOKEN}{secrets.token_urlsafe(32)}")


def _a_time(text: str) -> str:
    try:
        ended(text, 0.0)
    except ValueError:
        raise ValueError("must be an ISO 8601 time such as 2030-01-31T12:00:00Z, or empty") from None
    return text


class TokenRecord(Record):
    """An admin token. ``token`` is whole while the record is created; rows have its digest, which is enough to recognise it."""

    singular, plural, key = "token", "tokens", "name"

    name: Annotated[Name, KEY] = Field(description="as in the audit log", examples=["ci"])
    description: Text = Field("", examples=["deployments; ask ops@example.com"])
    role: Literal["viewer", "operator", "admin"] = Field(
        "viewer",
        description="viewer: reads; operator: changes nodes, space, warm-ups and purges too; admin: everything",
        examples=["operator"],
    )
    expires: Annotated[Text, AfterValidator(_a_time)] = Field(
        "",
        description="ISO 8601 time after which the token is refused; empty: never",
        examples=["2030-01-31T12:00:00Z"],
    )
    token: Annotated[SecretStr, KEPT_SECRET] = Field(default_factory=new_token)

    def ended(self, now: float) -> bool:
        """Whether it has expired at ``now``, in seconds since the epoch."""
        return ended(self.expires, now)

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the token. A fast digest protects it, because the token is random."""
        token = self.token.get_secret_value()
        return sha256(token.encode()).digest() if token.startswith(_TOKEN) else bytes.fromhex(token)

    def row(self, vault: Vault) -> dict[str, Any]:
        """The columns, with the digest in place of the token."""
        return super(TokenRecord, self.changed(token=SecretStr(self.digest.hex()))).row(vault)


Seconds = Annotated[float, Field(ge=0, le=86_400)]


class OriginRecord(Record):
    """An object store behind the gateway."""

    singular, plural, key = "origin", "origins", "name"
    origin_keys = ("access_key_id", "secret_access_key", "session_token")

    name: Annotated[Name, KEY] = Field(examples=["archive"])
    endpoint: Text = Field(description="http:// or https:// address", examples=["https://s3.eu-west-1.amazonaws.com"])
    region: HeaderText = Field("us-east-1", examples=["eu-west-1"])
    access_key_id: HeaderText = Field(
        "", description="empty: the AWS credential chain", examples=["AKIAIOSFODNN7EXAMPLE"]
    )
    secret_access_key: Annotated[OriginSecret, SECRET] = Field(
        SecretStr(""), description="of access_key_id", examples=["a long random string"]
    )
    session_token: Annotated[HeaderSecret, SECRET] = Field(
        SecretStr(""), description="of temporary keys", examples=[""]
    )
    connect_timeout: Seconds = Field(5.0, description="seconds", examples=[5.0])
    read_timeout: Seconds = Field(60.0, description="seconds", examples=[60.0])
    max_connections: Annotated[int, Field(ge=1, le=100_000)] = Field(256, description="per worker", examples=[256])
    requester_pays: bool = Field(
        False, description="accept the charges of requester-pays buckets for all readers", examples=[False]
    )

    @cached_property
    def origin(self) -> config.Origin:
        """The origin as a configuration section."""
        return config.Origin(**_configured(self, config.Origin))

    def verify(self) -> None:
        """Check that a configuration accepts it."""
        _ = self.origin
