"""The dashboard of real gateways: the token, numbers after a known workload, a gateway that goes and comes back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from rig.gateways import Running, Settings, finish, gateway, start
from rig.processes import free_port, wait_until
from rig.v1 import ask
from rig.world import Origin
from tests.browser import figures
from tests.browser.chromium import PATIENCE, READ_TOKEN, TOKEN, Played

expect.set_options(timeout=PATIENCE)

ADMIN = f'[admin]\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'
OBJECTS, BYTES = 12, 50_000


@pytest.fixture(scope="module")
def origin() -> Iterator[Origin]:
    """A store with a dozen objects."""
    with Origin() as started:
        for number in range(OBJECTS):
            started.put(f"/data/{number}", bytes([number]) * BYTES)
        yield started


@pytest.fixture(scope="module")
def running(origin: Origin, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway that has read each object three times: once from the origin, twice from the cache."""
    home = tmp_path_factory.mktemp("live")
    with gateway(Settings(origin.endpoint, home / "cache", extra=ADMIN), home) as ready:
        client = ready.client()
        for number in range(OBJECTS * 3):
            client.get_object(Bucket="data", Key=str(number % OBJECTS))["Body"].read()
        yield ready


def overview(running: Running) -> dict[str, Any]:
    """The overview of the API."""
    reply = ask(running, "GET", "/admin/overview", key=None, headers={"authorization": f"Bearer {TOKEN}"})
    assert reply.status == 200, reply.body
    document: dict[str, Any] = reply.json
    return document


def enter(page: Page, token: str) -> None:
    """Give a token at the door."""
    page.get_by_label("Admin token").fill(token)
    page.get_by_role("button", name="Show the dashboard").click()


def test_numbers_are_those_of_the_metrics(window: Any, running: Running) -> None:
    """Rule: after a known workload the page shows the API's figures, and both equal the gateway's counters."""
    counted = {"requests": OBJECTS * 3, "sent_bytes": OBJECTS * BYTES * 3, "origin_bytes": OBJECTS * BYTES}
    wait_until(lambda: counted.items() <= overview(running)["total"].items(), 60, "the workload in the overview")
    page = window().page
    page.goto("/-/")
    enter(page, READ_TOKEN)
    total = overview(running)["total"]
    for name, value in total.items():
        expect(page.locator(f"[data-figure='total.{name}']")).to_have_attribute("value", str(value))
    assert total["requests"] == running.metric("larder_requests_total")
    assert total["hits"] == running.metric("larder_requests_total", outcome="HIT") == OBJECTS * 2
    assert total["sent_bytes"] == running.metric("larder_sent_bytes_total")
    assert total["saved_bytes"] == running.metric("larder_sent_bytes_total", outcome="HIT") == OBJECTS * BYTES * 2
    assert total["origin_bytes"] == running.metric("larder_origin_received_bytes_total")
    expect(page.locator("#nodes tbody tr")).to_have_count(1)
    share = running.metric("larder_cache_bytes") / running.metric("larder_cache_capacity_bytes")
    expect(page.locator("#nodes tbody .meter")).to_have_attribute("data-share", f"{share:.3f}")


def test_the_door_asks_for_a_token(window: Any, running: Running) -> None:
    """Rule: without a token the page shows only the prompt; a wrong token is refused with a message, and requested again."""
    page = window().page
    page.goto("/-/")
    expect(page.get_by_label("Admin token")).to_be_focused()
    expect(page.locator("#board")).to_be_hidden()
    enter(page, "not-the-token")
    expect(page.get_by_role("alert")).to_contain_text("Wrong token")
    expect(page.get_by_label("Admin token")).to_be_focused()
    expect(page.get_by_label("Admin token")).to_have_value("")
    enter(page, "ключ с пробелами")
    expect(page.get_by_role("alert")).to_contain_text("ASCII")
    enter(page, TOKEN)
    expect(page.locator("#board")).to_be_visible()
    expect(page.locator("#door")).to_be_hidden()


