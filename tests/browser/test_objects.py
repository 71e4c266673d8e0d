"""The object browser: places and objects with addresses, a page of a listing at a time, and what rows offer."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Locator, Page, Route, expect

from tests.browser import figures
from tests.browser.chromium import PATIENCE, Played
from tests.browser.console import confirm, field, press, row
from tests.browser.looks import broken_words, faint_texts, overflow, walk_by_tab

expect.set_options(timeout=PATIENCE)

HIT = {"blocks": 1, "resident_blocks": 1, "fresh": True, "granted": True, "outcome": "HIT", "reason": None}
PART = {"blocks": 8, "resident_blocks": 3, "fresh": False, "granted": False, "outcome": "MISS", "reason": "partial"}
COLD = {"blocks": 0, "resident_blocks": 0, "fresh": False, "granted": False, "outcome": "MISS", "reason": "cold"}
ODD = "a b/#?%25//ключ\n"
EXPLAINED = {
    "bucket": "data", "key": ODD, "tenant": "vision", "home": "gw-2", "asked": "gw-2", "unreachable": "", "known": True,
    "rule": {"match": "data/**", "freshness": 600.0, "grant_seconds": 600.0, "by_prefix": False, "cache": True},
    "etag": '"e"', "size": 110_213,
    "confirmed_at": "2026-03-02T14:30:00Z", "fresh_until": "2026-03-02T14:40:00Z", "granted_until": None, "blocks": 1,
    "resident_blocks": 1, "parts": 0, "part_bytes": 0, "first_parts": [], "in_memory": False, "stream": None, "pattern": None,
    "pool": "default", "items": [], "saves": None, "channel": True, "outcome": "HIT", "reason": "revalidated",
    "explanation": "The bytes are here, but the origin has not granted this reader's keys yet.", "change": "Read it once.",
}  # fmt: skip


def named(kind: str, name: str, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """An entry of a page."""
    return {"kind": kind, "name": name, "size": 1_234 if state else None, "state": state}


class Store:
    """Answers of the object browser's addresses: ``pages`` by cursor; ``asked`` are the queries so far."""

    def __init__(self, page: Page) -> None:
        self.pages: dict[str, dict[str, Any]] = {}
        self.asked: list[dict[str, str]] = []
        self.sent: list[Any] = []
        self.warmups: list[dict[str, Any]] = []
        Played(page)
        keys = {"items": [{**figures.KEYS[3], "allow": []}, figures.KEYS[2], figures.KEYS[0]], "next": None}
        page.route("**/-/admin/credentials*", lambda route: route.fulfill(json=keys))
        page.route("**/-/admin/objects?*", self._list)
        page.route("**/-/admin/explain?*", self._explain)
        page.route("**/-/admin/streams/**", lambda route: route.fulfill(status=404, json={"code": "NotFound"}))
        for name in ("purge", "warmups"):
            page.route(f"**/-/admin/{name}", self._send)
        page.route("**/-/admin/warmups?*", lambda route: route.fulfill(json={"items": self.warmups, "next": None}))

    def shows(self, *items: dict[str, Any], cursor: str = "", following: str | None = None, **others: Any) -> None:
        """Set a page."""
        self.pages[cursor] = {"source": "origin", "failure": "", "items": list(items), "next": following, **others}

    def _query(self, route: Route) -> dict[str, str]:
        query = parse_qs(urlsplit(route.request.url).query, keep_blank_values=True)
        self.asked.append({name: values[0] for name, values in query.items()})
        return self.asked[-1]

    def _list(self, route: Route) -> None:
        route.fulfill(json=self.pages[self._query(route).get("cursor", "")])

    def _explain(self, route: Route) -> None:
        self._query(route)
        route.fulfill(json=EXPLAINED)

    def _send(self, route: Route) -> None:
        self.sent.append(route.request.post_data_json)
        route.fulfill(
            json={
                "bucket": "data",
                "key": ODD,
                "prefix": None,
                "objects": 1,
                "bytes": 1,
                "nodes": [],
                "complete": True,
                "state": "queued",
            }
        )


