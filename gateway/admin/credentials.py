"""``/-/admin/credentials``: access keys of the gateway. A secret is told once, in the answer that made it, and nowhere else.

A key that is revoked is refused by every gateway within a second, and for ever: it can be deleted from the list, and never be
made again. Keys of the configuration file can be revoked here too, and are edited there.
"""

from __future__ import annotations

import base64
import os
import secrets as random_secrets
from typing import Annotated, Any

from fastapi import APIRouter, Body, Response
from sqlalchemy import delete, insert, update

from gateway.admin.catalog.changes import Change
from gateway.admin.catalog.schema import credentials, revocations
from gateway.admin.catalog.snapshot import CredentialRow, Snapshot
from gateway.admin.catalog.withdrawals import KEY, Withdrawal
from gateway.admin.credential_documents import (
    Credential,
    CredentialChange,
    NewCredential,
    NewSecret,
    Rotation,
    audited,
    credential_document,
    credential_documents,
    described,
    ended,
    row_values,
)
from gateway.admin.once import Idempotent, change_once
from gateway.admin.paging import Cursor, Limit, Page, paged
from gateway.admin.parts import AdminParts, Parts
from gateway.admin.preconditions import IfMatch, check_if_match
from gateway.admin.tenants import tenant_documents
from gateway.admin.tokens import Admin, Reader
from gateway.config import Credential as Configured
from gateway.model.datasets import ApiError

router = APIRouter(tags=["credentials"])


@router.get("/credentials", summary="List credentials")
async def list_credentials(_caller: Reader, parts: Parts, limit: Limit = 100, cursor: Cursor = "") -> Page[Credential]:
    """Credentials by access key, without secrets: those of the configuration file and those of the catalog."""
    found = credential_documents(parts.file(), await parts.catalog.latest())
    items, following = paged(found.values(), lambda document: document.access_key_id, limit, cursor)
    return Page(items=items, next=following)


@router.post("/credentials", summary="Create a credential", status_code=201, response_model=NewSecret)
async def create_credential(
    caller: Admin, parts: Parts, asked: NewCredential, once: Idempotent, response: Response
) -> Any:
    """Create an access key. The secret is in this answer only: keep it now, or rotate it later."""

    async def work(change: Change) -> dict[str, Any]:
        configured = asked.configured(asked.access_key_id or _new_key(), asked.secret_access_key or _new_secret())
        change.target = configured.access_key_id
        snapshot = await parts.catalog.read(change.connection)
        _check_new(configured, parts, snapshot)
        row = CredentialRow(configured, asked.description, parts.catalog.now(), None, change.revision)
        await change.connection.execute(insert(credentials).values(**row_values(row, parts.catalog.vault)))
        change.after = audited(row)
        return _with_secret(row, parts, snapshot)

    return _answered(await change_once(parts.catalog, caller, "credentials.create", once, work), response)


@router.get("/credentials/{access_key_id:path}", summary="Show a credential")
async def show_credential(access_key_id: str, _caller: Reader, parts: Parts, response: Response) -> Credential:
    """One credential, without its secret."""
    document = credential_document(access_key_id, parts.file(), await parts.catalog.latest())
    if document is None:
        raise _unknown(access_key_id)
    response.headers["ETag"] = document.etag
    return document


@router.patch("/credentials/{access_key_id}", summary="Change a credential")
async def change_credential(
    access_key_id: str,
    caller: Admin,
    parts: Parts,
    asked: CredentialChange,
    response: Response,
    if_match: IfMatch = None,
) -> Credential:
    """Change what is given; what is left out stays."""
    async with parts.catalog.changes.change(caller, "credentials.change", access_key_id) as change:
        row, snapshot = await _editable(access_key_id, parts, change, if_match)
        after = asked.applied(row, change.revision)
        _check_references(after.credential, parts, snapshot)
        change.before, change.after = audited(row), audited(after)
        await _store(after, parts, change)
    document = described(after, parts.file(), snapshot)
    response.headers["ETag"] = document.etag
    return document


@router.post("/credentials/{access_key_id}/rotate", summary="Give a credential a new secret", response_model=NewSecret)
async def rotate_credential(
    access_key_id: str,
    caller: Admin,
    parts: Parts,
    once: Idempotent,
    response: Response,
    asked: Annotated[Rotation, Body()] = Rotation(),  # noqa: B008  # it is never changed
    if_match: IfMatch = None,
) -> Any:
    """Make a new secret. With ``grace``, the old one is accepted beside it for so many seconds; without, not at all."""

    async def work(change: Change) -> dict[str, Any]:
        change.target = access_key_id
        row, snapshot = await _editable(access_key_id, parts, change, if_match)
        if access_key_id in snapshot.revocations:
            raise ApiError("Conflict", f"{access_key_id!r} was revoked, and stays so; create another credential.")
        after = asked.applied(row, _new_secret(), parts.catalog.now(), change.revision)
        change.before, change.after = audited(row), audited(after)
        await _store(after, parts, change)
        return _with_secret(after, parts, snapshot)

    return _answered(await change_once(parts.catalog, caller, "credentials.rotate", once, work), response)


