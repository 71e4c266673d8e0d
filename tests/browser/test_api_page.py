"""``/-/docs`` and the files of all pages, of a real gateway."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from gateway.admin.pages import STATIC, SWAGGER_UI
from rig.gateways import Running
from rig.v1 import Reply, ask
from tests.browser.chromium import PATIENCE, TOKEN, Watched
from tests.browser.console import described_below
from tests.browser.looks import overflow

expect.set_options(timeout=PATIENCE)


def fetch(running: Running, path: str, **headers: str) -> Reply:
    """One GET below ``/-``, without a signature."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return ask(running, "GET", path, key=None, headers=named)


@pytest.fixture(scope="module")
def running(running: Running) -> Running:
    """The gateway, at the address of its pages."""
    return replace(running, endpoint=running.console)


@pytest.fixture(scope="module")
def docs(browser: Browser, running: Running) -> Iterator[Page]:
    """The page; it takes seconds to be shown."""
    watched = Watched(browser, running.console)
    watched.page.goto("/-/docs")
    expect(watched.page.locator(".opblock").first).to_be_visible()
    yield watched.page
    watched.close()


@pytest.fixture
def overview(window: Any) -> Page:
    """The page with the addresses of the overview alone, on a system that is dark."""
    page: Page = window(color_scheme="dark").page
    page.route("**/openapi.json", described_below("/admin/overview"))
    page.goto("/-/docs")
    expect(page.locator(".opblock").first).to_be_visible()
    return page


def test_the_page_lists_every_address(docs: Page, running: Running) -> None:
    """Rule: the page has each address of /-/v1 and /-/admin and loads no foreign file."""
    described = fetch(running, "/openapi.json").json
    count = sum(
        len(item.keys() & {"get", "put", "post", "delete", "patch", "head"}) for item in described["paths"].values()
    )
    expect(docs.locator(".opblock")).to_have_count(count)
    assert {"/v1/jobs", "/admin/overview"} <= described["paths"].keys()


def test_the_page_fits_a_phone(docs: Page) -> None:
    """Rule: 360 pixels are wide enough for the list of addresses."""
    desk = docs.viewport_size
    assert desk is not None
    docs.set_viewport_size({"width": 360, "height": 740})
    assert overflow(docs) <= 0
    docs.set_viewport_size(desk)


def test_an_address_is_tried_with_the_token(overview: Page, running: Running) -> None:
    """Rule: with the token given under Authorize, an admin address answers on the page; without it, it is refused."""
    block = overview.locator(".opblock", has=overview.locator("[data-path='/admin/overview']"))
    block.locator(".opblock-summary-control").click()
    block.get_by_role("button", name="Execute").click()
    status = block.locator(".live-responses-table tr.response .response-col_status")
    expect(status).to_have_text(re.compile("^401"))
    overview.get_by_role("button", name="Authorize", exact=True).click()
    overview.locator(".auth-container input").fill(TOKEN)
    overview.locator(".auth-container").get_by_role("button", name="Apply credentials").click()
    overview.locator(".modal-ux").get_by_role("button", name="Close").last.click()
    block.get_by_role("button", name="Execute").click()
    expect(status).to_have_text(re.compile("^200"))
    assert overview.evaluate("() => localStorage.length + sessionStorage.length + document.cookie.length") == 0


def test_the_page_follows_the_scheme(overview: Page) -> None:
    """Rule: dark where the system is, unless light was chosen on the dashboard."""
    expect(overview.locator("body")).to_have_css("background-color", "rgb(28, 32, 34)")
    expect(overview.locator(".swagger-ui .info .title")).to_have_css("color", "rgb(210, 214, 215)")
    overview.evaluate("() => localStorage.setItem('larder-theme', 'light')")
    overview.reload()
    expect(overview.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(overview.locator(".opblock").first).to_be_visible()


def test_every_operation_says_what_it_is(running: Running) -> None:
    """Rule: each has a summary and a tag that is described; each address of the admin wants the token, and no other does."""
    described = fetch(running, "/openapi.json").json
    tags = {tag["name"] for tag in described["tags"] if tag.get("description")}
    silent = []
    for path, item in described["paths"].items():
        for method, operation in item.items():
            if not operation.get("summary") or not set(operation.get("tags", [])) <= tags or not operation.get("tags"):
                silent.append(f"{method} {path}")
            assert bool(operation.get("security")) is path.startswith("/admin/"), path
    assert silent == []


@pytest.mark.parametrize("path", ["/", "/docs", "/runbook"])
def test_pages_let_nothing_in(running: Running, path: str) -> None:
    """Rule: each page comes with a policy that allows this gateway's files only, and can be put into no frame."""
    reply = fetch(running, path)
    policy = reply.headers["content-security-policy"]
    assert (reply.status, reply.headers["content-type"]) == (200, "text/html; charset=utf-8")
    for part in ("default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "base-uri 'none'"):
        assert part in policy
    assert ("trusted-types 'none'" in policy) is (path != "/docs")
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert reply.headers["cache-control"] == "no-cache"
    assert b"http://" not in reply.body.replace(b"http://www.w3.org/", b"")
    assert b"https://" not in reply.body
    assert "set-cookie" not in reply.headers


def test_vendored_files_are_kept_and_own_ones_asked_for(running: Running) -> None:
    """Rule: a file with its version in the address is cached for a year; the others are revalidated."""
    vendored = fetch(running, f"/static/{SWAGGER_UI}/swagger-ui.css")
    assert vendored.headers["cache-control"] == "public, max-age=31536000, immutable"
    own = fetch(running, "/static/dashboard/main.js")
    assert (own.headers["cache-control"], own.headers["content-type"]) == ("no-cache", "text/javascript; charset=utf-8")
    again = fetch(running, "/static/dashboard/main.js", if_none_match=own.headers["etag"])
    assert (again.status, again.body) == (304, b"")
    assert fetch(running, "/static/dashboard/main.js", if_none_match=f'"x", W/{own.headers["etag"]}').status == 304


@pytest.mark.parametrize(
    "name",
    ["", "dashboard", "nothing.js", "../pages.py", "..%2Fpages.py", "dashboard//main.js", f"{SWAGGER_UI}/README.md"],
)
def test_other_files_are_not_there(running: Running, name: str) -> None:
    """Rule: only the pages' own files have addresses; any other, also outside their folder, is 404."""
    assert fetch(running, f"/static/{name}").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_pages_take_nothing(running: Running, method: str) -> None:
    """Rule: the pages can be read only."""
    assert ask(running, method, "/docs", b"x", key=None).status == 405
    assert ask(running, "HEAD", "/docs", key=None).status == 200


def test_the_licence_comes_with_the_files() -> None:
    """Rule: third-party files name their authors and licence, in the package too."""
    folder = STATIC / SWAGGER_UI
    assert "Apache License" in (folder / "LICENSE").read_text(encoding="utf-8")
    assert (folder / "swagger-ui-bundle.js.LICENSE.txt").stat().st_size > 1000
    assert SWAGGER_UI.rpartition("-")[2] in (folder / "README.md").read_text(encoding="utf-8")
    assert SWAGGER_UI in (STATIC / "docs" / "index.html").read_text(encoding="utf-8")