def test_buckets_lead_to_folders_and_objects(window: Any) -> None:
    """Rule: a name leads to its place, whatever its characters are; a reload and Back lead to the same places."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("bucket", "data"))
    page.goto("/-/#/objects")
    expect(row(page, "data")).to_be_visible()
    store.shows(named("folder", "a b/#?%25//"), named("object", "plain", HIT))
    row(page, "data").get_by_role("link").click()
    expect(row(page, "plain")).to_be_visible()
    store.shows(named("object", ODD, COLD))
    page.get_by_role("link", name="a b/#?%25//", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="a b/#?%25//")).to_be_visible()
    expect(page.get_by_role("link", name="ключ\\n")).to_be_visible()
    assert store.asked[-1] == {"access_key_id": "vision", "bucket": "data", "prefix": "a b/#?%25//"}
    page.reload()
    page.get_by_role("link", name="ключ\\n").click()
    expect(page.locator(".facts")).to_contain_text("Next readHIT, revalidated")
    assert store.asked[-1] == {"access_key_id": "vision", "bucket": "data", "key": ODD}
    page.go_back()
    expect(page.locator(".way a")).to_have_text(["Buckets", "data", "a b/", "#?%25/", "/"])


def test_a_row_says_what_the_caches_have(window: Any) -> None:
    """Rule: an object says whether it is cached, fresh and granted, and what the next read is; a folder says nothing of that."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(
        named("folder", "x/"), named("object", "hit", HIT), named("object", "part", PART), named("object", "cold", COLD)
    )
    page.goto("/-/#/objects/data")
    cells = [row(page, name).locator("td:not(.last)") for name in ("hit", "part", "cold", "x/")]
    expect(cells[0]).to_have_text(["1.23\u00a0kB", "yes", "yes", "yes", "HIT"])
    expect(cells[1]).to_have_text(["1.23\u00a0kB", "3 of 8 blocks", "no", "no", "MISS, partial"])
    expect(cells[2]).to_have_text(["1.23\u00a0kB", "no", "–", "–", "MISS, cold"])
    expect(cells[3]).to_have_text([""] * 5)


def test_a_page_is_read_once(window: Any) -> None:
    """Rule: the origin lists a page when it is opened, asked for, or may have changed, and not at every refresh of the page; the
    next page is added to those before."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("object", "1", HIT), following="second")
    store.shows(named("object", "2", HIT), cursor="second")
    page.goto("/-/#/objects/data")
    names = page.locator("#place tbody .name")
    expect(names).to_have_text(["1"])
    with page.expect_response("**/-/admin/overview"):
        pass
    assert len(store.asked) == 1
    page.get_by_role("button", name="Show more").click()
    expect(names).to_have_text(["1", "2"])
    expect(page.get_by_role("button", name="Show more")).to_be_hidden()
    store.shows(named("object", "3", HIT))
    page.get_by_role("button", name="Refresh").click()
    expect(names).to_have_text(["3"])
    assert [query.get("cursor", "") for query in store.asked] == ["", "second", ""]


def test_what_the_origin_does_not_list_is_said(window: Any) -> None:
    """Rule: a place whose origin does not answer shows what is cached, and says so with the reason; asked for, it is so from the
    start."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("object", "kept", HIT), source="cache", failure="the origin does not answer")
    page.goto("/-/#/objects/data")
    expect(page.locator(".notice:visible")).to_have_text("The origin does not answer. Only cached objects are listed.")
    with page.expect_request("**/-/admin/objects?*"):
        page.get_by_label("Only what is cached").check()
    expect(row(page, "kept")).to_be_visible()
    assert store.asked[-1]["cached"] == "true"


