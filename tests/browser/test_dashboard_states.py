"""Each state of the dashboard, in Chromium, with answers that the tests choose."""

from __future__ import annotations

import re
from copy import deepcopy
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.browser import figures
from tests.browser.chromium import PATIENCE, Played
from tests.browser.console import closed, confirm, press

expect.set_options(timeout=PATIENCE)

DISABLED = {"title": "Closed", "status": 403, "code": "AdminDisabled", "detail": "Set admin.token."}


def shown(page: Page, overview: dict[str, Any] | None = None, view: str = "overview") -> Played:
    """A page of the dashboard of a gateway that answers this."""
    played = Played(page, overview)
    page.goto(f"/-/#/{view}")
    expect(page.locator("#board")).to_be_visible()
    return played


def test_one_sentence_says_how_it_is(window: Any) -> None:
    """Rule: the headline is the share served from the cache; below it are the savings, and the health of the fleet."""
    page = window(at=figures.NOW).page
    shown(page)
    expect(page.locator("h1#verdict")).to_have_text("94.2\u00a0% of all bytes read come from the cache.")
    expect(page.locator("#under")).to_have_text(
        "The origin was spared 389\u00a0TB. 3 nodes, 3 jobs, 3 datasets, no problems."
    )
    expect(page.locator("#no-worst")).to_have_text("Nothing is wrong.")
    assert page.title() == "Larder"


def test_every_figure_is_what_the_api_says(window: Any) -> None:
    """Rule: each figure carries the exact number of the answer, and shows it rounded with its unit."""
    page = window(at=figures.NOW).page
    shown(page)
    for group in ("now", "total"):
        for name, value in figures.AT_WORK[group].items():
            for figure in page.locator(f"[data-figure='{group}.{name}']").all():
                assert float(figure.get_attribute("value") or "nan") == value, name
    expect(page.locator("[data-figure='total.batch_items']")).to_have_text("3.12\u00a0billion")
    spared = page.locator(".tile").nth(1)
    expect(spared.locator("dt")).to_have_text("Origin requests spared")
    expect(spared.locator(".big data")).to_have_attribute("value", str(74210088 + 2968114210))
    expect(spared.locator(".small")).to_have_text("$8,991, 389\u00a0TB not read")
    expect(page.locator(".tile").nth(3)).to_have_text(re.compile("31.2\u00a0ms.*half within 2.10\u00a0ms", re.DOTALL))
    expect(page.locator("[data-figure='now.cache_bytes_per_second']")).to_have_text("3.12\u00a0GB/s")


def test_jobs_say_what_they_gain(window: Any) -> None:
    """Rule: a job shows its times of a step, the quotient, and whether it reads from the cache, past it, or is being measured."""
    page = window(at=figures.NOW).page
    shown(page, view="jobs")
    rows = page.locator("#jobs tbody tr")
    expect(rows).to_have_count(3)
    assert [text.split() for text in rows.nth(0).locator("td").all_inner_texts()] == [
        ["imagenet-train"], ["8"], ["31"], ["from", "the", "cache"], ["618", "ms"],
        ["251", "ms", "249", "ms", "predicted"], ["2.5", "×"], ["11", "h", "28", "min"], ["1", "s", "ago"], ["Remove"],
    ]  # fmt: skip
    expect(rows.nth(1)).to_contain_text("measured without the cache")
    expect(rows.nth(1)).to_contain_text("38 of 100 mini-batches, until about 14:32")
    expect(rows.nth(1)).to_contain_text("not measured")
    expect(rows.nth(2)).to_contain_text("bypassing the cache")
    expect(rows.nth(2)).to_contain_text("none")


def test_datasets_say_what_the_plan_gives_them(window: Any) -> None:
    """Rule: the mode and why, in words, with the space that the plan gives."""
    page = window(at=figures.NOW).page
    shown(page, view="datasets")
    whole, part, none = page.locator("#datasets > li").all()
    expect(whole.locator(".mode")).to_have_text("Kept whole")
    expect(part.locator(".mode")).to_have_text("Kept in part")
    expect(none.locator(".mode")).to_have_text("Not kept")
    expect(none).to_contain_text("None of its jobs benefits")
    expect(whole.locator(".plan")).to_contain_text("148\u00a0GB of space: its jobs benefit")


