"""The blocks of docs/importance.md run in order, in one program without a gateway; their output is compared with the page."""

import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import ROOT, RUNNABLE, blocks, prints

PAGE = ROOT / "docs/importance.md"
END = "=== end of block"
TIMEOUT = 240


def test_every_block_of_the_guide_runs(tmp_path: Path) -> None:
    """Rule: the page is a program that prints the shown output."""
    shown = [block for block in blocks(PAGE) if block.language in RUNNABLE and block.said("not run") is None]
    program = tmp_path / "guide.py"
    program.write_text("\n".join(f"{block.text}\nprint({END!r})" for block in shown), encoding="utf-8")
    command = [sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=TIMEOUT, check=False)
    assert done.returncode == 0, done.stderr
    printed = done.stdout.split(f"{END}\n")
    for block, came in zip(shown, printed, strict=False):
        assert block.output is None or prints(block.output, came), f"{block.place}: {came}"
    assert len(printed) == len(shown) + 1 > 2