@router.post("/credentials/{access_key_id:path}/revoke", summary="Revoke a credential")
async def revoke_credential(access_key_id: str, caller: Admin, parts: Parts, response: Response) -> Credential:
    """Refuse a key from now on, everywhere and for ever; also one of the configuration file. Repeating it changes nothing."""
    async with parts.catalog.changes.change(caller, "credentials.revoke", access_key_id) as change:
        snapshot = await parts.catalog.read(change.connection)
        document = credential_document(access_key_id, parts.file(), snapshot)
        if document is None:
            raise _unknown(access_key_id)
        if document.revoked:
            change.done = False
        else:
            change.before, change.after = {"revoked": False}, {"revoked": True}
            await _revoke(access_key_id, parts, change)
            after = await parts.catalog.read(change.connection)
            document = credential_document(access_key_id, parts.file(), after) or document
    response.headers["ETag"] = document.etag
    return document


@router.delete("/credentials/{access_key_id}", summary="Delete a credential", status_code=204)
async def delete_credential(access_key_id: str, caller: Admin, parts: Parts, if_match: IfMatch = None) -> None:
    """Revoke a key of the catalog, and forget the rest of it. Its access key is never given again."""
    async with parts.catalog.changes.change(caller, "credentials.delete", access_key_id) as change:
        row, snapshot = await _editable(access_key_id, parts, change, if_match)
        change.before = audited(row)
        if access_key_id not in snapshot.revocations:
            await _revoke(access_key_id, parts, change)
        await change.connection.execute(delete(credentials).where(credentials.c.access_key_id == access_key_id))


def _new_key() -> str:
    """As long as AWS's, of the letters and digits that people do not confuse."""
    return "LK" + base64.b32encode(os.urandom(12)).decode().rstrip("=")[:18]


def _new_secret() -> str:
    return random_secrets.token_urlsafe(30)


def _check_new(configured: Configured, parts: AdminParts, snapshot: Snapshot) -> None:
    key = configured.access_key_id
    if ended(configured, parts.catalog.now()):
        raise ApiError("InvalidRequest", f"expires: {configured.expires} is past; the key would never be valid.")
    if key in snapshot.revocations:
        raise ApiError("Conflict", f"access_key_id: {key!r} was revoked once, and stays so; choose another.")
    if credential_document(key, parts.file(), snapshot) is not None:
        raise ApiError(
            "Conflict", f"access_key_id: there is a credential {key!r} already; choose another, or rotate that one."
        )
    _check_references(configured, parts, snapshot)


def _check_references(configured: Configured, parts: AdminParts, snapshot: Snapshot) -> None:
    """A credential names an origin, and a tenant if any, that exist."""
    known = {origin.name for origin in parts.file().origins} | snapshot.origins.keys()
    if configured.origin not in known:
        raise ApiError(
            "InvalidRequest",
            f"origin: there is no origin named {configured.origin!r}; known: {', '.join(sorted(known)[:20])}.",
        )
    if configured.tenant and configured.tenant not in tenant_documents(parts.file(), snapshot):
        raise ApiError(
            "InvalidRequest",
            f"tenant: there is no tenant {configured.tenant!r}; create it by POST /-/admin/tenants, or leave it out.",
        )


async def _editable(
    key: str, parts: AdminParts, change: Change, if_match: str | None
) -> tuple[CredentialRow, Snapshot]:
    """A credential of the catalog that is what the caller thinks it is."""
    file = parts.file()
    snapshot = await parts.catalog.read(change.connection)
    if credential_document(key, file, snapshot) is None:
        raise _unknown(key)
    if key not in snapshot.credentials:
        raise ApiError(
            "Conflict", f"{key!r} is a credential of the configuration file: edit it there. It can be revoked here."
        )
    row = snapshot.credentials[key]
    check_if_match(if_match, described(row, file, snapshot).etag)
    return row, snapshot


async def _store(row: CredentialRow, parts: AdminParts, change: Change) -> None:
    where = credentials.c.access_key_id == row.credential.access_key_id
    await change.connection.execute(update(credentials).where(where).values(**row_values(row, parts.catalog.vault)))


async def _revoke(key: str, parts: AdminParts, change: Change) -> None:
    row: dict[str, Any] = {"access_key_id": key, "revoked_at": parts.catalog.now(), "revision": change.revision}
    await change.connection.execute(insert(revocations).values(**row))
    change.withdrawn.append(Withdrawal(KEY, key, change.revision, row["revoked_at"]))


def _with_secret(row: CredentialRow, parts: AdminParts, snapshot: Snapshot) -> dict[str, Any]:
    document = described(row, parts.file(), snapshot)
    return NewSecret(**document.model_dump(), secret_access_key=row.credential.secret_access_key).model_dump()


def _answered(document: dict[str, Any], response: Response) -> dict[str, Any]:
    response.headers["Location"] = f"/-/admin/credentials/{document['access_key_id']}"
    response.headers["ETag"] = document["etag"]
    return document


def _unknown(key: str) -> ApiError:
    return ApiError("NotFound", f"There is no credential {key[:140]!r}; GET /-/admin/credentials lists them.")
