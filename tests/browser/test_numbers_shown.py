"""Formatting of numbers and placement of points: the dashboard's modules, called in Chromium."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from rig.gateways import Running
from tests.browser.chromium import Played, Watched

GAP = "\u00a0"


@pytest.fixture(scope="module")
def page(browser: Browser, running: Running) -> Iterator[Page]:
    """A page whose modules can be called."""
    watched = Watched(browser, running.console)
    Played(watched.page)
    watched.page.goto("/-/")
    yield watched.page
    watched.close()


def called(page: Page, module: str, function: str, *arguments: Any) -> Any:
    """The results of a function, one for each argument; an argument that is a list is several."""
    return page.evaluate(
        """async ([module, name, all]) => {
          const found = await import(`/-/static/dashboard/${module}.js`);
          return all.map((each) => found[name](...(Array.isArray(each) ? each : [each])));
        }""",
        [module, function, list(arguments)],
    )


@pytest.mark.parametrize(
    ("function", "given", "written"),
    [
        ("bytes", [0, 999, 1000, 999_499, 999_500, 388_700_000_000_000],
         ["0 B", "999 B", "1.00 kB", "999 kB", "1.00 MB", "389 TB"]),
        ("rate", [None, 3_120_000_000], ["–", "3.12 GB/s"]),
        ("share", [None, 0, 0.00001, 0.9423, 0.99999, 1], ["–", "0 %", "0.1 %", "94.2 %", "99.9 %", "100 %"]),
        ("count", [0, 999_999, 1_234_567, 999_600_000], ["0", "999,999", "1.23 million", "1.00 billion"]),
        ("perSecond", [0, 0.04, 31.2], ["0 /s", "<0.1 /s", "31 /s"]),
        ("seconds", [0.0412, 0.251, 1.91], ["41.2 ms", "251 ms", "1.91 s"]),
        ("duration", [0.9, 59.9, 3600, 90_061], ["0 s", "59 s", "1 h 0 min", "1 d 1 h"]),
        ("short", ["6.00 GB/s", "100 %", "1.50 kB"], ["6 GB/s", "100 %", "1.5 kB"]),
    ],
)  # fmt: skip
def test_numbers_are_written_for_people(page: Page, function: str, given: list[Any], written: list[str]) -> None:
    """Rule: three significant digits, decimal units that stay with the number; only all is 100 % and nothing 0 %."""
    assert [text.replace(GAP, " ") for text in called(page, "format", function, *given)] == written


def test_a_size_is_written_as_its_field_takes_it(page: Page) -> None:
    """Rule: any size of the API can be read back, without rounding."""
    sizes = [0, 1536, 40_000_000_000, 10**18]
    written = called(page, "format", "exactSize", *sizes)
    assert written[:3] == ["0", "1536", "40GB"]
    assert called(page, "fields", "parseSize", *written) == sizes


def test_axes_end_at_round_numbers(page: Page) -> None:
    """Rule: the top of an axis is 1, 2 or 5 times a power of ten, and no value exceeds it."""
    assert called(page, "scales", "roundTop", 0, 0.3, 1, 3.2e9, 5e9, 5.1e9) == [1, 0.5, 1, 5e9, 5e9, 1e10]


def test_a_hole_in_the_samples_is_a_hole_in_the_line(page: Page) -> None:
    """Rule: points without a value, or further apart than the widest step, are not joined."""
    points = [{"time": time, "value": value} for time, value in ((0, 1), (1, 2), (2, None), (3, 3), (9, 4))]
    found = page.evaluate(
        """async (points) => {
          const { runs } = await import("/-/static/dashboard/scales.js");
          return runs(points, (point) => point.value, 2.5);
        }""",
        points,
    )
    assert found == [[[0, 1], [1, 2]], [[3, 3]], [[9, 4]]]


def test_the_ratio_of_hours_is_one_of_bytes(page: Page) -> None:
    """Rule: over a span of time the ratio is of all its bytes, so an idle minute counts as little as it read."""
    busy = {"hit_ratio": 0.9, "cache_bytes_per_second": 900, "origin_bytes_per_second": 100}
    idle = {"hit_ratio": 0, "cache_bytes_per_second": 0, "origin_bytes_per_second": 1}
    quiet = {"hit_ratio": None, "cache_bytes_per_second": 0, "origin_bytes_per_second": 0}
    assert called(page, "scales", "overallRatio", [[busy, idle, quiet]]) == [pytest.approx(900 / 1001)]
    assert called(page, "scales", "overallRatio", [[quiet]], [[]]) == [None, None]


def test_tables_are_thinned_from_the_newest(page: Page) -> None:
    """Rule: a chart's table has a bounded number of rows, evenly spaced, with the newest."""
    assert called(page, "scales", "thinned", [list(range(10)), 4], [[1, 2], 4]) == [[0, 3, 6, 9], [1, 2]]


def test_the_nearest_point_is_pointed_at(page: Page) -> None:
    """Rule: where the pointer is, the point that is nearest in time is read out."""
    points = [{"time": time} for time in (0, 10, 20)]
    found = called(page, "scales", "nearest", [points, -5], [points, 4], [points, 16], [points, 99])
    assert [point["time"] for point in found] == [0, 0, 20, 20]


def test_a_limit_of_less_than_one_request_stays_a_limit(page: Page) -> None:
    """Rule: a field for requests takes fractions as they are: 0 is no limit."""
    taken = page.evaluate(
        """async (texts) => {
          const { makeField } = await import("/-/static/dashboard/fields.js");
          const field = makeField({ name: "rate", label: "Rate", kind: "number" });
          return texts.map((text) => {
            field.input.value = text;
            return field.take().rate;
          });
        }""",
        ["0.4", "1.5", "2k", ""],
    )
    assert taken == [0.4, 1.5, 2000, 0]
    assert called(page, "format", "exactCount", 0.4, 1.5, 2000) == ["0.4", "1.5", "2,000"]
