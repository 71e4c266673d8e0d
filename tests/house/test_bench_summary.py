"""The summary of `make bench`: regressions, missed budgets, the closing lines."""

from dataclasses import replace
from statistics import stdev

import pytest

from lab.benchmarks import __main__ as bench
from lab.benchmarks import report
from lab.benchmarks.report import Ratio
from lab.pages import rendering

BEFORE = Ratio("CPU of a read: Larder / nginx", 2.0, 2.5, deviation=0.1)
RATE = Ratio("items per second: Larder / files", 0.8, 0.5, at_least=True, deviation=0.1)


@pytest.fixture
def results(tmp_path, monkeypatch):
    """A folder for results instead of the repository's."""
    monkeypatch.setattr(rendering, "RESULTS", tmp_path)
    return tmp_path


def write(*ratios: Ratio, kernel: str = "a") -> None:
    """The result of one more run of a benchmark."""
    nothing: dict[str, object] = {"routes": {}, "budgets": {}, "goals": {}}
    report.write("routes", nothing, {"measured": "now", "kernel": kernel}, ratios)


@pytest.mark.parametrize(
    ("before", "now", "worse"),
    [
        (BEFORE, replace(BEFORE, value=2.25), True),
        (BEFORE, replace(BEFORE, value=2.15), False),
        (BEFORE, replace(BEFORE, value=1.0), False),
        (RATE, replace(RATE, value=0.55), True),
        (RATE, replace(RATE, value=0.65), False),
        (RATE, replace(RATE, value=1.5), False),
    ],
)
def test_worse_is_worse_by_more_than_both_deviations(before, now, worse):
    """A figure is a regression when it is worse by more than it varies from round to round in both runs together."""
    assert now.worse_than(before) is worse


def test_a_count_that_rises_is_worse():
    """A count has no deviation: one call more is a regression."""
    calls = Ratio("calls of a hit", 40, 40, deviation=0.0)
    assert replace(calls, value=41).worse_than(calls)
    assert not calls.worse_than(calls)


@pytest.mark.parametrize(("value", "worse"), [(2.3, True), (2.1, False)])
def test_without_a_deviation_a_tenth_is_allowed(value, worse):
    """A single measurement says nothing about how much it varies, so a tenth is taken."""
    assert Ratio("MB", value, 3.0).worse_than(replace(BEFORE, deviation=None)) is worse


def test_a_comparison_varies_as_its_rounds():
    """The deviation of a ratio is that of the rounds' ratios, because other load on the machine affects both sides of a round."""
    found = Ratio.compared("a / b", [2.0, 8.0, 3.0], [1.0, 4.0, 1.0], 2.5)
    assert (found.value, found.deviation) == (3.0, stdev([2.0, 2.0, 3.0]))


def test_the_summary_has_the_run_before_beside_the_new_one(results):
    """A regression is visible on the page of all budgets, with the previous figure."""
    write(BEFORE, RATE)
    write(replace(BEFORE, value=2.4), RATE)
    rows = [line for line in (results / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert rows == [
        f"| [{BEFORE.what}](routes.md) | 2.40 ± 0.10 ≤ 2.5 | 2.00 (**worse now**) | - |",
        f"| [{RATE.what}](routes.md) | 0.80 ± 0.10 ≥ 0.5 | 0.80 | - |",
    ]


def test_the_figure_of_another_machine_stays_beside(results):
    """Each machine is compared with its own run before, and the last figure of the other stays on the summary and on the page."""
    for value, kernel in ((2.0, "a"), (3.0, "b"), (2.1, "a"), (2.2, "a")):
        write(replace(BEFORE, value=value), kernel=kernel)
    rows = [line for line in (results / "README.md").read_text().splitlines() if line.startswith("| [")]
    assert rows == [f"| [{BEFORE.what}](routes.md) | 2.20 ± 0.10 ≤ 2.5 | 2.10 | 3.00 ± 0.10 **>** 2.5 |"]
    assert f"- on b, now: {BEFORE.what}: 3.00\n" in (results / "routes.md").read_text()
    write(replace(BEFORE, value=2.9), kernel="b")
    [figure] = report.judged("routes")
    assert (figure.before.value, figure.elsewhere.value) == (3.0, 2.2)


def test_the_end_names_missed_budgets_and_regressions(results):
    """The closing lines list missed budgets and regressions."""
    write(BEFORE)
    write(replace(BEFORE, value=2.7), RATE)
    assert bench.closing({"routes": 90.0}) == [
        "1 benchmarks took 1.5 minutes: routes 90 s",
        "1 of 2 budgets are held, these are not:",
        "  routes: CPU of a read: Larder / nginx: 2.70 ± 0.10 > 2.5",
        "worse than in the run before:",
        "  routes: CPU of a read: Larder / nginx: 2.00, now 2.70",
    ]


def test_results_that_were_published_are_read():
    """The summary in the repository follows from the results in the repository."""
    assert rendering.RESULTS.joinpath("README.md").read_text() == report.summary()
