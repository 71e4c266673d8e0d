"""A page as one program: its blocks in order, in one namespace, against a gateway of the test."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.docs.blocks import RUNNABLE, Block, blocks
from tests.docs.conftest import Stage

ADDRESS = "http://127.0.0.1:9000"
END = "=== end of block"

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


def typed(page: Path) -> list[Block]:
    """The blocks of a page that are run, in order."""
    return [block for block in blocks(page) if block.language in RUNNABLE and block.said("not run") is None]


def left_out(page: Path) -> list[str]:
    """The first word of each block that is not run."""
    skipped = [block for block in blocks(page) if block.language in RUNNABLE and block.said("not run") is not None]
    return [block.text.split()[0] for block in skipped]


def script(page: Path, endpoint: str) -> str:
    """The page as one program; each block's lines keep their number in it, so that a traceback leads to the page."""
    parts = [f"exec({PRELUDE!r})\n"]
    for block in typed(page):
        text = block.text.replace(ADDRESS, endpoint)
        if block.language == "console":
            commands = "\n".join(line.removeprefix("$ ") for line in text.splitlines())
            text = f"console({commands!r})\n"
        behind = block.line - sum(part.count("\n") for part in parts) - 1
        parts += ["\n" * max(0, behind), text, f"print({END!r}, flush=True)\n"]
    return "".join(parts)


def run(page: Path, stage: Stage, timeout: float, **environment: str) -> list[str]:
    """Run a page's blocks and return the output of each."""
    program = stage.folder / "guide.py"
    program.write_text(script(page, stage.endpoint), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(program)],
        cwd=stage.folder,
        env=stage.environment | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout.split(f"{END}\n")