def test_a_node_that_is_gone_stays_until_it_is_dismissed(window: Any) -> None:
    """Rule: a dead node is listed as gone, with a button that dismisses it; the dialog shows a refusal."""
    page = window(at=figures.NOW).page
    played = shown(page, figures.in_trouble(), "nodes")
    row = page.locator("#nodes tbody tr").nth(3)
    expect(row).to_contain_text("gone")
    expect(row).to_contain_text("silent 1\u00a0h 30\u00a0min")
    expect(page.get_by_role("button", name=re.compile("Dismiss"))).to_have_count(1)
    page.route("**/-/admin/nodes/*", lambda route: route.fulfill(status=503, json={"detail": "Redis is lost."}))
    press(page, "Dismiss gw-4")
    expect(page.get_by_role("dialog")).to_contain_text("gw-4 is no longer listed as gone")
    confirm(page, "Dismiss")
    expect(page.locator("#action-error")).to_contain_text("Redis is lost.")
    asked: list[str] = []

    def dismiss(route: Any) -> None:
        asked.append(f"{route.request.method} {route.request.url.partition('/-/')[2]}")
        played.overview["nodes"].pop()
        route.fulfill(status=204)

    page.route("**/-/admin/nodes/*", dismiss)
    confirm(page, "Dismiss")
    closed(page)
    expect(page.locator("#nodes tbody tr")).to_have_count(3)
    assert asked == ["DELETE admin/nodes/gw-4"]


def test_a_dataset_that_cannot_be_kept_whole_says_so(window: Any) -> None:
    """Rule: a dataset that should be kept whole and is not has its reason, and no claim that it is kept whole."""
    page = window(at=figures.NOW).page
    shown(page, figures.in_trouble(), "datasets")
    dataset = page.locator("#datasets > li").filter(has_text="coyo-700m")
    expect(dataset.locator(".mode")).to_have_text("Should be kept whole, but is not")
    expect(dataset).to_contain_text("It takes 31 TB, and the caches without gw-4 hold 18 TB")


def test_datasets_say_no_more_than_is_known(window: Any) -> None:
    """Rule: an unmeasured gain is omitted; a dataset without a job, or not kept, may still have bytes."""
    page = window(at=figures.NOW).page
    overview = deepcopy(figures.AT_WORK)
    unused, _, none = overview["datasets"]
    unused["why"] = "no-jobs"
    none["resident_share"] = 0.48
    shown(page, overview, "datasets")
    rows = page.locator("#datasets > li")
    expect(rows.nth(0)).to_contain_text("148\u00a0GB of space until others need it; no job uses it now")
    expect(rows.nth(1)).to_contain_text("3.88\u00a0TB of space: its jobs use it; their benefit is not measured yet")
    expect(rows.nth(2)).to_contain_text("48.0\u00a0% is still cached")


def test_a_dataset_kept_by_importance_shows_its_tenths(window: Any) -> None:
    """Rule: of a dataset that is kept by importance threshold, ghost list, and reads and hits by tenths are shown."""
    page = window(at=figures.NOW).page
    overview = deepcopy(figures.AT_WORK)
    cold, hot = {"reads": 0, "read_share": 0.0, "hit_ratio": None}, {"reads": 9, "read_share": 0.9, "hit_ratio": 0.98}
    overview["datasets"][0]["importance"] = {
        "threshold": 4.25,
        "partial": True,
        "jobs": {"vision/train": 1.0},
        "scored": 1000,
        "tenths": [cold] * 9 + [hot],
        "unscored": cold,
    }
    shown(page, overview, "datasets")
    row = page.locator("#datasets > li").nth(0)
    expect(row.locator(".mode")).to_have_text("The most important items are kept")
    expect(row.locator(".scores")).to_contain_text("From a score of 4.25 on")
    expect(row.locator(".scores")).to_contain_text("reads 90.0\u00a0%, 0\u00a0%")
    expect(row.locator(".scores")).to_contain_text("hits 98.0\u00a0%, –")


