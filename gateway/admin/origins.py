"""``/-/admin/origins``: the object stores behind the gateway. Their secrets are taken, and never told."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field, SecretStr, ValidationError
from sqlalchemy import delete, insert, update

from gateway.admin.catalog.changes import Change
from gateway.admin.catalog.schema import origins
from gateway.admin.catalog.snapshot import OriginRow, Snapshot
from gateway.admin.catalog.vault import Vault
from gateway.admin.documents import Answer, Asked, Name, Source, Text, moment
from gateway.admin.once import Idempotent, change_once
from gateway.admin.paging import Cursor, Limit, Page, paged
from gateway.admin.parts import AdminParts, Parts
from gateway.admin.preconditions import IfMatch, check_if_match, etag_of
from gateway.admin.tokens import Admin, Reader
from gateway.config import Origin as Configured
from gateway.config import Settings
from gateway.model.datasets import ApiError
from gateway.model.problems import invalid_request

router = APIRouter(tags=["origins"])

_SECRETS = ("secret_access_key", "session_token")
_PUBLIC = ("name", "endpoint", "region", "access_key_id", "connect_timeout", "read_timeout", "max_connections")
_TIMES: dict[str, Any] = {"ge": 0, "le": 86_400}


class NewOrigin(Asked):
    """An origin to be."""

    name: Name = Field(examples=["archive"])
    endpoint: Text = Field(description="http:// or https:// address", examples=["https://s3.eu-west-1.amazonaws.com"])
    region: Text = Field("us-east-1", examples=["eu-west-1"])
    access_key_id: Text = Field("", description="empty: the AWS credential chain", examples=["AKIAIOSFODNN7EXAMPLE"])
    secret_access_key: SecretStr = Field(
        SecretStr(""), description="of access_key_id", examples=["a long random string"]
    )
    session_token: SecretStr = Field(SecretStr(""), description="of temporary keys", examples=[""])
    connect_timeout: float = Field(5.0, description="seconds", examples=[5.0], **_TIMES)
    read_timeout: float = Field(60.0, description="seconds", examples=[60.0], **_TIMES)
    max_connections: int = Field(256, ge=1, le=100_000, description="per worker", examples=[256])


class OriginChange(Asked):
    """What to change; what is left out stays. With another endpoint, what caches hold of the origin is forgotten."""

    endpoint: Text | None = Field(None, examples=["https://s3.eu-west-1.amazonaws.com"])
    region: Text | None = Field(None, examples=["eu-west-1"])
    access_key_id: Text | None = Field(None, examples=["AKIAIOSFODNN7EXAMPLE"])
    secret_access_key: SecretStr | None = Field(None, examples=["a long random string"])
    session_token: SecretStr | None = Field(None, examples=[""])
    connect_timeout: float | None = Field(None, description="seconds", examples=[5.0], **_TIMES)
    read_timeout: float | None = Field(None, description="seconds", examples=[60.0], **_TIMES)
    max_connections: int | None = Field(None, ge=1, le=100_000, description="per worker", examples=[256])


class Origin(Answer):
    """An origin, without its secrets."""

    name: str = Field(examples=["archive"])
    endpoint: str = Field(examples=["https://s3.eu-west-1.amazonaws.com"])
    region: str = Field(examples=["eu-west-1"])
    access_key_id: str = Field(description="empty: the AWS credential chain", examples=["AKIAIOSFODNN7EXAMPLE"])
    connect_timeout: float = Field(description="seconds", examples=[5.0])
    read_timeout: float = Field(description="seconds", examples=[60.0])
    max_connections: int = Field(description="per worker", examples=[256])
    credentials: int = Field(description="how many name it", examples=[3])
    source: Source = Field(examples=["catalog"])
    problem: str = Field(description="why it is not in force; empty when it is", examples=[""])
    created_at: str | None = Field(
        description="ISO 8601; null for one of the file", examples=["2026-03-01T09:30:00.000Z"]
    )
    etag: str = Field(description="for If-Match", examples=['"17"'])


def origin_documents(file: Settings, catalog: Snapshot) -> dict[str, Origin]:
    """Every origin by its name, the file's where both have one."""
    named = [*file.credentials, *(row.credential for row in catalog.credentials.values())]
    counts = Counter(credential.origin for credential in named)
    found = {
        name: Origin(
            **_public(row.origin),
            credentials=counts[name],
            source="catalog",
            problem="",
            created_at=moment(row.created_at),
            etag=etag_of(row.revision),
        )
        for name, row in catalog.origins.items()
    }
    for origin in file.origins:
        hides = "hides one of the catalog by the same name" if origin.name in catalog.origins else ""
        found[origin.name] = Origin(
            **_public(origin),
            credentials=counts[origin.name],
            source="file",
            problem=hides,
            created_at=None,
            etag=etag_of(0),
        )
    return found


@router.get("/origins", summary="List origins")
async def list_origins(_caller: Reader, parts: Parts, limit: Limit = 100, cursor: Cursor = "") -> Page[Origin]:
    """Origins by name, without secrets."""
    found = origin_documents(parts.file(), await parts.catalog.latest())
    items, following = paged(found.values(), lambda origin: origin.name, limit, cursor)
    return Page(items=items, next=following)


