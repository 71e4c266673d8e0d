"""Every address that a running gateway describes stands on a page."""

from __future__ import annotations

import json
import re
import urllib.request

from tests.docs.blocks import ROOT
from tests.docs.conftest import Stage

_MENTION = re.compile(r"/-/[A-Za-z0-9_/{} .-]*")


def plain(address: str) -> str:
    """An address with its parameters unnamed: pages call them as reads best."""
    return re.sub(r"\{[^}]*\}", "{}", address).strip().rstrip(".") or "/-/"


def test_every_address_of_a_gateway_stands_on_a_page(stage: Stage) -> None:
    """Rule: each address of ``/-/openapi.json`` is on a page of docs/, under any names of its parameters."""
    with urllib.request.urlopen(f"{stage.endpoint}/-/openapi.json", timeout=30) as answer:
        described = {plain(f"/-{address}") for address in json.load(answer)["paths"]}
    text = "\n".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs").glob("*.md"))
    named = {plain(match[0]) for match in _MENTION.finditer(text)}
    assert {"/-/readyz", "/-/v1/jobs/{}", "/-/admin/credentials/{}"} <= described
    assert sorted(described - named) == []
