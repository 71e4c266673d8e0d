"""``/-/admin/audit``: the audit log of changes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field
from pydantic_core import from_json
from sqlalchemy import select

from gateway.admin.catalog.fields import Text
from gateway.admin.catalog.schema import audit
from gateway.admin.http.requests import Cursor, Limit, Page, Parts, Reader, cursor_of, invalid_cursor, place_of
from gateway.edge.documents import ResponseModel, moment

router = APIRouter(tags=["audit"])


class Entry(ResponseModel):
    """A change."""

    id: int = Field(description="increases with every change", examples=[17])
    at: str = Field(description="ISO 8601", examples=["2026-03-01T09:30:00.000Z"])
    actor: str = Field(description="the token: admin", examples=["admin"])
    address: str = Field(description="of the client, or of its proxy", examples=["10.0.0.9"])
    action: str = Field(examples=["credentials.revoke"])
    target: str = Field(description="what was changed", examples=["vision"])
    before: dict[str, Any] | None = Field(
        description="without secrets; null if it did not exist", examples=[{"revoked": False}]
    )
    after: dict[str, Any] | None = Field(
        description="without secrets; null if it was removed", examples=[{"revoked": True}]
    )
    request_id: str = Field(examples=["5f2c7d1e0c3b4a6f8e9d0a1b2c3d4e5f"])


@router.get("/audit", summary="Read the audit log")
async def read_audit(
    _caller: Reader,
    parts: Parts,
    limit: Limit = 100,
    cursor: Cursor = "",
    action: Annotated[Text, Query(max_length=100, description="only this action")] = "",
    target: Annotated[Text, Query(max_length=1000, description="only changes of this target")] = "",
) -> Page[Entry]:
    """Changes, newest first."""
    before = place_of(cursor, int)
    if before is not None and not 0 <= before < 2**63:
        raise invalid_cursor()
    query = select(audit).order_by(audit.c.id.desc()).limit(limit + 1)
    if before is not None:
        query = query.where(audit.c.id < before)
    if action:
        query = query.where(audit.c.action == action)
    if target:
        query = query.where(audit.c.target == target)
    async with parts.catalog.database.reading() as connection:
        rows = (await connection.execute(query)).mappings().all()
    entries = [
        Entry(**{**row, "at": moment(row["at"]), "before": _document(row["before"]), "after": _document(row["after"])})
        for row in rows[:limit]
    ]
    return Page(items=entries, next=cursor_of(rows[limit - 1]["id"]) if len(rows) > limit else None)


def _document(text: str | None) -> dict[str, Any] | None:
    return None if text is None else from_json(text)
