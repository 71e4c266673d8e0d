"""Named tokens in the dashboard of a real gateway, and the controls that a page offers to each role."""

from __future__ import annotations

from typing import Any

from playwright.sync_api import expect

from rig.gateways import Running
from tests.browser.chromium import PATIENCE
from tests.browser.console import admin, closed, confirm, console, field, press, row

expect.set_options(timeout=PATIENCE)


def test_a_token_is_made_changed_and_revoked(window: Any, running: Running) -> None:
    """Rule: the token is shown once and has its role; changed, the new role counts; revoked, it is refused."""
    page = console(window, "tokens").page
    press(page, "Create")
    field(page, "Name").fill("ci")
    field(page, "Role").select_option("operator")
    confirm(page, "Create")
    token = field(page, "LARDER_ADMIN_TOKEN").input_value()
    page.get_by_role("button", name="Close").click()
    expect(row(page, "ci")).to_contain_text("operator")
    assert token not in page.content()
    assert admin(running, "POST", "tenants", {"name": "x"}, token).code == "RoleRequired"
    press(page, "Change ci")
    field(page, "Role").select_option("viewer")
    confirm(page, "Change")
    closed(page)
    assert admin(running, "POST", "purge", {"bucket": "data", "prefix": "x"}, token).code == "ReadOnlyToken"
    press(page, "Revoke ci")
    confirm(page, "Revoke")
    expect(row(page, "ci")).to_have_count(0)
    assert admin(running, "GET", "tenants", token=token).status == 401


def test_an_operator_is_offered_daily_operation(window: Any, running: Running) -> None:
    """Rule: an operator gets the buttons of nodes and warm-ups, and none that change credentials, tenants, rules or tokens."""
    token = admin(running, "POST", "tokens", {"name": "operates", "role": "operator"}).json["token"]
    page = console(window, "warmups", token).page
    expect(page.get_by_role("button", name="Purge")).to_be_visible()
    for name in ("Credentials", "Tenants", "Tokens"):
        page.get_by_role("link", name=name, exact=True).click()
        expect(page.get_by_role("heading", level=1, name=name)).to_be_visible()
        expect(page.get_by_role("rowheader").first).to_be_visible()
        expect(page.locator("#place").get_by_role("button")).to_have_count(0)
    page.get_by_role("navigation").get_by_role("link", name="Nodes").click()
    expect(page.locator("#nodes").get_by_role("button")).to_have_count(1)


def test_a_dialog_whose_token_ended_asks_for_another(window: Any, running: Running) -> None:
    """Rule: where the token is revoked while a dialog is open, the page closes it and asks for a token, with the reason."""
    token = admin(running, "POST", "tokens", {"name": "ends", "role": "admin"}).json["token"]
    page = console(window, "tenants", token).page
    press(page, "Create")
    field(page, "Name").fill("too-late")
    admin(running, "DELETE", "tokens/ends")
    confirm(page, "Create")
    expect(page.get_by_label("Admin token")).to_be_visible()
    closed(page)
    assert admin(running, "GET", "tenants/too-late").status == 404
