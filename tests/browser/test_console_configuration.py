"""Tenants, rules and the audit log in the dashboard of a real gateway."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from rig.gateways import Running
from tests.browser.chromium import PATIENCE, READ_TOKEN
from tests.browser.console import admin, closed, confirm, console, field, press, row
from tests.browser.looks import faint_texts, overflow, walk_by_tab

expect.set_options(timeout=PATIENCE)


def test_a_tenant_is_made_disabled_and_removed(window: Any, running: Running) -> None:
    """Rule: a disabled tenant's keys are refused, and the dialog counts them; a tenant with keys cannot be removed."""
    page = console(window, "tenants").page
    press(page, "Create")
    field(page, "Name").fill("made")
    field(page, "Description").fill("a team")
    field(page, "Requests per second").fill("many")
    confirm(page, "Create")
    expect(page.locator("#field-requests_per_second-error")).to_have_text('It must be a number such as "2000".')
    field(page, "Requests per second").fill("2000")
    confirm(page, "Create")
    closed(page)
    expect(row(page, "made")).to_contain_text("enabled")
    admin(running, "POST", "credentials", {"access_key_id": "made-key", "tenant": "made"})
    expect(row(page, "made").get_by_role("cell").nth(1)).to_have_text("1")
    press(page, "Disable made")
    expect(page.get_by_role("dialog")).to_contain_text("Every gateway refuses its 1 credential within a second")
    confirm(page, "Disable")
    expect(row(page, "made")).to_contain_text("disabled")
    assert admin(running, "GET", "credentials/made-key").json["problem"] != ""
    press(page, "Remove made")
    confirm(page, "Remove")
    expect(page.locator("#action-error")).to_contain_text("delete them first, or set enabled to false")
    page.get_by_role("button", name="Cancel").click()
    admin(running, "DELETE", "credentials/made-key")
    press(page, "Remove made")
    confirm(page, "Remove")
    expect(row(page, "made")).to_have_count(0)


def test_rules_are_checked_before_they_are_replaced(window: Any, running: Running) -> None:
    """Rule: before the rules are replaced, the gateway checks the new order and the dialog shows the findings."""
    admin(running, "PUT", "rules", {"items": [{"match": "data/**", "freshness": "immutable"}]})
    page = console(window, "rules").page
    press(page, "Add")
    field(page, "Match").fill("data/train/**")
    field(page, "Freshness").fill("1h")
    field(page, "Position").select_option(label="after the catalog's rules")
    confirm(page, "Check")
    expect(page.locator("#action-preview")).to_contain_text("1: data/train/** never applies: rule 0 covers it")
    assert len(admin(running, "GET", "rules").json["items"]) == 1
    confirm(page, "Add")
    expect(row(page, "data/train/**")).to_contain_text("rule 0 covers it and comes first")
    press(page, "Up data/train/**")
    confirm(page, "Check")
    confirm(page, "Move up")
    closed(page)
    items = admin(running, "GET", "rules").json["items"]
    assert [(rule["match"], rule["freshness"]) for rule in items] == [
        ("data/train/**", 3600.0),
        ("data/**", "immutable"),
    ]
    press(page, "Remove data/train/**")
    confirm(page, "Check")
    confirm(page, "Remove")
    expect(row(page, "data/train/**")).to_have_count(0)


def test_a_wrong_rule_is_refused_at_its_field(window: Any, running: Running) -> None:
    """Rule: the gateway's message about a field of a rule stands beside that field."""
    admin(running, "PUT", "rules", {"items": [{"match": "data/**"}]})
    page = console(window, "rules").page
    press(page, "Change data/**")
    field(page, "Freshness").fill("soon")
    confirm(page, "Check")
    expect(page.locator("#field-freshness-error")).not_to_be_empty()
    field(page, "Freshness").fill("always")
    confirm(page, "Check")
    confirm(page, "Change")
    expect(row(page, "data/**")).to_contain_text("always")


