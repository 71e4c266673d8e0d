"""Accessibility of the dashboard: on a phone, in the dark, by keyboard, with a screen reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from gateway.commands.common.output import printable
from rig.gateways import Running
from tests.browser import figures
from tests.browser.chromium import PATIENCE, Played, Watched
from tests.browser.looks import broken_words, faint_texts, marks_apart, overflow, walk_by_tab

expect.set_options(timeout=PATIENCE)

DESK: ViewportSize = {"width": 1180, "height": 900}
PHONE: ViewportSize = {"width": 360, "height": 740}
SCHEMES: tuple[Literal["dark", "light"], ...] = ("dark", "light")
NOBODY = (401, {"title": "No token", "status": 401, "code": "Unauthorized", "detail": "Send a token."})


def at_work(page: Page, played: Played) -> None:
    """A fleet at work."""
    expect(page.locator("#rate-chart path.line").first).to_be_visible()


def in_trouble(page: Page, played: Played) -> None:
    """One with problems."""
    played.overview = figures.in_trouble()
    expect(page.locator("#worst li").first).to_be_visible()


def hostile(page: Page, played: Played) -> None:
    """One whose names are long and contain HTML."""
    played.overview = figures.hostile()
    expect(page.locator("#worst li").first).to_be_visible()


def empty(page: Page, played: Played) -> None:
    """One with nothing in it."""
    played.overview = figures.empty()
    expect(page.locator("#first-run")).to_be_visible()


def gone(page: Page, played: Played) -> None:
    """A gateway that has stopped."""
    at_work(page, played)
    played.gone = True
    expect(page.locator("#stale")).to_be_visible()


def at_the_door(page: Page, played: Played) -> None:
    """The question for the token, refused once."""
    played.refusal = NOBODY
    expect(page.locator("#token-form")).to_be_visible()
    page.get_by_label("Admin token").fill("wrong")
    page.keyboard.press("Enter")
    expect(page.locator("#token-error")).not_to_be_empty()


STATES = [at_work, in_trouble, hostile, empty, gone, at_the_door]


def opened(window: Any, state: Callable[[Page, Played], None], view: str = "", **options: Any) -> Page:
    """The dashboard in a state."""
    page: Page = window(at=figures.NOW, **options).page
    played = Played(page)
    page.goto("/-/")
    state(page, played)
    if view:
        page.goto(f"/-/#/{view}")
    return page


@pytest.fixture(scope="module", params=STATES)
def every(browser: Browser, running: Running, request: pytest.FixtureRequest) -> Iterator[Page]:
    """The dashboard in each of the states, with all tables open."""
    watched = Watched(browser, running.console, at=figures.NOW, viewport=DESK)
    page = watched.page
    played = Played(page)
    page.goto("/-/")
    request.param(page, played)
    page.evaluate("() => document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    yield page
    watched.close()


BOARD = ("overview", "problems", "traffic", "jobs", "datasets", "pipelines", "streams", "nodes")


def pages_of(page: Page) -> Iterator[str]:
    """Open each page that shows the overview, in the state that the page is in; at the door there is one."""
    if page.locator("#views").is_hidden():
        yield "door"
        return
    for name in BOARD:
        page.evaluate("(name) => { location.hash = `#/${name}`; }", name)
        expect(page.locator(f"[data-page={name}]")).to_be_visible()
        yield name


def test_a_phone_shows_all_of_it_and_words_stay_whole(every: Page) -> None:
    """Rule: from 360 pixels to the width of a desk no page scrolls sideways in any state, with every table open; at both no
    ordinary word breaks."""
    for name in pages_of(every):
        for width in (769, 1024, PHONE["width"], DESK["width"]):
            every.set_viewport_size({"width": width, "height": 900})
            assert overflow(every) <= 0, (name, width)
            assert width in (769, 1024) or broken_words(every) == [], (name, width)


def test_marks_stand_beside_their_states(window: Any) -> None:
    """Rule: the mark of a node's state is level with its word, whatever the rest of the row contains."""
    apart = marks_apart(opened(window, at_work, "nodes", viewport=DESK))
    assert len(apart) >= 9
    assert max(apart) <= 2.5


def test_text_stands_out(every: Page) -> None:
    """Rule: every text has a contrast of at least 4.5 with its background, in every state and both colour schemes."""
    for name in pages_of(every):
        for scheme in SCHEMES:
            every.emulate_media(color_scheme=scheme)
            assert faint_texts(every) == [], (name, scheme)


