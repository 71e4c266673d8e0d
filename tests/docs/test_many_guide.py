"""docs/many.md is executed against a real gateway."""

import pytest

from tests.docs.blocks import ROOT, prints
from tests.docs.conftest import Stage
from tests.docs.guide import left_out, run, typed

PAGE = ROOT / "docs/many.md"
TIMEOUT = 120
REGISTER = """\
import fsspec
fsspec.register_implementation("larder", "larder.filesystem.LarderFileSystem", clobber=True)
"""

pytestmark = pytest.mark.timeout(TIMEOUT + 60)


def test_the_page_runs(stage: Stage):
    """Rule: every block prints what the page says. The environment's client may be installed without its entry points."""
    (stage.folder / "sitecustomize.py").write_text(REGISTER, encoding="utf-8")
    printed = run(PAGE, stage, TIMEOUT, PYTHONPATH=str(stage.folder))
    assert len(printed) == len(typed(PAGE)) + 1
    assert left_out(PAGE) == []
    for block, came in zip(typed(PAGE), printed, strict=False):
        assert block.output is None or prints(block.output, came), f"{block.place}: {came}"
