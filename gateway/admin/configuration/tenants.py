"""``/-/admin/tenants``: the owners of keys. The keys of a disabled tenant are invalid."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import Field

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.fields import Source
from gateway.admin.catalog.merging import View
from gateway.admin.catalog.records import TenantRecord
from gateway.admin.catalog.withdrawals import TENANT, Withdrawal
from gateway.admin.http.parts import AdminParts, etag_of
from gateway.admin.http.resources import Resource
from gateway.base.config_base import TenantLimit
from gateway.edge.documents import ResponseModel
from gateway.model.datasets import ApiError


class TenantState(ResponseModel):
    """A tenant."""

    source: Source = Field(description="file: some credential of the configuration file names it", examples=["catalog"])
    credentials: int = Field(description="how many it has, including revoked ones", examples=[2])
    etag: str = Field(description="for If-Match", examples=['"17"'])


class Tenants(Resource[TenantRecord]):
    """Tenants of the catalog, and those that the file's credentials name."""

    kind, state = TenantRecord, TenantState
    file_counts = False
    taken = "larder-gateway tenants lists them."
    filed = "edit its credentials and limits there, or revoke its credentials here."
    about: Mapping[str, str] = {
        "list": "Tenants by name.",
        "create": "Create a tenant, for credentials to belong to.",
        "show": "One tenant.",
        "change": "Change the given fields. All keys of a disabled tenant are refused everywhere within a second.",
        "remove": "Remove a tenant that has no credentials. Its cached objects stay until they are evicted.",
    }

    def describe(self, record: TenantRecord, view: View) -> ResponseModel:
        """A tenant of the catalog."""
        state = {"source": "catalog", "credentials": view.by_tenant[record.name], "etag": etag_of(record.revision)}
        return self.answer(**record.shown(), **state)

    def describe_filed(self, name: str, view: View) -> ResponseModel:
        """A tenant that the file's credentials name."""
        state = {"source": "file", "credentials": view.by_tenant[name], "etag": etag_of(0)}
        limit = next((limit for limit in view.file.limits if limit.tenant == name), TenantLimit(tenant=name))
        limits = {"requests_per_second": limit.requests_per_second, "bytes_per_second": limit.bytes_per_second}
        return self.answer(name=name, description="", enabled=True, created_at=None, **limits, **state)

    def check_removal(self, record: TenantRecord, view: View) -> None:
        """Refuse to remove a tenant with credentials."""
        if count := view.by_tenant[record.name]:
            raise ApiError(
                "Conflict",
                f"The tenant {record.name!r} has {count} credentials: delete them first, or set enabled to false.",
            )

    async def withdraw(
        self, before: TenantRecord, after: TenantRecord | None, change: CatalogChange, parts: AdminParts, view: View
    ) -> None:
        """Disabling a tenant withdraws its keys."""
        if after is not None and not after.enabled:
            change.withdrawn.append(Withdrawal(TENANT, after.name, change.revision, parts.catalog.now()))


TENANTS = Tenants()
