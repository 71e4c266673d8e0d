"""A gateway and a Chromium for all tests of the pages, a window for each."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser

from rig.gateways import Running, Settings, gateway
from tests.browser.chromium import READ_TOKEN, TOKEN, Watched, Windows, started


class _Chromium:
    """The Chromium of this machine, from the first test that needs it to the last one of this folder in a row.

    It does not stay for the session: Playwright keeps an event loop running in this thread, in which no other can run.
    """

    def __init__(self) -> None:
        self._running = ExitStack()
        self._browser: Browser | None = None

    def browser(self) -> Browser:
        """Start it, unless it runs."""
        if self._browser is None:
            self._browser = self._running.enter_context(started())
        return self._browser

    def close(self) -> None:
        """End it."""
        self._browser = None
        self._running.close()


_CHROMIUM = _Chromium()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Generator[None, None, None]:
    """Close Chromium before a test of another folder."""
    try:
        return (yield)
    finally:
        if nextitem is None or nextitem.path.parent != Path(__file__).parent:
            _CHROMIUM.close()


@pytest.fixture(scope="session")
def _closed_at_last() -> Iterator[None]:
    """A run that stops at a failure has not announced that test as its last."""
    yield
    _CHROMIUM.close()


@pytest.fixture(scope="module")
def browser(_closed_at_last: None) -> Browser:
    """The Chromium of this machine."""
    return _CHROMIUM.browser()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose dashboard has a token, and whose origin is not there."""
    home = tmp_path_factory.mktemp("dashboard")
    extra = f'[admin]\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'
    with gateway(Settings("http://127.0.0.1:9", home / "cache", extra=extra), home) as ready:
        yield ready


Open = Callable[..., Watched]


@pytest.fixture(scope="module")
def windows(browser: Browser) -> Iterator[Windows]:
    """The windows of the module's tests."""
    windows = Windows(browser)
    yield windows
    windows.end()


@pytest.fixture
def window(windows: Windows, running: Running) -> Iterator[Open]:
    """Opens windows on the gateway; closing them at the end fails if anything went wrong in one."""
    opened: list[Watched] = []

    def open_one(home: str = "", **options: Any) -> Watched:
        opened.append(windows.open(home or running.console, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        windows.close(each)