def test_the_reader_is_in_the_address(window: Any) -> None:
    """Rule: the access key whose rights are used is chosen on the page, from those in force, and is part of the address."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("object", "1", HIT))
    page.goto("/-/#/objects/data?as=laptop")
    expect(row(page, "1")).to_be_visible()
    assert store.asked[-1]["access_key_id"] == "laptop"
    reader = page.get_by_label("With the rights of")
    expect(reader.locator("option")).to_have_text(["vision", "speech", "laptop"])
    reader.select_option("speech")
    expect(page).to_have_url(re.compile(r"#/objects/data\?as=speech$"))
    expect(row(page, "1").get_by_role("link")).to_have_attribute("href", "#/object/data/1?as=speech")
    assert store.asked[-1]["access_key_id"] == "speech"


@pytest.mark.parametrize(("kind", "name"), [("object", ODD), ("folder", "a b/#?%25//")])
def test_a_row_is_warmed_purged_and_pinned(window: Any, kind: str, name: str) -> None:
    """Rule: the buttons of a row send its bucket and name as they are: an object by its key, a folder by its prefix; a purge
    shows first what goes; a name that is no stream can be pinned."""
    page = window(at=figures.NOW, permissions=["clipboard-read", "clipboard-write"]).page
    store = Store(page)
    store.shows(named(kind, name, HIT if kind == "object" else None))
    page.goto("/-/#/objects/data")
    shown = name.replace("\n", "\\n")
    press(page, f"Warm {shown}")
    expect(page.locator("#action-affects")).to_contain_text(
        re.compile("^This object" if kind == "object" else "^Objects")
    )
    confirm(page, "Warm")
    expect(page.get_by_role("dialog")).to_be_hidden()
    press(page, f"Purge {shown}")
    page.get_by_role("button", name="Copy as command").last.click()
    word = r" --exact --endpoint" if kind == "object" else r"/' --endpoint"
    expect(field(page, "Command")).to_have_value(re.compile(f"^larder-gateway purge .*{word}"))
    confirm(page, "Show what goes")
    expect(page.locator("#action-preview")).to_contain_text(f"{'' if kind == 'object' else 'Below '}data/{shown}:")
    confirm(page, "Purge")
    expect(page.locator("#action-result")).to_contain_text("dropped")
    page.get_by_role("button", name="Close").click()
    place = {"bucket": "data", "key" if kind == "object" else "prefix": name}
    assert store.sent == [{"access_key_id": "vision", **place}, {**place, "dry_run": True}, {**place, "dry_run": False}]
    press(page, f"Pin {shown}")
    expect(field(page, "Space")).to_have_value("pin")


def exactly(page: Page, name: str) -> Locator:
    """The row of exactly this name."""
    return page.get_by_role("row").filter(has=page.get_by_role("link", name=name, exact=True))


def warmup(number: int, **fields: Any) -> dict[str, Any]:
    """A warm-up that the gateway lists."""
    return {
        "id": f"{number:032x}", "access_key_id": "vision", "bucket": "data", "prefix": None, "key": None, "dataset": None,
        "profile": None, "state": "running", "node": "gw-1", "failure": "", "total": None, "total_bytes": None, "done": 0,
        "done_bytes": 0, "there": 0, "failed": 0, "examples": [], "created_at": figures.AT_WORK["at"],
        "updated_at": figures.AT_WORK["at"], "etag": '"1"', **fields,
    }  # fmt: skip


def test_a_row_follows_its_warm_up(window: Any) -> None:
    """Rule: a row shows how far the newest warm-up of exactly its name is, also after a reload, and how it ended; then what the
    caches have of it is read again."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(
        named("folder", "x/"), named("object", "a", COLD), named("object", "ab", COLD), named("object", "b", COLD)
    )
    counted = {"total": 20, "total_bytes": 2000, "done": 5, "done_bytes": 500}
    store.warmups = [
        warmup(
            4,
            key="b",
            state="done",
            total=1,
            total_bytes=0,
            done=1,
            failed=1,
            examples=[{"key": "b", "why": "it is private"}],
        ),
        warmup(3, prefix="x/", **counted),
        warmup(2, key="a", total=1),
        warmup(1, key="a", state="failed", failure="an older one"),
    ]
    page.goto("/-/#/objects/data")
    cells = {name: exactly(page, name).locator(".under") for name in ("x/", "a", "ab", "b")}
    for _ in range(2):
        expect(cells["x/"]).to_have_text("Warming, 25.0\u00a0%: 5 of 20, 500\u00a0B of 2.00\u00a0kB")
        expect(cells["a"]).to_have_text("Warming")
        expect(cells["ab"]).to_have_text("")
        expect(cells["b"]).to_have_text("Not loaded: it is private")
        expect(cells["b"]).to_have_class("under bad")
        page.reload()
    expect(cells["a"]).to_have_text("Warming")
    listings = len(store.asked)
    store.shows(named("object", "a", HIT))
    store.warmups[2] = warmup(2, key="a", state="done", total=1, total_bytes=1234, done=1, done_bytes=1234)
    expect(cells["a"]).to_have_text("Loaded 1.23\u00a0kB of 1.23\u00a0kB")
    expect(exactly(page, "a").locator("td").nth(1)).to_have_text("yes")
    assert len(store.asked) - listings == 1


