"""What the overview leads to: its fit on a screen, the worst of each kind, mutes, the page of one thing, and the live tail."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser import figures
from tests.browser.chromium import PATIENCE, Played
from tests.browser.console import closed, confirm, console, press
from tests.browser.test_dashboard_states import shown

expect.set_options(timeout=PATIENCE)


def test_the_first_screen_says_how_to_begin(window: Any) -> None:
    """Rule: while nothing was read, the overview has the lines that read through the gateway in place of charts and lists."""
    page = window(at=figures.NOW).page
    played = shown(page, figures.empty() | {"nodes": figures.AT_WORK["nodes"]})
    expect(page.locator("#first-run-lines")).to_contain_text("export AWS_ENDPOINT_URL=http://10.0.0.11:9000")
    expect(page.locator("#history")).to_be_hidden()
    played.overview = figures.AT_WORK
    expect(page.locator("#first-run")).to_be_hidden()
    expect(page.locator("#history")).to_be_visible()


@pytest.mark.parametrize(("size", "most"), [((1440, 900), 900), ((390, 844), 2 * 844)], ids=["desk", "phone"])
def test_the_overview_fits(window: Any, size: tuple[int, int], most: int) -> None:
    """Rule: with three kinds of problems, nodes, jobs and prefixes it fits one screen of a desk, and two of a phone."""
    page = window(at=figures.NOW, viewport={"width": size[0], "height": size[1]}).page
    shown(page, figures.in_trouble())
    expect(page.locator("#rate-chart path.line").first).to_be_visible()
    expect(page.locator("#worst > li")).to_have_count(3)
    assert page.evaluate("() => document.documentElement.scrollHeight") <= most


def test_the_overview_names_the_worst(window: Any) -> None:
    """Rule: problems of one kind are one entry; nodes that are not well and jobs that waited longest come first."""
    page = window(at=figures.NOW).page
    shown(page, figures.in_trouble())
    expect(page.locator("#worst > li").nth(2)).to_contain_text("and 1 more of this kind")
    expect(page.locator("#top-nodes .name")).to_have_text(["gw-3", "gw-4", "gw-2", "gw-1"])
    expect(page.locator("#top-jobs .name").first).to_have_text("vit-large-sweep-04")
    expect(page.locator("#top-jobs li").first).to_contain_text("$628")
    expect(page.locator("#top-prefixes li").first).to_contain_text("8,204 reads")


def test_what_happened_is_marked_on_the_chart(window: Any) -> None:
    """Rule: each event within the span has a mark on the chart, and its words in the chart's label."""
    page = window(at=figures.NOW).page
    shown(page)
    chart = page.locator("#rate-chart")
    expect(chart.locator("g.event")).to_have_count(5)
    expect(chart.locator("svg")).to_have_attribute(
        "aria-label", re.compile("5 marks: purge datasets/laion/2023/ by admin")
    )


@pytest.mark.parametrize("view", ["rules", "buckets/data", "jobs"])
def test_every_page_names_the_fleet(window: Any, view: str) -> None:
    """Rule: a list, a thing and a page of the overview, opened by their address, name the zone and the version."""
    page = console(window, view).page
    expect(page.locator("#zone")).to_have_text("zone default")
    expect(page.locator("#foot")).to_contain_text("Larder ")


def test_a_list_needs_no_overview(window: Any) -> None:
    """Rule: while the gateway cannot tell the state of the fleet, lists are shown all the same."""
    page = window().page
    page.route("**/-/admin/overview", lambda route: route.fulfill(status=503, json={"code": "Unavailable"}))
    page.route("**/-/admin/tenants*", lambda route: route.fulfill(json={"items": [], "next": None}))
    page.goto("/-/#/tenants")
    expect(page.get_by_role("heading", level=1, name="Tenants")).to_be_visible()
    expect(page.locator("#pulse")).to_contain_text("live")
    expect(page.locator("#stale")).to_be_hidden()


def test_a_job_shows_what_its_step_would_take(window: Any) -> None:
    """Rule: the page of a job has its steps without and with the cache, and what is predicted with its space and with more."""
    page = window(at=figures.NOW).page
    shown(page, view="jobs")
    page.goto("/-/#/jobs/vision/resnet50-17")
    expect(page.locator(".facts")).to_contain_text("Predicted step249\u00a0ms")
    expect(page.locator(".facts")).to_contain_text("With 10\u00a0% more cached249\u00a0ms")