def test_every_chart_is_a_table_too(window: Any) -> None:
    """Rule: a chart's table has the same figures, newest first; its label has the last, least and largest."""
    page = window(at=figures.NOW).page
    shown(page)
    figure = page.locator("#rate-chart")
    expect(figure.locator("svg[role=img]")).to_have_attribute("aria-label", re.compile("The table below"))
    figure.locator("summary").click()
    expect(figure.locator("tbody tr").first).to_be_visible()
    newest = figures.history()["points"][-1]
    expect(figure.locator("tbody tr").first).to_contain_text(f"{newest['cache_bytes_per_second'] / 1e9:.2f}\u00a0GB/s")


def test_a_chart_says_what_is_pointed_at(window: Any) -> None:
    """Rule: the figures of the moment under the pointer stand above the chart, for as long as it points there."""
    page = window(at=figures.NOW).page
    shown(page)
    chart = page.locator("#rate-chart")
    expect(chart.locator("path.line").first).to_be_visible()
    chart.locator("svg").hover(position={"x": 300, "y": 60})
    expect(chart.locator(".readout")).to_have_text(
        re.compile(r"^.*\d\d:\d\d  ·  [\d.]+\u00a0GB/s  ·  [\d.]+\u00a0MB/s$")
    )
    page.locator("#verdict").hover()
    expect(chart.locator(".readout")).to_be_empty()


def test_a_step_that_has_just_begun_is_no_fall(window: Any) -> None:
    """Rule: the current step of a chart is left out until it has values."""
    page = window(at=figures.NOW).page
    played = Played(page)
    begun = {"at": figures.stamp(figures.NOW), "hit_ratio": None, "saved_bytes": 0}
    begun |= dict.fromkeys(("cache_bytes_per_second", "origin_bytes_per_second", "requests_per_second"), 0)
    past = figures.history(1)
    played.history = lambda hours: past | {"points": [*past["points"], begun]}
    page.goto("/-/")
    newest = page.locator("#rate-chart tbody tr").first
    expect(newest).to_contain_text("14:29")
    past["points"].append(past["points"][-1] | {"at": begun["at"]})
    played.history = lambda hours: past
    page.get_by_label("1 h", exact=True).check()
    expect(newest).to_contain_text("14:30")


def test_a_first_epoch_has_a_history(window: Any) -> None:
    """Rule: a history of cold reads only, without hits or saved bytes, is shown."""
    page = window(at=figures.NOW).page
    played = Played(page)
    past = figures.history(1)
    for point in past["points"]:
        point |= {"requests_per_second": 0, "saved_bytes": 0, "cache_bytes_per_second": 0, "hit_ratio": 0}
    played.history = lambda hours: past
    page.goto("/-/")
    expect(page.locator("#rate-chart path.line.origin").first).to_be_visible()
    expect(page.locator("#no-history")).to_be_hidden()


def test_before_the_first_gateway_nothing_is_shown(window: Any) -> None:
    """Rule: the chart begins when the first gateway started; zeros after that are shown."""
    page = window(at=figures.NOW).page
    overview = deepcopy(figures.AT_WORK)
    for node, minutes in zip(overview["nodes"], (20, 15, 1), strict=True):
        node["uptime_seconds"] = 60 * minutes
    played = Played(page, overview)
    past = figures.history(1)
    for point in past["points"][:-10]:
        point |= dict.fromkeys(("requests_per_second", "batch_items_per_second", "saved_bytes"), 0)
        point |= {"cache_bytes_per_second": 0, "origin_bytes_per_second": 0, "hit_ratio": None}
    played.history = lambda hours: past
    page.goto("/-/")
    expect(page.locator("#rate-chart tbody tr").last).to_contain_text("14:10")