def test_a_place_follows_its_own_warm_up(window: Any) -> None:
    """Rule: the page of a folder or an object says how far its warm-up is, and how it ended, for an hour."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("object", "x/1", COLD))
    store.warmups = [warmup(1, prefix="x/")]
    page.goto("/-/#/objects/data/x%2F")
    said = page.locator(".listed > .under:visible")
    expect(said).to_contain_text("Warming, counting")
    store.warmups = [warmup(1, prefix="x/", state="failed", failure="the origin does not answer")]
    expect(said).to_contain_text("Failed: the origin does not answer")
    expect(said).to_have_class("under bad")
    store.warmups[0]["updated_at"] = "2026-03-01T00:00:00Z"
    expect(said).to_have_count(0)
    store.warmups = [
        warmup(
            2,
            key="x/1",
            state="done",
            total=1,
            total_bytes=0,
            done=1,
            failed=1,
            examples=[{"key": "x/1", "why": "gone"}],
        )
    ]
    page.goto("/-/#/object/data/x%2F1")
    expect(said).to_contain_text("Not loaded: gone")


def test_a_change_keeps_the_pages_that_are_shown(window: Any) -> None:
    """Rule: after a change as many pages are read again as were shown, so its row stays."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("object", "1", HIT), following="second")
    store.shows(named("object", "2", HIT), cursor="second", following="third")
    page.goto("/-/#/objects/data")
    page.get_by_role("button", name="Show more").click()
    press(page, "Warm 2")
    store.shows(named("object", "2", COLD), cursor="second", following="third")
    confirm(page, "Warm")
    expect(exactly(page, "2").locator("td").nth(1)).to_have_text("no")
    assert [query.get("cursor", "") for query in store.asked] == ["", "second", "", "second"]


def test_a_place_can_be_taken_to_a_shell(window: Any) -> None:
    """Rule: a place is copied as a listing of the client, and an object as an explanation."""
    page = window(at=figures.NOW).page
    store = Store(page)
    store.shows(named("object", "a b", HIT))
    page.goto("/-/#/objects/data/a%20b")
    press(page, "Copy as command")
    expect(field(page, "Command")).to_have_value("larder ls 's3://data/a b' --endpoint http://10.0.0.11:9000")
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Explain a b").click()
    expect(page.locator(".facts")).to_be_visible()
    press(page, "Copy as command")
    home = page.evaluate("() => location.origin")
    expect(field(page, "Command")).to_have_value(f"larder-gateway explain 'data/a b' --as vision --endpoint {home}")


def test_a_viewer_browses_and_changes_nothing(window: Any) -> None:
    """Rule: a token that reads sees places and explanations, and no button that changes something."""
    watched = window(at=figures.NOW)
    store = Store(watched.page)
    store.shows(named("object", "1", HIT))
    watched.page.route(
        "**/-/admin/overview", lambda route: route.fulfill(json=figures.AT_WORK, headers={"x-larder-role": "viewer"})
    )
    watched.page.goto("/-/#/objects/data")
    expect(row(watched.page, "1").get_by_role("button")).to_have_text(["Explain"])


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_place_can_be_read_and_used_by_all(window: Any, scheme: str, width: int) -> None:
    """Rule: on a phone and a desk, in both schemes, every text has contrast, no word breaks, nothing is wider than the window,
    and the Tab key reaches every control and shows where it is."""
    page = window(at=figures.NOW, viewport={"width": width, "height": 844}, color_scheme=scheme).page
    store = Store(page)
    store.shows(
        named("folder", "x/"),
        named("object", "hit", HIT),
        named("object", "part", PART),
        following="more",
        failure="it is away",
    )
    store.warmups = [
        warmup(1, key="hit", state="done", total=1, total_bytes=1234, done=1, done_bytes=1234),
        warmup(2, key="part", state="failed", failure="the access key was revoked or has expired"),
        warmup(3, prefix="", state="cancelled", failure="cancelled"),
    ]
    page.goto("/-/#/objects/data")
    expect(row(page, "part")).to_be_visible()
    tops = (
        row(page, "part")
        .get_by_role("button")
        .evaluate_all("buttons => buttons.map((button) => button.getBoundingClientRect().top)")
    )
    assert len(tops) == 4
    assert width < 1000 or len(set(tops)) == 1, "the buttons of a row are in one line"
    assert faint_texts(page) == []
    assert broken_words(page) == []
    assert overflow(page) == 0
    assert walk_by_tab(page) == (set(), [])
