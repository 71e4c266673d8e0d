"""Dialogs under double clicks, held keys, navigation, and concurrent changes."""

from __future__ import annotations

import json
from typing import Any

from playwright.sync_api import Page, Route, expect

from rig.gateways import Running
from tests.browser.chromium import PATIENCE, READ_TOKEN
from tests.browser.console import admin, closed, confirm, console, field, press, row, sign_in
from tests.browser.looks import broken_words

expect.set_options(timeout=PATIENCE)

PHONE = {"width": 360, "height": 740}
DOUBLE_CLICK = 500
"""The longest double click, in milliseconds."""


def _stopped(page: Page) -> None:
    """Stop all timers of the page until the test releases them."""
    page.clock.pause_at(page.evaluate("() => Date.now()") + 1000)


def test_a_double_click_confirms_no_preview(window: Any) -> None:
    """Rule: the button that purges appears where the one was that shows what goes; the second click of two does not press it."""
    page = window(viewport=PHONE, once=True).page
    page.clock.install()
    sent: list[bool] = []

    def purge(route: Route) -> None:
        sent.append(route.request.post_data_json["dry_run"])
        found = {"bucket": "data", "prefix": "", "objects": 4, "bytes": 4000, "nodes": [], "complete": True}
        route.fulfill(json=found)

    page.route("**/-/admin/purge", purge)
    page.goto("/-/#/warmups")
    sign_in(page)
    press(page, "Purge")
    field(page, "Prefix").fill("data")
    shown = page.get_by_role("button", name="Show what goes")
    expect(shown).to_be_enabled()
    box = shown.bounding_box()
    assert box is not None
    _stopped(page)
    shown.click()
    expect(page.locator("#action-preview")).to_contain_text("4 objects")
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.keyboard.press("Enter")
    page.clock.run_for(DOUBLE_CLICK)
    send = page.locator("#action-send")
    expect(send).to_have_text("Purge")
    expect(send).to_be_focused()
    assert sent == [True]
    send.click()
    expect(page.locator("#action-result")).to_contain_text("dropped")
    assert sent == [True, False]


def test_an_action_right_after_another_is_for_what_the_record_has_become(window: Any, running: Running) -> None:
    """Rule: a button that is pressed before the page shows the last change opens its dialog then, so nothing is refused."""
    assert admin(running, "POST", "tenants", {"name": "twice"}).status == 201
    page = console(window, "tenants").page
    press(page, "Change twice")
    field(page, "Description").fill("changed")
    held: list[Route] = []
    answered: list[str] = []
    holding = True

    def hold(route: Route) -> None:
        if holding:
            held.append(route)
        else:
            route.continue_()

    page.route("**/-/admin/tenants?*", hold)
    page.on("response", lambda answer: answered.append(answer.request.method))
    with page.expect_request(lambda request: "PATCH" in answered and "/tenants?" in request.url):
        confirm(page, "Change")
    closed(page)
    page.get_by_role("button", name="Remove twice", exact=True).click()
    holding = False
    for route in held:
        route.continue_()
    confirm(page, "Remove")
    expect(row(page, "twice")).to_have_count(0)


def test_a_secret_is_not_closed_in_passing(window: Any, running: Running) -> None:
    """Rule: the second click of two and one Escape leave a secret that was not copied; the page that Back leads to also does."""
    page = window(viewport=PHONE, once=True).page
    page.clock.install()
    page.goto("/-/#/credentials")
    sign_in(page)
    page.get_by_role("link", name="Tenants").click()
    page.get_by_role("link", name="Credentials").click()
    press(page, "Create")
    field(page, "Access key").fill("quickly-made")
    create = page.get_by_role("dialog").get_by_role("button", name="Create", exact=True)
    expect(create).to_be_enabled()
    _stopped(page)
    create.click()
    secret = field(page, "AWS_SECRET_ACCESS_KEY")
    expect(secret).to_be_visible()
    box = page.get_by_role("button", name="Close", exact=True).bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.clock.run_for(DOUBLE_CLICK)
    assert broken_words(page) == []
    page.clock.resume()
    page.go_back()
    expect(page).to_have_url(f"{running.console}/-/#/tenants")
    expect(secret).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#action-error")).to_contain_text("It is not shown again")
    page.keyboard.press("Escape")
    closed(page)


