"""docs/loader.md is executed: its blocks in order, in one namespace, against a real gateway, and what they print is compared."""

import re
import subprocess
import sys
from dataclasses import fields

import pytest

from larder import Stats
from tests.docs.blocks import ROOT, RUNNABLE, Block, blocks, prints
from tests.docs.conftest import Stage

PAGE = ROOT / "docs/loader.md"
ADDRESS = "http://127.0.0.1:9000"
END = "=== end of block"
TIMEOUT = 240

pytestmark = pytest.mark.timeout(TIMEOUT + 60)

PRELUDE = """\
import multiprocessing, os, subprocess
multiprocessing.set_start_method("fork")

def console(commands):
    \"\"\"Run commands in one shell, and keep what they export.\"\"\"
    script = "set -euo pipefail\\n" + commands + "\\nenv -0 > environment"
    subprocess.run(["bash", "-c", script], check=True)
    with open("environment", encoding="utf-8") as file:
        os.environ.update(line.split("=", 1) for line in file.read().split("\\0") if line)

"""


def typed() -> list[Block]:
    """The blocks of the page that are run, in order."""
    return [block for block in blocks(PAGE) if block.language in RUNNABLE and block.said("not run") is None]


def script(endpoint: str) -> str:
    """The page as one program; each block's lines keep their number in it, so that a traceback leads to the page."""
    parts = [f"exec({PRELUDE!r})\n"]
    for block in typed():
        text = block.text.replace(ADDRESS, endpoint)
        if block.language == "console":
            commands = "\n".join(line.removeprefix("$ ") for line in text.splitlines())
            text = f"console({commands!r})\n"
        behind = block.line - sum(part.count("\n") for part in parts) - 1
        parts += ["\n" * max(0, behind), text, f"print({END!r}, flush=True)\n"]
    return "".join(parts)


@pytest.fixture(scope="module")
def printed(stage: Stage) -> list[str]:
    """What each block that is run printed, by its place."""
    program = stage.folder / "guide.py"
    program.write_text(script(stage.endpoint), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=stage.folder,
        env=stage.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.split(f"{END}\n")


def test_every_block_of_the_guide_runs(printed: list[str]):
    """Nothing on the page fails, and only what needs a package that we do not install is left out."""
    assert len(printed) == len(typed()) + 1
    left_out = [block for block in blocks(PAGE) if block.language in RUNNABLE and block.said("not run") is not None]
    assert [block.text.split()[0] for block in left_out] == ["make", "python", "class"]


def test_what_the_guide_says_is_printed(printed: list[str]):
    """Output that the page shows is what came, where three dots stand for anything."""
    shown = 0
    for block, came in zip(typed(), printed, strict=False):
        if block.output is not None:
            shown += 1
            assert prints(block.output, came), f"{block.place}: {came}"
    assert shown >= 5


def test_every_count_is_explained():
    """Each field of the statistics stands in the guide's table."""
    page = PAGE.read_text(encoding="utf-8")
    named = {*Stats().as_dict(), *(field.name for field in fields(Stats))} - {"order"}
    assert {name for name in named if not re.search(rf"^\| [^|]*`{name}`", page, re.MULTILINE)} == set()