def test_a_problem_is_muted(window: Any) -> None:
    """Rule: a muted problem is named on its page alone, with the end of the mute, and counted nowhere."""
    page = window(at=figures.NOW).page
    played = shown(page, figures.in_trouble(), "problems")
    sent: list[Any] = []

    def mute(route: Any) -> None:
        sent.append((route.request.url.partition("/-/admin/")[2], route.request.post_data_json))
        for problem in played.overview["problems"]:
            problem["muted_until"] = "2026-03-02T22:30:00Z"
        route.fulfill(json={})

    page.route("**/-/admin/problems/*/mute", mute)
    press(page, "Mute redis gw-3")
    confirm(page, "Mute")
    closed(page)
    assert sent == [("problems/redis%20gw-3/mute", {"seconds": 28800})]
    expect(page.locator("#problems li").first).to_contain_text("muted until 22:30")
    expect(page).to_have_title("Problems – Larder")
    expect(page.get_by_role("button", name="Unmute redis gw-3")).to_be_visible()
    expect(page.locator("#past tbody tr")).to_have_count(1)
    page.goto("/-/#/overview")
    expect(page.locator("#no-worst")).to_be_visible()


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("nodes/gw-1", "5.21\u00a0TB of 8.00\u00a0TB"),
        ("jobs/vision/vit-large-sweep-04", "measured without the cache; 38 of 100 mini-batches, until about 14:32"),
        ("jobs/vision/resnet50-17", "Origin reads, last epoch0.00 per item; 0.00 is the least possible"),
        (
            "jobs/vision/vit-large-sweep-04",
            "epoch0.42 per itemOf all 2 jobs together0.84 per item; 0.84 is the least possible",
        ),
        ("datasets/c41e77a09b3d", "Origin reads, last epochs0.84 per item; 0.84 is the least possible"),
        ("datasets/331088130435", "148\u00a0GB of space: its jobs benefit"),
        ("buckets/datasets", "8,204 reads. Read it once"),
        ("origins/default", "142\u00a0ms"),
    ],
)
def test_one_thing_has_a_page(window: Any, address: str, words: str) -> None:
    """Rule: a node, a job, a dataset, a bucket and an origin each have an address, which shows facts and a day of figures."""
    page = window(at=figures.NOW).page
    Played(page)
    page.goto(f"/-/#/{address}")
    expect(page.locator(".thing .facts")).to_contain_text(words)
    expect(page.locator(".thing path.line").first).to_be_visible()
    expect(page.get_by_role("heading", level=1)).to_have_count(1)


def test_a_thing_that_is_not_there_says_so(window: Any) -> None:
    """Rule: the address of a job that has ended leads to a sentence, not to a blank page."""
    page = window().page
    Played(page)
    page.goto("/-/#/jobs/vision/ended")
    expect(page.locator(".thing .empty").first).to_have_text("The fleet has no job of this name now.")


OLD = (
    "overview",
    "credentials",
    "tenants",
    "origins",
    "rules",
    "warmups",
    "profiles",
    "verifications",
    "explain",
    "tokens",
    "audit",
)


def test_pages_are_in_four_groups_and_old_addresses_work(window: Any) -> None:
    """Rule: every page is in one of four groups, and each address that a tab had leads to its page."""
    page = window(at=figures.NOW).page
    shown(page)
    expect(page.locator("#views .group")).to_have_text(["Watch", "Train", "Run", "Access"])
    links = page.locator("#views .pages a").evaluate_all("(links) => links.map((link) => link.hash)")
    assert len(links) == len(set(links))
    assert {f"#/{name}" for name in OLD} <= set(links)


def test_requests_are_followed_live(window: Any) -> None:
    """Rule: the tail shows the newest request first, goes on where it was, and begins anew when its filters change."""
    page = window().page
    Played(page)
    asked: list[str] = []
    request = {
        "at": "2026-03-02T14:30:00Z", "node": "gw-1", "request_id": "R", "trace_id": "", "tenant": "vision",
        "access_key_id": "K", "address": "10.0.0.31", "method": "GET", "bucket": "datasets", "key": "a.jpg", "status": 200,
        "outcome": "MISS", "reason": "cold", "bytes": 110_213, "seconds": 0.0312,
    }  # fmt: skip

    def follow(route: Any) -> None:
        asked.append(route.request.url.partition("?")[2])
        found = [request | {"key": f"{len(asked)}.jpg"}] if len(asked) < 3 else []
        route.fulfill(json={"follower": "f" * 32, "requests": found, "dropped": 0})

    page.route("**/-/admin/requests?*", follow)
    page.goto("/-/#/requests")
    names = page.locator("#place tbody .name")
    expect(names).to_have_text(["GET datasets/2.jpg", "GET datasets/1.jpg"])
    assert asked[:2] == ["", f"follower={'f' * 32}"]
    page.get_by_label("Status").fill("5xx")
    page.get_by_label("Status").press("Enter")
    expect(names).to_have_count(0)
    assert "status=5xx" in asked


def test_no_name_of_a_node_is_broken(window: Any) -> None:
    """Rule: below a reason of Explain, a node's name and its number are in one line, also where names have hyphens."""
    page = window(viewport={"width": 1440, "height": 900}).page
    Played(page)
    misses = [
        {
            "node": f"larder-gateway-{node}",
            "outcome": "MISS",
            "reason": reason,
            "meaning": "",
            "change": "",
            "count": 412,
        }
        for node in range(5)
        for reason in ("cold", "rule")
    ]
    page.route("**/-/admin/explain/misses", lambda route: route.fulfill(json={"items": misses}))
    page.goto("/-/#/explain")
    under = page.locator(".listed tbody .under")
    expect(under).to_have_text([re.compile("larder-gateway-0 412,.*larder-gateway-4 412$")] * 2)
    lines = under.evaluate_all(
        """nodes => nodes.flatMap((node) => [...node.querySelectorAll("span")].map((part) => {
            const range = document.createRange();
            range.selectNodeContents(part);
            return range.getClientRects().length;
        }))"""
    )
    assert lines == [1] * 10