def test_the_keyboard_reaches_everything(every: Page) -> None:
    """Rule: Tab alone reaches every control, and the focus is visible."""
    for name in pages_of(every):
        assert walk_by_tab(every) == (set(), []), name


def test_the_keyboard_skips_the_header(window: Any) -> None:
    """Rule: the first Tab stop is a link that skips the header."""
    page = opened(window, at_work)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()


def test_a_refresh_takes_nothing_away(window: Any) -> None:
    """Rule: focus and open tables survive new figures; unchanged elements of the page are kept."""
    page: Page = window().page
    played = Played(page)
    page.goto("/-/")
    summary = page.locator("#rate-chart summary")
    summary.click()
    summary.focus()
    page.get_by_label("1 h", exact=True).evaluate("(node) => { node.checked = true; }")
    page.evaluate("() => document.getElementById('hours').dispatchEvent(new Event('change'))")
    played.overview = figures.in_trouble()
    expect(page.locator("#worst li").first).to_be_visible()
    expect(page.locator(".tile [data-window]").first).to_have_text("last 1 h:")
    expect(summary).to_be_focused()
    expect(page.locator("#rate-chart details")).to_have_attribute("open", "")


def test_a_screen_reader_finds_its_way(window: Any) -> None:
    """Rule: there are landmarks, one heading of level 1, regions and tables with names, and every control has a label."""
    page = opened(window, in_trouble)
    for role in ("banner", "main", "contentinfo", "navigation"):
        assert page.get_by_role(role).count() == 1, role
    assert page.get_by_role("heading", level=1).count() == 1
    for name in ("Problems", "Last hours", "Nodes", "Jobs that waited longest", "Prefixes missed most"):
        assert page.get_by_role("region", name=name, exact=True).count() == 1, name
    assert page.get_by_role("group", name="How far back").get_by_role("radio").count() == 4
    for name, rows in (("Jobs", 3), ("Nodes", 4)):
        page.goto(f"/-/#/{name.lower()}")
        assert page.get_by_role("heading", level=1).count() == 1
        table = page.get_by_role("table", name=name)
        assert table.get_by_role("columnheader").count() >= 8
        assert table.get_by_role("rowheader").count() == rows
    assert page.get_by_role("combobox", name="Colours").count() == 1
    assert page.locator("svg[role=img]:not([aria-label])").count() == 0


def test_tables_stay_tables_on_a_phone(window: Any) -> None:
    """Rule: rows that look like cards are still rows of a table to a screen reader, and each value shows its label."""
    page = opened(window, at_work, "jobs", viewport=PHONE)
    table = page.get_by_role("table", name="Jobs")
    assert table.get_by_role("row").count() == 4
    assert table.get_by_role("cell").count() == 3 * 10
    labels = page.locator("#jobs tbody tr").first.locator("td")
    shown = labels.evaluate_all("(cells) => cells.map((each) => getComputedStyle(each, '::before').content)")
    assert shown[:2] == ['"Dataset"', '"GPUs"']


def ground(page: Page) -> str:
    """The colour behind everything."""
    colour: str = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return colour


def test_it_is_dark_where_that_is_wanted(window: Any) -> None:
    """Rule: the colours follow the system; the switch decides otherwise, at once and after a reload."""
    dark = ground(opened(window, at_work, color_scheme="dark"))
    page = opened(window, at_work, color_scheme="light")
    light = ground(page)
    assert dark != light
    page.get_by_label("Colours").select_option("dark")
    assert ground(page) == dark
    page.reload()
    expect(page.locator("#verdict")).to_be_visible()
    assert ground(page) == dark
    expect(page.get_by_label("Colours")).to_have_value("dark")
    page.get_by_label("Colours").select_option("auto")
    assert ground(page) == light


def test_names_that_look_alike_are_told_apart(window: Any) -> None:
    """Rule: characters that nobody sees, or that reorder the text, are written as the command line writes them; no space is
    lost."""
    overview = figures.in_trouble()
    names = ("a\nb\tc", "a\u202eb\u2066c", "a\x1b\u200bb", "a  b", "שלום/日本😀")
    overview["streams"] = [{**overview["streams"][0], "name": name} for name in names]
    page = window().page
    Played(page, overview)
    page.goto("/-/#/streams")
    shown_names = page.locator("#streams .name")
    expect(shown_names).to_have_count(len(names))
    wanted = [printable(name) for name in names]
    assert shown_names.evaluate_all("(found) => found.map((each) => each.innerText)") == wanted
    assert wanted[:4] == ["a\\nb\\tc", "a\\u202eb\\u2066c", "a\\x1b\\u200bb", "a  b"]
