"""``/-/admin/credentials``: access keys of the gateway. A secret is shown once, in the answer that creates it.

Every gateway refuses a revoked key within a second, permanently: it can be removed from the list, but not created again. Keys
of the configuration file can be revoked here, but are edited there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import Body, Response
from pydantic import Field, create_model
from sqlalchemy import insert

from gateway.admin.catalog.changes import CatalogChange
from gateway.admin.catalog.fields import RequestModel, Source
from gateway.admin.catalog.merging import View, tenant_of
from gateway.admin.catalog.records import CredentialRecord, OwnSecret, new_secret
from gateway.admin.catalog.schema import revocations
from gateway.admin.catalog.snapshot import RevocationRow
from gateway.admin.catalog.withdrawals import KEY, Withdrawal
from gateway.admin.http.parts import AdminParts, etag_of
from gateway.admin.http.requests import Changer, Idempotent, IfMatch, Parts, change_once
from gateway.admin.http.resources import Resource, view_in
from gateway.edge.documents import ResponseModel, moment
from gateway.edge.problems import refused_field
from gateway.model.datasets import ApiError


class Rotation(RequestModel):
    """Options for rotating a secret."""

    grace: float = Field(
        0.0, ge=0, le=30 * 86_400, description="seconds for which the old secret stays valid", examples=[3600]
    )
    secret_access_key: OwnSecret | None = Field(
        None, description="generated if omitted", examples=["a long random string"]
    )

    def applied(self, record: CredentialRecord, now: float) -> dict[str, Any]:
        """The fields that the rotation changes."""
        old, end = record.secret_access_key, datetime.fromtimestamp(now + self.grace, UTC).isoformat()
        return {
            "secret_access_key": self.secret_access_key or new_secret(),
            "previous_secret_access_key": old if self.grace else type(old)(""),
            "previous_expires": end if self.grace else "",
            "rotated_at": now,
        }


class CredentialState(ResponseModel):
    """A credential, without its secret."""

    revoked: bool = Field(examples=[False])
    revoked_at: str | None = Field(description="ISO 8601", examples=[None])
    source: Source = Field(examples=["catalog"])
    problem: str = Field(description="why it is not in force; empty if it is", examples=[""])
    etag: str = Field(description="for If-Match", examples=['"17"'])


class Credentials(Resource[CredentialRecord]):
    """Credentials of the catalog and of the configuration file."""

    kind, state = CredentialRecord, CredentialState
    removal = "delete"
    taken = "choose another name, or rotate the existing key."
    filed = "edit it there. It can be revoked here."
    about: Mapping[str, str] = {
        "list": "Credentials by access key, without secrets: those of the configuration file and those of the catalog.",
        "create": "Create an access key. The secret is in this answer only; if it is lost, rotate the key.",
        "show": "One credential, without its secret.",
        "change": "Change the given fields; the others stay.",
        "delete": "Revoke a key of the catalog, and remove its record. The access key cannot be created again.",
    }

    def describe(self, record: CredentialRecord, view: View) -> ResponseModel:
        """A credential of the catalog."""
        state = {**_revocation(record.id, record.revision, view), "source": "catalog", "problem": view.unusable(record)}
        return self.answer(**record.shown(), **state)

    def describe_filed(self, name: str, view: View) -> ResponseModel:
        """A credential of the file."""
        filed = view.filed["credentials"][name]
        shown = {field: getattr(filed, field, None) for field in self.kind.fields(show=True)}
        shown |= {"tenant": tenant_of(filed), "allow": list(filed.allow), "description": ""}
        return self.answer(**shown, **_revocation(name, 0, view), source="file", problem=view.refused(filed))

    def created_answer(self) -> type[ResponseModel]:
        """A credential with its secret."""
        secret = (str, Field(examples=["vQ0GgT5yZ1uK8nWcE2rXbA7dJ4hLfM9sPoRiNt3q"]))
        about = "A credential with its secret: shown in this answer only."
        return create_model("NewSecret", __doc__=about, __base__=self.answer, secret_access_key=secret)

    def answer_created(self, record: CredentialRecord, view: View) -> ResponseModel:
        """The credential with its secret."""
        document = self.describe(record, view).model_dump()
        return self.created(**document, secret_access_key=record.secret_access_key.get_secret_value())

    def check(self, record: CredentialRecord, view: View) -> None:
        """Require that the origin exists, and the tenant if there is one."""
        if not view.has("origins", record.origin):
            known = ", ".join(sorted(view.filed["origins"].keys() | view.catalog.origins.keys())[:20])
            raise refused_field("origin", f"Unknown origin {record.origin!r}; known: {known}.")
        if record.tenant and not view.has("tenants", record.tenant):
            raise refused_field(
                "tenant",
                f"Unknown tenant {record.tenant!r}; create it (larder-gateway tenants create), or omit it.",
            )

    def check_new(self, record: CredentialRecord, view: View, now: float) -> None:
        """Refuse a revoked or expired key."""
        if record.ended(now):
            raise refused_field("expires", f"The field expires must be in the future; {record.expires} is in the past.")
        if record.id in view.catalog.revocations:
            raise refused_field(
                "access_key_id",
                f"The access key {record.id!r} was revoked, which is permanent; choose another.",
                "Conflict",
            )

    async def withdraw(
        self,
        before: CredentialRecord,
        after: CredentialRecord | None,
        change: CatalogChange,
        parts: AdminParts,
        view: View,
    ) -> None:
        """Deleting a key revokes it."""
        if after is None and before.id not in view.catalog.revocations:
            await _revoke(before.id, parts, change)


CREDENTIALS = Credentials()
_ONE = "/credentials/{access_key_id"


@CREDENTIALS.router.post(f"{_ONE}}}/rotate", summary="Rotate a secret", response_model=CREDENTIALS.created)
async def rotate_credential(
    access_key_id: str,
    caller: Changer,
    parts: Parts,
    once: Idempotent,
    response: Response,
    asked: Annotated[Rotation, Body()] = Rotation(),  # noqa: B008  # it is never changed
    if_match: IfMatch = None,
) -> Any:
    """Make a new secret. The old one stays valid for another ``grace`` seconds."""

    async def work(change: CatalogChange) -> ResponseModel:
        change.target = access_key_id
        record, view = await CREDENTIALS.editable(access_key_id, parts, change, if_match)
        if access_key_id in view.catalog.revocations:
            raise ApiError(
                "Conflict",
                f"The access key {access_key_id!r} was revoked, which is permanent; create another credential.",
            )
        after = await CREDENTIALS.replace(record, asked.applied(record, parts.catalog.now()), change, parts, view)
        return CREDENTIALS.answer_created(after, view)

    document = await change_once(parts.catalog, caller, "credentials.rotate", once, CREDENTIALS.created, work)
    CREDENTIALS.locate(document, response)
    return document


@CREDENTIALS.router.post(f"{_ONE}:name}}/revoke", summary="Revoke a credential", response_model=CREDENTIALS.answer)
async def revoke_credential(access_key_id: str, caller: Changer, parts: Parts, response: Response) -> Any:
    """Refuse a key everywhere, permanently, including one of the configuration file. Idempotent."""
    async with parts.catalog.changes.change(caller, "credentials.revoke", access_key_id) as change:
        view = await view_in(parts, change)
        document = CREDENTIALS.document(access_key_id, view)
        if document is None:
            raise CREDENTIALS.unknown(access_key_id)
        change.done = access_key_id not in view.catalog.revocations
        if change.done:
            change.before, change.after = {"revoked": False}, {"revoked": True}
            row = await _revoke(access_key_id, parts, change)
            revoked = replace(view.catalog, revocations={**view.catalog.revocations, access_key_id: row})
            document = CREDENTIALS.document(access_key_id, View(view.file, revoked)) or document
    CREDENTIALS.locate(document, response)
    return document


async def _revoke(key: str, parts: AdminParts, change: CatalogChange) -> RevocationRow:
    row = RevocationRow(parts.catalog.now(), change.revision)
    await change.connection.execute(insert(revocations).values(access_key_id=key, **asdict(row)))
    change.withdrawn.append(Withdrawal(KEY, key, change.revision, row.revoked_at))
    return row


def _revocation(key: str, revision: int, view: View) -> dict[str, Any]:
    """The revocation of a key, with the entity tag of the key's latest change."""
    revocation = view.catalog.revocations.get(key) or RevocationRow(0.0, 0)
    at = moment(revocation.revoked_at) if revocation.revision else None
    return {"revoked": bool(revocation.revision), "revoked_at": at, "etag": etag_of(max(revision, revocation.revision))}
