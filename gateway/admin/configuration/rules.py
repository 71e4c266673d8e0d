"""``/-/admin/rules``: caching rules in order; the first match applies.

The catalog's rules come before the file's. They are replaced as a whole, because their order matters: two concurrent insertions
would give an order that neither author has seen. If-Match detects that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Response
from pydantic import ConfigDict, Field, field_validator
from sqlalchemy import delete, insert, update

from gateway.admin.catalog.fields import RequestModel, Source, Text
from gateway.admin.catalog.schema import meta
from gateway.admin.catalog.schema import rules as table
from gateway.admin.catalog.snapshot import Snapshot
from gateway.admin.http.parts import check_if_match, etag_of
from gateway.admin.http.requests import Changer, IfMatch, Parts, Reader
from gateway.base.config import Rule as Configured
from gateway.base.config import Settings
from gateway.edge.documents import ResponseModel
from gateway.policies.reads.covering import hidden_by

router = APIRouter(tags=["rules"])

MOST_RULES = 1000
"""Rules that the catalog may have."""
_LONGEST = 100 * 366 * 86_400.0
"""Seconds that a rule may name: a hundred years."""


class NewRule(Configured):
    """Caching of matching objects; times in seconds, or as "10m"."""

    model_config = ConfigDict(
        strict=True, json_schema_extra={"examples": [{"match": "datasets/**", "freshness": "immutable"}]}
    )

    match: Text = Field(
        min_length=1, description=Configured.model_fields["match"].description, examples=["datasets/**"]
    )

    @field_validator("freshness", "grant", "stale_if_error")
    @classmethod
    def _an_end(cls, value: str | float) -> str | float:
        if isinstance(value, float) and not value <= _LONGEST:
            raise ValueError(f'must be at most {_LONGEST:.0f} seconds; for no limit use "immutable"')
        return value


class NewRules(RequestModel):
    """All rules of the catalog."""

    items: list[NewRule] = Field(
        max_length=MOST_RULES,
        examples=[[{"match": "datasets/**", "freshness": "immutable"}, {"match": "tmp/**", "cache": False}]],
    )


class RuleDocument(ResponseModel):
    """A rule in force."""

    position: int = Field(description="the match with the lowest position applies", examples=[0])
    source: Source = Field(examples=["catalog"])
    match: str = Field(description="glob over bucket/key: * within a segment, ** across them", examples=["datasets/**"])
    freshness: float | str = Field(description='seconds, "always" or "immutable"', examples=["immutable"])
    authorization: str = Field(description="object or prefix", examples=["object"])
    grant: float = Field(description="seconds", examples=[600.0])
    cache: bool = Field(examples=[True])
    warm_on_write: bool = Field(examples=[False])
    stale_if_error: float = Field(description="seconds", examples=[3600.0])
    pattern: str = Field(description="auto, sequential, random, skewed or off", examples=["auto"])
    listing: str = Field(description="forward or immutable", examples=["forward"])
    hedge: str = Field(description="off, p90, p95 or p99", examples=["off"])
    problem: str = Field(description="why it never applies; empty if it can", examples=[""])


class RuleList(ResponseModel):
    """All rules in their order, the file's last."""

    items: list[RuleDocument]
    next: str | None = Field(None, description="always null: there is one page", examples=[None])
    etag: str = Field(description="for If-Match", examples=['"17"'])


def rule_list(file: Settings, catalog: Snapshot) -> RuleList:
    """The rules in force."""
    rules = [*catalog.rules, *file.rules]
    hidden = hidden_by([rule.match for rule in rules])
    items = [
        RuleDocument(
            position=place,
            source="catalog" if place < len(catalog.rules) else "file",
            problem=f"rule {hidden[place]} covers it and comes first" if place in hidden else "",
            **rule.model_dump(),
        )
        for place, rule in enumerate(rules)
    ]
    return RuleList(items=items, etag=etag_of(catalog.rules_revision))


@router.get("/rules", summary="List rules")
async def list_rules(_caller: Reader, parts: Parts, response: Response) -> RuleList:
    """The rules in their order, with a note on those that can never apply."""
    document = rule_list(parts.file(), await parts.catalog.latest())
    response.headers["ETag"] = document.etag
    return document


@router.put("/rules", summary="Replace the catalog's rules")
async def replace_rules(
    caller: Changer, parts: Parts, asked: NewRules, response: Response, if_match: IfMatch = None
) -> RuleList:
    """Replace the catalog's rules, in this order; the file's follow. In force everywhere within a second."""
    async with parts.catalog.changes.change(caller, "rules.replace", "rules") as change:
        snapshot = await parts.catalog.before(change)
        check_if_match(if_match, etag_of(snapshot.rules_revision))
        change.before, change.after = _audited(snapshot.rules), _audited(asked.items)
        await change.connection.execute(delete(table))
        for place, rule in enumerate(asked.items):
            row = {"position": place, "rule": rule.model_dump_json()}
            await change.connection.execute(insert(table).values(**row))
        await change.connection.execute(update(meta).where(meta.c.name == "rules").values(value=str(change.revision)))
        after = replace(snapshot, rules=tuple(asked.items), rules_revision=change.revision)
    document = rule_list(parts.file(), after)
    response.headers["ETag"] = document.etag
    return document


def _audited(rules: Sequence[Configured]) -> dict[str, Any]:
    return {"items": [rule.model_dump() for rule in rules]}
