"""A real Chromium for tests, and what every page of it is watched for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route, sync_playwright

from tests.browser import figures
from tests.browser.linked import FIRST, answer

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one has no windows around its pages, which take half of the processor time of the others."""
FLAGS = (
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
)
PATIENCE = 60_000
"""Milliseconds that an element may take to appear; generous, because the machine may be busy."""
TOKEN = "a-token-for-the-tests-of-the-dashboard"
READ_TOKEN = "another-token-that-may-only-look"

Document = dict[str, Any]


@contextmanager
def started() -> Iterator[Browser]:
    """The Chromium of this machine, headless, with a new profile."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    assert program is not None, "the tests of the pages need Chromium: make system-packages"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """One window, and what went wrong in it: messages of errors, and requests to other places than the gateway.

    ``apart`` loads the modules of the dashboard one by one from the gateway, as users do. A test that imports one of them, to
    share its state with the page, needs that.
    """

    def __init__(self, browser: Browser, home: str, *, apart: bool = False, **options: Any) -> None:
        self.context: BrowserContext = browser.new_context(base_url=home, timezone_id="UTC", **options)
        self.context.set_default_timeout(PATIENCE)
        if not apart:
            self.context.route(f"**/static/dashboard/{FIRST}", answer)
        self.page: Page = self.context.new_page()
        self.errors: list[str] = []
        self.strange: list[str] = []
        self.asked: list[str] = []
        self._host = urlsplit(home).netloc
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", self._asked)

    def _said(self, message: ConsoleMessage) -> None:
        # Some tests make requests fail on purpose; Chromium reports those in its own words.
        if message.type == "error" and "Failed to load resource" not in message.text:
            self.errors.append(message.text)

    def _asked(self, request: Request) -> None:
        address = urlsplit(request.url)
        self.asked.append(address.path)
        if address.scheme in ("http", "https", "ws", "wss") and address.netloc != self._host:
            self.strange.append(request.url)

    def close(self) -> None:
        """Close the window. Raises AssertionError if anything went wrong in it."""
        # A pending answer to the page would fail once the page is closed.
        self.page.unroute_all(behavior="ignoreErrors")
        self.context.close()
        assert self.errors == []
        assert self.strange == []


class Played:
    """Answers of a gateway as a test sets them: ``overview`` and ``history`` are the next answers."""

    def __init__(self, page: Page, overview: Document | None = None) -> None:
        self.overview: Document = figures.AT_WORK if overview is None else overview
        self.history: Callable[[int], Document] = figures.history
        self.refusal: tuple[int, Document] | None = None
        self.past: list[Document] = figures.PAST
        self.gone = False
        self.overviews = 0
        self.histories: list[int] = []
        page.route("**/-/admin/overview", self._overview)
        page.route("**/-/admin/overview/history*", self._history)
        page.route("**/-/admin/problems/past*", lambda route: self._answer(route, {"items": self.past, "next": None}))
        page.route("**/-/admin/trends/**", self._trend)

    def _overview(self, route: Route) -> None:
        self.overviews += 1
        self._answer(route, self.overview)

    def _history(self, route: Route) -> None:
        hours = int(route.request.url.rpartition("=")[2])
        self.histories.append(hours)
        self._answer(route, self.history(hours))

    def _trend(self, route: Route) -> None:
        kind, _, name = urlsplit(route.request.url).path.partition("/trends/")[2].partition("/")
        self._answer(route, figures.trend(kind, name))

    def _answer(self, route: Route, document: Document) -> None:
        if self.gone:
            route.abort("connectionrefused")
        elif self.refusal is not None:
            status, problem = self.refusal
            route.fulfill(status=status, content_type="application/problem+json", body=json.dumps(problem))
        else:
            route.fulfill(json=document)
