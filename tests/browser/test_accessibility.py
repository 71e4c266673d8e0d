"""Pages of a working gateway checked by axe-core, the engine of accessibility checkers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Browser, Page, ViewportSize, expect

from rig.gateways import Running, Settings, gateway
from tests.browser import figures
from tests.browser.chromium import PATIENCE, TOKEN, Played, Watched
from tests.browser.console import admin, console, described_below
from tests.browser.looks import overflow

expect.set_options(timeout=PATIENCE)

DESK: ViewportSize = {"width": 1280, "height": 720}
PHONE: ViewportSize = {"width": 360, "height": 740}
VIEWS = (
    "credentials", "tenants", "origins", "rules", "warmups", "profiles", "verifications", "explain", "tokens", "audit",
)  # fmt: skip
SERIOUS = ("serious", "critical")
_CHECK = """
async () => {
  const { violations } = await axe.run({ resultTypes: ["violations"], selectors: false });
  return violations.map(({ id, impact, nodes }) => [id, impact, nodes[0].html]);
}
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway with a row in each list."""
    home = tmp_path_factory.mktemp("accessible")
    with gateway(Settings("http://127.0.0.1:9", home / "cache", extra=f'[admin]\ntoken = "{TOKEN}"\n'), home) as ready:
        below = {"bucket": "data", "prefix": "train/"}
        for path, body in (
            ("tenants", {"name": "vision", "description": "the vision team"}),
            ("origins", {"name": "archive", "endpoint": "http://127.0.0.1:9"}),
            ("tokens", {"name": "grafana"}),
            ("warmups", {"access_key_id": "GWA", **below}),
            ("profiles", {"name": "nightly", "access_key_id": "GWA", **below}),
            ("verifications", {}),
        ):
            assert admin(ready, "POST", path, body).status in (201, 202), path
        yield ready


def found(page: Page) -> list[tuple[str, str]]:
    """Serious violations: the rule, and the first element that breaks it."""
    if not page.evaluate("() => 'axe' in window"):
        page.evaluate(AXE_SCRIPT)
    return [(rule, html) for rule, impact, html in page.evaluate(_CHECK) if impact in SERIOUS]


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": PHONE}], ids=["light", "dark phone"])
def test_lists_have_no_serious_violation(window: Any, running: Running, options: dict[str, Any]) -> None:
    """Rule: axe-core finds nothing serious in any list or dialog, at any width and in both schemes."""
    page = console(window, VIEWS[0], **options).page
    for view in VIEWS:
        page.goto(f"/-/#/{view}")
        expect(page.locator(f"#title-{view}")).to_be_visible()
        assert found(page) == [], view
    page.goto("/-/#/profiles")
    page.get_by_role("button", name="Record", exact=True).click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert found(page) == []


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": PHONE}], ids=["light", "dark phone"])
def test_the_overview_has_no_serious_violation(window: Any, running: Running, options: dict[str, Any]) -> None:
    """Rule: axe-core finds nothing serious in the overview of a fleet in trouble, nor in a dialog over it."""
    page = window(at=figures.NOW, **options).page
    Played(page, figures.in_trouble())
    page.goto("/-/")
    page.locator("#rate-chart path.line").first.wait_for()
    assert found(page) == []
    for view in ("problems", "traffic", "jobs", "datasets", "nodes", "nodes/gw-1", "jobs/vision/resnet50-17"):
        page.goto(f"/-/#/{view}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        assert found(page) == [], view
    page.goto("/-/#/streams")
    page.get_by_role("button", name="Space of a prefix").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    assert found(page) == []


@pytest.fixture(scope="module")
def api(browser: Browser, running: Running) -> Iterator[Page]:
    """The API page with addresses of each kind open, one tried, and its dialog open."""
    watched = Watched(browser, running.console)
    page = watched.page
    # All addresses are alike.
    page.route("**/openapi.json", described_below("/admin/tenants"))
    page.goto("/-/docs")
    expect(page.locator(".opblock")).to_have_count(5)
    for method in ("get", "post", "patch", "delete"):
        page.locator(f".opblock-{method} .opblock-summary-control").first.click()
    tried = page.locator(".opblock-get.is-open")
    tried.get_by_role("button", name="Execute").click()
    expect(tried.locator(".live-responses-table")).to_be_visible()
    page.get_by_role("button", name="Authorize", exact=True).click()
    expect(page.locator(".auth-container input")).to_be_visible()
    yield page
    watched.close()


@pytest.mark.parametrize(("scheme", "size"), [("light", DESK), ("dark", PHONE)], ids=["light", "dark phone"])
def test_the_api_page_has_no_serious_violation(api: Page, scheme: Literal["light", "dark"], size: ViewportSize) -> None:
    """Rule: axe-core finds nothing serious in the API page with addresses of each kind open, one tried, and its dialog open."""
    api.emulate_media(color_scheme=scheme)
    api.set_viewport_size(size)
    expect(api.locator("html.dark-mode")).to_have_count(int(scheme == "dark"))
    api.evaluate("() => Promise.all(document.getAnimations().map((each) => each.finished.catch(() => {})))")
    assert found(api) == []


@pytest.mark.parametrize("options", [{}, {"color_scheme": "dark", "viewport": PHONE}], ids=["light", "dark phone"])
def test_the_runbook_has_no_serious_violation(window: Any, options: dict[str, Any]) -> None:
    """Rule: axe-core finds nothing serious in the runbook, and it fits a phone."""
    page = window(**options).page
    page.goto("/-/runbook#larderdisk")
    expect(page.locator("#larderdisk")).to_be_in_viewport()
    assert found(page) == []
    assert overflow(page) <= 0