def test_a_copied_secret_is_closed_by_one_escape(window: Any, running: Running) -> None:
    """Rule: the focus is on the copy button, and a dialog whose secret was copied closes without a question."""
    page = console(window, "tokens", permissions=["clipboard-read", "clipboard-write"]).page
    press(page, "Create")
    field(page, "Name").fill("copied-at-once")
    confirm(page, "Create")
    expect(page.get_by_role("button", name="Copy LARDER_ADMIN_TOKEN")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#announcer")).to_have_text("LARDER_ADMIN_TOKEN is copied.")
    page.keyboard.press("Escape")
    closed(page)


def test_a_held_enter_does_not_confirm(window: Any) -> None:
    """Rule: the repeats of a held key send nothing; a new press of the key does."""
    page = console(window, "tenants").page
    press(page, "Create")
    field(page, "Name").fill("held-down")
    expect(page.locator("#action-send")).to_be_enabled()
    kind = "{ key: 'Enter', repeat: true, bubbles: true, cancelable: true }"
    assert field(page, "Name").evaluate(f"(node) => node.dispatchEvent(new KeyboardEvent('keydown', {kind}))") is False
    page.keyboard.press("Enter")
    closed(page)


def test_back_closes_a_dialog(window: Any) -> None:
    """Rule: a dialog does not stay over a page that it has nothing to do with."""
    page = console(window, "overview").page
    page.get_by_role("link", name="Tenants").click()
    press(page, "Create")
    page.go_back()
    closed(page)
    expect(page.locator("#board")).to_be_visible()


def test_a_change_of_what_is_no_longer_there_ends_in_words(window: Any, running: Running) -> None:
    """Rule: after another operator's change, the dialog reports it and cannot send; opened again, it has the new values."""
    admin(running, "POST", "tenants", {"name": "two-tabs", "requests_per_second": 5})
    page = console(window, "tenants").page
    press(page, "Change two-tabs")
    field(page, "Requests per second").fill("9")
    admin(running, "PATCH", "tenants/two-tabs", {"requests_per_second": 7})
    confirm(page, "Change")
    expect(page.locator("#action-error")).to_contain_text("Somebody changed it after this dialog was opened")
    expect(page.locator("#action-send")).to_be_hidden()
    page.get_by_role("button", name="Cancel", exact=True).click()
    closed(page)
    expect(page.get_by_role("row").filter(has_text="two-tabs")).to_contain_text("7 requests/s")
    press(page, "Change two-tabs")
    expect(field(page, "Requests per second")).to_have_value("7")


def test_a_page_chosen_while_the_gateway_is_gone_is_shown(window: Any) -> None:
    """Rule: the page under the chosen link is shown at once, with its own last figures or without any; never another's."""
    page = console(window, "tenants").page
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    page.route("**/-/admin/**", lambda route: route.abort("connectionrefused"))
    page.get_by_role("link", name="Credentials").click()
    expect(page.get_by_role("heading", name="Credentials")).to_be_visible()
    expect(page.get_by_role("heading", name="Tenants")).to_be_hidden()
    expect(page.locator("#stale")).to_contain_text("This page has not been loaded before.")
    page.get_by_role("link", name="Overview").click()
    expect(page.locator("#board")).to_be_hidden()
    page.get_by_role("link", name="Tenants").click()
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    expect(page.locator("#stale")).to_contain_text("These figures are from")


def test_the_page_says_what_the_token_may_do(window: Any) -> None:
    """Rule: the header shows the role, and a list that it may not change names the role that may."""
    page = console(window, "credentials", token=READ_TOKEN).page
    expect(page.locator("#role")).to_have_text("viewer")
    expect(page.get_by_role("region", name="Credentials")).to_contain_text(
        "Changes here need a token with the role admin."
    )
    page = console(window, "credentials").page
    expect(page.locator("#role")).to_have_text("admin")
    expect(page.get_by_role("region", name="Credentials")).not_to_contain_text("Changes here need")


def test_a_token_that_ends_is_not_called_wrong(window: Any, running: Running) -> None:
    """Rule: a token that was valid in this tab and is refused now has ended; one that never was may be misspelt."""
    made = admin(running, "POST", "tokens", {"name": "soon-revoked", "role": "viewer"}).json["token"]
    page = console(window, "tenants", token=made).page
    expect(page.get_by_role("heading", name="Tenants")).to_be_visible()
    admin(running, "DELETE", "tokens/soon-revoked")
    expect(page.locator("#token-error")).to_contain_text("no longer valid")
    page.get_by_label("Admin token").fill(json.dumps("wrong"))
    page.keyboard.press("Enter")
    expect(page.locator("#token-error")).to_contain_text("Wrong token")
