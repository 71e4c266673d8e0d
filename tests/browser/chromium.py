"""A real Chromium for tests, and what every page of it is watched for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import urlsplit

from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request, Route, sync_playwright

from tests.browser import figures
from tests.browser.linked import FIRST, answer

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first one has no windows around its pages, which take half of the processor time of the others."""
FLAGS = (
    "--disable-gpu",
    "--in-process-gpu",
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

_FORGET = """
() => {
  localStorage.clear();
  sessionStorage.clear();
  return [Function.prototype.toString.call(Date).includes("[native code]"), Date.now()];
}
"""

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
    share its state with the page, needs that. With ``at`` its clock always shows that time.
    """

    def __init__(
        self, browser: Browser, home: str, *, apart: bool = False, at: datetime | None = None, **options: Any
    ) -> None:
        self.context: BrowserContext = browser.new_context(base_url=home, timezone_id="UTC", **options)
        self.context.set_default_timeout(PATIENCE)
        if not apart:
            self.context.route(f"**/static/dashboard/{FIRST}", answer)
        self.page: Page = self.context.new_page()
        if at is not None:
            self.page.clock.set_fixed_time(at)
        self._at = None if at is None else at.timestamp() * 1000
        self._size = self.page.viewport_size
        self._scheme = options.get("color_scheme", "light")
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
        self._went_well()

    def leave(self) -> bool:
        """Leave its page, and make the window as it was at first; False if it cannot be. Raises AssertionError as ``close``."""
        self.page.unroute_all(behavior="ignoreErrors")
        self._went_well()
        if len(self.context.pages) > 1:
            return False
        if urlsplit(self.page.url).netloc == self._host:
            real, now = self.page.evaluate(_FORGET)
            assert real if self._at is None else now == self._at, (
                "a window whose clock is set is opened with at, or once"
            )
        self.page.goto("about:blank")
        if self.page.viewport_size != self._size and self._size is not None:
            self.page.set_viewport_size(self._size)
        self.page.emulate_media(color_scheme=self._scheme)
        for noted in (self.errors, self.strange, self.asked):
            noted.clear()
        return True

    def _went_well(self) -> None:
        assert self.errors == []
        assert self.strange == []


class Windows:
    """Windows that are opened again: a new one is a new process of Chromium, which takes a third of the cost of a short test.

    One that is opened ``once`` is not used again. What a test installs in it for all its pages to come, as a clock that it moves,
    cannot be removed.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._kinds: dict[Watched, str] = {}
        self._left: list[Watched] = []

    def open(self, home: str, *, once: bool = False, **options: Any) -> Watched:
        """A window with these options of ``Watched``."""
        kind = "" if once else f"{home} {sorted(options.items())}"
        for window in self._left:
            if self._kinds[window] == kind:
                self._left.remove(window)
                return window
        opened = Watched(self._browser, home, **options)
        self._kinds[opened] = kind
        return opened

    def close(self, window: Watched) -> None:
        """Close a window, or keep it for later. Raises AssertionError if anything went wrong in it."""
        if self._kinds[window] and window.leave():
            self._left.append(window)
        else:
            window.close()

    def end(self) -> None:
        """Close those that are left."""
        for window in self._left:
            window.close()


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
