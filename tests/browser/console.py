"""An operator's actions in the dashboard, for tests of its pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from playwright.sync_api import Locator, Page, Route, expect

from rig.gateways import Running
from rig.v1 import Reply, ask
from tests.browser.chromium import TOKEN, Watched

_SIGN_IN = """
(token) => {
  document.getElementById("token").value = token;
  document.getElementById("token-form").requestSubmit();
}
"""
_SCHEMA = re.compile(r'"#/components/schemas/([^"]+)"')


def sign_in(page: Page, token: str = TOKEN) -> None:
    """Give a token at the door, at once; test_dashboard_live.py does what an operator does there."""
    page.evaluate(_SIGN_IN, token)


def console(window: Any, view: str, token: str = TOKEN, **options: Any) -> Watched:
    """A window on a page of the dashboard, signed in."""
    watched: Watched = window(**options)
    watched.page.goto(f"/-/#/{view}")
    sign_in(watched.page, token)
    return watched


def admin(running: Running, method: str, path: str, body: Any = None, token: str = TOKEN) -> Reply:
    """A request of the admin API, below ``/-/admin``."""
    sent = b"" if body is None else json.dumps(body).encode()
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    return ask(running, method, f"/admin/{path}", sent, key=None, headers=headers)


def press(page: Page, word: str) -> None:
    """Press the button that opens a dialog."""
    page.get_by_role("button", name=word, exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()


def confirm(page: Page, word: str) -> None:
    """Press the button of the dialog that sends."""
    page.get_by_role("dialog").get_by_role("button", name=word, exact=True).click()


def field(page: Page, label: str) -> Locator:
    """A field of the dialog."""
    return page.get_by_role("dialog").get_by_label(label, exact=True)


def row(page: Page, name: str) -> Locator:
    """The row of a record."""
    return page.get_by_role("row").filter(has=page.get_by_role("rowheader", name=name))


def closed(page: Page) -> None:
    """Wait until the dialog is closed, and empty: browsers report the end of a dialog after it."""
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page.locator("#action-result")).to_be_empty()


def described_below(prefix: str) -> Callable[[Route], None]:
    """Answers with the gateway's description, but of the addresses with a prefix alone, with the schemas that they name.

    Swagger UI draws each address with each of its answers, and works through the whole document whenever one is opened. Answers
    whose statuses have the same first digit look alike; one of them is left.
    """

    def answer(route: Route) -> None:
        document = route.fetch().json()
        paths = {path: item for path, item in document["paths"].items() if path.startswith(prefix)}
        for operation in (operation for item in paths.values() for operation in item.values()):
            statuses = {status[0]: status for status in sorted(operation["responses"], reverse=True)}
            operation["responses"] = {status: operation["responses"][status] for status in statuses.values()}
        schemas, unread = {}, [paths]
        while unread:
            for name in set(_SCHEMA.findall(json.dumps(unread.pop()))) - schemas.keys():
                schemas[name] = document["components"]["schemas"][name]
                unread.append(schemas[name])
        components = {**document["components"], "schemas": schemas}
        route.fulfill(json={**document, "paths": paths, "components": components})

    return answer