def test_the_charts_of_a_young_fleet_begin_with_it(window: Any) -> None:
    """Rule: charts do not reach further back than the fleet, or its history, does; they span ten minutes at least."""
    page = window(at=figures.NOW).page
    overview = deepcopy(figures.AT_WORK)
    for node in overview["nodes"]:
        node["uptime_seconds"] = 1800
    played = Played(page, overview)
    past = figures.history(6)
    played.history = lambda hours: past | {"points": past["points"][-30:]}
    page.goto("/-/")
    expect(page.locator("#rate-chart .tick").filter(has_text=re.compile(r"^\d\d:\d\d$")).first).to_have_text("14:00")
    for node in overview["nodes"]:
        node["uptime_seconds"] = 60
    played.history = lambda hours: past | {"points": past["points"][-1:]}
    page.reload()
    expect(page.locator("#rate-chart .tick").filter(has_text=re.compile(r"^\d\d:\d\d$")).first).to_have_text("14:20")


def test_answers_say_how_fast_and_with_which_status(window: Any) -> None:
    """Rule: statuses that occurred, and percentiles of all requests and of each outcome, with readable units."""
    page = window(at=figures.NOW).page
    shown(page, view="traffic")
    expect(page.locator("#statuses")).to_have_text("2xx 409\u00a0/s · 3xx 0.2\u00a0/s · 4xx 3.1\u00a0/s")
    rows = page.locator("#answers tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0).get_by_role("rowheader")).to_have_text("All requests")
    expect(rows.nth(1).get_by_role("rowheader")).to_have_text("From the cacheHIT")
    assert rows.nth(0).locator("td").all_inner_texts() == ["412\u00a0/s", "2.10\u00a0ms", "31.2\u00a0ms", "114\u00a0ms"]


def test_traffic_says_who_reads_and_what_is_missed(window: Any) -> None:
    """Rule: tenants' requests to buckets, the busiest first; and missed prefixes with reason, meaning and remedy."""
    page = window(at=figures.NOW).page
    shown(page, view="traffic")
    rows = page.locator("#traffic tbody tr")
    expect(rows).to_have_count(4)
    expect(rows.nth(0).get_by_role("rowheader")).to_have_text("datasets")
    assert rows.nth(0).locator("td").all_inner_texts() == ["vision", "301\u00a0/s", "2.81\u00a0GB/s", "96.1\u00a0%"]
    missed = page.locator("#misses tbody tr").nth(0)
    expect(missed.get_by_role("rowheader")).to_have_text("datasets/laion/2024/No bytes of the object are in the cache.")
    expect(missed).to_contain_text("warm up its prefix")
    expect(page.locator("#misses-under")).to_contain_text("last 9\u00a0min")


def test_entries_of_a_long_overview_are_found(window: Any) -> None:
    """Rule: with ten entries of a kind there is a field; entries without the text are hidden."""
    overview = deepcopy(figures.AT_WORK)
    overview["jobs"] = [{**overview["jobs"][0], "job": f"job-{number}", "tenant": "found"} for number in range(10)]
    page = window(at=figures.NOW).page
    shown(page, overview, "jobs")
    page.get_by_label("Find").fill("job-7")
    expect(page.locator("#jobs tbody tr")).to_have_count(1)
    page.get_by_label("Find").fill("")
    expect(page.locator("#jobs tbody tr")).to_have_count(10)


def test_the_hours_are_chosen(window: Any) -> None:
    """Rule: another time span is loaded at once, and named beside the figures that depend on it."""
    page = window(at=figures.NOW).page
    played = shown(page)
    expect(page.locator(".tile [data-window]").first).to_have_text("last 24 h:")
    page.get_by_label("6 h", exact=True).check()
    expect(page.locator(".tile [data-window]").first).to_have_text("last 6 h:")
    assert (played.histories[0], played.histories[-1]) == (24, 6)
    spared = sum(point["spared_requests"] for point in figures.history(6)["points"])
    expect(page.locator("#window-spared")).to_have_attribute("value", str(spared))


def test_trouble_comes_with_its_remedy(window: Any) -> None:
    """Rule: each problem has severity, title, place, start and remedy; the title counts them; a screen reader announces them."""
    page = window(at=figures.NOW).page
    shown(page, figures.in_trouble(), "problems")
    first = page.locator("#problems li").first
    expect(first).to_contain_text("Error")
    expect(first).to_contain_text("The cache disk is down")
    expect(first.get_by_role("link", name="What to do")).to_have_attribute("href", "/-/runbook#larderdisk")
    expect(first).to_contain_text("Look at the kernel's log")
    expect(first).to_contain_text("gw-2")
    expect(page.locator("#no-problems")).to_be_hidden()
    expect(page).to_have_title("(4) Problems – Larder")
    expect(page.locator("#announcer[aria-live=polite]")).to_contain_text("Redis is not reachable.")
    expect(page.locator("#nodes tbody tr").nth(1)).to_contain_text("down")
    expect(page.locator("#nodes tbody tr").nth(2)).to_contain_text("leaving")


def test_trouble_that_goes_on_is_said_once(window: Any) -> None:
    """Rule: the same problem with new numbers is not announced again; its end is announced."""
    page = window(at=figures.NOW).page
    played = shown(page, figures.in_trouble(), "problems")
    expect(page.locator("#announcer")).to_contain_text("disk is down")
    page.evaluate("() => { document.getElementById('announcer').textContent = ''; }")
    again = figures.in_trouble()
    again["problems"][0]["what"] = "The cache disk is down: 6 of the last 6 writes failed with EIO."
    played.overview = again
    expect(page.locator("#problems")).to_contain_text("6 of the last 6")
    expect(page.locator("#announcer")).to_be_empty()
    played.overview = figures.AT_WORK
    expect(page.locator("#announcer")).to_have_text("All problems are solved.")


def test_troubles_that_differ_by_a_number_are_two(window: Any) -> None:
    """Rule: every problem of the answer is on the page, however alike they are."""
    overview = figures.in_trouble()
    overview["problems"] = [overview["problems"][0] | {"what": f"The origin a{number} fails."} for number in (1, 2, 2)]
    page = window(at=figures.NOW).page
    shown(page, overview, "problems")
    expect(page.locator("#problems .what")).to_have_text(["The origin a1 fails.", *["The origin a2 fails."] * 2])


def test_an_empty_fleet_says_so(window: Any) -> None:
    """Rule: without nodes, jobs, datasets or reads each page is marked as empty, with a hint how to fill it."""
    page = window(at=figures.NOW).page
    shown(page, figures.empty())
    expect(page.locator("#verdict")).to_have_text("No gateway has reported yet.")
    expect(page.locator("[data-figure='now.hit_ratio']")).to_have_text("–")
    for view, parts in (
        ("jobs", ["jobs"]), ("datasets", ["datasets"]), ("nodes", ["nodes"]), ("problems", ["problems"]),
        ("traffic", ["answers", "traffic", "misses"]),
    ):  # fmt: skip
        page.goto(f"/-/#/{view}")
        for part in parts:
            expect(page.locator(f"#no-{part}")).to_be_visible()
            expect(page.locator(f"#{part}")).to_be_hidden()


def test_streams_say_whether_they_keep_space(window: Any) -> None:
    """Rule: a stream that pauses or has ended says so instead of a target, and each order is in plain words."""
    page = window(at=figures.NOW).page
    overview = deepcopy(figures.AT_WORK)
    for stream, target, order in zip(overview["streams"], (0, 1, 10**12), ("uniform", "lru", "loop"), strict=False):
        stream["pool"] |= {"target": target, "order": order}
    shown(page, overview, "streams")
    rows = page.locator("#streams tbody tr")
    for row, words in enumerate(("498\u00a0GB, ended", "63.1\u00a0GB, paused", "read last")):
        expect(rows.nth(row)).to_contain_text(words)


def test_names_are_text(window: Any) -> None:
    """Rule: HTML in the API's values is shown as text: it makes no element and runs no script."""
    page = window(at=figures.NOW).page
    shown(page, figures.hostile())
    for place in (
        "#zone",
        "#problems .what",
        "#jobs .name",
        "#pipelines .name",
        "#results .under",
        "#datasets h3",
        "#streams .name",
        "#nodes .name",
        "#foot",
    ):
        expect(page.locator(place).first).to_contain_text(figures.HOSTILE)
    assert page.locator("main img, main script, main iframe").count() == 0
    assert page.evaluate("() => window.executed") is None


def test_a_script_cannot_write_html(window: Any) -> None:
    """Rule: should a mistake ever try it, the page's policy refuses HTML and scripts that a script makes out of text."""
    watched = window(at=figures.NOW)
    shown(watched.page)
    for attempt in (
        "document.body.innerHTML = '<b>x</b>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.createElement('script').text = 'window.executed = true'",
        "document.createElement('script').src = 'data:,'",
        "document.body.setAttribute('onclick', 'window.executed = true')",
    ):
        tried = f"() => {{ try {{ {attempt}; return 'done'; }} catch (error) {{ return error.name; }} }}"
        assert watched.page.evaluate(tried) == "TypeError", attempt
    watched.errors.clear()


def test_without_a_token_of_the_gateway_the_setting_is_named(window: Any) -> None:
    """Rule: if the admin API is off, the page names the setting and asks for no token."""
    page = window(at=figures.NOW).page
    played = Played(page)
    played.refusal = (403, DISABLED)
    page.goto("/-/")
    expect(page.get_by_role("heading", level=1)).to_have_text("The dashboard is switched off")
    expect(page.locator("#door-example")).to_contain_text("read_token")
    expect(page.locator("#token-form")).to_be_hidden()


def test_a_gateway_that_is_not_there_is_waited_for(window: Any) -> None:
    """Rule: a page that never saw figures says that the gateway does not answer, and shows them as soon as it does."""
    page = window(at=figures.NOW).page
    played = Played(page)
    played.gone = True
    page.goto("/-/")
    expect(page.get_by_role("heading", level=1)).to_have_text("The gateway does not answer")
    played.gone = False
    expect(page.locator("#verdict")).to_be_visible()


def test_a_failing_gateway_leaves_the_last_figures(window: Any) -> None:
    """Rule: when the gateway fails, the figures stay, greyed, with their age and the reason; they recover without a reload."""
    page = window(at=figures.NOW).page
    played = shown(page)
    played.refusal = (503, {"title": "x", "status": 503, "code": "ServiceUnavailable", "detail": "Redis is away."})
    expect(page.locator("#stale")).to_contain_text("Redis is away.")
    expect(page.locator("#pulse")).to_have_text(re.compile(r"^last seen \d+\u00a0s ago$"))
    expect(page.locator("body")).to_have_class("gone")
    expect(page.locator("#announcer")).to_contain_text("Redis is away.")
    expect(page.locator("#verdict")).to_contain_text("94.2")
    played.refusal = None
    expect(page.locator("#stale")).to_be_hidden()
    expect(page.locator("#pulse")).to_have_text(re.compile("^live, "))


def test_an_answer_of_another_version_is_no_blank_page(window: Any) -> None:
    """Rule: an answer of an unknown form is reported; the page keeps its figures and continues to ask."""
    watched = window(at=figures.NOW)
    page = watched.page
    played = shown(page)
    played.overview = {"at": "x"}
    expect(page.locator("#stale")).to_contain_text("reload it")
    played.overview = figures.AT_WORK
    expect(page.locator("#stale")).to_be_hidden()
    assert watched.errors
    watched.errors.clear()


@pytest.mark.parametrize("name", ["jobs", "datasets"])
def test_long_lists_are_cut(window: Any, name: str) -> None:
    """Rule: a page with thousands of entries shows the first, and says how many there are and where the rest is."""
    overview = figures.in_trouble()
    pattern = overview[name][0]
    overview[name] = [pattern | {"job": f"job-{number}", "id": f"{number:012x}"} for number in range(3000)]
    page = window(at=figures.NOW).page
    shown(page, overview, name)
    expect(page.locator(f"#more-{name}")).to_have_text(re.compile(f"^And 2,9[05]0 more: larder-gateway {name} lists"))
