"""A gateway for all tests of the pages, a Chromium for each module, a window for each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.browser.chromium import READ_TOKEN, TOKEN, Watched, started
from tests.gateways import Running, Settings, gateway


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The Chromium of this machine."""
    with started() as chromium:
        yield chromium


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A gateway whose dashboard has a token, and whose origin is not there."""
    home = tmp_path_factory.mktemp("dashboard")
    extra = f'[admin]\ntoken = "{TOKEN}"\nread_token = "{READ_TOKEN}"\n'
    with gateway(Settings("http://127.0.0.1:9", home / "cache", extra=extra), home) as ready:
        yield ready


Open = Callable[..., Watched]


@pytest.fixture
def window(browser: Browser, running: Running) -> Iterator[Open]:
    """Opens windows on the gateway; closing them at the end fails if anything went wrong in one."""
    opened: list[Watched] = []

    def open_one(home: str = "", **options: Any) -> Watched:
        opened.append(Watched(browser, home or running.endpoint, **options))
        return opened[-1]

    yield open_one
    for each in opened:
        each.close()
