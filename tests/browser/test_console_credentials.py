"""Access keys made, rotated and revoked in the dashboard of a real gateway, and what all dialogs have in common."""

from __future__ import annotations

from typing import Any, Literal

import pytest
from playwright.sync_api import Route, expect

from rig.gateways import Running
from rig.v1 import ask
from tests.browser.chromium import PATIENCE, READ_TOKEN
from tests.browser.console import admin, closed, confirm, console, field, press, row, sign_in
from tests.browser.looks import faint_texts, overflow, walk_by_tab

expect.set_options(timeout=PATIENCE)


def works(running: Running, key: str, secret: str) -> bool:
    """True if the gateway accepts a key."""
    return ask(running, "GET", "/v1/datasets/unknown", key=(key, secret)).status != 403


def test_a_secret_is_shown_once(window: Any, running: Running) -> None:
    """Rule: the dialog that creates a key shows its secret, which works; later the page has it no more, and no address had it."""
    watched = console(window, "credentials")
    page = watched.page
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    press(page, "Create")
    field(page, "Access key").fill("made-here")
    field(page, "Description").fill("a test")
    confirm(page, "Create")
    secret = field(page, "AWS_SECRET_ACCESS_KEY").input_value()
    assert len(secret) >= 32
    assert works(running, "made-here", secret)
    page.get_by_role("button", name="Close").click()
    closed(page)
    expect(row(page, "made-here")).to_contain_text("in force")
    kept = page.evaluate("() => [...document.querySelectorAll('input')].map((each) => each.value).join()")
    assert secret not in page.content() + kept
    assert not any(secret in url for url in sent)
    assert secret.encode() not in admin(running, "GET", "audit").body


def test_a_secret_can_be_copied(window: Any, running: Running) -> None:
    """Rule: the button puts the secret on the clipboard."""
    watched = console(window, "credentials", permissions=["clipboard-read", "clipboard-write"])
    page = watched.page
    press(page, "Create")
    confirm(page, "Create")
    secret = field(page, "AWS_SECRET_ACCESS_KEY")
    page.get_by_role("button", name="Copy AWS_SECRET_ACCESS_KEY").click()
    expect(page.locator("#announcer")).to_have_text("AWS_SECRET_ACCESS_KEY is copied.")
    assert page.evaluate("() => navigator.clipboard.readText()") == secret.input_value()


def test_a_refusal_stands_beside_its_field(window: Any, running: Running) -> None:
    """Rule: the gateway's message stands at its field, the entered values stay, and a second try can succeed."""
    page = console(window, "credentials").page
    press(page, "Create")
    field(page, "Access key").fill("second-try")
    field(page, "Tenant").fill("nobody")
    field(page, "Allow").fill("data/**\n")
    confirm(page, "Create")
    expect(page.locator("#field-tenant-error")).to_contain_text("Unknown tenant 'nobody'")
    expect(field(page, "Tenant")).to_be_focused()
    expect(page.locator("#action-error")).to_be_empty()
    field(page, "Tenant").fill("")
    confirm(page, "Create")
    page.get_by_role("button", name="Close").click()
    expect(row(page, "second-try")).to_contain_text("data/**")


def test_a_lost_answer_creates_nothing_twice(window: Any, running: Running) -> None:
    """Rule: where the answer to a creation is lost, pressing the button again gives the same key."""
    page = console(window, "credentials").page
    made: list[Any] = []

    def lose(route: Route) -> None:
        if route.request.method != "POST" or made:
            route.fallback()
            return
        made.append(route.fetch().json())
        route.abort("connectionreset")

    page.route("**/-/admin/credentials", lose)
    press(page, "Create")
    confirm(page, "Create")
    expect(page.locator("#action-error")).to_contain_text("The gateway does not answer.")
    confirm(page, "Create")
    expect(field(page, "AWS_SECRET_ACCESS_KEY")).to_have_value(made[0]["secret_access_key"])


def test_a_rotated_key_has_two_secrets_for_the_grace_period(window: Any, running: Running) -> None:
    """Rule: the dialog names the key and shows the new secret; with a grace period the old one works too."""
    old = admin(running, "POST", "credentials", {"access_key_id": "rotated-here"}).json["secret_access_key"]
    page = console(window, "credentials").page
    press(page, "Rotate rotated-here")
    expect(page.get_by_role("dialog")).to_contain_text("rotated-here gets a new secret.")
    field(page, "Grace period").fill("soon")
    confirm(page, "Rotate")
    expect(page.locator("#field-grace-error")).to_contain_text('must be a time such as "1h"')
    field(page, "Grace period").fill("1h")
    confirm(page, "Rotate")
    new = field(page, "AWS_SECRET_ACCESS_KEY").input_value()
    expect(page.get_by_role("dialog")).to_contain_text("The old secret is valid until")
    assert works(running, "rotated-here", new)
    assert works(running, "rotated-here", old)


