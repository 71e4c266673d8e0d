"""The modules of the dashboard in one file, as most tests load them, and one by one, as users do."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import figures
from tests.browser.chromium import PATIENCE, Played
from tests.browser.linked import FIRST, MODULES, imports, linked

expect.set_options(timeout=PATIENCE)

KEYS = {"items": figures.KEYS, "next": None}
BEFORE = {"theme.js"}
"""Scripts that the page loads before its modules."""


@pytest.mark.parametrize("view", ["overview", "credentials"])
def test_modules_in_one_file_show_what_they_show_apart(window: Any, view: str) -> None:
    """Rule: modules that come one by one from the gateway, and the same in one file, show the same page."""
    pages = []
    for apart in (True, False):
        watched = window(apart=apart, at=figures.NOW)
        Played(watched.page)
        watched.page.route("**/-/admin/credentials*", lambda route: route.fulfill(json=KEYS))
        watched.page.goto(f"/-/#/{view}")
        expect(watched.page.locator("tbody tr:visible, path.line:visible").first).to_be_visible()
        pages.append(watched)
    modules = {path.name for path in MODULES.glob("*.js")}
    alone, together = ({path.rpartition("/")[2] for path in watched.asked} & modules for watched in pages)
    assert (alone, together) == (modules, {FIRST} | BEFORE)
    said = pages[0].page.locator("main").inner_text()
    expect(pages[1].page.locator("main")).to_have_text(said, use_inner_text=True)


def test_no_module_is_left_out() -> None:
    """Rule: every script of the dashboard but the first of its page is a module that the first one imports."""
    modules, unread = {FIRST}, [FIRST]
    while unread:
        unread += (more := set(imports(unread.pop())) - modules)
        modules |= more
    assert modules | BEFORE == {path.name for path in MODULES.glob("*.js")}
    assert linked().count("\nconst module_") + 1 == len(modules)
