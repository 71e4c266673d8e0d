"""docs/frameworks.md is executed with the versions that it names, against a real gateway."""

from importlib.metadata import version

import pytest

from tests.docs.blocks import ROOT, prints
from tests.docs.conftest import Stage
from tests.docs.guide import left_out, run, typed

PAGE = ROOT / "docs/frameworks.md"
TIMEOUT = 240

pytestmark = pytest.mark.timeout(TIMEOUT + 60)


@pytest.fixture(scope="module")
def printed(stage: Stage) -> list[str]:
    """Returns the output of each block, by its place; packages may not download anything."""
    return run(PAGE, stage, TIMEOUT, HF_HUB_OFFLINE="1")


def test_every_recipe_runs(printed: list[str]):
    """Every block runs, except those for the large packages, and its output matches the page."""
    assert len(printed) == len(typed(PAGE)) + 1
    assert left_out(PAGE) == ["import", "class", "from", "def"]
    for block, came in zip(typed(PAGE), printed, strict=False):
        assert block.output is None or prints(block.output, came), f"{block.place}: {came}"


def test_the_versions_are_those_that_are_named():
    """Rule: a recipe says with which versions it works."""
    for first in ("| s3fs", "| lightning"):
        row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(first))
        names, versions, _ = (cell.strip().split(", ") for cell in row.strip("|").split("|"))
        assert {name: version(name) for name in names} == dict(zip(names, versions, strict=True))