def test_rules_that_changed_meanwhile_are_not_overwritten(window: Any, running: Running) -> None:
    """Rule: a new order applies to the rules on the page; if these have changed, nothing is replaced."""
    admin(running, "PUT", "rules", {"items": [{"match": "data/**"}]})
    page = console(window, "rules").page
    press(page, "Change data/**")
    field(page, "Freshness").fill("always")
    confirm(page, "Check")
    admin(running, "PUT", "rules", {"items": [{"match": "theirs/**"}]})
    confirm(page, "Change")
    expect(page.locator("#action-error")).to_contain_text("Somebody changed it after this dialog was opened")
    assert [rule["match"] for rule in admin(running, "GET", "rules").json["items"]] == ["theirs/**"]


def test_a_viewer_may_check_an_object(window: Any, running: Running) -> None:
    """Rule: which rule applies to an object can be asked with a token that may only read."""
    admin(running, "PUT", "rules", {"items": [{"match": "data/**"}]})
    page = console(window, "rules", READ_TOKEN).page
    press(page, "Check")
    field(page, "Object").fill("data/a")
    confirm(page, "Check")
    expect(page.get_by_role("dialog")).to_contain_text("Rule 0 applies to the object: data/**.")


def test_a_check_without_rules_says_so(window: Any, running: Running) -> None:
    """Rule: the dialog of a check is never empty."""
    admin(running, "PUT", "rules", {"items": []})
    page = console(window, "rules", READ_TOKEN).page
    press(page, "Check")
    confirm(page, "Check")
    expect(page.locator("#action-result")).to_have_text("There is no rule: defaults apply.")


def test_the_audit_log_shows_who_changed_what(window: Any, running: Running) -> None:
    """Rule: the newest change is first, with its token, action, target and values before and after; filters narrow it."""
    admin(running, "POST", "credentials", {"access_key_id": "audited", "allow": ["data/**", "more/**"]})
    admin(running, "PUT", "rules", {"items": []})
    admin(running, "PUT", "rules", {"items": [{"match": "data/**"}, {"match": "more/**"}]})
    admin(running, "POST", "tenants", {"name": "audited"})
    admin(running, "PATCH", "tenants/audited", {"enabled": False})
    page = console(window, "audit").page
    newest = page.get_by_role("row").nth(1)
    for text in ("tenants.change", "audited", "admin, 127.0.0.1", "enabled: true → false"):
        expect(newest).to_contain_text(text)
    expect(page.get_by_role("row").nth(3)).to_contain_text("items: – → data/**, more/**")
    expect(page.get_by_role("row").nth(5)).to_contain_text("allow: data/**, more/**")
    page.get_by_label("Action").fill("tenants.create")
    page.get_by_label("Target").fill("audited")
    page.keyboard.press("Enter")
    expect(page.get_by_role("row")).to_have_count(2)
    expect(page.get_by_role("row").nth(1)).to_contain_text("tenants.create")


def test_every_list_suits_everyone(window: Any, running: Running) -> None:
    """Rule: on a phone the page does not scroll sideways, texts have contrast, and the keyboard reaches every button."""
    admin(running, "POST", "tenants", {"name": "a-tenant-with-a-long-name-that-has-to-be-broken-somewhere"})
    admin(running, "PUT", "rules", {"items": [{"match": "data/**"}, {"match": "data/covered/**"}]})
    page = console(window, "tenants", viewport={"width": 360, "height": 740}).page
    admin(running, "POST", "tokens", {"name": "looks", "description": "a-text-without-any-place-to-break-it" * 4})
    for name in ("Tenants", "Rules", "Tokens", "Audit"):
        if name == "Rules":  # of another group: a phone shows the pages of the current one
            page.get_by_role("link", name="Run", exact=True).click()
        if name == "Tokens":
            page.get_by_role("link", name="Access", exact=True).click()
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
        expect(page.get_by_role("rowheader").first).to_be_visible()
        assert overflow(page) <= 0, name
        assert walk_by_tab(page) == (set(), []), name
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]  # its literals
            assert faint_texts(page) == [], (name, scheme)
