"""The blocks of docs/loader.md run in order, in one namespace, against a real gateway; their output is compared with the page."""

import re
from dataclasses import fields

import pytest

from larder import Stats
from tests.docs.blocks import ROOT, prints
from tests.docs.conftest import Stage
from tests.docs.guide import left_out, run, typed

PAGE = ROOT / "docs/loader.md"
TIMEOUT = 240

pytestmark = pytest.mark.timeout(TIMEOUT + 60)


@pytest.fixture(scope="module")
def printed(stage: Stage) -> list[str]:
    """Returns the output of each block, by its place."""
    return run(PAGE, stage, TIMEOUT)


def test_every_block_of_the_guide_runs(printed: list[str]):
    """Every block runs, except those that other tests run."""
    assert len(printed) == len(typed(PAGE)) + 1
    assert left_out(PAGE) == ["make", "python"]


def test_what_the_guide_says_is_printed(printed: list[str]):
    """The output matches the page's, where three dots match anything."""
    shown = 0
    for block, came in zip(typed(PAGE), printed, strict=False):
        if block.output is not None:
            shown += 1
            assert prints(block.output, came), f"{block.place}: {came}"
    assert shown >= 5


def test_every_count_is_explained():
    """Each field of the statistics stands in the guide's table."""
    page = PAGE.read_text(encoding="utf-8")
    named = {*Stats().as_dict(), *(field.name for field in fields(Stats))} - {"order"}
    assert {name for name in named if not re.search(rf"^\| [^|]*`{name}`", page, re.MULTILINE)} == set()
