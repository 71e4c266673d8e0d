"""Objects of tenants in the browser of an operator: none acts as a page of the gateway, and none reaches the console."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Page, expect

from rig.gateways import Running, Settings, gateway
from rig.world import Origin
from tests.browser.chromium import PATIENCE, READ_TOKEN, TOKEN, Watched
from tests.browser.console import sign_in

expect.set_options(timeout=PATIENCE)

SCRIPT = "document.documentElement.setAttribute('data-ran', location.origin)"
ACTIVE = {
    "page.html": ("text/html", f"<p id=shown>shown</p><script>{SCRIPT}</script>"),
    "page.xhtml": (
        "application/xhtml+xml",
        f'<html xmlns="http://www.w3.org/1999/xhtml"><body><p id="shown">shown</p><script>{SCRIPT}</script></body></html>',
    ),
    "picture.svg": (
        "image/svg+xml",
        f'<svg xmlns="http://www.w3.org/2000/svg"><text id="shown">shown</text><script>{SCRIPT}</script></svg>',
    ),
    "data.xml": (
        "text/xml",
        f'<r xmlns:h="http://www.w3.org/1999/xhtml"><h:p id="shown">shown</h:p><h:script>{SCRIPT}</h:script></r>',
    ),
}
"""Objects that run a script where a browser lets them."""


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store with active objects."""
    with Origin() as started:
        for name, (kind, text) in ACTIVE.items():
            started.s3.put("data", name, text.encode(), [("Content-Type", kind)])
        yield started


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with admin tokens."""
    home = tmp_path_factory.mktemp("one-origin")
    extra = f'[admin]\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'
    with gateway(Settings(origin.endpoint, home / "cache", extra=extra), home) as ready:
        yield ready


def presigned(running: Running, name: str) -> str:
    """The address of an object for everyone."""
    url: str = running.client(signature_version="s3v4").generate_presigned_url(
        "get_object", {"Bucket": "data", "Key": name}
    )
    return url


def ran(page: Page) -> str | None:
    """The origin as which the script of the document ran; ``None`` if it did not."""
    return page.evaluate("() => document.documentElement.getAttribute('data-ran')")  # type: ignore[no-any-return]


@pytest.fixture
def tab(browser: Any) -> Iterator[Page]:
    """A tab that may show anything."""
    context = browser.new_context()
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@pytest.mark.parametrize("name", ACTIVE)
def test_an_object_runs_no_script(tab: Page, running: Running, name: str) -> None:
    """Rule: a tenant's document is shown, read from the store and from the cache, and its scripts do not run."""
    for _ in range(2):
        tab.goto(presigned(running, name))
        expect(tab.locator("#shown")).to_have_count(1)
        assert ran(tab) is None


@pytest.mark.parametrize("element", ["iframe src", "object data", "embed src"])
def test_an_embedded_object_runs_no_script(tab: Page, running: Running, tmp_path: Path, element: str) -> None:
    """Rule: in a frame, an object or an embed of a page of another site, a tenant's document runs no script either."""
    page = tmp_path / "page.html"
    page.write_text(f'<body><{element}="{presigned(running, "page.html")}"></{element.split()[0]}>')
    tab.goto(page.as_uri())
    (frame,) = [each for each in tab.frames if each.url.startswith(running.endpoint)]
    frame.wait_for_selector("#shown")
    assert frame.evaluate("() => document.documentElement.getAttribute('data-ran')") is None


def test_a_fetched_object_is_as_ever(tab: Page, running: Running) -> None:
    """Rule: a read by a script or by an element for pictures has none of the headers of a document."""
    tab.goto(f"{running.endpoint}/-/healthz")
    url = presigned(running, "page.html")
    headers = tab.evaluate("async (url) => Object.fromEntries((await fetch(url)).headers)", url)
    assert headers["content-type"] == "text/html"
    assert not {"content-security-policy", "x-content-type-options"} & headers.keys()


def test_the_console_shares_its_origin_with_no_object(window: Any, running: Running) -> None:
    """Rule: the address for clients leads a browser to the console's own, which serves no object, and where the token works."""
    watched: Watched = window()
    page = watched.page
    page.goto("/-/")
    sign_in(page)
    expect(page.locator("#board")).to_be_visible()
    other = watched.context.new_page()
    other.goto(f"{running.endpoint}/-/#/nodes")
    assert other.url == f"{running.console}/-/#/nodes"
    at_console = presigned(running, "page.html").replace(urlsplit(running.endpoint).netloc, urlsplit(page.url).netloc)
    refused = other.goto(at_console)
    assert refused is not None
    assert refused.status == 404
