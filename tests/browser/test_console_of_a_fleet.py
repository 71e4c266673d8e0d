"""A fleet of three gateways, run from the console alone: what is changed at one page holds at all."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from gateway.commands.common.output import printable
from rig.clients import get
from rig.gateways import Running
from rig.world import content, eventually
from tests.admin.operations_world import TOKEN, Zone, zone
from tests.browser.chromium import PATIENCE, Watched
from tests.browser.console import closed, confirm, console, field, press, row

expect.set_options(timeout=PATIENCE)

HOSTILE = "<script>window.executed=1</script>/\u202e'\"/../\n/"
OBJECTS = 3


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zone]:
    """Three nodes, and objects below a name that is hostile to pages, shells and terminals."""
    with zone(tmp_path_factory.mktemp("console-fleet"), 3) as made:
        made.origin.put("/bucket/open", b"open")
        for number in range(OBJECTS):
            made.origin.put(f"/bucket/{HOSTILE}{number}", content(1000, number))
        yield made


@pytest.fixture(scope="module")
def running(world: Zone) -> Running:
    """The gateway whose pages are opened unless a test says another."""
    return world.nodes[0]


def opened(window: Any, world: Zone, node: int, view: str, **options: Any) -> Page:
    """A page of one node's console, signed in."""
    watched: Watched = console(window, view, TOKEN, home=world.nodes[node].console, **options)
    return watched.page


def allowed(node: Running, key: str, secret: str) -> bool:
    """Whether a gateway lets a key read."""
    return get(node, "/bucket/open", key, secret).status == 200


def test_a_key_lives_and_ends_on_all_gateways(window: Any, world: Zone) -> None:
    """Rule: a key made at one page, with its secret shown once, works at another gateway; rotated, the new secret does; revoked,
    none does."""
    page = opened(window, world, 0, "credentials")
    press(page, "Create")
    field(page, "Access key").fill("trainer")
    confirm(page, "Create")
    first = field(page, "AWS_SECRET_ACCESS_KEY").input_value()
    page.get_by_role("button", name="Close").click()
    eventually(lambda: allowed(world.nodes[1], "trainer", first), bool, "the key at another gateway")
    other = opened(window, world, 2, "credentials")
    press(other, "Rotate trainer")
    field(other, "Grace period").fill("0")
    confirm(other, "Rotate")
    second = field(other, "AWS_SECRET_ACCESS_KEY").input_value()
    other.get_by_role("button", name="Close").click()
    eventually(lambda: allowed(world.nodes[1], "trainer", second), bool, "the new secret")
    assert not allowed(world.nodes[1], "trainer", first)
    press(page, "Revoke trainer")
    confirm(page, "Revoke")
    expect(row(other, "trainer")).to_contain_text("revoked")
    eventually(lambda: allowed(world.nodes[1], "trainer", second), lambda may: not may, "the end of the key")


def test_a_hostile_prefix_is_warmed_pinned_and_purged(window: Any, world: Zone) -> None:
    """Rule: a prefix of any characters is warmed, pinned and purged as it is, shown as the command line shows it, and runs
    nothing."""
    page = opened(window, world, 1, "warmups", apart=True)
    shown = printable(f"bucket/{HOSTILE}")
    # A person cannot type a line break into a field; a program, and the page itself, can send it.
    page.evaluate(
        """async (body) => (await import("/-/static/dashboard/api.js")).change("POST", "/-/admin/warmups", { body })""",
        {"access_key_id": "GWA", "bucket": "bucket", "prefix": HOSTILE},
    )
    warmed = page.get_by_role("row").filter(has_text=shown)
    expect(warmed).to_contain_text(f"100\u00a0%: {OBJECTS} of {OBJECTS}")
    assert world.read(2, f"/bucket/{HOSTILE}0") == "HIT"
    press(page, "Purge")
    field(page, "Prefix").fill(f"bucket/{HOSTILE.partition(chr(10))[0]}")
    confirm(page, "Show what goes")
    expect(page.locator("#action-preview")).to_contain_text(
        f"{OBJECTS} objects, 3.00\u00a0kB, would be dropped from 3 nodes."
    )
    confirm(page, "Purge")
    expect(page.locator("#action-result")).to_contain_text(f"{OBJECTS} objects, 3.00\u00a0kB, dropped from 3 nodes.")
    assert world.read(2, f"/bucket/{HOSTILE}0").startswith("MISS")
    page.get_by_role("button", name="Close").click()
    page.goto("/-/#/streams")
    press(page, "Space of a prefix")
    field(page, "Prefix").fill("bucket/../<b>/")
    field(page, "Bytes that stay").fill("1MB")
    confirm(page, "Change")
    closed(page)
    press(page, "Space bucket/../<b>/")
    field(page, "Space").select_option("")
    confirm(page, "Change")
    closed(page)
    assert page.evaluate("() => window.executed") is None


def test_a_gateway_is_killed_while_its_page_is_open(window: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Rule: its page keeps the last figures and says what is unknown; the others show it as gone, with the runbook, until it is
    dismissed, and a purge says that it has not applied it."""
    with zone(tmp_path_factory.mktemp("console-killed"), 3) as world:
        world.heard()
        dead, page = opened(window, world, 2, "nodes"), opened(window, world, 0, "problems")
        press(dead, "Drain node-1")
        world.nodes[2].kill()
        confirm(dead, "Drain")
        expect(dead.locator("#action-error")).to_contain_text("The result is unknown; sending it again does no harm.")
        expect(dead.locator("#stale")).to_contain_text("The gateway does not answer.")
        problem = page.locator("#problems li").filter(has_text="Node node-2 is gone")
        with page.expect_popup() as runbook:
            problem.get_by_role("link", name="What to do").click()
        expect(runbook.value.locator("#larderdown:target")).to_be_in_viewport()
        page.goto("/-/#/warmups")
        press(page, "Purge")
        field(page, "Prefix").fill("bucket")
        confirm(page, "Show what goes")
        confirm(page, "Purge")
        expect(page.locator("#action-result")).to_contain_text("dropped from 2 nodes.")
        expect(page.locator("#action-result")).to_contain_text(re.compile("node-2: it has been silent for"))
        page.get_by_role("button", name="Close").click()
        page.goto("/-/#/nodes")
        press(page, "Dismiss node-2")
        confirm(page, "Dismiss")
        expect(page.locator("#nodes tbody tr")).to_have_count(2)
