"""The configuration that is in force: the file's, with the catalog on top.

The file stays as it is, but for keys that were revoked: they are left out. Credentials and origins of the catalog are added;
where the file has one of the same name, the file's counts. Rules of the catalog come before the file's: the first that
matches counts, so an operator's latest word does, and the file's hold for all that he said nothing about. What of the catalog
cannot be used, because the origin that it names is gone, or its tenant is switched off, is left out, and never keeps the rest
from being used.
"""

from __future__ import annotations

from dataclasses import dataclass

from gateway.admin.catalog.snapshot import CredentialRow, Snapshot
from gateway.config import Credential, Settings


@dataclass(frozen=True, slots=True)
class Names:
    """What there is: access keys of the file, and origins of both."""

    keys: frozenset[str]
    origins: frozenset[str]


def names_of(file: Settings, catalog: Snapshot) -> Names:
    """What the file and the catalog have."""
    of_file = {origin.name for origin in file.origins}
    keys = frozenset(credential.access_key_id for credential in file.credentials)
    return Names(keys, frozenset(of_file | catalog.origins.keys()))


def merged(file: Settings, catalog: Snapshot) -> Settings:
    """The settings that are in force."""
    names = names_of(file, catalog)
    of_file = {origin.name for origin in file.origins}
    origins = (*file.origins, *(row.origin for name, row in sorted(catalog.origins.items()) if name not in of_file))
    credentials = [credential for credential in file.credentials if not refused(credential, catalog)]
    credentials += [row.credential for row in catalog.credentials.values() if not unusable(row, names, catalog)]
    changes = {"origins": origins, "credentials": tuple(credentials), "rules": (*catalog.rules, *file.rules)}
    return file.model_copy(update=changes)


def unusable(row: CredentialRow, names: Names, catalog: Snapshot) -> str:
    """Why a credential of the catalog is not in force; empty when it is."""
    credential = row.credential
    if reason := refused(credential, catalog):
        return reason
    if credential.access_key_id in names.keys:
        return "the configuration file has a credential of this access key, which counts"
    if credential.origin not in names.origins:
        return f"there is no origin named {credential.origin!r} any more"
    return ""


def refused(credential: Credential, catalog: Snapshot) -> str:
    """Why the catalog does not let a credential be valid, wherever it is from; empty when it does."""
    if credential.access_key_id in catalog.revocations:
        return "it was revoked"
    tenant = catalog.tenants.get(credential.tenant or credential.access_key_id)
    return "" if tenant is None or tenant.enabled else "its tenant is not enabled"
