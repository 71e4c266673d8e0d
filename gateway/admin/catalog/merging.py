"""The configuration in force: the file's, with the catalog on top.

Revoked keys of the file are left out. Credentials and origins of the catalog are added, unless the file has one of the same name.
Rules of the catalog come before the file's, and the first match applies. A tenant of the catalog has only the limits of its
record, even if that sets none: the listed limits are those in force. Records of the catalog that cannot be used, because their
origin is gone or their tenant is disabled, are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cached_property
from typing import Any

from gateway.admin.catalog.records import CredentialRecord
from gateway.admin.catalog.snapshot import Snapshot
from gateway.base.config import Credential, Settings
from gateway.base.config_base import TenantLimit


class View:
    """The file and the catalog together."""

    def __init__(self, file: Settings, catalog: Snapshot) -> None:
        self.file = file
        self.catalog = catalog

    @cached_property
    def filed(self) -> Mapping[str, Mapping[str, Any]]:
        """Records of the file by kind and name. Tenants exist in the file only as names in credentials; its tokens have
        no records."""
        return {
            "tenants": dict.fromkeys(map(tenant_of, self.file.credentials)),
            "credentials": {credential.access_key_id: credential for credential in self.file.credentials},
            "origins": {origin.name: origin for origin in self.file.origins},
            "tokens": {},
        }

    def has(self, kind: str, name: str) -> bool:
        """Whether the file or the catalog has a record."""
        return name in self.filed[kind] or name in getattr(self.catalog, kind)

    @cached_property
    def by_tenant(self) -> Counter[str]:
        """Credentials by tenant."""
        return Counter(map(tenant_of, self._credentials))

    @cached_property
    def by_origin(self) -> Counter[str]:
        """Credentials by origin."""
        return Counter(credential.origin for credential in self._credentials)

    @cached_property
    def _credentials(self) -> list[Credential]:
        return [*self.file.credentials, *(record.credential for record in self.catalog.credentials.values())]

    def refused(self, credential: Credential) -> str:
        """Why the catalog makes a credential invalid, in the file or in the catalog; empty if it does not."""
        if credential.access_key_id in self.catalog.revocations:
            return "it is revoked"
        tenant = self.catalog.tenants.get(tenant_of(credential))
        return "" if tenant is None or tenant.enabled else "its tenant is not enabled"

    def unusable(self, record: CredentialRecord) -> str:
        """Why a credential of the catalog is not in force; empty if it is."""
        if reason := self.refused(record.credential):
            return reason
        if record.id in self.filed["credentials"]:
            return "hidden by a credential of the configuration file with this access key"
        if not self.has("origins", record.origin):
            return f"its origin {record.origin!r} no longer exists"
        return ""


def tenant_of(credential: Credential) -> str:
    """The tenant of a credential; its access key if it names none."""
    return credential.tenant or credential.access_key_id


def merged(file: Settings, catalog: Snapshot) -> Settings:
    """The settings in force."""
    view = View(file, catalog)
    added = (record.origin for name, record in sorted(catalog.origins.items()) if name not in view.filed["origins"])
    credentials = [credential for credential in file.credentials if not view.refused(credential)]
    credentials += [record.credential for record in catalog.credentials.values() if not view.unusable(record)]
    changes = {
        "origins": (*file.origins, *added),
        "credentials": tuple(credentials),
        "rules": (*catalog.rules, *file.rules),
        "limits": tuple(_limits(view).values()),
    }
    return file.model_copy(update=changes)


def _limits(view: View) -> dict[str, TenantLimit]:
    """The limits in force, by tenant."""
    in_file = {limit.tenant: limit for limit in view.file.limits}
    return in_file | {name: tenant.limit for name, tenant in view.catalog.tenants.items()}
