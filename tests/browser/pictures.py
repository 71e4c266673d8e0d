"""Makes the pictures of README.md and docs/dashboard.md: ``python -m tests.browser.pictures [FOLDER]``, of the tests' figures."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser

from rig.gateways import Settings, gateway
from tests.browser import figures
from tests.browser.chromium import PATIENCE, Played, started

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
DESK = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}


def dashboard(
    browser: Browser, home: str, to: Path, overview: dict[str, Any], full: bool = True, **options: Any
) -> None:
    """One picture of the dashboard."""
    context = browser.new_context(base_url=home, timezone_id="UTC", **options)
    page = context.new_page()
    page.clock.set_fixed_time(figures.NOW)
    Played(page, overview)
    page.goto("/-/")
    page.locator("#rate-chart path.line").first.wait_for()
    page.screenshot(path=to, full_page=full)
    context.close()


def console(browser: Browser, home: str, to: Path) -> None:
    """One picture of a list, with the dialog of a change."""
    context = browser.new_context(base_url=home, viewport={"width": 1180, "height": 620}, timezone_id="UTC")
    page = context.new_page()
    page.clock.set_fixed_time(figures.NOW)
    Played(page)
    page.route("**/-/admin/credentials*", lambda route: route.fulfill(json={"items": figures.KEYS, "next": None}))
    page.goto("/-/#/credentials")
    page.get_by_role("button", name="Rotate vision").click()
    page.get_by_role("dialog").wait_for()
    page.screenshot(path=to)
    context.close()


def api_page(browser: Browser, home: str, to: Path) -> None:
    """One picture of the API page."""
    context = browser.new_context(base_url=home, viewport=DESK)
    page = context.new_page()
    page.goto("/-/docs")
    page.locator("[data-path='/admin/overview']").click(timeout=PATIENCE)
    page.locator(".opblock .model-example").first.wait_for()
    page.evaluate("() => document.querySelector('.scheme-container').scrollIntoView()")
    page.screenshot(path=to)
    context.close()


def make(folder: Path) -> None:
    """All of them, of a gateway that is started for it."""
    with tempfile.TemporaryDirectory() as scratch, started() as browser:
        home = Path(scratch)
        with gateway(Settings("http://127.0.0.1:9", home / "cache"), home) as running:
            at = running.console
            dashboard(browser, at, folder / "dashboard-light.png", figures.AT_WORK, viewport=DESK)
            dashboard(browser, at, folder / "dashboard-dark.png", figures.AT_WORK, viewport=DESK, color_scheme="dark")
            trouble = figures.in_trouble()
            dashboard(browser, at, folder / "dashboard-trouble-dark.png", trouble, viewport=DESK, color_scheme="dark")
            dashboard(browser, at, folder / "dashboard-phone.png", figures.AT_WORK, full=False, viewport=PHONE)
            console(browser, at, folder / "dashboard-credentials.png")
            api_page(browser, at, folder / "api.png")


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else IMAGES)