@router.post("/origins", summary="Create an origin", status_code=201, response_model=Origin)
async def create_origin(caller: Admin, parts: Parts, asked: NewOrigin, once: Idempotent, response: Response) -> Any:
    """Create an origin, for credentials to read and write."""

    async def work(change: Change) -> dict[str, Any]:
        change.target = asked.name
        file, snapshot = parts.file(), await parts.catalog.read(change.connection)
        if asked.name in origin_documents(file, snapshot):
            raise ApiError(
                "Conflict", f"name: there is an origin {asked.name!r} already; GET /-/admin/origins lists them."
            )
        row = OriginRow(_checked(_plain(asked.model_dump())), parts.catalog.now(), change.revision)
        await change.connection.execute(insert(origins).values(**_row_values(row, parts.catalog.vault)))
        change.after = _public(row.origin)
        return _described(row, file, snapshot).model_dump()

    document = await change_once(parts.catalog, caller, "origins.create", once, work)
    response.headers["Location"] = f"/-/admin/origins/{document['name']}"
    response.headers["ETag"] = document["etag"]
    return document


@router.get("/origins/{name:path}", summary="Show an origin")
async def show_origin(name: str, _caller: Reader, parts: Parts, response: Response) -> Origin:
    """One origin, without its secrets."""
    document = origin_documents(parts.file(), await parts.catalog.latest()).get(name)
    if document is None:
        raise _unknown(name)
    response.headers["ETag"] = document.etag
    return document


@router.patch("/origins/{name}", summary="Change an origin")
async def change_origin(
    name: str, caller: Admin, parts: Parts, asked: OriginChange, response: Response, if_match: IfMatch = None
) -> Origin:
    """Change what is given. Requests that are under way end as they began."""
    async with parts.catalog.changes.change(caller, "origins.change", name) as change:
        row, snapshot = await _editable(name, parts, change, if_match)
        values = _plain(asked.model_dump(exclude_none=True))
        after = OriginRow(_checked({**row.origin.model_dump(), **values}), row.created_at, change.revision)
        change.before = _public(row.origin)
        change.after = {**_public(after.origin), "secrets_changed": any(values.get(secret) for secret in _SECRETS)}
        where = origins.c.name == name
        await change.connection.execute(update(origins).where(where).values(**_row_values(after, parts.catalog.vault)))
    document = _described(after, parts.file(), snapshot)
    response.headers["ETag"] = document.etag
    return document


@router.delete("/origins/{name}", summary="Remove an origin", status_code=204)
async def remove_origin(name: str, caller: Admin, parts: Parts, if_match: IfMatch = None) -> None:
    """Remove an origin that no credential names. Nothing is deleted there."""
    async with parts.catalog.changes.change(caller, "origins.remove", name) as change:
        row, snapshot = await _editable(name, parts, change, if_match)
        if count := _described(row, parts.file(), snapshot).credentials:
            raise ApiError("Conflict", f"{count} credentials name the origin {name!r}: change or delete them first.")
        change.before = _public(row.origin)
        await change.connection.execute(delete(origins).where(origins.c.name == name))


def _described(row: OriginRow, file: Settings, catalog: Snapshot) -> Origin:
    """The document of an origin of the catalog; ``catalog`` may be older than the row."""
    name = row.origin.name
    newer = Snapshot(catalog.version, credentials=catalog.credentials, origins={**catalog.origins, name: row})
    return origin_documents(file, newer)[name]


async def _editable(name: str, parts: AdminParts, change: Change, if_match: str | None) -> tuple[OriginRow, Snapshot]:
    """An origin of the catalog that is what the caller thinks it is."""
    snapshot = await parts.catalog.read(change.connection)
    row = snapshot.origins.get(name)
    if row is None:
        if name in origin_documents(parts.file(), snapshot):
            raise ApiError("Conflict", f"The origin {name!r} is of the configuration file: edit it there.")
        raise _unknown(name)
    check_if_match(if_match, etag_of(row.revision))
    return row, snapshot


def _public(origin: Configured) -> dict[str, Any]:
    return {name: getattr(origin, name) for name in _PUBLIC}


def _row_values(row: OriginRow, vault: Vault) -> dict[str, Any]:
    secrets = {name: getattr(row.origin, name) for name in _SECRETS}
    return {
        **_public(row.origin),
        "created_at": row.created_at,
        "revision": row.revision,
        "secrets": vault.seal(f"origins/{row.origin.name}", secrets),
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value.get_secret_value() if isinstance(value, SecretStr) else value for name, value in values.items()}


def _checked(values: dict[str, Any]) -> Configured:
    try:
        origin = Configured(**values)
    except ValidationError as error:
        raise invalid_request(error.errors()) from None
    if bool(origin.access_key_id) != bool(origin.secret_access_key):
        raise ApiError(
            "InvalidRequest", "access_key_id and secret_access_key go together; leave out both for the AWS chain."
        )
    return origin


def _unknown(name: str) -> ApiError:
    return ApiError("NotFound", f"There is no origin {name[:140]!r}; GET /-/admin/origins lists them.")
