"""``/-/admin/tenants``: whose the keys are. A tenant that is not enabled has no valid key."""

from __future__ import annotations

from collections import Counter
from typing import Any

from fastapi import APIRouter, Response
from pydantic import Field
from sqlalchemy import delete, insert, update

from gateway.admin.catalog.changes import Change
from gateway.admin.catalog.schema import tenants
from gateway.admin.catalog.snapshot import Snapshot, TenantRow
from gateway.admin.catalog.withdrawals import TENANT, Withdrawal
from gateway.admin.documents import Answer, Asked, Name, Source, Text, moment
from gateway.admin.once import Idempotent, change_once
from gateway.admin.paging import Cursor, Limit, Page, paged
from gateway.admin.parts import AdminParts, Parts
from gateway.admin.preconditions import IfMatch, check_if_match, etag_of
from gateway.admin.tokens import Admin, Reader
from gateway.config import Settings
from gateway.model.datasets import ApiError

router = APIRouter(tags=["tenants"])


class NewTenant(Asked):
    """A tenant to be."""

    name: Name = Field(examples=["vision"])
    description: Text = Field("", examples=["the vision team; ask ops@example.com"])
    enabled: bool = Field(True, description="while false, no key of the tenant is valid", examples=[True])


class TenantChange(Asked):
    """What to change; what is left out stays."""

    description: Text | None = Field(None, examples=["the vision team; ask ops@example.com"])
    enabled: bool | None = Field(None, description="while false, no key of the tenant is valid", examples=[False])


class Tenant(Answer):
    """A tenant."""

    name: str = Field(examples=["vision"])
    description: str = Field(examples=["the vision team; ask ops@example.com"])
    enabled: bool = Field(description="while false, no key of the tenant is valid", examples=[True])
    source: Source = Field(description="file: some credential of the configuration file names it", examples=["catalog"])
    credentials: int = Field(description="how many it has, revoked ones included", examples=[2])
    created_at: str | None = Field(
        description="ISO 8601; null for one of the file", examples=["2026-03-01T09:30:00.000Z"]
    )
    etag: str = Field(description="for If-Match", examples=['"17"'])


def tenant_documents(file: Settings, catalog: Snapshot) -> dict[str, Tenant]:
    """Every tenant by its name: those of the catalog, and those that the file's credentials name."""
    named = [each.tenant or each.access_key_id for each in file.credentials]
    own = [row.credential.tenant or row.credential.access_key_id for row in catalog.credentials.values()]
    counts = Counter(named + own)
    found = {
        name: Tenant(
            name=name,
            description="",
            enabled=True,
            source="file",
            credentials=counts[name],
            created_at=None,
            etag=etag_of(0),
        )
        for name in named
    }
    for name, row in catalog.tenants.items():
        found[name] = Tenant(
            name=name,
            description=row.description,
            enabled=row.enabled,
            source="catalog",
            credentials=counts[name],
            created_at=moment(row.created_at),
            etag=etag_of(row.revision),
        )
    return found


@router.get("/tenants", summary="List tenants")
async def list_tenants(_caller: Reader, parts: Parts, limit: Limit = 100, cursor: Cursor = "") -> Page[Tenant]:
    """Tenants by name."""
    found = tenant_documents(parts.file(), await parts.catalog.latest())
    items, following = paged(found.values(), lambda tenant: tenant.name, limit, cursor)
    return Page(items=items, next=following)


@router.post("/tenants", summary="Create a tenant", status_code=201, response_model=Tenant)
async def create_tenant(caller: Admin, parts: Parts, asked: NewTenant, once: Idempotent, response: Response) -> Any:
    """Create a tenant, for credentials to belong to."""

    async def work(change: Change) -> dict[str, Any]:
        change.target = asked.name
        snapshot = await parts.catalog.read(change.connection)
        if asked.name in tenant_documents(parts.file(), snapshot):
            raise ApiError(
                "Conflict", f"name: there is a tenant {asked.name!r} already; GET /-/admin/tenants lists them."
            )
        row = TenantRow(asked.name, asked.description, asked.enabled, parts.catalog.now(), change.revision)
        values = {name: getattr(row, name) for name in TenantRow.__slots__}
        await change.connection.execute(insert(tenants).values(**values))
        change.after = asked.model_dump()
        document = Tenant(
            **asked.model_dump(),
            source="catalog",
            credentials=0,
            created_at=moment(row.created_at),
            etag=etag_of(row.revision),
        )
        return document.model_dump()

    document = await change_once(parts.catalog, caller, "tenants.create", once, work)
    response.headers["Location"] = f"/-/admin/tenants/{document['name']}"
    response.headers["ETag"] = document["etag"]
    return document


@router.get("/tenants/{name:path}", summary="Show a tenant")
async def show_tenant(name: str, _caller: Reader, parts: Parts, response: Response) -> Tenant:
    """One tenant."""
    document = _found(name, parts.file(), await parts.catalog.latest())
    response.headers["ETag"] = document.etag
    return document


@router.patch("/tenants/{name}", summary="Change a tenant")
async def change_tenant(
    name: str, caller: Admin, parts: Parts, asked: TenantChange, response: Response, if_match: IfMatch = None
) -> Tenant:
    """Change what is given. Switched off, every key of the tenant is refused everywhere within a second."""
    async with parts.catalog.changes.change(caller, "tenants.change", name) as change:
        document = await _editable(name, parts, change, if_match)
        values = asked.model_dump(exclude_none=True)
        change.before = document.model_dump(include=set(values))
        change.after = values
        row = {**values, "revision": change.revision}
        await change.connection.execute(update(tenants).where(tenants.c.name == name).values(**row))
        if asked.enabled is False:
            change.withdrawn.append(Withdrawal(TENANT, name, change.revision, parts.catalog.now()))
        document = document.model_copy(update={**values, "etag": etag_of(change.revision)})
    response.headers["ETag"] = document.etag
    return document


@router.delete("/tenants/{name}", summary="Remove a tenant", status_code=204)
async def remove_tenant(name: str, caller: Admin, parts: Parts, if_match: IfMatch = None) -> None:
    """Remove a tenant that has no credentials; what it has in caches stays until the room is needed."""
    async with parts.catalog.changes.change(caller, "tenants.remove", name) as change:
        document = await _editable(name, parts, change, if_match)
        if document.credentials:
            raise ApiError(
                "Conflict",
                f"{name!r} has {document.credentials} credentials: delete them first, or set enabled to false.",
            )
        change.before = document.model_dump(include={"description", "enabled"})
        await change.connection.execute(delete(tenants).where(tenants.c.name == name))


def _found(name: str, file: Settings, catalog: Snapshot) -> Tenant:
    document = tenant_documents(file, catalog).get(name)
    if document is None:
        raise ApiError("NotFound", f"There is no tenant {name[:140]!r}; GET /-/admin/tenants lists them.")
    return document


async def _editable(name: str, parts: AdminParts, change: Change, if_match: str | None) -> Tenant:
    """A tenant of the catalog that is what the caller thinks it is."""
    document = _found(name, parts.file(), await parts.catalog.read(change.connection))
    if document.source == "file":
        raise ApiError(
            "Conflict",
            f"The tenant {name!r} is of the configuration file, and is what its credentials there say: edit them there, or "
            "revoke them here.",
        )
    check_if_match(if_match, document.etag)
    return document
