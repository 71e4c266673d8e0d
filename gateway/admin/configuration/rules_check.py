"""``/-/admin/rules/check``: the rule that applies to an object, and rules that match no object."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from pydantic import Field, model_validator

from gateway.admin.catalog.fields import RequestModel, Source, Text
from gateway.admin.configuration.rule_probe import RuleMatch, probe_rule
from gateway.admin.configuration.rules import MOST_RULES, NewRule
from gateway.admin.http.requests import Parts, Reader
from gateway.base.config import Origin
from gateway.base.config import Rule as Configured
from gateway.edge.documents import ResponseModel
from gateway.edge.endpoints import of_state
from gateway.model.keys import glob_matches
from gateway.origin.listing import Listings
from gateway.policies.reads.covering import hidden_by

router = APIRouter(tags=["rules"])

_AT_ONCE = 8
"""Concurrent listings."""


class Check(RequestModel):
    """The rules to check."""

    bucket: Text = Field("", description="with key: the object whose rule to find", examples=["datasets"])
    key: Text = Field("", description="with bucket", examples=["imagenet/0001.jpg"])
    items: list[NewRule] | None = Field(
        None,
        max_length=MOST_RULES,
        description="rules to check instead of the catalog's",
        examples=[[{"match": "datasets/**"}]],
    )
    reach: bool = Field(True, description="also look for matching objects at the origins", examples=[True])

    @model_validator(mode="after")
    def _both(self) -> Check:
        if bool(self.bucket) != bool(self.key):
            raise ValueError("the fields bucket and key go together; send both or neither")
        return self


class Checked(ResponseModel):
    """The result for one rule."""

    position: int = Field(examples=[0])
    source: Source = Field(examples=["catalog"])
    match: str = Field(examples=["datasets/**"])
    verdict: Literal["matches", "nothing", "hidden", "unknown"] = Field(
        description="hidden: an earlier rule covers it; nothing: no object matches; unknown: see why",
        examples=["matches"],
    )
    why: str = Field(examples=[""])
    example: str = Field(description="a bucket/key that it matches", examples=["datasets/imagenet/0001.jpg"])


class CheckResult(ResponseModel):
    """The results."""

    position: int | None = Field(description="the rule that applies to the object; null: the defaults", examples=[0])
    items: list[Checked]


@router.post("/rules/check", summary="Check rules")
async def check_rules(
    _caller: Reader, parts: Parts, asked: Check, listings: Annotated[Listings, Depends(of_state("listings"))]
) -> CheckResult:
    """Find the rule that applies to an object, and rules that match no object. Nothing is changed."""
    catalog = (await parts.catalog.latest()).rules if asked.items is None else tuple(asked.items)
    file = parts.file().rules
    rules = [*catalog, *file]
    path = f"{asked.bucket}/{asked.key}"
    counts = next((place for place, rule in enumerate(rules) if asked.bucket and glob_matches(rule.match, path)), None)
    matches = await _verdicts(rules, parts.effective().origins, listings if asked.reach else None)
    items = [
        Checked(
            position=place,
            source="catalog" if place < len(catalog) else "file",
            match=rule.match,
            verdict=verdict,
            why=why,
            example=example,
        )
        for place, (rule, (verdict, why, example)) in enumerate(zip(rules, matches, strict=True))
    ]
    return CheckResult(position=counts, items=items)


_Verdict = tuple[Literal["matches", "nothing", "hidden", "unknown"], str, str]


async def _verdicts(
    rules: Sequence[Configured], origins: Sequence[Origin], listings: Listings | None
) -> list[_Verdict]:
    hidden = hidden_by([rule.match for rule in rules])
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(place: int, glob: str) -> _Verdict:
        if place in hidden:
            return "hidden", f"rule {hidden[place]} covers it and comes first", ""
        if listings is None:
            return "unknown", "the origins were not checked", ""
        answers = []
        for origin in origins:
            async with turn:
                answers.append(await probe_rule(listings, glob, origin))
            if answers[-1].verdict == "matches":
                break
        return _together(answers)

    return list(await asyncio.gather(*(one(place, rule.match) for place, rule in enumerate(rules))))


def _together(answers: Sequence[RuleMatch]) -> _Verdict:
    """Combines the verdicts of all origins: any match wins, then any unknown."""
    for verdict in ("matches", "unknown", "nothing"):
        those = [answer for answer in answers if answer.verdict == verdict]
        if those:
            return those[0].verdict, "; ".join(answer.why for answer in those if answer.why), those[0].example
    return "unknown", "no origin is configured", ""