def test_a_change_sends_what_was_changed(window: Any, running: Running) -> None:
    """Rule: fields that the user leaves alone are not sent, and keep their values."""
    made = {"access_key_id": "changed-here", "allow": ["data/**"], "expires": "2090-01-31T12:00:00Z"}
    admin(running, "POST", "credentials", made)
    page = console(window, "credentials").page
    press(page, "Change changed-here")
    field(page, "Read only").check()
    with page.expect_request("**/-/admin/credentials/changed-here") as sent:
        confirm(page, "Change")
    assert sent.value.post_data_json == {"read_only": True}
    closed(page)
    now = admin(running, "GET", "credentials/changed-here").json
    assert (now["read_only"], now["expires"], now["allow"]) == (True, made["expires"], made["allow"])


def test_a_key_that_changed_meanwhile_is_not_overwritten(window: Any, running: Running) -> None:
    """Rule: a change applies to the record on the page; the dialog reports another user's change."""
    admin(running, "POST", "credentials", {"access_key_id": "shared-here"})
    page = console(window, "credentials").page
    press(page, "Change shared-here")
    field(page, "Description").fill("mine")
    admin(running, "PATCH", "credentials/shared-here", {"description": "theirs"})
    confirm(page, "Change")
    expect(page.locator("#action-error")).to_contain_text("Somebody changed it after this dialog was opened")
    assert admin(running, "GET", "credentials/shared-here").json["description"] == "theirs"


def test_a_revoked_key_is_refused(window: Any, running: Running) -> None:
    """Rule: the dialog names the consequence; cancelling changes nothing; confirming ends the key, audited. When its row is gone,
    the focus is at the beginning of the figures, and not on another key."""
    secret = admin(running, "POST", "credentials", {"access_key_id": "ended-here"}).json["secret_access_key"]
    page = console(window, "credentials").page
    press(page, "Revoke ended-here")
    expect(page.get_by_role("dialog")).to_contain_text("Every gateway refuses ended-here")
    expect(page.get_by_role("dialog")).to_contain_text("permanent")
    page.keyboard.press("Escape")
    closed(page)
    assert works(running, "ended-here", secret)
    press(page, "Revoke ended-here")
    confirm(page, "Revoke")
    expect(row(page, "ended-here")).to_contain_text("revoked")
    assert not works(running, "ended-here", secret)
    entry = admin(running, "GET", "audit?target=ended-here").json["items"][0]
    assert (entry["actor"], entry["action"]) == ("admin", "credentials.revoke")
    press(page, "Remove ended-here")
    confirm(page, "Remove")
    expect(row(page, "ended-here")).to_have_count(0)
    expect(page.locator("#main")).to_be_focused()


def test_a_viewer_is_offered_nothing(window: Any, running: Running) -> None:
    """Rule: with a token that may only read, the lists are shown and no button changes anything."""
    page = console(window, "credentials", READ_TOKEN).page
    expect(row(page, "GWA")).to_be_visible()
    expect(page.locator("#place").get_by_role("button")).to_have_count(0)


def test_a_name_is_only_text(window: Any, running: Running) -> None:
    """Rule: a record's values are shown as text in the list and in dialogs."""
    markup = "<img src=x onerror=window.executed=true>"
    admin(running, "POST", "credentials", {"access_key_id": "marked-up", "description": markup})
    page = console(window, "credentials").page
    expect(row(page, "marked-up")).to_contain_text(markup)
    press(page, "Change marked-up")
    expect(field(page, "Description")).to_have_value(markup)
    assert page.evaluate("() => window.executed") is None


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_list_and_its_dialogs_suit_everyone(
    window: Any, running: Running, scheme: Literal["light", "dark"]
) -> None:
    """Rule: on a phone the page does not scroll sideways, texts have contrast, and the keyboard reaches every button."""
    page = console(window, "credentials", viewport={"width": 360, "height": 740}, color_scheme=scheme).page
    expect(row(page, "GWA")).to_be_visible()
    assert overflow(page) <= 0
    assert faint_texts(page) == []
    assert walk_by_tab(page) == (set(), [])
    press(page, "Create")
    field(page, "Expires").fill("2090-01-31T12:00:00")
    field(page, "Tenant").fill("nobody")
    confirm(page, "Create")
    expect(page.locator("#field-tenant-error")).not_to_be_empty()
    assert overflow(page) <= 0
    assert faint_texts(page) == []


def test_an_address_names_its_page(window: Any, running: Running) -> None:
    """Rule: links lead to pages, which a reload keeps and Back leaves; the skip link leads to the page that is shown."""
    page = console(window, "overview").page
    pages = page.get_by_role("navigation", name="Pages")
    pages.get_by_role("link", name="Credentials").click()
    expect(page.get_by_role("heading", level=1, name="Credentials")).to_be_visible()
    expect(page.locator("#board")).to_be_hidden()
    page.reload()
    sign_in(page)
    expect(page.get_by_role("heading", level=1, name="Credentials")).to_be_visible()
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.get_by_role("heading", level=1, name="Credentials")).to_be_visible()
    pages.get_by_role("link", name="Overview").click()
    expect(page.locator("#board")).to_be_visible()
    page.go_back()
    page.go_back()
    expect(page.get_by_role("heading", level=1, name="Credentials")).to_be_visible()
