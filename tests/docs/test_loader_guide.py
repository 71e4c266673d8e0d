"""The blocks of the loader's pages run in order, a page in one namespace, against a real gateway; their output is compared.

The pages are docs/loader.md, docs/loader-resume.md and docs/loader-jobs.md.
"""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from larder import Stats
from tests.docs.blocks import ROOT, prints
from tests.docs.conftest import Stage
from tests.docs.guide import left_out, run, typed

PAGE = ROOT / "docs/loader.md"
PAGES = (PAGE, ROOT / "docs/loader-resume.md", ROOT / "docs/loader-jobs.md")
LEFT_OUT = {PAGE: ["make", "python"], PAGES[1]: ["before"]}
TIMEOUT = 240

pytestmark = pytest.mark.timeout(TIMEOUT + 60)


@pytest.fixture(scope="module", params=PAGES, ids=lambda page: page.stem)
def page(request: pytest.FixtureRequest) -> Path:
    """A page of the guide."""
    return request.param


@pytest.fixture(scope="module")
def printed(page: Path, stage: Stage) -> list[str]:
    """Returns the output of each block, by its place."""
    return run(page, stage, TIMEOUT)


def test_every_block_of_the_guide_runs(page: Path, printed: list[str]):
    """Every block runs, except those that other tests run."""
    assert len(printed) == len(typed(page)) + 1
    assert left_out(page) == LEFT_OUT.get(page, [])


def test_what_the_guide_says_is_printed(page: Path, printed: list[str]):
    """The output matches the page's, where three dots match anything."""
    shown = 0
    for block, came in zip(typed(page), printed, strict=False):
        if block.output is not None:
            shown += 1
            assert prints(block.output, came), f"{block.place}: {came}"
    assert shown >= 1


def test_every_count_is_explained():
    """Each field of the statistics stands in the guide's table."""
    page = PAGE.read_text(encoding="utf-8")
    named = {*Stats().as_dict(), *(field.name for field in fields(Stats))} - {"order", "epochs"}
    assert {name for name in named if not re.search(rf"^\| [^|]*`{name}`", page, re.MULTILINE)} == set()