def test_the_token_stays_in_memory(window: Any, running: Running) -> None:
    """Rule: it is in no cookie, storage, address or page; a reload and signing out forget it, and the page says so."""
    watched = window()
    page = watched.page
    page.goto("/-/")
    enter(page, TOKEN)
    expect(page.locator("#board")).to_be_visible()
    assert watched.context.cookies() == []
    stored = "JSON.stringify(localStorage) + JSON.stringify(sessionStorage) + document.documentElement.outerHTML"
    assert TOKEN not in page.evaluate(f"() => {stored}")
    assert TOKEN not in page.url
    page.reload()
    expect(page.locator("#door-text")).to_contain_text("in memory only")
    enter(page, TOKEN)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Admin token")).to_be_visible()
    assert page.evaluate("() => sessionStorage.length") == 0
    other = watched.context.new_page()
    other.goto("/-/")
    expect(other.get_by_label("Admin token")).to_be_visible()


def test_a_token_that_is_changed_is_asked_for_anew(window: Any, running: Running) -> None:
    """Rule: when the gateway no longer accepts the token, the page requests a new one instead of showing old figures."""
    page = window().page
    page.goto("/-/")
    enter(page, TOKEN)
    expect(page.locator("#board")).to_be_visible()
    played = Played(page)
    played.refusal = (401, {"code": "Unauthorized", "detail": "Unknown token."})
    expect(page.get_by_role("alert")).to_contain_text("The token is no longer valid")
    assert page.evaluate("() => sessionStorage.length") == 0


def test_a_gateway_without_tokens_names_the_setting(window: Any, tmp_path: Path) -> None:
    """Rule: where no token is configured, the page shows the setting, from the real refusal."""
    with gateway(Settings("http://127.0.0.1:9", tmp_path / "cache"), tmp_path) as closed:
        page = window(closed.console).page
        page.goto("/-/")
        expect(page.get_by_role("heading", level=1)).to_have_text("The dashboard is switched off")
        expect(page.locator("#door-example")).to_contain_text("[admin]")


def test_a_gateway_that_is_started_again_is_live_again(window: Any, origin: Origin, tmp_path: Path) -> None:
    """Rule: when the gateway stops, the page keeps the last figures with their age; when it restarts, the page resumes."""
    settings = Settings(origin.endpoint, tmp_path / "cache", extra=ADMIN, server={"port": free_port()})
    first = start(settings, tmp_path)
    try:
        page = window(first.console).page
        page.goto("/-/")
        enter(page, TOKEN)
        expect(page.locator("#pulse")).to_have_text(re.compile("^live"))
    finally:
        finish(first)
    expect(page.locator("#pulse")).to_have_text(re.compile(r"^last seen \d"))
    expect(page.locator("#stale")).to_be_visible()
    second = start(settings, tmp_path)
    try:
        expect(page.locator("#pulse")).to_have_text(re.compile("^live"))
        expect(page.locator("#stale")).to_be_hidden()
    finally:
        finish(second)


def advance(page: Page, played: Played) -> float:
    """Let the page's time go on until it asks for the overview again; how many seconds of it that took.

    A step of the clock may come before the page has set its timer; hence the small steps after the first, which is too short for
    a question every two seconds.
    """
    seen, passed = played.overviews, 1.75
    page.clock.run_for(1750)

    def asked() -> bool:
        nonlocal passed
        page.clock.run_for(250)
        passed += 0.25
        return played.overviews > seen

    if played.overviews == seen:
        wait_until(asked, 60, "another question for the overview")
    return passed


def test_nothing_is_asked_while_nobody_looks(window: Any, running: Running) -> None:
    """Rule: the overview is fetched every two seconds, the history every thirty; a hidden page waits until it is shown."""
    page = window(once=True).page
    page.clock.install(time=figures.NOW)
    page.add_init_script("Object.defineProperty(document, 'hidden', { get: () => window.away === true });")
    played = Played(page)
    page.goto("/-/")
    expect(page.locator("#rate-chart path.line").first).to_be_visible()
    page.clock.pause_at(figures.NOW + timedelta(hours=1))
    advance(page, played)
    overviews, histories = played.overviews, len(played.histories)
    passed = sum(advance(page, played) for _ in range(20))
    assert played.overviews - overviews == 20 <= passed / 2 + 1
    assert 1 <= len(played.histories) - histories <= passed / 30 + 1
    page.evaluate("() => { window.away = true; document.dispatchEvent(new Event('visibilitychange')); }")
    overviews = played.overviews
    page.clock.run_for(600_000)
    assert played.overviews == overviews
    with page.expect_request("**/-/admin/overview"):
        page.evaluate("() => { window.away = false; document.dispatchEvent(new Event('visibilitychange')); }")
